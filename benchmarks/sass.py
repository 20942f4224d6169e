"""Machine code of a kernel, as nvdisasm prints it: basic blocks, loops, and how often each instruction is executed.

Whole warps take the branches of Triton's code, because the conditions of its loops and ifs are scalars, so what is
counted is warp instructions. What the code does not tell, the caller gives: the trips of each loop. A block inside a
loop counts once per trip, also where a branch may skip it: counts are an upper estimate. Two things count nothing, as
they serve what does not happen or hardly ever does: the other side of BRA.DIV (a warp whose threads have parted), and
subroutines of float arithmetic (division and square root of operands at the ends of the range).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_LABEL = re.compile(r"([.$\w]+):\s*$")
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_PLACE = re.compile(r'"([^"]*)", line (\d+)')
_TARGET = re.compile(r"(.*?)\s*`\(([^)]+)\)$")
_TRITON = "/triton/language/"
# As in $__internal_0_$__cuda_sm20_div_rn_f64_full; not in ..._div_s64, which every 64-bit division calls.
_RARE = re.compile(r"__cuda_sm\d+x?_\w*_f(?:32|64)")

Graph = Mapping[int, frozenset[int]]


class SassError(ValueError):
    """Machine code whose flow cannot be followed, or trips that do not fit it."""


@dataclass(frozen=True)
class Instruction:
    """One instruction of a warp."""

    address: int
    """Bytes from the start of its section."""
    opcode: str
    """With its suffixes: "LDG.E.128"."""
    operands: str
    """Without the label of a branch or call, which is in `target`."""
    target: str | None
    predicate: str
    """"P0" or "!P0" where it is executed under a predicate, else empty; it takes its issue slot in both cases."""
    place: tuple[str, int] | None
    """File and line of the source: not of Triton's own functions that were inlined, but of what calls them."""

    @property
    def head(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def conditional(self) -> bool:
        """Whether the next instruction may follow after a branch: `@P0 BRA x`, `BRA P1, x`, `BRA.U !UP0, x`."""
        return bool(self.predicate or self.operands)


@dataclass(frozen=True)
class Loop:
    """A loop of the machine code; two that begin at the same instruction are one inside the other."""

    first: int
    """Address of its first instruction."""
    last: int
    parent: int | None
    """Index in `Code.loops` of the loop around it."""
    depth: int
    """0 for a loop in no other."""
    instructions: int
    """In its body without the loops inside."""
    opcodes: dict[str, int]
    """The same by opcode, most frequent first."""
    lines: str
    """Lines of the source that these come from: "fused.py:33-41,57"."""
    blocks: frozenset[int] = field(repr=False)


@dataclass(frozen=True)
class Code:
    """What can be reached of a kernel and its subroutines."""

    blocks: dict[int, tuple[Instruction, ...]]
    functions: dict[str, frozenset[int]]
    """Blocks of the kernel, which is first, and of each subroutine."""
    loops: tuple[Loop, ...]
    """In the order of their first instructions, outer before inner."""

    @property
    def opcodes(self) -> Counter[str]:
        """How often each opcode stands in the code."""
        return Counter(instruction.opcode for block in self.blocks.values() for instruction in block)

    @staticmethod
    def is_rare(function: str) -> bool:
        """Whether a subroutine is for operands at the ends of the float range."""
        return bool(_RARE.search(function))

    def executed(self, trips: Sequence[float]) -> dict[str, float]:
        """Instructions by opcode that a warp executes when loop i, each time it is entered, makes trips[i] trips.

        Raises:
            SassError: there are more or fewer trips than loops.
        """
        if len(trips) != len(self.loops):
            given = f"of which there are {len(self.loops)}, got {len(trips)}"
            raise SassError(f"trips: expected one number for each of the loops, {given}")
        weights = dict.fromkeys(self.blocks, 1.0)
        for loop, count in zip(self.loops, trips, strict=True):
            for block in loop.blocks:
                weights[block] *= count
        executed: defaultdict[str, float] = defaultdict(float)
        for name, entered in self._entered(weights).items():
            for block in self.functions[name]:
                for instruction in self.blocks[block]:
                    executed[instruction.opcode] += weights[block] * entered
        return dict(executed)

    def _entered(self, weights: Mapping[int, float]) -> dict[str, float]:
        """How often each function is entered: the kernel once, a subroutine as often as its calls are executed."""
        calls: dict[str, list[tuple[str, float]]] = {name: [] for name in self.functions}
        for caller, blocks in self.functions.items():
            for block in blocks:
                for instruction in self.blocks[block]:
                    if instruction.head == "CALL" and instruction.target is not None:
                        calls[instruction.target].append((caller, weights[block]))
        kernel = next(iter(self.functions))
        known = {name: 0.0 for name in self.functions if self.is_rare(name)} | {kernel: 1.0}

        def entered(name: str, above: tuple[str, ...] = ()) -> float:
            if name in above:
                raise SassError(f"{name}: calls itself")
            if name not in known:
                known[name] = sum(weight * entered(caller, (*above, name)) for caller, weight in calls[name])
            return known[name]

        return {name: entered(name) for name in self.functions}


def parse(text: str, kernel: str) -> Code:
    """The code of `kernel` from what `nvdisasm -c -gi` prints.

    Raises:
        SassError: the kernel is not in the text, or a branch goes where the text does not say.
    """
    instructions, labels, starts = _read(text)
    if kernel not in starts:
        raise SassError(f"{kernel}: not among the functions of the code: {', '.join(starts) or 'none'}")
    ends = _ends(instructions, labels, starts)
    graphs: dict[str, Graph] = {}
    waiting = [(kernel, starts[kernel])]
    while waiting:
        name, start = waiting.pop(0)
        if name in graphs:
            continue
        graphs[name] = _flow(start, instructions, labels, ends)
        for block in sorted(graphs[name]):
            calls = (instruction for instruction in instructions[block : ends[block]] if instruction.head == "CALL")
            waiting += [(call.target or "", _label(call, labels)) for call in calls]
    blocks = {block: tuple(instructions[block : ends[block]]) for graph in graphs.values() for block in graph}
    bodies = [body for name in graphs for body in _bodies(graphs[name], next(iter(graphs[name])))]
    functions = {name: frozenset(graph) for name, graph in graphs.items()}
    return Code(blocks, functions, _loops(bodies, blocks))


def _read(text: str) -> tuple[list[Instruction], dict[str, int], dict[str, int]]:
    """Instructions in the order of the text; which of them each label and each section begins with."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    starts: dict[str, int] = {}
    place: tuple[str, int] | None = None
    places: list[tuple[str, int]] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            address, predicate, opcode, operands = match.groups()
            named = _TARGET.match(operands)
            rest, target = (named[1].rstrip(", "), named[2]) if named else (operands, None)
            place = next((found for found in places if _TRITON not in found[0]), place)
            places = []
            instructions.append(Instruction(int(address, 16), opcode, rest, target, predicate or "", place))
        elif match := _LABEL.match(line):
            labels[match[1]] = len(instructions)
        elif match := _SECTION.match(line):
            starts[match[1]] = len(instructions)
            place, places = None, []
        elif "//## File" in line:
            # A line for each function that was inlined, the innermost first: `File A, line 1 inlined at B, line 2`.
            places += [(path, int(number)) for path, number in _PLACE.findall(line)]
    return instructions, labels, starts


def _label(instruction: Instruction, labels: Mapping[str, int]) -> int:
    if instruction.target is None or instruction.target not in labels:
        raise SassError(f"{instruction.address:#x}: {instruction.opcode} {instruction.operands}: goes to no label")
    return labels[instruction.target]


def _branches(instruction: Instruction) -> bool:
    """Whether its warp may go on at its label; the hardware's other jumps have none and are refused."""
    if instruction.head in ("BRX", "JMP", "JMX"):
        raise SassError(f"{instruction.address:#x}: {instruction.opcode} {instruction.operands}: goes to no label")
    return instruction.head == "BRA" and instruction.opcode not in ("BRA.DIV", "BRA.CONV")


def _stops(instruction: Instruction) -> bool:
    """Whether the next instruction never follows."""
    if instruction.head == "RET":
        return not instruction.predicate
    return (instruction.head == "EXIT" or _branches(instruction)) and not instruction.conditional


def _ends(instructions: Sequence[Instruction], labels: Mapping[str, int], starts: Mapping[str, int]) -> dict[int, int]:
    """First instruction of each basic block -> the one after its last."""
    first = {0, *labels.values(), *starts.values()}
    for index, instruction in enumerate(instructions):
        if instruction.head in ("BRA", "EXIT", "RET"):
            first.add(index + 1)
    ordered = sorted(index for index in first if index < len(instructions))
    return dict(zip(ordered, [*ordered[1:], len(instructions)], strict=True))


def _flow(start: int, instructions: Sequence[Instruction], labels: Mapping[str, int], ends: Mapping[int, int]) -> Graph:
    """Blocks that can be reached from a block, and which follow each of them."""
    graph: dict[int, frozenset[int]] = {}
    waiting = [start]
    while waiting:
        block = waiting.pop()
        if block in graph:
            continue
        last = instructions[ends[block] - 1]
        following = {_label(last, labels)} if _branches(last) else set()
        if not _stops(last):
            following.add(ends[block])
        graph[block] = frozenset(following)
        waiting.extend(following)
    return graph


def _reached(start: int, graph: Graph) -> set[int]:
    """A block and what follows it, however far, within the graph."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        block = waiting.pop()
        if block not in seen:
            seen.add(block)
            waiting.extend(graph[block])
    return seen


def _part(graph: Graph, blocks: Iterable[int], without: int | None = None) -> Graph:
    """The graph with these blocks only."""
    kept = frozenset(blocks) - {without}
    return {block: graph[block] & kept for block in kept}


def _reversed(graph: Graph) -> Graph:
    before: dict[int, set[int]] = {block: set() for block in graph}
    for block, following in graph.items():
        for other in following:
            before[other].add(block)
    return {block: frozenset(others) for block, others in before.items()}


def _cycles(graph: Graph) -> list[frozenset[int]]:
    """The strongly connected components that a warp can go round in."""
    cycles = []
    while graph:
        block = min(graph)
        cycle = _reached(block, graph) & _reached(block, _reversed(graph))
        if len(cycle) > 1 or block in graph[block]:
            cycles.append(frozenset(cycle))
        graph = _part(graph, graph.keys() - cycle)
    return cycles


def _bodies(graph: Graph, entry: int) -> list[frozenset[int]]:
    """Blocks of each loop of a graph that is entered at a block.

    A cycle is a loop; what still cycles without its jumps back to its head is the loops inside. Of two jumps to one
    head that whose body lies in the other's is a loop inside; jumps whose bodies only overlap are ways round one loop.
    """
    bodies = []
    for cycle in _cycles(graph):
        outside = graph.keys() - cycle
        entered = {other for block in outside for other in graph[block] & cycle} | ({entry} & cycle)
        head = min(entered)
        jumps = {block for block in cycle if head in graph[block]}
        before = _reversed(_part(graph, cycle, without=head))
        around = {block: _reached(block, before) if block != head else set() for block in jumps}
        outer = {block for block in jumps if not any(around[block] < around[other] for other in jumps)}
        inside = dict(_part(graph, cycle))
        for block in outer:
            inside[block] -= {head}
        bodies += [cycle, *_bodies(inside, head)]
    return bodies


def _loops(bodies: Sequence[frozenset[int]], blocks: Mapping[int, tuple[Instruction, ...]]) -> tuple[Loop, ...]:
    ordered = sorted(bodies, key=lambda body: (min(body), -len(body)))
    loops: list[Loop] = []
    for body in ordered:
        # Loops that hold this one come before it; the last of them is the nearest.
        parent = max((index for index, loop in enumerate(loops) if body < loop.blocks), default=None)
        inner = frozenset().union(*(other for other in ordered if other < body))
        own = [instruction for block in sorted(body - inner) for instruction in blocks[block]]
        loops.append(
            Loop(
                first=blocks[min(body)][0].address,
                last=blocks[max(body)][-1].address,
                parent=parent,
                depth=0 if parent is None else loops[parent].depth + 1,
                instructions=len(own),
                opcodes=dict(Counter(instruction.opcode for instruction in own).most_common()),
                lines=_lines(instruction.place for instruction in own),
                blocks=body,
            )
        )
    return tuple(loops)


def _lines(places: Iterable[tuple[str, int] | None]) -> str:
    """Places as "fused.py:33-41,57 density.py:12"."""
    files: defaultdict[str, set[int]] = defaultdict(set)
    for path, line in filter(None, places):
        files[PurePath(path).name].add(line)
    texts = []
    for name, lines in files.items():
        # Lines that follow one another have the same distance from their rank.
        runs: defaultdict[int, list[int]] = defaultdict(list)
        for rank, line in enumerate(sorted(lines)):
            runs[line - rank].append(line)
        spans = (f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs.values())
        texts.append(f"{name}:{','.join(spans)}")
    return " ".join(texts)
