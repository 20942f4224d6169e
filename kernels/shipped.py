"""What is launched, as records that the ahead-of-time compilation and the time model can read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Shipped(NamedTuple):
    """A kernel in one configuration that its launcher uses."""

    name: str
    """Kernel and configuration, as the report prints it: "fused n<=16 bf16"."""
    kernel: Any
    """The triton.jit function."""
    signature: dict[str, str]
    """Argument -> Triton type: "*bf16", "i64", "constexpr"."""
    constants: dict[str, Any]
    """Values of the constexpr arguments."""
    warps: int
    stages: int
    aligned: tuple[str, ...]
    """Arguments that are multiples of 16 (pointers: bytes) where the launcher takes this configuration."""
    registers: int
    """Most registers a thread may take."""
    shared: int
    """Most bytes of shared memory a program may take."""
    mma: str | None
    """How the matrix instruction of sm_90 starts ("HMMA.16816.F32.BF16", "HGMMA"), None for a kernel without one."""
    wide: bool
    """Whether 128-bit loads of embeddings or distances are expected."""
    programs: Callable[[int, int], float]
    """Programs per task at n samples of d dimensions: 0.25 where a program scores four tasks."""
    traffic: Callable[[int, int], float]
    """Bytes of device memory per task, read and written, at (n, d)."""
    trips: Callable[[int, int], tuple[float, ...]]
    """Trips at (n, d) of each loop in the sm_90 code, in the order of the addresses of the loops' first instructions,
    outer before inner where they are one; of a nested loop, trips for each trip of the loop around it. These are not
    the loops of the source: short ones are unrolled, others four times with a loop for the rest. `python -m benchmarks
    compile --loops --filter NAME` lists them."""
    shapes: tuple[tuple[int, int], ...] = ((10, 384),)
    """The (n, d) at which the report predicts times."""
    fp_fusion: bool = True
    """Whether a * b + c is rounded once: `enable_fp_fusion` of the launch, which has to give it, as its default differs
    between versions of Triton."""
    maxnreg: int | None = None
    """Registers that the assembler is given; None: what it thinks best, which may be fewer than spare it a spill."""
