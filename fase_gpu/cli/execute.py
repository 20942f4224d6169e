"""`fase-gpu execute`: samples and their tasks' tests in, who passed out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fase_gpu.cli.options import Debug, Overwrite
from fase_gpu.cli.printing import table
from fase_gpu.errors import InputError

if TYPE_CHECKING:
    from fase_gpu.evaluation.execution import Execution

_REFUSAL = (
    "this runs programs that a language model wrote. Each has a process of its own with limits on time, memory and "
    "files and, where the system allows it, without network, other processes and your files; that is no protection "
    "from bugs of the kernel. If you want it, add --allow-execution, best on a machine that holds nothing else"
)
_KINDS = 12


def execute(
    path: Annotated[Path, typer.Argument(metavar="INPUT", help="Samples: JSONL, .gz or Parquet.")],
    tasks: Annotated[
        str, typer.Option(help="Their tests: HumanEval, MBPP or BigCodeBench JSONL, or humaneval for the package's.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Results: .jsonl.")],
    allow_execution: Annotated[
        bool, typer.Option("--allow-execution", help="Run code that a language model wrote.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Wall time for a sample.")] = 5.0,
    memory: Annotated[float, typer.Option(help="GB of address space for a process.")] = 1.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Samples at a time; by default as many as cores.", show_default="cores")
    ] = None,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and warnings only.")] = False,
    debug: Debug = False,
) -> None:
    """Run every sample with its task's tests in a sandbox. An interrupted run continues when it is started again."""
    if not allow_execution:
        raise InputError(_REFUSAL)
    from fase_gpu.evaluation.execution import Limits, Sandbox, read_tasks
    from fase_gpu.evaluation.execution import execute as execute_all
    from fase_gpu.evaluation.outcomes import write_outcomes
    from fase_gpu.files import read_samples
    from fase_gpu.files.scores import check_target

    if output.suffix.lower() != ".jsonl":
        raise InputError(f"{output}: expected a name that ends in .jsonl")
    check_target(output, overwrite, [path, tasks])
    if not 0 < memory <= 1 << 20:
        raise InputError(f"memory: expected GB above 0, got {memory:g}")
    limits = Limits(seconds, int(memory * (1 << 30)))
    samples = read_samples(path)
    tests = read_tasks(tasks)
    partial = output.with_name(f"{output.name}.partial")
    with Sandbox() as sandbox, _bar(quiet) as progress:
        missing = sandbox.isolation.missing()
        if missing:
            reason = f"no namespaces here, so that samples are not kept from {', '.join(missing)}"
            print(f"fase-gpu: warning: {reason}", file=sys.stderr)
        try:
            done = execute_all(
                samples, tests, limits, workers=workers, partial=partial, sandbox=sandbox, progress=progress
            )
        except KeyboardInterrupt:
            print(f"fase-gpu: {partial} keeps what is done; the same command continues from it", file=sys.stderr)
            raise
    write_outcomes(output, done.outcomes, overwrite)
    partial.unlink()
    if not quiet:
        print(_report(path, output, len(samples.task_ids), done), flush=True)


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        shown = bar.add_task("running", total=None)
        yield lambda done, total: bar.update(shown, completed=done, total=total)


def _report(path: Path, output: Path, tasks: int, done: Execution) -> str:
    files = [["input", path.name], ["output", str(output)], ["isolation", str(done.isolation)]]
    per_task: dict[str, list[bool]] = {}
    for outcome in done.outcomes:
        per_task.setdefault(outcome.task_id, []).append(outcome.passed)
    samples, passed = len(done.outcomes), sum(outcome.passed for outcome in done.outcomes)
    counts = [["tasks", f"{tasks:,}", ""], ["samples", f"{samples:,}", ""]]
    counts.append(["distinct programs", f"{done.distinct:,}", "each run once"])
    for name, count, remark in (
        ("from an earlier run", done.kept, ""),
        ("run again alone", done.repeated, "after a timeout or a kill that others may have caused"),
    ):
        if count:
            counts.append([name, f"{count:,}", remark])
    if samples:
        counts.append(["passed", f"{passed:,}", f"{passed / samples:.1%}"])
        mean = sum(sum(labels) / len(labels) for labels in per_task.values()) / len(per_task)
        counts.append(["pass@1", f"{mean:.3f}", "mean of tasks"])
    errors = Counter(outcome.error for outcome in done.outcomes if outcome.error is not None)
    # Samples may name their exceptions as they like.
    common = errors.most_common(_KINDS)
    others = errors.total() - sum(count for _, count in common)
    common += [("others", others)] if others else []
    kinds = [[name, f"{count:,}", f"{count / samples:.1%}"] for name, count in common]
    rate = f"{done.distinct / max(done.seconds, 1e-9):,.0f} programs/s"
    blocks = [table("<<", files), table("<><", counts), table("<>>", kinds), f"total  {done.seconds:.2f} s  {rate}"]
    return "\n\n".join(block for block in blocks if block)
