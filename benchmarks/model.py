"""Predicted time per task of a compiled kernel: the most loaded unit of the GPU decides.

A device that scores many tasks at once keeps all units busy side by side, so that the time per task is the largest of

    bytes of device memory / bandwidth
    cycles that each unit of a multiprocessor (SM) needs for the task / (SMs * clock)

A unit that takes L lanes per clock and SM needs 32 / L cycles of its SM for a warp instruction:

    unit     L    cycles  instructions
    issue         1/4     all: four schedulers issue one warp instruction per clock each
    alu      64   1/2     integer add, shift, logic; compare, select, minimum and maximum, of floats too
    imad     64   1/2     integer multiply-add (FP32 arithmetic has 128 lanes, which is the rate of issue)
    fp64     64   1/2     double precision
    special  16   2       MUFU (exp2, log2, reciprocal, square root), conversions, bit counts, warp-wide REDUX:
                          each of the SM's quarters has 4 lanes, a warp occupies its quarter's for 8 clocks, and the
                          four quarters work side by side: 8 / 4 = 2
    lsu      32   1       shuffles and accesses to shared, global and local memory; 128 bytes per clock: 2 for 64-bit
                          and 4 for 128-bit accesses, LDSM and STSM 1 per 8x8 matrix of 128 bytes
    tensor                its rate is given in FLOP/s below

The lanes are those of compute capability 9.0 in NVIDIA's table "Throughput of Native Arithmetic Instructions" (CUDA C++
Best Practices Guide; in older editions the CUDA C++ Programming Guide); 128 bytes per clock is the bandwidth of shared
memory in the same guides. Bandwidths, SMs, clock and peak FLOP/s: NVIDIA H100 Tensor Core GPU Architecture (whitepaper)
and the data sheets of H100 SXM and H200 SXM. mma.sync reaches about 62 % of the peak that wgmma reaches on Hopper (Luo
et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking, arXiv:2402.13499).

A prediction is the least time, not the expected one: not in it are bank conflicts, partial cache lines, the L2 cache,
the launch, the last wave of programs, clocks below the boost clock, and that device memory delivers about 90 % of its
nominal bandwidth at best. Nor is latency, which is estimated beside it, more coarsely (benchmarks/latency.py): where
that is the larger number, programs are too few to keep any unit busy, and it is the one to expect.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """What a kernel runs on; rates per second, sizes in bytes."""

    name: str
    bandwidth: float
    multiprocessors: int = 132
    clock: float = 1.755e9
    mma: float = 620e12
    """FLOP/s of mma.sync (HMMA) with 16-bit operands; half of it with TF32."""
    wgmma: float = 989e12
    """The same of wgmma (HGMMA)."""
    dmma: float = 67e12
    registers: int = 65_536
    """32-bit registers of an SM, a quarter of them for each scheduler's warps."""
    shared: int = 228 * 1024
    """Shared memory of an SM; the system takes 1 KiB of it for each program."""
    warps: int = 64
    programs: int = 32


H100 = Device("H100", 3.35e12)
H200 = Device("H200", 4.8e12)
DEVICES = (H100, H200)

_SCHEDULERS = 4
_CYCLES = {"alu": 0.5, "imad": 0.5, "fp64": 0.5, "special": 2.0}
_HEADS = {
    "alu": "BMSK CS2R F2FP FCHK FMNMX FSEL FSET FSETP HMNMX2 HSETP2 I2FP IABS IADD IADD3 IMNMX ISETP LEA LOP LOP3 MOV "
    "P2R PLOP3 PRMT R2P SEL SGXT SHF SHL SHR VABSDIFF VABSDIFF4 VIADD VIADDMNMX VIMNMX VIMNMX3 VOTE",
    "imad": "IMAD IDP IMUL",
    "fp64": "DADD DFMA DMNMX DMUL DSETP",
    "special": "BREV F2F F2I FLO FRND I2F I2I MUFU POPC REDUX",
    "lsu": "ATOM ATOMG ATOMS LD LDG LDGSTS LDL LDS LDSM RED SHFL ST STG STL STS STSM",
}
_UNITS = {head: unit for unit, heads in _HEADS.items() for head in heads.split()}
_MMA = re.compile(r"(HMMA|DMMA)\.(16|8)(8)(16|8|4)(?:\.|$)")
_WGMMA = re.compile(r"HGMMA\.(?:SP\.)?64x(\d+)x(\d+)")


