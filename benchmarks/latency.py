"""How long one program runs, from the dependencies in its machine code.

One warp is followed through the code in order of addresses, with the trips given for each loop (three at most, then the
last is taken as often as the rest), and issues an instruction when

- the one before it is issued, at most one each clock;
- the registers and predicates that it reads are written;
- its unit has taken the last instruction of this warp: 16 lanes of a quarter of an SM take 2 clocks, 4 lanes take 8;
- copies to shared memory that it waits for (DEPBAR) are there.

Clocks from issue to a dependent instruction: 4 for arithmetic; 18 for the special-function unit and conversions; 29 for
shared memory; 22 for shuffles; 33 for matrix instructions; 260 for 32-bit loads of global memory (the L2 cache: counts
and addresses) and 480 for wide loads and copies (device memory: embeddings). They are of H100 where measured (memory:
Luo et al., arXiv:2402.13499), else about those of A100 (Abdelkhalik et al., Demystifying the Nvidia Ampere Architecture
through Microbenchmarking and Instruction-level Analysis, arXiv:2208.11174) and V100 (Jia et al., Dissecting the NVIDIA
Volta GPU Architecture via Microbenchmarking, arXiv:1804.06826).

An SM that holds R programs at once finishes at most R of them in that time (Little's law). The estimate is coarse: too
low where the second register of a pair is read, and as barriers, branches, other warps and full queues cost nothing;
too high where code that a branch skips is followed.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from benchmarks.model import cycles
from benchmarks.sass import Code, Instruction

_REGISTER = re.compile(r"\bU?(?:R|P)\d+\b")
_PREDICATE = re.compile(r"U?P[T\d]\d*")
_NO_RESULT = {"STG", "STS", "ST", "STL", "STSM", "RED", "LDGSTS", "BRA", "BAR", "EXIT", "RET", "CALL", "DEPBAR", "BSSY"}
_ARITHMETIC = 4
_CLOCKS = {"special": 18, "lsu": 29}
_SHUFFLE = 22
_MATRIX = 33
_CACHED = 260
_FAR = 480
_TRIPS = 3


def program_clocks(code: Code, trips: Sequence[float]) -> float:
    """Clocks from the first to the last instruction of a program when loop i makes trips[i] trips."""
    warp = _Warp(code, trips)
    warp.run(next(iter(code.functions)))
    return warp.clock + warp.skipped


class _Warp:
    """A warp on its way through the code."""

    def __init__(self, code: Code, trips: Sequence[float]) -> None:
        self.code = code
        self.trips = trips
        self.clock = 0.0
        self.skipped = 0.0
        """Clocks of the trips that are not followed."""
        self._written: defaultdict[str, float] = defaultdict(float)
        """Register -> when it can be read."""
        self._free: defaultdict[str, float] = defaultdict(float)
        """Unit -> when it takes the next instruction."""
        self._copies: list[float] = []
        """When the groups of copies are there, oldest first; the last group is still open."""
        self._open = 0.0

    def run(self, function: str) -> None:
        self._region(self.code.functions[function], None)

    def _region(self, blocks: frozenset[int], loop: int | None) -> None:
        """The blocks in order, each loop inside as a whole where its first block stands."""
        loops = enumerate(self.code.loops)
        inside = [index for index, other in loops if other.parent == loop and other.blocks <= blocks]
        around = {block: index for index in inside for block in self.code.loops[index].blocks}
        entered: set[int] = set()
        for block in sorted(blocks):
            inner = around.get(block)
            if inner is None:
                for instruction in self.code.blocks[block]:
                    self._issue(instruction)
            elif inner not in entered:
                entered.add(inner)
                self._loop(inner)

    def _loop(self, index: int) -> None:
        count = self.trips[index]
        followed = min(max(1, math.floor(count)), _TRIPS) if count > 0 else 0
        last = 0.0
        for _ in range(followed):
            before = self.clock + self.skipped
            self._region(self.code.loops[index].blocks, index)
            last = self.clock + self.skipped - before
        self.skipped += (count - followed) * last

    def _issue(self, instruction: Instruction) -> None:
        unit, busy = cycles(instruction.opcode)
        ready = max((self._written[name] for name in _read(instruction)), default=0.0)
        if instruction.head == "DEPBAR" and "0x" in instruction.operands:
            waited = len(self._copies) - int(instruction.operands.rpartition("0x")[2], 16)
            ready = max([ready, *self._copies[: max(0, waited)]])
        self.clock = max(self.clock, ready, self._free[unit] if unit else 0.0)
        if unit:
            # A quarter of the SM has a quarter of the unit's lanes; the lsu is one for all.
            self._free[unit] = self.clock + (busy if unit == "lsu" else 4 * busy)
        if instruction.head == "LDGSTS":
            self._open = self.clock + _FAR
        elif instruction.head == "LDGDEPBAR":
            self._copies.append(self._open)
        for name in _results(instruction):
            self._written[name] = self.clock + _latency(instruction.opcode, unit)
        self.clock += 1
        if instruction.head == "CALL" and instruction.target and not self.code.is_rare(instruction.target):
            self.run(instruction.target)


def _operands(instruction: Instruction) -> list[str]:
    return [operand.strip() for operand in instruction.operands.split(",")]


def _results(instruction: Instruction) -> Iterator[str]:
    """Registers that an instruction writes."""
    operands = _operands(instruction)
    if instruction.head in _NO_RESULT or not operands[0]:
        return
    written = operands[:1]
    # A first predicate is followed by the other result; a second one is a carry or the like.
    if len(operands) > 1 and (_PREDICATE.fullmatch(operands[0]) or _PREDICATE.fullmatch(operands[1])):
        written.append(operands[1])
    for operand in written:
        if match := _REGISTER.match(operand):
            name = match[0]
            if "P" in name:
                yield name
                continue
            letters, first = name.rstrip("0123456789"), int(re.sub(r"\D", "", name))
            yield from (f"{letters}{first + offset}" for offset in range(_width(instruction.opcode)))


def _read(instruction: Instruction) -> Iterator[str]:
    """Registers that an instruction reads, those of pairs and quadruples by their first alone."""
    if instruction.predicate:
        yield instruction.predicate.lstrip("!")
    operands = _operands(instruction)
    results = 0 if instruction.head in _NO_RESULT else 1
    if results and len(operands) > 1 and _PREDICATE.fullmatch(operands[0]):
        results = 2
    for operand in operands[results:]:
        yield from _REGISTER.findall(operand)


def _width(opcode: str) -> int:
    """Registers of a result."""
    head, *suffixes = opcode.split(".")
    if head in ("LDSM", "HMMA"):
        return 4 if head == "HMMA" or suffixes[-1] == "4" else 2 if suffixes[-1] == "2" else 1
    if "128" in suffixes:
        return 4
    wide = head in ("DADD", "DMUL", "DFMA") or "WIDE" in suffixes or "64" in suffixes or suffixes[:1] == ["F64"]
    return 2 if wide or (head == "CS2R" and "32" not in suffixes) else 1


def _latency(opcode: str, unit: str | None) -> int:
    head, *suffixes = opcode.split(".")
    if head == "SHFL":
        return _SHUFFLE
    if head in ("LDG", "LD", "ATOMG", "ATOM"):
        return _FAR if "128" in suffixes or "64" in suffixes else _CACHED
    if head.endswith("MMA"):
        return _MATRIX
    return _CLOCKS.get(unit or "", _ARITHMETIC)
