"""The mode of the MST weights: argmax of a Gaussian kernel density on a grid (SPEC 4, and 7 for the released code)."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import torch

# exp(-87) is the smallest that float32 holds with full digits; below it the CPU's exp is ten times slower, and a term
# of 1e-38 is nothing beside a maximum of at least 1.
_LOWEST_EXPONENT: Final = 87.0
# Twice the relative error of the float32 density near its maximum: of its exponents, and 2^-24 for each of its terms,
# which may all round the same way. What comes closer to the best than that is looked at again in float64.
_FLOAT32_DOUBT: Final = 2e-5
_DOUBT_PER_TERM: Final = 2.0**-23
# Sums of the same terms in another order differ by less than this in float64.
_TIE: Final = 1e-12
_CELLS_PER_SQRT_M: Final = 9
# Terms of the density that are held at once: with 100,000 weights a sixteenth of them would be too many.
_MOST_TERMS: Final = 1 << 20


class WeightStats(NamedTuple):
    """Statistics of the weights of T trees, float64 [T]."""

    mean: torch.Tensor
    low: torch.Tensor
    spread: torch.Tensor
    """max - min"""
    narrowness: torch.Tensor
    """spread / bandwidth; 0 where all weights are equal or there is one only"""


def weight_stats(weight: torch.Tensor, m: torch.Tensor) -> WeightStats:
    """Statistics of weight [M, T] float32, ascending with +inf behind the first m [T] of each task.

    The bandwidth is Scott's, m^(-1/5) times the standard deviation with ddof = 1.
    """
    wide = torch.where(torch.arange(weight.shape[0], device=weight.device)[:, None] < m, weight, 0).to(torch.float64)
    count = m.clamp_min(1).to(torch.float64)
    mean = wide.sum(0) / count
    low = wide[0]
    spread = wide.amax(0) - low
    deviation = torch.where(weight.isfinite(), wide - mean, 0)
    variance = (deviation * deviation).sum(0) / (count - 1).clamp_min(1)
    narrow = spread * count.pow(0.2) / variance.sqrt()
    return WeightStats(mean, low, spread, torch.where((m > 1) & (spread > 0), narrow, 0.0))


def weight_mode(weight: torch.Tensor, stats: WeightStats, grid: int) -> torch.Tensor:
    """The grid point of largest density, [T] float64: the first one on a tie; the mean where all weights are equal.

    weight   [M, T] float32 ascending, +inf in padding

    The result is that of the full search over all grid points. To get there with a tenth of the exponentials, the
    density is taken at every q-th point in float32; because a Gaussian density's second derivative is at least
    -density / bandwidth^2, no cell between two such points can rise above its ends by more than a bound. Tasks in which
    every other cell's bound lies below the best point need only the points around it, in float64. The others are
    searched in full.
    """
    centre = _unit_interval(weight, stats)
    cells = max(54, int(_CELLS_PER_SQRT_M * math.sqrt(weight.shape[0])))
    q = math.ceil((grid - 1) / cells)
    if q < 4 or weight.device.type != "cpu":
        point = _first_maximum(_full_density(centre, stats.narrowness, grid))
    else:
        point, certain = _coarse_to_fine(centre, stats.narrowness, grid, q)
        rest = torch.nonzero(~certain).flatten()
        if rest.numel():
            point[rest] = _first_maximum(_full_density(centre[:, rest], stats.narrowness[rest], grid))
    return _at(point, stats, grid)


def peak_mode(weight: torch.Tensor, stats: WeightStats, grid: int, peak: str) -> torch.Tensor:
    """The released code's mode, [T] float64: with several interior peaks the rightmost ("max_peak") or leftmost
    ("min_peak"), else the global maximum. A flat peak counts once, at its middle, as in scipy.signal.find_peaks."""
    density = _full_density(_unit_interval(weight, stats), stats.narrowness, grid)
    if grid < 3:
        return _at(_first_maximum(density), stats, grid)
    steps = density.diff(dim=0).sign()
    # Direction of the last and the next change at each grid point, seen through flat stretches.
    index = torch.arange(grid - 1, device=weight.device)[:, None]
    moves = steps != 0
    last = torch.where(moves, index, -1).cummax(0).values
    following = torch.where(moves, index, grid - 1).flip(0).cummin(0).values.flip(0)
    before, after = last[:-1], following[1:]
    rises = (before >= 0) & (steps.gather(0, before.clamp_min(0)) > 0)
    falls = (after < grid - 1) & (steps.gather(0, after.clamp_max(grid - 2)) < 0)
    # Interior point i = row + 1 lies on a peak whose plateau is before + 1 .. after.
    middle = (before + 1 + after) // 2
    peaks = rises & falls & (middle == index[1:])
    position = index[1:].expand_as(peaks)
    rightmost = torch.where(peaks, position, -1).amax(0)
    leftmost = torch.where(peaks, position, grid).amin(0)
    chosen = rightmost if peak == "max_peak" else leftmost
    return _at(torch.where(peaks.sum(0) > 1, chosen, _first_maximum(density)), stats, grid)


def _unit_interval(weight: torch.Tensor, stats: WeightStats) -> torch.Tensor:
    """Weights scaled to [0, 1], float64 [M, T]; +inf stays."""
    return (weight.to(torch.float64) - stats.low) / torch.where(stats.spread > 0, stats.spread, 1.0)


def _at(point: torch.Tensor, stats: WeightStats, grid: int) -> torch.Tensor:
    value = stats.low + stats.spread * (point.to(torch.float64) / (grid - 1))
    return torch.where(stats.narrowness > 0, value, stats.mean)


def _density(point: torch.Tensor, centre: torch.Tensor, narrowness: torch.Tensor, grid: int) -> torch.Tensor:
    """Unscaled density at grid points [C, T] (or [C, 1]), summed over centre [M, T] in order, in centre's dtype."""
    where = point * (narrowness / ((grid - 1) * math.sqrt(2)))
    centre = centre * (narrowness / math.sqrt(2))
    centre = centre.nan_to_num_(nan=math.inf, posinf=math.inf)
    rows = max(1, min(centre.shape[0] // 16, _MOST_TERMS // max(1, where.numel())))
    total = torch.zeros_like(where)
    for start in range(0, centre.shape[0], rows):
        z = where - centre[start : start + rows, None]
        z.mul_(z).clamp_max_(_LOWEST_EXPONENT).neg_()
        if z.device.type == "cpu":
            np.exp(z.numpy(), out=z.numpy())  # twice as fast as torch's with AVX-512
        else:
            z.exp_()
        for term in z:
            total += term
    return total


def _first_maximum(density: torch.Tensor) -> torch.Tensor:
    """Index [T] of the first value that only rounding tells from the largest: symmetric weights tie all the time."""
    return (density >= density.amax(0) * (1 - _TIE)).to(torch.uint8).argmax(0)


def _full_density(centre: torch.Tensor, narrowness: torch.Tensor, grid: int) -> torch.Tensor:
    points = torch.arange(grid, dtype=torch.float64, device=centre.device)[:, None]
    return _density(points, centre, narrowness, grid)


def _coarse_to_fine(
    centre: torch.Tensor, narrowness: torch.Tensor, grid: int, q: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The best grid point [T] around the best q-th one, and whether it is certainly the best of all."""
    single, narrow = centre.to(torch.float32), narrowness.to(torch.float32)
    device = centre.device
    coarse = torch.arange(0, grid - 1 + q, q, dtype=torch.float32, device=device).clamp_max_(grid - 1)[:, None]
    density = _density(coarse, single, narrow, grid)
    best = density.max(0, keepdim=True)

    # The window: the cells beside the best point and one more on its higher side.
    ends = density.shape[0] - 1
    higher = density.gather(0, (best.indices + 1).clamp_max(ends)) >= density.gather(0, (best.indices - 1).clamp_min(0))
    first = best.indices - 2 + higher.to(torch.int64)

    # How far the inside of a cell can rise above the larger of its ends; kappa is (cell / bandwidth)^2 / 2.
    kappa = (narrow * (q / (grid - 1))).square_().mul_(0.5)
    ceiling = best.values / (1 - kappa / 4).clamp_min_(0.1) * kappa
    left, right = density[:-1], density[1:]
    bound = torch.sub(left, right).abs_().neg_().add_(ceiling).clamp_min_(0).square_()
    bound.mul_(0.25 / ceiling.clamp_min(1e-30)).add_(torch.maximum(left, right))
    bound.scatter_(0, (first + torch.arange(3, device=device)[:, None]).clamp_(0, ends - 1), 0)
    doubt = _FLOAT32_DOUBT + _DOUBT_PER_TERM * centre.shape[0]
    certain = (bound.amax(0) < best.values[0] * (1 - doubt)) & (kappa < 2)

    window = (first * q + torch.arange(3 * q + 1, device=device)[:, None]).clamp_(0, grid - 1)
    point = _first_maximum(_density(window.to(torch.float64), centre, narrowness, grid))
    return window.gather(0, point[None])[0], certain | (narrow == 0)
