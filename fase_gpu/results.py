"""The records that pass between the stages and out of the pipeline."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from fase_gpu.config import FaseConfig
from fase_gpu.errors import InputError, MissingExtraError, TaskStatusError

if TYPE_CHECKING:
    import pandas
    import pyarrow


SCORES: Final = ("entropy", "bits", "multiscale", "eps", "mode", "mst_mean", "pdm_mean", "margin")
"""The floating-point columns of a result, NaN where a task has no score."""
SWEPT_SCORES: Final = ("entropy", "bits", "eps", "margin")
"""Those with an A axis where there are A alphas."""
_HAS_ALPHAS: Final = (*SWEPT_SCORES, "n_clusters", "labels")


class Status(enum.IntEnum):
    """Why a task has a score or has none. Bad tasks are statuses, not errors (SPEC 6)."""

    OK = 0
    EMPTY = 1
    SINGLE = 2
    NOT_FINITE = 3
    ZERO_VECTOR = 4
    NOT_A_DISTANCE = 5
    """score_distances only: an entry is negative or the matrix is not symmetric."""
    TOO_MANY = 6
    """More samples than max_samples, where the numbers of samples are known on the device only (ops.score, Scorer)."""


@dataclass(frozen=True)
class RunInfo:
    """What a run read and how long it took, for the printed table and the file's metadata."""

    backend: str
    encoder: str | None = None
    normalize_code: bool | None = None
    """Whether comments and docstrings were stripped before a neural encoder; None without one"""
    samples: int = 0
    distinct_texts: int | None = None
    truncated_samples: int | None = None
    """None without a neural encoder"""
    unparsable_samples: int | None = None
    """None where nothing had to parse the samples"""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time per stage, in order: "load", "encode", "classes", "score" as they occur."""


@dataclass(frozen=True, eq=False, repr=False)
class FaseResult:
    """Scores of T tasks, on the device of the input.

    With a sequence of A alphas (or radii), the fields marked [T] or [T, A] have the A axis. float32 from the torch
    backend and float64 from the reference backend.

    entropy      normalised entropy in [0, 1], NaN where status is not OK     [T] or [T, A]
    bits         entropy in bits, without the division by log2 n              [T] or [T, A]
    multiscale   entropy averaged over log radius, needs no alpha             [T]
    eps          radius used                                                  [T] or [T, A]
    mode         mode of the MST weights                                      [T]
    mst_mean     mean MST weight                                              [T]
    pdm_mean     mean of all n*n distances, the zero diagonal included        [T]
    margin       min over MST edges of |w - eps| / eps                        [T] or [T, A]
    n_samples    int64                                                        [T]
    n_clusters   int32                                                        [T] or [T, A]
    status       int8, see Status                                             [T]
    labels       int32 class of each sample, -1 in padding and in bad tasks   [T, N] or [T, A, N]; None if left out
    """

    entropy: torch.Tensor
    bits: torch.Tensor
    multiscale: torch.Tensor
    eps: torch.Tensor
    mode: torch.Tensor
    mst_mean: torch.Tensor
    pdm_mean: torch.Tensor
    margin: torch.Tensor
    n_samples: torch.Tensor
    n_clusters: torch.Tensor
    status: torch.Tensor
    labels: torch.Tensor | None
    config: FaseConfig
    info: RunInfo

    @classmethod
    def of_columns(
        cls, columns: Mapping[str, torch.Tensor], n_samples: torch.Tensor, config: FaseConfig, info: RunInfo
    ) -> FaseResult:
        """From an executor's columns. Swept ones have an A axis, which goes where the config has a single value."""
        found: dict[str, Any] = {"labels": None, **columns}
        if not config.swept:
            found |= {name: column[:, 0] for name, column in columns.items() if name in _HAS_ALPHAS}
        return cls(**found, n_samples=n_samples, config=config, info=info)

    def __repr__(self) -> str:
        without = int((self.status != Status.OK).sum())
        return (
            f"FaseResult({len(self)} tasks, {without} of them without a score, entropy {list(self.entropy.shape)}, "
            f"variant={self.config.variant!r}, backend={self.info.backend!r}, device={str(self.status.device)!r})"
        )

    def __len__(self) -> int:
        return int(self.status.shape[0])

    def raise_for_status(self, task_ids: list[str] | None = None) -> None:
        """Raise TaskStatusError naming the first tasks that have no score; else do nothing."""
        if task_ids is not None and len(task_ids) != len(self):
            raise InputError(f"task_ids: expected one for each of {len(self)} tasks, got {len(task_ids)}")
        bad = torch.nonzero(self.status != Status.OK).flatten().tolist()
        if bad:
            status = self.status.tolist()
            shown = [f"{task_ids[i] if task_ids else i} ({Status(status[i]).name})" for i in bad[:5]]
            more = f" and {len(bad) - 5} more" if len(bad) > 5 else ""
            raise TaskStatusError(f"{len(bad)} of {len(self)} tasks have no score: {', '.join(shown)}{more}")

    def to_dict(self) -> dict[str, list[Any]]:
        """Columns of plain Python values, a row per task; labels are cut to the task's own samples; status by name.

        NaN stays NaN. With A alphas, the [T, A] fields are lists.
        """
        n = self.n_samples.tolist()
        names = (*SCORES, "n_samples", "n_clusters")
        columns: dict[str, list[Any]] = {name: getattr(self, name).tolist() for name in names}
        columns["status"] = [Status(s).name for s in self.status.tolist()]
        if self.labels is not None:
            swept = self.labels.ndim == 3
            columns["labels"] = [
                [labels[:k] for labels in row] if swept else row[:k]
                for row, k in zip(self.labels.tolist(), n, strict=True)
            ]
        return columns

    def to_arrow(self) -> pyarrow.Table:
        """A row per task; [T, A] fields and labels are list columns."""
        import pyarrow as pa

        def lists(flat: pyarrow.Array, sizes: torch.Tensor) -> pyarrow.Array:
            ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
            total = int(ends[-1])
            if total >= 1 << 31:
                raise InputError(f"to_arrow: expected less than 2^31 values in a column, got {total}; use fewer tasks")
            ends = ends.to(torch.int32)
            return pa.ListArray.from_arrays(pa.array(ends.numpy()), flat)

        arrays = {}
        n = self.n_samples.cpu()
        for name in (*SCORES, "n_samples", "n_clusters"):
            values = getattr(self, name).cpu()
            flat = pa.array(values.flatten().numpy())
            arrays[name] = flat if values.ndim == 1 else lists(flat, torch.full_like(n, values.shape[1]))
        names = np.array([status.name for status in Status])
        arrays["status"] = pa.array(names[self.status.cpu().numpy()], pa.string())
        if self.labels is not None:
            labels = self.labels.cpu()
            swept = labels.shape[1] if labels.ndim == 3 else 1
            rows = labels.reshape(len(self) * swept, labels.shape[-1])
            sizes = n.repeat_interleave(swept)
            present = torch.arange(rows.shape[1], device="cpu") < sizes[:, None]
            column = lists(pa.array(rows[present].numpy()), sizes)
            arrays["labels"] = column if labels.ndim == 2 else lists(column, torch.full_like(n, swept))
        return pa.table(arrays)

    def to_pandas(self) -> pandas.DataFrame:
        """The same table as a pandas DataFrame; raises MissingExtraError without pandas."""
        try:
            frame: Any = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingExtraError("to_pandas", "pandas") from error
        table: pandas.DataFrame = frame.DataFrame(self.to_dict())
        return table
