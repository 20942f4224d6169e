"""Ahead-of-time compilation of the shipped kernels: needs no GPU, and finds every fault that the compiler can show.

Triton's interpreter replaces what `triton.jit` makes, so kernels are compiled only in new processes, whose environment
never had TRITON_INTERPRET set.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fase_gpu.kernels.shipped import Shipped

from benchmarks.latency import program_clocks
from benchmarks.model import DEVICES, Occupancy, Prediction, Work, occupancy, predict
from benchmarks.sass import Code, Loop, SassError, parse

KERNELS = "fase_gpu.kernels"
DETAILED = 90
"""The target whose code is read: the others are compiled and checked for spills."""
TARGETS = (DETAILED, 80, 100)

Shape = tuple[int, int]


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one target."""

    target: int
    """Compute capability: 90 is sm_90."""
    registers: int = 0
    """Of a thread."""
    stack: int = 0
    """Bytes of a thread: where registers are spilled to, and arrays that are indexed by what is only known when run."""
    shared: int = 0
    """Bytes of a program, static and dynamic, without the 1 KiB that the system takes."""
    failure: str | None = None
    """Why there is nothing to say of it: "does not compile: ..."."""


@dataclass(frozen=True)
class Detail:
    """What the machine code of the detailed target holds."""

    instructions: int
    opcodes: dict[str, int]
    """Instructions by opcode, most frequent first."""
    spills: int
    """Loads and stores of local memory."""
    matrix: dict[str, int]
    """Matrix instructions."""
    wide: dict[str, int]
    """128-bit and bulk loads of global memory."""
    loops: tuple[Loop, ...]
    occupancy: Occupancy
    trips: tuple[tuple[float, ...], ...]
    """At each shape, what the kernel says of its loops."""
    predictions: tuple[Prediction, ...]
    """At each shape, of each device."""
    faults: tuple[str, ...]
    """Why there is no prediction at a shape."""


@dataclass
class Entry:
    """A shipped configuration and what became of it."""

    module: str
    name: str
    warps: int
    most_registers: int
    """What the kernel promises; see `Shipped`."""
    most_shared: int
    mma: str | None
    wide: bool
    compiled: dict[int, Compiled] = field(default_factory=dict)
    """Target -> result."""
    detail: Detail | None = None
    problems: list[str] = field(default_factory=list)


def shipped(source: str = KERNELS) -> dict[str, tuple[str, Shipped]]:
    """Name of each configuration -> module and record, from a module with `shipped()` or all modules of a package."""
    module = importlib.import_module(source)
    names = [source]
    if hasattr(module, "__path__"):
        names = sorted(f"{source}.{info.name}" for info in pkgutil.iter_modules(module.__path__))
    found: dict[str, tuple[str, Shipped]] = {}
    for name in names:
        listing: Callable[[], list[Shipped]] | None = getattr(importlib.import_module(name), "shipped", None)
        for kernel in listing() if callable(listing) else ():
            if kernel.name in found:
                raise ValueError(f"{name}: {kernel.name!r} is also the name of a kernel of {found[kernel.name][0]}")
            found[kernel.name] = (name, kernel)
    return found


def matching(kernels: Mapping[str, tuple[str, Shipped]], words: str) -> dict[str, tuple[str, Shipped]]:
    """Those whose module and name have all of the words in them."""
    wanted = words.lower().split()
    return {
        name: (module, kernel)
        for name, (module, kernel) in kernels.items()
        if all(word in f"{module} {name}".lower() for word in wanted)
    }


def fits(kernel: Shipped, shape: Shape) -> bool:
    """Whether a kernel takes tasks of n samples: as many as its constant N."""
    return bool(shape[0] <= kernel.constants.get("N", shape[0]))


