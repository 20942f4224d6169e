"""The status of a task, as in fase_gpu.results."""

import triton.language as tl

OK = tl.constexpr(0)
EMPTY = tl.constexpr(1)
SINGLE = tl.constexpr(2)
NOT_FINITE = tl.constexpr(3)
ZERO_VECTOR = tl.constexpr(4)
TOO_MANY = tl.constexpr(6)
