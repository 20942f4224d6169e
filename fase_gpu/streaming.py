"""The minimum spanning tree of one large task straight from its embeddings: nothing of n x n is ever stored.

Boruvka's rounds. A scan goes over tiles of the distance matrix, makes each from the embeddings, and keeps for every
sample the least edge to another component; then every component takes the least edge of its samples, and components
that are joined become one. A sample's least edge stays its least for as long as it leads to another component, and is a
lower bound for what comes after it from then on. So a round looks again only at those samples whose edge has become
useless and might have been better than what its component has anyway: about two scans of all pairs in all, not one a
round. Measured at n = 4000: 2.3 instead of 5 to 6 for unrelated rows, 3.1 to 4.1 instead of 6 for clustered ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

import torch

from fase_gpu.batching import EmbeddingSource, Rows
from fase_gpu.distance import (
    LENGTHS,
    WIDE,
    aligned,
    exact_rows,
    float32_products_are_exact,
    norms,
    rounded,
    slices,
)
from fase_gpu.mst import Mst, linked_tree
from fase_gpu.results import Status

MAX_SAMPLES: Final = 100_000

# Samples on each side of a tile: what a CPU's caches hold, or what fills a GPU. A multiple of what a BLAS takes at
# once, 6 or 12 or 24 rows, because MKL sums what is left over in another order: in tiles of 512 and 1024 rows 2 % and
# 0.5 % of the float64 products depended on their place, in tiles of 768, 960 and 1152 none.
_TILE: Final = {"cpu": 768, "cuda": 6144}
# Numbers in a chunk of rows that are made ready together.
_CHUNK: Final = {"cpu": 1 << 22, "cuda": 1 << 26}
# Added to the distance within a component: more than any distance, and with any distance still finite.
_WITHIN: Final = 3e38
_NO_EDGE: Final = torch.iinfo(torch.int64).max
_SAMPLE_BITS: Final = (1 << 32) - 1


class Streamed(NamedTuple):
    """What the stages after the tree need of one task."""

    tree: Mst
    status: torch.Tensor
    """[1] int8, Status; the tree of a task that is not OK is that of equal distances."""
    total: torch.Tensor
    """[1] float64, the sum of all n * n distances."""


class Scan(Protocol):
    """The least edges of the samples that a round has to look at."""

    any_order: bool
    """Whether a distance has the same bits wherever its pair stands in a tile, so that samples may be reordered."""

    def __call__(self, order: torch.Tensor, wanted: torch.Tensor, component: torch.Tensor, best: torch.Tensor) -> bool:
        """Lower best to the least key of each wanted sample; whether there was anything to do, True where unknown.

        order       [n] int64, the samples as they are laid out in tiles: wanted ones first where the order is free
        wanted      [n] bool, by sample
        component   [n] int64, by sample; pairs within a component do not count
        best        [n] int64, by sample: the bits of the weight << 32 | the other end; _NO_EDGE at the wanted ones

        In the first call, where every sample is a component, also the sum of all distances.
        """
        ...

    @property
    def total(self) -> torch.Tensor:
        """[1] float64, after the first call."""
        ...


def stream_tree(
    source: EmbeddingSource, task: int, size: int, min_distance: float, released: bool, kernels: bool = False
) -> Streamed:
    """The tree of one task, with n - 1 edges and padding up to size, and what else is read off the distances.

    released   round distances to 6 decimals (SPEC 7)
    kernels    scan by the Triton kernel, where there is one encoder; else by torch's products
    """
    n = int(source.n[task])
    scan: Scan
    if kernels and len(source.rows) == 1:
        given, status = _planes(source.rows[0], task)
        scan = KernelScan(given, min_distance, released)
    else:
        ready = [_make_ready(rows, task) for rows in source.rows]
        status = torch.stack([one.status for one in ready]).amax(0)
        scan = TileScan(ready, n, min_distance, released)
    if n == 1 or int(status) != Status.OK:
        ends = torch.arange(n, device=source.device)
        tree = linked_tree(torch.zeros(n - 1, device=source.device), ends[:-1], ends[1:], size)
        status = torch.where(status == Status.OK, Status.SINGLE, status).to(torch.int8)
        return Streamed(tree, status, torch.zeros(1, dtype=torch.float64, device=source.device))
    return Streamed(linked_tree(*spanning_edges(scan, n, source.device), size), status, scan.total)


class Edges(NamedTuple):
    """The n - 1 edges of a tree, ascending by (weight, low, high)."""

    weight: torch.Tensor
    """float32"""
    low: torch.Tensor
    """int64, smaller end"""
    high: torch.Tensor
    """int64, larger end"""


def spanning_edges(scan: Scan, n: int, device: torch.device) -> Edges:
    """The minimum spanning tree of n samples. No host synchronisation but the scan's own."""
    sample = torch.arange(n, device=device)
    component = sample.clone()
    wanted = torch.ones(n, dtype=torch.bool, device=device)
    best = torch.full((n,), _NO_EDGE, device=device)
    # The edge over which a component, named by one of its samples, went into another: weight and low end; high end.
    near_taken, high_taken = torch.full_like(best, _NO_EDGE), torch.full_like(best, _NO_EDGE)
    order = sample
    for components in _halvings(n):
        if not scan(order, wanted, component, best):
            break
        near, high = _ends(best, sample)
        leaving = _leaving(near, high, component)
        near_least = _least(leaving, component)
        tied = (leaving != _NO_EDGE) & (leaving == near_least[component])
        high_least = _least(torch.where(tied, high, _NO_EDGE), component)
        component, joined = _joined(near_least, high_least, component, components)
        torch.where(joined, near_least, near_taken, out=near_taken)
        torch.where(joined, high_least, high_taken, out=high_taken)

        # A component knows the least of the edges that still leave it. A sample whose own edge does not is looked at
        # again where that edge came before the known one; its next edge has a greater weight or a higher low end.
        leaving = _leaving(near, high, component)
        wanted = (leaving == _NO_EDGE) & (near < _least(leaving, component)[component])
        wanted &= (component != component[0]).any()
        best.masked_fill_(wanted, _NO_EDGE)
        if scan.any_order:
            # By component, so that most tiles lie between components or within one.
            order = torch.argsort(torch.where(wanted, component, component + n), stable=True)
    by_high = torch.argsort(high_taken, stable=True)
    by_all = by_high[torch.argsort(near_taken[by_high], stable=True)][: n - 1]
    near, high = near_taken[by_all], high_taken[by_all]
    return Edges((near >> 32).to(torch.int32).view(torch.float32), near & _SAMPLE_BITS, high)