def compile_kernel(kernel: Shipped, target: int) -> tuple[str, Any]:
    """Name of the function and what Triton makes of it, as for a launch on a GPU of that compute capability."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    function = kernel.kernel
    attributes = {(function.arg_names.index(name),): [["tt.divisibility", 16]] for name in kernel.aligned}
    source = ASTSource(fn=function, signature=kernel.signature, constexprs=kernel.constants, attrs=attributes)
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages, "enable_fp_fusion": kernel.fp_fusion}
    if kernel.maxnreg is not None:
        options["maxnreg"] = kernel.maxnreg
    result = triton_compile(source, target=GPUTarget("cuda", target, 32), options=options)
    return result.metadata.name, result


def measure(source: str, name: str, target: int, shapes: Sequence[Shape]) -> tuple[Compiled, Detail | None]:
    """Compile one configuration for one target, in a process that may be used for the next one."""
    _, kernel = shipped(source)[name]
    try:
        function, result = compile_kernel(kernel, target)
    except Exception as error:
        # What the compiler says of a kernel comes as almost any exception, and ends this configuration only.
        return Compiled(target, failure=f"does not compile: {type(error).__name__}: {error}"), None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(result.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", path)
        listing = _tool("nvdisasm", "-c", "-gi", path) if target == DETAILED else ""
    found = dict(re.findall(r"(\w+):(\d+)", usage[usage.index(f"Function {function}:") :]))
    reserved = 1024 if target >= 90 else 0
    compiled = Compiled(
        target=target,
        registers=int(found["REG"]),
        stack=int(found["STACK"]) + int(found["LOCAL"]),
        shared=result.metadata.shared + max(0, int(found["SHARED"]) - reserved),
    )
    if not listing:
        return compiled, None
    try:
        code = parse(listing, function)
    except SassError as error:
        return replace(compiled, failure=f"its code cannot be followed: {error}"), None
    return compiled, _detail(kernel, compiled, code, shapes)


def _tool(name: str, *arguments: str | Path) -> str:
    """What one of the tools that come with Triton prints."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([tool, *arguments], text=True, capture_output=True, check=True).stdout


def _detail(kernel: Shipped, compiled: Compiled, code: Code, shapes: Sequence[Shape]) -> Detail:
    opcodes = code.opcodes
    held = occupancy(compiled.registers, compiled.shared, kernel.warps)
    given: list[tuple[float, ...]] = []
    predictions: list[Prediction] = []
    faults: dict[str, str] = {}
    for shape in shapes or kernel.shapes:
        if not fits(kernel, shape):
            continue
        try:
            trips = kernel.trips(*shape)
            if not all(0 <= count < float("inf") for count in trips):
                raise SassError(f"trips: expected finite numbers, none below 0, got {trips}")
            given.append(tuple(trips))
            work = Work(
                n=shape[0],
                d=shape[1],
                executed=code.executed(trips),
                warps=kernel.warps,
                programs=kernel.programs(*shape),
                traffic=kernel.traffic(*shape),
                clocks=program_clocks(code, trips),
                resident=max(1, held.programs),
            )
            predictions += [predict(work, device) for device in DEVICES]
        except Exception as error:
            # The functions are the kernel author's and may fail in any way.
            text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            # One is enough of a fault that is the same at every shape.
            faults.setdefault(text, f"at n = {shape[0]}, d = {shape[1]}: {text}")
    return Detail(
        instructions=opcodes.total(),
        opcodes=dict(opcodes.most_common()),
        spills=sum(count for opcode, count in opcodes.items() if opcode.partition(".")[0] in ("LDL", "STL")),
        matrix={opcode: count for opcode, count in opcodes.items() if opcode.partition(".")[0].endswith("MMA")},
        wide={opcode: count for opcode, count in opcodes.items() if _is_wide(opcode)},
        loops=code.loops,
        occupancy=held,
        trips=tuple(given),
        predictions=tuple(predictions),
        faults=tuple(faults.values()),
    )


def _is_wide(opcode: str) -> bool:
    head, *suffixes = opcode.split(".")
    return (head in ("LDG", "LDGSTS") and "128" in suffixes) or head in ("UTMALDG", "UBLKCP")


