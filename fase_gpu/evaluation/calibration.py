"""Calibration on labelled sets: an alpha for an encoder and a coder, and a map from uncertainty to expected pass@1.

A calibration file is JSON and small; reading and applying it needs neither SciPy nor torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fase_gpu import __version__
from fase_gpu.config import FaseConfig
from fase_gpu.errors import InputError
from fase_gpu.evaluation import metrics
from fase_gpu.files.paths import open_binary
from fase_gpu.files.scores import check_target, json_value, moved_into_place

if TYPE_CHECKING:
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
    held_out                  comparison.Setting of what was expected of tasks that alpha and maps were not chosen on,
                              and of the scores themselves, by name, then by set, as plain values
    version                   of fase_gpu, whose encoders may change
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
    version: str

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
    record = {"format": FORMAT} | json_value(asdict(calibration))
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
        config = found.config
        wrong = [
            *(name for name in ("encoder", "version") if not isinstance(fields[name], str)),
            *(["normalize_code"] if not isinstance(found.normalize_code, bool) else []),
            *(["alpha"] if config.swept or not config.has_radius else []),
            *(["by"] if found.by not in SCORES or found.by not in maps else []),
            *(f"map {name}" for name, one in maps.items() if not _is_map(one)),
            *(name for name in ("sets", "held_out") if not isinstance(fields[name], dict)),
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged calibration: {error}") from None
    if wrong:
        raise InputError(f"{path}: damaged calibration: {', '.join(wrong)} cannot be; calibrate again")
    if found.version != __version__:
        versions = f"is of fase-gpu {found.version}, whose scores may differ from those of {__version__}"
        raise InputError(f"{path}: {versions}; calibrate again")
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
    resamples: int = metrics.RESAMPLES,
) -> Calibration:
    """Choose alpha and fit the maps on labelled sets, and judge both on tasks that they were not chosen on.

    Five folds by task id, so that a task that several sets have is in one of them. On the other four alpha is chosen,
    the one with the best mean rho over sets, and both maps are fitted, to the tasks of all sets together; what they
    expect of the fold is held against its labels. The sets should come from the coder whose samples will be scored.

    by   "multiscale" or "entropy"; None: the one whose expected pass@1 has the better mean rho on held-out tasks

    Raises InputError where fewer than two tasks have a score, or every alpha predicts nothing.
    """
    from fase_gpu.evaluation.comparison import Setting, judged
    from fase_gpu.evaluation.methods import ALPHAS, all_methods

    default = FaseConfig().scale_list[0]
    swept = tuple(sorted({*(alphas or ALPHAS), default}))
    allowed = np.array([alphas is None or alpha in alphas for alpha in swept])
    only = ("multiscale", variant)
    methods = [
        {m.name: m.uncertainty for m in all_methods(one, swept, semantics=semantics, only=only)} for one in inputs
    ]
    multiscale = np.concatenate([found["multiscale"][0] for found in methods])
    entropy = np.concatenate([found[variant] for found in methods], 1)
    target = np.concatenate([one.pass_at_1 for one in sets])
    parts = [slice(start, stop) for start, stop in pairwise(np.cumsum([0, *map(len, sets)]).tolist())]
    scored = ~np.isnan(multiscale) & ~np.isnan(target)
    if scored.sum() < 2:
        raise InputError(f"calibrate: expected at least two labelled tasks with a score, got {scored.sum()}")

    def rho(among: NDArray[np.bool_]) -> Array:
        """[sets, A] on some of the tasks."""
        found = []
        for part in parts:
            kept = among[part]
            columns = entropy[allowed, part][:, kept]
            found.append([metrics.spearman(-column, target[part][kept], 0).value for column in columns])
        return np.array(found)

    def best(among: NDArray[np.bool_]) -> int:
        values = np.array(swept)[allowed]
        chosen = values[metrics.best_value(rho(among), values.tolist(), default)]
        return swept.index(float(chosen))

    if np.isnan(rho(scored)).all():
        raise InputError(
            "calibrate: no alpha predicts anything: entropy or pass@1 is the same for all tasks of each set"
        )
    expected = {name: np.full(target.size, math.nan) for name in SCORES}
    for fold in metrics.folds([task for one in sets for task in one.task_ids]):
        others, fold = scored & ~fold, scored & fold
        if not others.any():
            continue
        for name, column in (("multiscale", multiscale), ("entropy", entropy[best(others)])):
            expected[name][fold] = _fitted(column[others], target[others])(column[fold])

    statistics: dict[str, dict[str, Setting]] = {}
    columns = {f"expected pass@1 from {name}": -expected[name] for name in SCORES}
    columns |= {"multiscale": multiscale, f"entropy at alpha {default:g}": entropy[swept.index(default)]}
    for name, column in columns.items():
        statistics[name] = {}
        for one, part in zip(sets, parts, strict=True):
            setting = judged(column[part], target[part], math.nan, resamples)
            if name.startswith("expected"):
                known = ~np.isnan(column[part])
                error = metrics.reliability(-column[part][known], target[part][known]).error
                setting = replace(setting, calibration_error=error)
            statistics[name][one.name] = setting
    mean = {
        name: metrics.mean_of([s.rho.value for s in statistics[f"expected pass@1 from {name}"].values()])
        for name in SCORES
    }
    alpha = best(scored)
    final = {"multiscale": multiscale, "entropy": entropy[alpha]}
    return Calibration(
        encoder=encoder,
        normalize_code=normalize_code,
        variant=variant,
        semantics=semantics,
        alpha=swept[alpha],
        multiscale_range=inputs[0].multiscale_range,
        by=by or max(SCORES, key=lambda name: -math.inf if math.isnan(mean[name]) else mean[name]),
        maps={name: _fitted(column[scored], target[scored]) for name, column in final.items()},
        sets={one.name: len(one) for one in sets},
        held_out={name: {key: asdict(s) for key, s in by_set.items()} for name, by_set in statistics.items()},
        version=__version__,
    )


def _fitted(uncertainty: Array, pass_at_1: Array) -> MonotoneMap:
    found = metrics.isotonic(-uncertainty, pass_at_1)
    return MonotoneMap(
        tuple((-found.X_thresholds_[::-1]).tolist()), tuple(np.asarray(found.y_thresholds_[::-1], np.float64).tolist())
    )


def _is_map(found: MonotoneMap) -> bool:
    x, y = np.array(found.uncertainty, np.float64), np.array(found.pass_at_1, np.float64)
    same = x.ndim == 1 and x.shape == y.shape and x.size > 0
    return bool(same and (np.diff(x) >= 0).all() and (np.diff(y) <= 0).all() and ((y >= 0) & (y <= 1)).all())
