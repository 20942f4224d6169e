"""Calibration on labelled sets: an alpha for an encoder and a coder, and a map from uncertainty to expected pass@1.

A calibration file is JSON and small; reading and applying it needs neither SciPy nor torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fase_gpu import __version__
from fase_gpu.config import FaseConfig
from fase_gpu.errors import InputError
from fase_gpu.files.paths import open_binary
from fase_gpu.files.scores import check_target, json_value, moved_into_place

if TYPE_CHECKING:
    from fase_gpu.evaluation.comparison import Setting
    from fase_gpu.evaluation.labelled import LabelledSet
    from fase_gpu.evaluation.methods import Inputs

Array = NDArray[np.float64]

FORMAT: Final = "fase_gpu calibration 1"
SCORES: Final = ("multiscale", "entropy")
"""What expected pass@1 can be read off, and what is held against each other."""


@dataclass(frozen=True)
class MonotoneMap:
    """A non-increasing map from uncertainty to expected pass@1: linear between points, constant beyond them."""

    uncertainty: tuple[float, ...]
    """[P] ascending"""
    pass_at_1: tuple[float, ...]
    """[P] not ascending"""

    def __call__(self, uncertainty: ArrayLike) -> Array:
        """Expected pass@1 for any shape; NaN stays NaN."""
        return np.asarray(np.interp(np.asarray(uncertainty, np.float64), self.uncertainty, self.pass_at_1))


@dataclass(frozen=True)
class Calibration:
    """What `fase-gpu calibrate` found, and `fase-gpu score --calibration` uses.

    encoder, normalize_code   what the samples were encoded with
    variant, semantics        of the entropy
    alpha                     the best on all labelled tasks
    multiscale_range          of the multiscale entropy
    by                        "multiscale" or "entropy": whichever ranked tasks that were held out better
    maps                      from each of them to expected pass@1
    sets                      name and number of tasks of each labelled set
    held_out                  statistics on tasks that alpha and map were not chosen on, by score, then by set
    """

    encoder: str
    normalize_code: bool
    variant: str
    semantics: str
    alpha: float
    multiscale_range: tuple[float, float]
    by: str
    maps: dict[str, MonotoneMap]
    sets: dict[str, int]
    held_out: dict[str, dict[str, dict[str, Any]]]

    @property
    def config(self) -> FaseConfig:
        """The settings to score with."""
        return FaseConfig(
            variant=self.variant, semantics=self.semantics, alpha=self.alpha, multiscale_range=self.multiscale_range
        )

    def expected_pass_at_1(self, uncertainty: ArrayLike) -> Array:
        """[T] expected pass@1 from the score that `by` names, as `score_samples` gives it."""
        return self.maps[self.by](uncertainty)


def write_calibration(path: str | Path, calibration: Calibration, overwrite: bool = False) -> None:
    """Write a calibration file, which appears under its name when it is complete."""
    check_target(path, overwrite)
    record = {"format": FORMAT, "fase_gpu": __version__} | json_value(asdict(calibration))
    with moved_into_place(Path(path).resolve(), overwrite) as stream:
        stream.write(json.dumps(record, indent=1, allow_nan=False).encode() + b"\n")


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file. Raises InputError for what is not one."""
    with open_binary(path) as stream:
        try:
            record = json.loads(stream.read())
        except ValueError:
            record = None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InputError(f"{path}: not a calibration; expected what fase-gpu calibrate writes ({FORMAT})")
    try:
        maps = {name: MonotoneMap(tuple(m["uncertainty"]), tuple(m["pass_at_1"])) for name, m in record["maps"].items()}
        fields = {name: record[name] for name in Calibration.__dataclass_fields__}
        low, high = record["multiscale_range"]
        found = Calibration(**fields | {"maps": maps, "multiscale_range": (low, high)})
        _ = found.config
        valid = found.by in maps and all(_is_map(m) for m in maps.values()) and isinstance(found.encoder, str)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged calibration: {error}") from None
    if not valid:
        raise InputError(f"{path}: damaged calibration: expected maps from ascending uncertainty for {record['by']!r}")
    return found


