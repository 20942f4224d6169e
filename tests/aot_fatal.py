"""A kernel whose compilation takes its process down, as a fault of the compiler would, between two that are fine."""

from __future__ import annotations

import os

from aot_kernels import gram
from fase_gpu.kernels.shipped import Shipped


def _die(n: int, d: int) -> tuple[float, ...]:
    os._exit(3)


def shipped() -> list[Shipped]:
    return [gram("first"), gram("fatal", trips=_die), gram("last")]
