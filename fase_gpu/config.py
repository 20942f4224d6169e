"""FaseConfig: what is computed, checked when it is made."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from fase_gpu.errors import InputError, nearest

RADIUS_VARIANTS: Final = (
    "scaled_mst_mode",
    "scaled_mst_mean",
    "scaled_pdm_mean",
    "mst_mean",
    "pdm_mean",
    "fixed_eps",
)
CLASS_VARIANTS: Final = ("structural", "textual", "union", "intersection")
VARIANTS: Final = (*RADIUS_VARIANTS, "fixed_mcs", *CLASS_VARIANTS)
SEMANTICS: Final = ("paper", "released")
PEAKS: Final = ("max_peak", "min_peak")
NEURAL_RANGE: Final = (1e-3, 0.5)
# From about the distance that one changed word of a program makes (a hundredth of those of real samples are smaller).
SYNTAX_TREE_RANGE: Final = (1e-2, 1.0)


def _positive(name: str, value: object) -> float:
    number = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise InputError(f"{name}: expected a number above 0, got {value!r}")
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{name}: expected a finite number above 0, got {value!r}")
    return number


def _positives(name: str, value: object) -> float | tuple[float, ...]:
    """A positive number, or a tuple of them from any sequence, NumPy array or tensor."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not value:
            raise InputError(f"{name}: expected at least one value, got none")
        return tuple(_positive(f"{name}[{i}]", v) for i, v in enumerate(value))
    return _positive(name, value)


def _at_least(name: str, value: Any, least: int) -> int:
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name}: expected an integer of at least {least}, got {value!r}")
    return number


def _switch(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InputError(f"{name}: expected True or False, got {value!r}")


def _one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{name}: unknown {value!r}; {nearest(str(value), known)}")


@dataclass(frozen=True, kw_only=True)
class FaseConfig:
    """Settings of one scoring run. Raises InputError when a value cannot be.

    alpha              scale of the radius, or a sequence of A of them: results become [T, A]
    variant            one of VARIANTS; "scaled_mst_mode" is the paper's FASE
    semantics          "paper", or "released" for the numbers of the authors' code (there alpha is 2 * threshold for
                       the scaled variants and threshold for the others)
    min_samples        DBSCAN's, a point counts itself
    grid               points of the density grid on which the mode is searched
    min_distance       what off-diagonal distances are raised to
    multiscale_range   (lo, hi) of the multiscale entropy; None is (1e-3, 0.5), (1e-2, 1.0) for "ast"
    eps                radius (or a sequence) of variant "fixed_eps"
    min_cluster_size   of variant "fixed_mcs" (HDBSCAN)
    peak               which density peak "released" takes where there are several
    misaligned_union   with "released" and "union" only: repeat the released code's slip of joining the structural
                       labels of other samples, to reproduce its table
    return_labels      False leaves FaseResult.labels out, which for many alphas is most of the memory
    """

    alpha: float | tuple[float, ...] = 1.6
    variant: str = "scaled_mst_mode"
    semantics: str = "paper"
    min_samples: int = 2
    grid: int = 1000
    min_distance: float = 1e-6
    multiscale_range: tuple[float, float] | None = None
    eps: float | tuple[float, ...] | None = None
    min_cluster_size: int = 2
    peak: str = "max_peak"
    misaligned_union: bool = False
    return_labels: bool = True

    def __post_init__(self) -> None:
        _one_of("variant", self.variant, VARIANTS)
        _one_of("semantics", self.semantics, SEMANTICS)
        _one_of("peak", self.peak, PEAKS)
        object.__setattr__(self, "alpha", _positives("alpha", self.alpha))
        for name, least in (("min_samples", 1), ("grid", 2), ("min_cluster_size", 2)):
            object.__setattr__(self, name, _at_least(name, getattr(self, name), least))
        _switch("misaligned_union", self.misaligned_union)
        _switch("return_labels", self.return_labels)
        object.__setattr__(self, "min_distance", _positive("min_distance", self.min_distance))
        if not 1e-30 <= self.min_distance <= 1e30:
            raise InputError(f"min_distance: expected 1e-30 to 1e30, which float32 holds, got {self.min_distance!r}")
        if self.multiscale_range is not None:
            pair = _positives("multiscale_range", self.multiscale_range)
            if not isinstance(pair, tuple) or len(pair) != 2 or math.log2(pair[0]) >= math.log2(pair[1]):
                raise InputError(f"multiscale_range: expected (lo, hi) with 0 < lo < hi, got {self.multiscale_range!r}")
            object.__setattr__(self, "multiscale_range", pair)
        if self.variant == "fixed_eps":
            if self.eps is None:
                raise InputError('eps: variant "fixed_eps" needs a radius, got None')
            object.__setattr__(self, "eps", _positives("eps", self.eps))
        elif self.eps is not None:
            raise InputError(f'eps: only variant "fixed_eps" takes a radius, got variant {self.variant!r}')
        if self.misaligned_union and (self.semantics, self.variant) != ("released", "union"):
            raise InputError('misaligned_union: only with semantics="released" and variant="union"')

    @property
    def swept(self) -> bool:
        """Whether results have an A axis."""
        return isinstance(self._scales, tuple)

    @property
    def scale_list(self) -> tuple[float, ...]:
        """The A values that results run over: radii for "fixed_eps", alphas otherwise; one where there is one."""
        return self._scales if isinstance(self._scales, tuple) else (self._scales,)

    @property
    def has_radius(self) -> bool:
        """Whether the classes come from a radius, alone or joined with given classes."""
        return self.variant not in ("fixed_mcs", "structural", "textual")

    @property
    def _scales(self) -> float | tuple[float, ...]:
        return self.alpha if self.eps is None else self.eps

    @staticmethod
    def of(config: FaseConfig | None) -> FaseConfig:
        """The config that a caller gave; None is the default one. Raises InputError for anything else."""
        if config is None:
            return FaseConfig()
        if not isinstance(config, FaseConfig):
            raise InputError(f"config: expected a FaseConfig, got {type(config).__name__}")
        return config

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, for JSON and file metadata."""
        return asdict(self)