def _halvings(n: int) -> Sequence[int]:
    """The most components before each round that can be needed: n, n/2, ..., 2."""
    return [n >> halvings for halvings in range(n.bit_length() - 1)]


def _ends(best: torch.Tensor, sample: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of the samples' edges in two parts that order them as (weight, low, high) does."""
    other = best & _SAMPLE_BITS
    near = best - other | torch.minimum(other, sample)
    return near, torch.where(best == _NO_EDGE, sample, torch.maximum(other, sample))


def _leaving(near: torch.Tensor, high: torch.Tensor, component: torch.Tensor) -> torch.Tensor:
    """The first parts of the edges that join two components; _NO_EDGE in the place of the others."""
    return torch.where(component[near & _SAMPLE_BITS] != component[high], near, _NO_EDGE)


def _least(part: torch.Tensor, component: torch.Tensor) -> torch.Tensor:
    """The least of each component's samples, by its name; _NO_EDGE where there is none."""
    return torch.full_like(part, _NO_EDGE).scatter_reduce(0, component, part, "amin")


def _joined(
    near: torch.Tensor, high: torch.Tensor, component: torch.Tensor, components: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Join every component to the one that its least edge leads to; the new component of each sample, and the names of
    those components whose edge is new in the tree.

    Following the edges from any component leads into a cycle: the two components that have the same least edge. They
    are named after the smaller, whose edge is left out. Longer cycles would take distances that differ from round to
    round; they would lose one edge likewise, so that the outcome is a tree whatever happens.
    """
    name = torch.arange(near.shape[0], device=near.device)
    present = near != _NO_EDGE
    a, b = (component[torch.where(present, ends, 0)] for ends in (near & _SAMPLE_BITS, high))
    onward = torch.where(present, torch.where(a == name, b, a), name)
    least = name
    for _ in range(components.bit_length()):
        least = torch.minimum(least, least[onward])
        onward = onward[onward]
    root = least[onward]
    return root[component], present & (root != name)


def _tile(device: torch.device) -> int:
    return _TILE.get(device.type, _TILE["cuda"])


class _Ready(NamedTuple):
    """One encoder's rows of a task, ready for products of tiles."""

    rows: torch.Tensor
    """[n', d'], n' samples in full tiles, zeros behind them; float32: of unit length, less their mean; float64: of unit
    length"""
    half: torch.Tensor
    """[n'] half their squared lengths, by the same products"""
    status: torch.Tensor
    """[1] int8"""


class TileScan:
    """The scan by torch's products of tiles, in float32 on a CPU, else in float64 (see distance.py). Syncs on a GPU."""

    def __init__(self, ready: Sequence[_Ready], n: int, min_distance: float, released: bool) -> None:
        self.ready, self.n = ready, n
        self.min_distance, self.released = min_distance, released
        device = ready[0].rows.device
        self.tile = size = _tile(device)
        self.any_order = all(
            device.type == "cpu" and _place_does_not_matter(length, one.rows.dtype, size, torch.get_num_threads())
            for one in ready
            for length in _lengths(one.rows)
        )
        self._total: torch.Tensor | None = None
        self._tiles = [torch.empty(size, size, dtype=torch.float32, device=device) for _ in ready]
        self._grams = {one.rows.dtype: one.rows.new_empty(size, size) for one in ready}
        self._mask = torch.empty_like(self._tiles[0])
        self._one = torch.ones(1, 1, dtype=torch.float64, device=device)

    @property
    def total(self) -> torch.Tensor:
        assert self._total is not None
        return self._total

    def __call__(self, order: torch.Tensor, wanted: torch.Tensor, component: torch.Tensor, best: torch.Tensor) -> bool:
        blocks = [slice(start, min(start + self.tile, self.n)) for start in range(0, self.n, self.tile)]
        # As floats, which compare ten times as fast as anything else does on a CPU; they hold these numbers exactly.
        place, name = component[order].to(torch.float32), order.to(torch.float32)
        lows, highs = (torch.stack(ends).tolist() for ends in zip(*(place[b].aminmax() for b in blocks), strict=True))
        looked_at = torch.stack([wanted[order[block]].any() for block in blocks]).tolist()
        key = best[order]
        first = self._total is None
        total = torch.zeros(1, dtype=torch.float64, device=order.device)
        for i, rows in enumerate(blocks):
            for j, columns in enumerate(blocks[i:], i):
                if not (looked_at[i] or looked_at[j]) or lows[i] == highs[i] == lows[j] == highs[j]:
                    continue
                tile = self._distances(order, i, j)
                other = self._mask[: tile.shape[0], : tile.shape[1]]
                if first:
                    if i == j:
                        tile.diagonal().zero_()
                    total += tile.sum(dtype=torch.float64) * (1 if i == j else 2)
                if lows[i] <= highs[j] and lows[j] <= highs[i]:
                    tile.add_(torch.eq(place[rows, None], place[columns], out=other), alpha=_WITHIN)
                if looked_at[i]:
                    _improve(key[rows], tile, 1, name[columns], other)
                if looked_at[j] and i != j:
                    _improve(key[columns], tile, 0, name[rows, None], other)
        if first:
            self._total = total
        best[order] = key
        return any(looked_at)

    def _distances(self, order: torch.Tensor, i: int, j: int) -> torch.Tensor:
        """Distances of the samples in two blocks of the order, never by other than full tiles' products.

        They are overwritten by the next call: fresh memory for every tile would cost as much as filling it.
        """
        for one, found in zip(self.ready, self._tiles, strict=True):
            (a, half), (b, other_half) = (self._block(one, order, block) for block in (i, j))
            gram = self._grams[one.rows.dtype]
            if gram.dtype == torch.float64:
                found.copy_(torch.addmm(self._one, a, b.mT, alpha=-1, out=gram))
            else:
                torch.add(half[:, None], other_half, out=found).sub_(_gram(a, b, gram))
            found.clamp_min_(self.min_distance)
        distance, *others = self._tiles
        for other in others:
            distance += other
        if others:
            distance /= len(self._tiles)
        rows, columns = (min(self.tile, self.n - block * self.tile) for block in (i, j))
        distance = distance[:rows, :columns]
        return rounded(distance) if self.released else distance

    def _block(self, one: _Ready, order: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A full tile of rows and their half squares of a block of the order; beyond the last sample, any."""
        places = slice(block * self.tile, (block + 1) * self.tile)
        if self._total is None or not self.any_order:
            return one.rows[places], one.half[places]
        picked = order[places]
        picked = torch.cat([picked, picked[:1].expand(self.tile - picked.shape[0])])
        return one.rows[picked], one.half[picked]


def _improve(key: torch.Tensor, tile: torch.Tensor, dim: int, name: torch.Tensor, other: torch.Tensor) -> None:
    """Lower keys in place to the least ones of a tile along dim, where the samples are those of that name.

    other   memory for what is not the least
    """
    least = tile.amin(dim)
    torch.ne(tile, least.unsqueeze(dim), out=other)
    end = torch.add(name, other, alpha=1 << 30, out=other).amin(dim).to(torch.int64)
    found = least.view(torch.int32).to(torch.int64) << 32 | end
    torch.minimum(key, torch.where(least < _WITHIN, found, _NO_EDGE), out=key)


def _gram(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Products of all float32 rows of a [R, d] and b [R, d], summed in slices, into out."""
    first, *others = slices(a.shape[1])
    torch.mm(a[:, first], b[:, first].mT, out=out)
    for part in others:
        out.addmm_(a[:, part], b[:, part].mT)
    return out


def _chunks(n: int, d: int, device: torch.device) -> list[slice]:
    """Samples that are made ready together."""
    step = max(1, _CHUNK.get(device.type, _CHUNK["cuda"]) // d)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _exact(rows: Rows, task: int, chunk: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Some samples of a task scaled to unit length in float64, [k, d], and their status [1] int8."""
    part = rows.part(task, chunk)
    unit, status = exact_rows(part[None], torch.ones(1, part.shape[0], dtype=torch.bool, device=part.device))
    return unit[0, :, : part.shape[1]], status


def _worst(statuses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The status [1] int8 of a task from those of its parts."""
    status = torch.stack(list(statuses))
    return torch.where((status == Status.NOT_FINITE).any(0), Status.NOT_FINITE, status.amax(0)).to(torch.int8)


def _make_ready(rows: Rows, task: int) -> _Ready:
    """One encoder's rows of a task, in float32 where that is within 1e-6, as cosine_distances decides it."""
    n, d, device = int(rows.n[task]), rows.x.shape[1], rows.x.device
    tile, chunks = _tile(device), _chunks(n, d, device)
    height = -(-n // tile) * tile
    ok = torch.full((1,), Status.OK, dtype=torch.int8, device=device)
    if float32_products_are_exact(device):
        unit = torch.zeros(height, aligned(d, torch.float32), dtype=torch.float32, device=device)
        usual = True
        for chunk in chunks:
            part = rows.part(task, chunk)
            length = norms(part)
            usual = usual and bool(((length > LENGTHS[0]) & (length < LENGTHS[1])).all())
            torch.mul(part, (1 / length)[:, None], out=unit[chunk, :d])
        if usual:
            unit[:n] -= unit[:n].sum(0, keepdim=True) / n
            gram = unit.new_empty(tile, tile)
            blocks = unit.view(-1, tile, unit.shape[1])
            square = torch.cat([_gram(block, block, gram).diagonal().clone() for block in blocks])
            if square.max() <= WIDE:
                return _Ready(unit, 0.5 * square, ok)
        del unit
    unit = torch.zeros(height, aligned(d, torch.float64), dtype=torch.float64, device=device)
    statuses = []
    for chunk in chunks:
        unit[chunk, :d], status = _exact(rows, task, chunk)
        statuses.append(status)
    return _Ready(unit, unit.new_full((height,), 0.5), _worst(statuses))


def _lengths(rows: torch.Tensor) -> set[int]:
    """How many dimensions are summed at once; of float64 ones, as many as show what a BLAS does with them."""
    d = rows.shape[1]
    if rows.dtype == torch.float64:
        return {min(d, 1024)}
    return {min(part.stop, d) - part.start for part in slices(d)}


@lru_cache(maxsize=64)
def _place_does_not_matter(length: int, dtype: torch.dtype, tile: int, threads: int) -> bool:
    """Whether the CPU's product of two rows has the same bits wherever they stand in a tile: it is promised nowhere."""
    g = torch.Generator(device="cpu").manual_seed(0)
    a, b = (torch.randn(tile, length, generator=g, dtype=dtype, device="cpu") for _ in range(2))
    i, j = (torch.randperm(tile, generator=g, device="cpu") for _ in range(2))
    gram = a @ b.mT
    return torch.equal(gram[i][:, j], a[i] @ b[j].mT) and torch.equal(gram.mT, b @ a.mT)


class _Planes(NamedTuple):
    """A task's rows as the kernel multiplies them."""

    rows: torch.Tensor
    """[n, d'] 16-bit or [n, 2, d'] float16; see kernels/streaming.py"""
    length: torch.Tensor
    """[n] float64, the length that a row stands for"""


class KernelScan:
    """The scan by the Triton kernel. Nothing waits for the device."""

    any_order = True

    def __init__(self, planes: _Planes, min_distance: float, released: bool) -> None:
        from fase_gpu.kernels import streaming

        self._launch = streaming.launch_scan
        self._rows = planes.rows
        self._settings = min_distance, released
        square = torch.empty(planes.rows.shape[0], dtype=torch.float32, device=planes.rows.device)
        streaming.launch_squares(planes.rows, square)
        # So that equal rows are at distance 0 exactly, whatever the products are off by.
        scale = torch.where(square > 0, planes.length / square.to(torch.float64).sqrt(), 1.0)
        self._scale = scale.to(torch.float32)
        self._base = 0.5 * (square * (self._scale * self._scale))
        programs = streaming.programs(square.device, planes.rows.ndim == 3)
        self._parts = torch.empty(programs, dtype=torch.float64, device=square.device)
        self._first = True

    @property
    def total(self) -> torch.Tensor:
        return self._parts.sum(0, keepdim=True)

    def __call__(self, order: torch.Tensor, wanted: torch.Tensor, component: torch.Tensor, best: torch.Tensor) -> bool:
        self._launch(
            self._rows,
            self._base,
            self._scale,
            order.to(torch.int32),
            component[order].to(torch.int32),
            wanted.sum(0, keepdim=True),
            best,
            self._parts,
            self._first,
            *self._settings,
        )
        self._first = False
        return True


def _planes(rows: Rows, task: int) -> tuple[_Planes, torch.Tensor]:
    """A task's rows for the kernel, and its status [1] int8."""
    from fase_gpu.kernels.streaming import DIMENSIONS

    n, d, device = int(rows.n[task]), rows.x.shape[1], rows.x.device
    width = -(-d // DIMENSIONS) * DIMENSIONS
    chunks = _chunks(n, d, device)
    statuses = []
    if rows.x.dtype.itemsize == 2:
        planes = torch.zeros(n, width, dtype=rows.x.dtype, device=device)
        for chunk in chunks:
            part = rows.part(task, chunk)
            if part.dtype == torch.bfloat16:
                # Squares of float32 may over- and underflow, and powers of two change no digit.
                _, exponent = torch.frexp(part.abs().amax(1, keepdim=True).to(torch.float64))
                part = part.to(torch.float64) * torch.exp2(-exponent.to(torch.float64))
            planes[chunk, :d] = part
            statuses.append(_exact(rows, task, chunk)[1])
        return _Planes(planes, torch.ones(n, dtype=torch.float64, device=device)), _worst(statuses)
    mean = torch.zeros(d, dtype=torch.float64, device=device)
    for chunk in chunks:
        unit, status = _exact(rows, task, chunk)
        mean += unit.sum(0) / n
        statuses.append(status)
    planes = torch.zeros(n, 2, width, dtype=torch.float16, device=device)
    length = torch.empty(n, dtype=torch.float64, device=device)
    for chunk in chunks:
        centred = _exact(rows, task, chunk)[0] - mean
        length[chunk] = torch.linalg.vector_norm(centred, dim=1)
        centred *= 1 << 12  # up to 2^13; what float16 does not hold of it is then below 2^-36 of unit length
        planes[chunk, 0, :d] = centred
        planes[chunk, 1, :d] = centred - planes[chunk, 0, :d]
    return _Planes(planes, length), _worst(statuses)