def cycles(opcode: str) -> tuple[str | None, float]:
    """The unit beside issue that an instruction of a warp needs, and for how many cycles of its SM."""
    head, *suffixes = opcode.split(".")
    unit = _UNITS.get(head)
    if unit is None:
        return None, 0.0
    if unit != "lsu":
        return unit, _CYCLES[unit]
    if head in ("LDSM", "STSM"):
        return unit, float(suffixes[-1]) if suffixes[-1] in ("2", "4") else 1.0
    return unit, 4.0 if "128" in suffixes else 2.0 if "64" in suffixes else 1.0


def matrix_seconds(opcode: str, device: Device) -> float:
    """Seconds that all tensor cores of a device need for one matrix instruction of a warp; 0 for other instructions.

    A wgmma instruction of 64 x N x K is issued by four warps: each counts a quarter of its 2 * 64 * N * K FLOP.

    Raises:
        ValueError: a matrix instruction whose rate is not known here.
    """
    head = opcode.partition(".")[0]
    if not head.endswith("MMA"):
        return 0.0
    half = 2 if "TF32" in opcode else 1
    if match := _MMA.match(opcode):
        flop = 2.0 * math.prod(int(size) for size in match.groups()[1:])
        return flop / (device.dmma if head == "DMMA" else device.mma / half)
    if match := _WGMMA.match(opcode):
        flop = 2 * 64 * int(match[1]) * int(match[2]) / 4
        return flop / (device.wgmma / half)
    raise ValueError(f"{opcode}: a matrix instruction whose rate is not known")


@dataclass(frozen=True)
class Occupancy:
    """How many programs an SM holds at once."""

    programs: int
    warps: int
    limit: str
    """What keeps it from holding more: "registers", "shared memory", "warps" or "programs"."""


def occupancy(registers: int, shared: int, warps: int, device: Device = H100) -> Occupancy:
    """Occupancy of programs of `warps` warps with `registers` a thread and `shared` bytes.

    As in the occupancy calculator of the CUDA toolkit: a warp gets its registers 256 at a time (8 a thread) from its
    scheduler's quarter, a program its shared memory 128 bytes at a time.
    """
    a_warp = max(256, math.ceil(registers * 32 / 256) * 256)
    resident = device.registers // _SCHEDULERS // a_warp * _SCHEDULERS
    limits = {
        "warps": device.warps // warps,
        "programs": device.programs,
        "registers": resident // warps,
        "shared memory": device.shared // (math.ceil((shared + 1024) / 128) * 128),
    }
    limit = min(limits, key=lambda name: limits[name])
    return Occupancy(limits[limit], limits[limit] * warps, limit)


@dataclass(frozen=True)
class Prediction:
    """Predicted, not measured."""

    device: str
    n: int
    d: int
    nanoseconds: float
    """Per task."""
    limit: str
    """The unit that takes the longest."""
    bandwidth: float
    """Share of the memory's nominal bandwidth that is used, 0 to 1."""
    units: dict[str, float]
    """Nanoseconds per task that each unit needs."""
    latency: float
    """Nanoseconds per task if nothing but the latency of its instructions held up the programs that an SM holds."""
    bytes: float
    """Of device memory per task."""
    instructions: float
    """Of warps per task."""


@dataclass(frozen=True)
class Work:
    """What a kernel does for a task at a shape."""

    n: int
    d: int
    executed: Mapping[str, float]
    """Instructions by opcode that one warp of a program executes."""
    warps: int
    """Of a program."""
    programs: float
    """Per task."""
    traffic: float
    """Bytes of device memory per task."""
    clocks: float = 0.0
    """From the first to the last instruction of a program."""
    resident: int = 1
    """Programs that an SM holds at once."""


def predict(work: Work, device: Device) -> Prediction:
    """Time per task on a device that is full of them."""
    per_task = work.warps * work.programs
    a_cycle = 1 / (device.multiprocessors * device.clock)
    seconds = {
        "memory": work.traffic / device.bandwidth,
        "issue": sum(work.executed.values()) / _SCHEDULERS * a_cycle * per_task,
    }
    for opcode, count in work.executed.items():
        unit, needed = cycles(opcode)
        if unit is not None:
            seconds[unit] = seconds.get(unit, 0.0) + count * needed * a_cycle * per_task
        matrix = matrix_seconds(opcode, device)
        if matrix:
            seconds["tensor"] = seconds.get("tensor", 0.0) + count * matrix * per_task
    limit = max(seconds, key=lambda name: seconds[name])
    slowest = seconds[limit]
    return Prediction(
        device=device.name,
        n=work.n,
        d=work.d,
        nanoseconds=slowest * 1e9,
        limit=limit,
        bandwidth=seconds["memory"] / slowest if slowest else 0.0,
        units={name: value * 1e9 for name, value in seconds.items()},
        bytes=work.traffic,
        latency=work.clocks * work.programs / work.resident * a_cycle * 1e9,
        instructions=sum(work.executed.values()) * per_task,
    )
