"""Samples run with their tasks' tests, each in a sandbox.

run.py        all samples of a set: worker threads, programs that are run again, an interrupted run continued
tasks.py      task files of the benchmarks
sandbox.py    a job in a process that is isolated as well as the system allows
kept.py       the file from which an interrupted run continues
confined/     what runs inside the processes
"""

from __future__ import annotations

from fase_gpu.evaluation.execution.run import Execution, execute
from fase_gpu.evaluation.execution.sandbox import Ending, Interpreter, Isolation, Limits, Sandbox
from fase_gpu.evaluation.execution.tasks import Task, read_tasks

__all__ = [
    "Ending",
    "Execution",
    "Interpreter",
    "Isolation",
    "Limits",
    "Sandbox",
    "Task",
    "execute",
    "read_tasks",
]
