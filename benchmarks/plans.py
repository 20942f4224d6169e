"""What whole tasks are predicted to take: the kernels that each shape goes through, and the sum of their times."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import aot
from benchmarks.aot import Shape
from benchmarks.model import DEVICES
from benchmarks.tables import Table

SHAPES: tuple[Shape, ...] = tuple((n, d) for n in (10, 50, 100, 1000) for d in (384, 768, 1024, 2560, 4096))
TYPES = ("bf16", "fp32")


def kernels(n: int, d: int, dtype: str) -> list[str]:
    """Names of the configurations that score tasks of 2 to 1024 samples."""
    size = max(16, 1 << (n - 1).bit_length())
    if size <= 64:
        return [f"fused n<={size} {dtype}"]
    cosine = [f"cosine diagonal n<=1024 {dtype}", f"cosine pairs n<=1024 {dtype}"]
    rows = ["cosine rows fp32"] if dtype == "fp32" else []
    return [*rows, *cosine, f"boruvka n<={size}", "merge", "density", f"components n<={size}"]


def table(shapes: Sequence[Shape] = SHAPES) -> Table:
    """A row for each type and shape: the least time of every kernel, or its latency where that is more, summed."""
    plans = {(dtype, n, d): kernels(n, d, dtype) for dtype in TYPES for n, d in shapes}
    names = {name for plan in plans.values() for name in plan}
    found = {name: entry for name, entry in aot.shipped().items() if name in names}
    entries = aot.report(found, targets=[aot.DETAILED], shapes=shapes)
    predictions = {
        (entry.name, prediction.n, prediction.d, prediction.device): prediction
        for entry in entries
        if entry.detail is not None
        for prediction in entry.detail.predictions
    }
    rows = []
    for (dtype, n, d), plan in plans.items():
        row = [dtype, f"{n}", f"{d}"]
        for device in DEVICES:
            parts = [predictions[name, n, d, device.name] for name in plan]
            times = [max(part.nanoseconds, part.latency) for part in parts]
            slowest = times.index(max(times))
            limit = "latency" if parts[slowest].latency > parts[slowest].nanoseconds else parts[slowest].limit
            where = f"{limit} ({plan[slowest].split(' n<')[0]})" if len(plan) > 1 else limit
            reading = n * d * (2 if dtype == "bf16" else 4) / device.bandwidth * 1e9
            row += [_number(sum(times)), f"{reading / sum(times):.0%}", where]
        rows.append(row)
    columns = tuple(
        f"{device.name} {what}" for device in DEVICES for what in ("ns/task", "of reading the embeddings once", "limit")
    )
    words = frozenset(f"{device.name} limit" for device in DEVICES)
    return Table("Predicted, not measured", ("type", "n", "d", *columns), rows, words)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