def problems(entry: Entry) -> list[str]:
    """What keeps a configuration from being shipped, in sentences."""
    found: list[str] = []
    for target, compiled in entry.compiled.items():
        where = f"sm_{target}"
        if compiled.failure is not None:
            found.append(f"{where}: {compiled.failure}")
        elif compiled.stack:
            found.append(f"{where}: {compiled.stack} bytes of stack, expected none")
    main = entry.compiled.get(DETAILED)
    if entry.detail is None or main is None:
        return found
    where, detail = f"sm_{DETAILED}", entry.detail
    if detail.spills:
        found.append(f"{where}: {detail.spills} loads and stores of spilled registers, expected none")
    if main.registers > entry.most_registers:
        found.append(f"{where}: {main.registers} registers, expected at most {entry.most_registers}")
    if main.shared > entry.most_shared:
        found.append(f"{where}: {main.shared} bytes of shared memory, expected at most {entry.most_shared}")
    if not detail.occupancy.programs:
        found.append(f"{where}: no SM has enough {detail.occupancy.limit} for one program")
    if entry.mma is not None and not any(opcode.startswith(entry.mma) for opcode in detail.matrix):
        found.append(f"{where}: no {entry.mma} instruction, got {', '.join(detail.matrix) or 'no matrix instruction'}")
    if entry.mma is None and detail.matrix:
        found.append(f"{where}: {', '.join(detail.matrix)}, expected no matrix instruction")
    if entry.wide and not detail.wide:
        found.append(f"{where}: no 128-bit loads, expected some")
    found += [f"{where}: {fault}" for fault in detail.faults]
    return found


@contextmanager
def _environment() -> Iterator[None]:
    """Environment of processes that compile: no interpreter, and a cache of their own where the user names none."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="triton-") as folder:
        os.environ.pop("TRITON_INTERPRET", None)
        os.environ.setdefault("TRITON_CACHE_DIR", folder)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def _samples(kernels: Mapping[str, tuple[str, Shipped]]) -> list[str]:
    """The first configuration of each kernel."""
    first: dict[Any, str] = {}
    for name, (_, kernel) in kernels.items():
        first.setdefault(kernel.kernel, name)
    return list(first.values())


def report(
    kernels: Mapping[str, tuple[str, Shipped]],
    source: str = KERNELS,
    targets: Sequence[int] = TARGETS,
    shapes: Sequence[Shape] = (),
    processes: int | None = None,
    done: Callable[[int, int], None] = lambda compiled, of: None,
    everything: bool = False,
) -> list[Entry]:
    """Compile configurations for every target, in processes side by side.

    Args:
        kernels: what `shipped(source)` gives, or some of it.
        shapes: (n, d) to predict times at; those of each kernel by default.
        processes: one for each core by default.
        done: told how many compilations are done, and of how many, after each.
        everything: compile all for every target, not for others than the detailed one the first of each kernel alone.
    """
    entries = {
        name: Entry(module, name, kernel.warps, kernel.registers, kernel.shared, kernel.mma, kernel.wide)
        for name, (module, kernel) in kernels.items()
    }
    elsewhere = entries if everything else _samples(kernels)
    jobs = [(name, target) for target in targets for name in (entries if target == DETAILED else elsewhere)]
    waiting = set(jobs)

    def collect(futures: Mapping[Future[tuple[Compiled, Detail | None]], tuple[str, int]]) -> None:
        for future in as_completed(futures):
            name, target = futures[future]
            compiled, detail = future.result()
            entries[name].compiled[target] = compiled
            entries[name].detail = detail or entries[name].detail
            waiting.discard((name, target))
            done(len(jobs) - len(waiting), len(jobs))

    def compile_all(jobs: Sequence[tuple[str, int]], count: int) -> None:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            collect({pool.submit(measure, source, *job, shapes): job for job in jobs})

    with _environment():
        try:
            compile_all(jobs, processes or len(os.sched_getaffinity(0)))
        except BrokenProcessPool:
            # The compiler can take its process down: a process each for the rest tells which kernel does that.
            for name, target in [job for job in jobs if job in waiting]:
                try:
                    compile_all([(name, target)], 1)
                except BrokenProcessPool:
                    failure = "does not compile: the compiler ended its process"
                    entries[name].compiled[target] = Compiled(target, failure=failure)
    for entry in entries.values():
        entry.compiled = {target: entry.compiled[target] for target in targets if target in entry.compiled}
        entry.problems = problems(entry)
    return list(entries.values())
