"""Scorer: many batches of one shape, with nothing to decide between them; on a GPU one CUDA graph, replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from fase_gpu import ops
from fase_gpu.backends import LARGEST_MATRIX, choose_backend, torch_device
from fase_gpu.config import CLASS_VARIANTS, NEURAL_RANGE, FaseConfig
from fase_gpu.errors import InputError
from fase_gpu.inputs import FLOAT_TYPES, as_tensor, counts, offset_bounds
from fase_gpu.results import FaseResult, RunInfo

_WARM_UPS: Final = 2


class Scorer:
    """Scores batches of the same shape: T tasks of up to N samples of d dimensions.

    tasks, samples, dimensions   T, N, d
    dtype                        of the embeddings
    device                       "cuda", "cuda:1", "cpu", ...; None: a GPU where there is one
    config                       of a variant that needs no classes
    rows                         S, for packed batches [S, d] with offsets [T + 1]; None: padded ones [T, N, d]
    backend                      as in score_embeddings

    On a GPU all launches of a batch are captured once, at the first call, and replayed: a call costs one launch, and
    nothing waits for the device; one stream at a time. Embeddings are copied to `x`, unless they were written there.
    Raises InputError for what cannot be, BackendError for a backend that cannot run.
    """

    x: torch.Tensor
    """[T, N, d] or [S, d], where the embeddings are read"""

    def __init__(
        self,
        tasks: int,
        samples: int,
        dimensions: int,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device | None = None,
        config: FaseConfig | None = None,
        *,
        rows: int | None = None,
        backend: str = "auto",
    ) -> None:
        for name, number in (("tasks", tasks), ("samples", samples), ("dimensions", dimensions), ("rows", rows)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise InputError(f"{name}: expected an integer of at least 1, got {number!r}")
        if dtype not in FLOAT_TYPES:
            raise InputError(f"dtype: expected a float type, got {dtype}")
        config = FaseConfig.of(config)
        if config.variant in CLASS_VARIANTS:
            raise InputError(f'variant: "{config.variant}" needs classes; use score_embeddings')
        if config.multiscale_range is None:
            config = replace(config, multiscale_range=NEURAL_RANGE)
        self.device = torch_device(device)
        self.backend = choose_backend(backend, self.device, config)
        if self.device.type == "cuda" and (self.backend != "triton" or samples > LARGEST_MATRIX):
            raise InputError(
                f"samples: a graph takes up to {LARGEST_MATRIX} and what the triton backend can do, got {samples} and "
                f'backend "{self.backend}"; use score_embeddings'
            )
        self.config, self.tasks, self.samples = config, tasks, samples
        self.packed = rows is not None
        shape = (tasks, samples, dimensions) if rows is None else (rows, dimensions)
        with torch.inference_mode(False):
            self.x = torch.zeros(shape, dtype=dtype, device=self.device)
        self._start = torch.arange(tasks, device=self.device) * (0 if self.packed else samples)
        self._count = torch.full_like(self._start, 0 if self.packed else samples)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._scores: dict[str, torch.Tensor] = {}

    def __call__(self, x: Any = None, n_samples: Any = None, offsets: Any = None) -> FaseResult:
        """Score a batch. On a GPU the tensors of the result are overwritten by the next call.

        x           [T, N, d] or [S, d], a tensor, a NumPy array or anything with DLPack, moved and converted as
                    Tensor.copy_ does; None: what self.x holds
        n_samples   [T] integers from 0 to N, for a padded batch; None: every task has N
        offsets     [T + 1] integers from 0 to at most S, none below the one before, for a packed batch

        Sizes that are on a GPU are not checked: a task of more than N samples gets the status TOO_MANY. Those that are
        not are, and to copy them to a GPU waits for it.
        """
        if x is not None and x is not self.x:
            if isinstance(x, (list, tuple)):
                raise InputError(f"x: expected one tensor or array of shape {tuple(self.x.shape)}, got a list")
            given = as_tensor(x, "x")
            if given.shape != self.x.shape:
                raise InputError(f"x: expected shape {tuple(self.x.shape)}, got {tuple(given.shape)}")
            self.x.copy_(given)
        if self.packed:
            if offsets is None or n_samples is not None:
                raise InputError("offsets: a packed batch needs offsets, and no n_samples")
            if not _on_gpu(offsets):
                offsets = torch.from_numpy(offset_bounds(offsets, self.x.shape[0], all_rows=False))
            bounds = self._sizes("offsets", offsets, self.tasks + 1)
            self._start.copy_(bounds[:-1])
            self._count.copy_(bounds.diff())
        elif offsets is not None:
            raise InputError("offsets: only for a Scorer that was made with rows=S")
        elif n_samples is None:
            self._count.fill_(self.samples)
        else:
            if not _on_gpu(n_samples):
                n_samples = torch.from_numpy(counts(n_samples, self.tasks, self.samples))
            self._count.copy_(self._sizes("n_samples", n_samples, self.tasks))
        info = RunInfo(backend=self.backend, samples=self.x.numel() // self.x.shape[-1])
        if self.device.type == "cuda":
            self._replay()
            return FaseResult.of_columns(self._scores, self._count, self.config, info)
        info = replace(info, samples=int(self._count.sum()))
        return FaseResult.of_columns(self._run(), self._count.clone(), self.config, info)

    def _sizes(self, name: str, given: torch.Tensor, length: int) -> torch.Tensor:
        if given.is_floating_point() or given.is_complex() or given.dtype == torch.bool:
            raise InputError(f"{name}: expected integers, got dtype {str(given.dtype).removeprefix('torch.')}")
        if given.shape != (length,):
            raise InputError(f"{name}: expected shape ({length},), got {tuple(given.shape)}")
        return given.to(self.device, torch.int64)

    def _run(self) -> dict[str, torch.Tensor]:
        rows = self.x.view(-1, self.x.shape[-1])
        return ops.score(rows, self._start, self._count, self.samples, self.config, self.backend)

    def _replay(self) -> None:
        with torch.cuda.device(self.device):
            if self._graph is None:
                # Compiles and allocates on a stream of its own, as capturing asks for.
                side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(_WARM_UPS):
                        self._run()
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self._scores = self._run()
                self._graph = graph
            self._graph.replay()


def _on_gpu(sizes: Any) -> bool:
    return isinstance(sizes, torch.Tensor) and sizes.is_cuda
