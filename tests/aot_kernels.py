"""Kernels for the tests of the compile report: two are as they promise to be, each of the others breaks a promise."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from fase_gpu.kernels.shipped import Shipped


@triton.jit
def _gram_kernel(
    x_ptr,  # [T, N, d]
    out_ptr,  # [T, N, N] float32
    d,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    task = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, N)
    column = tl.arange(0, BLOCK)
    gram = tl.zeros([N, N], tl.float32)
    for start in range(0, d, BLOCK):
        at = start + column
        x = tl.load(x_ptr + (task * N + row[:, None]) * d + at[None, :], mask=at[None, :] < d, other=0.0)
        gram = tl.dot(x, tl.trans(x), gram, input_precision="ieee")
    tl.store(out_ptr + task * N * N + row[:, None] * N + row[None, :], gram)


@triton.jit
def _nested_kernel(
    x_ptr,  # [B] float32
    out_ptr,  # [B] float32
    outer,
    inner,
    B: tl.constexpr,
):
    """A loop with a loop in it, then one alone; what they do depends on the trip before, so that none is unrolled."""
    lane = tl.arange(0, B)
    x = tl.load(x_ptr + lane)
    i = 0
    while i < outer:
        j = 0
        while tl.max(x, 0) > inner:
            x = tl.exp2(x) - 1.0
            j += 1
        x += tl.sum(x, 0)
        i += 1
    while tl.min(x, 0) < inner:
        x = tl.sqrt(x) + 2.0
    tl.store(out_ptr + lane, x)


@triton.jit
def _spilling_kernel(
    x_ptr,  # [B] float32
    out_ptr,  # [B] float32
    B: tl.constexpr,
):
    """Each of 32 threads holds B / 32 numbers from before the sum to after it."""
    at = tl.arange(0, B)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, x * tl.sum(x, 0))


@triton.jit
def _wrong_kernel(x_ptr, out_ptr, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out_ptr + at, tl.load(x_ptr + at) @ 2)


def gram(name: str, **changes: Any) -> Shipped:
    kernel = Shipped(
        name=name,
        kernel=_gram_kernel,
        signature={"x_ptr": "*bf16", "out_ptr": "*fp32", "d": "i32", "N": "constexpr", "BLOCK": "constexpr"},
        constants={"N": 16, "BLOCK": 128},
        warps=1,
        stages=2,
        aligned=("x_ptr", "out_ptr", "d"),
        registers=255,
        shared=32 * 1024,
        mma="HMMA.16816.F32.BF16",
        wide=True,
        programs=lambda n, d: 1.0,
        traffic=lambda n, d: 2.0 * n * d + 4.0 * n * n,
        trips=lambda n, d: (-(-d // 128),),
        shapes=((10, 384), (10, 4096)),
    )
    return kernel._replace(**changes)


def shipped() -> list[Shipped]:
    number = {"x_ptr": "*fp32", "out_ptr": "*fp32"}
    nested = gram(
        "fine nested",
        kernel=_nested_kernel,
        signature={**number, "outer": "i32", "inner": "i32", "B": "constexpr"},
        constants={"B": 128},
        aligned=("x_ptr", "out_ptr"),
        mma=None,
        trips=lambda n, d: (n, 5, 7),
    )
    spilling = gram(
        "spills",
        kernel=_spilling_kernel,
        signature={**number, "B": "constexpr"},
        constants={"B": 16_384},
        aligned=("x_ptr", "out_ptr"),
        mma=None,
        trips=lambda n, d: (),
    )
    return [
        gram("fine gram"),
        nested,
        spilling,
        spilling._replace(name="does not compile", kernel=_wrong_kernel),
        gram("too many registers", registers=16),
        gram("too much shared memory", shared=1024),
        gram("other matrix instruction", mma="HGMMA"),
        gram("unexpected matrix instruction", mma=None),
        gram("narrow loads", aligned=("x_ptr", "out_ptr")),
        gram("trips of two loops", trips=lambda n, d: (n, d)),
        gram("trips below 0", trips=lambda n, d: (-1,)),
        gram("trips that fail", trips=lambda n, d: (n // 0,)),
    ]