def calibrate(
    sets: Sequence[LabelledSet],
    inputs: Sequence[Inputs],
    encoder: str,
    *,
    normalize_code: bool = True,
    variant: str = FaseConfig.variant,
    semantics: str = FaseConfig.semantics,
    alphas: Sequence[float] | None = None,
    by: str | None = None,
    resamples: int = 1000,
) -> tuple[Calibration, dict[str, dict[str, Setting]]]:
    """Choose alpha and fit the maps on labelled sets, and judge both on tasks that they were not chosen on.

    Five folds by task id, so that a task that several sets have is in one of them: alpha is the one with the best mean
    rho over sets on the other four. The sets should come from the coder whose samples will be scored.

    by         "multiscale" or "entropy"; None: the one with the better mean rho on held-out tasks
    returns    the calibration, and the held-out statistics by score and set: "multiscale", "entropy", and "entropy at
               the default alpha"

    Raises InputError where fewer than two tasks have a score, or every alpha predicts nothing.
    """
    from fase_gpu.evaluation import metrics
    from fase_gpu.evaluation.comparison import judged
    from fase_gpu.evaluation.methods import ALPHAS, multiscale_method, radius_method

    default = FaseConfig().scale_list[0]
    swept = tuple(sorted({*(alphas or ALPHAS), default}))
    choices = [i for i, alpha in enumerate(swept) if alphas is None or alpha in alphas]
    multiscale = [multiscale_method(one).uncertainty[0] for one in inputs]
    entropy = [radius_method(one, variant, swept, semantics).uncertainty for one in inputs]
    ids = [task for one in sets for task in one.task_ids]
    target = np.concatenate([one.pass_at_1 for one in sets])
    bounds = np.cumsum([0, *map(len, sets)])
    parts = [slice(start, stop) for start, stop in pairwise(bounds)]
    columns = np.concatenate(entropy, 1)
    scored = ~np.isnan(columns[0]) & ~np.isnan(target)
    if scored.sum() < 2:
        raise InputError(f"calibrate: expected at least two labelled tasks with a score, got {scored.sum()}")

    def best(among: NDArray[np.bool_]) -> int:
        """The alpha with the best mean rho over sets, on some of the tasks; the first of equal ones."""
        rho = np.array([[_rho(columns[i, p], target[p], among[p]) for p in parts] for i in choices])
        if np.isnan(rho).all():
            raise InputError("calibrate: no alpha predicts anything: entropy or pass@1 is the same for all tasks")
        return choices[int(np.nan_to_num(rho).mean(1).argmax())]

    def _rho(uncertainty: Array, pass_at_1: Array, among: NDArray[np.bool_]) -> float:
        return metrics.spearman(-uncertainty[among], pass_at_1[among], 0).value

    held_out = np.full(len(target), math.nan)
    for fold in metrics.folds(ids):
        if (scored & ~fold).sum() >= 2:
            held_out[fold] = columns[best(scored & ~fold), fold]
    alpha = best(scored)
    candidates = {
        "multiscale": np.concatenate(multiscale),
        "entropy": held_out,
        f"entropy at alpha {default:g}": columns[swept.index(default)],
    }
    values = {"multiscale": math.nan, "entropy": swept[alpha]}
    statistics: dict[str, dict[str, Setting]] = {
        name: {
            one.name: judged(column[part], target[part], values.get(name, default), resamples)
            for one, part in zip(sets, parts, strict=True)
        }
        for name, column in candidates.items()
    }
    mean = {name: metrics.mean_of([s.rho.value for s in statistics[name].values()]) for name in SCORES}
    final = {"multiscale": candidates["multiscale"], "entropy": columns[alpha]}
    return (
        Calibration(
            encoder=encoder,
            normalize_code=normalize_code,
            variant=variant,
            semantics=semantics,
            alpha=swept[alpha],
            multiscale_range=inputs[0].multiscale_range,
            by=by or max(SCORES, key=lambda name: -math.inf if math.isnan(mean[name]) else mean[name]),
            maps={name: _fitted(column[scored], target[scored]) for name, column in final.items()},
            sets={one.name: len(one) for one in sets},
            held_out={name: {key: asdict(s) for key, s in statistics[name].items()} for name in SCORES},
        ),
        statistics,
    )


def _fitted(uncertainty: Array, pass_at_1: Array) -> MonotoneMap:
    from fase_gpu.evaluation.metrics import isotonic

    found = isotonic(-uncertainty, pass_at_1)
    return MonotoneMap(
        tuple((-found.X_thresholds_[::-1]).tolist()), tuple(np.asarray(found.y_thresholds_[::-1], np.float64).tolist())
    )


def _is_map(found: MonotoneMap) -> bool:
    x, y = np.array(found.uncertainty, np.float64), np.array(found.pass_at_1, np.float64)
    same = x.ndim == 1 and x.shape == y.shape and x.size > 0
    return bool(same and (np.diff(x) >= 0).all() and (np.diff(y) <= 0).all() and ((y >= 0) & (y <= 1)).all())
