"""Products of rows and the distances that they give: the arithmetic of cosine.py, parts of which fused.py shares.

A tensor core truncates as it accumulates, always towards zero, so products are summed in slices of one block of columns
each, and a compensated float32 sum adds the slices. The lengths of the rows come from the same products, the diagonal
of the Gram matrix: what truncation takes off a product of near-duplicates, it takes off their lengths too.

16-bit rows are multiplied as they are: their products are exact. D = 1 - G_ij / sqrt(G_ii G_jj).

float32 rows are scaled to unit length and the task's first row, the origin, is subtracted before the product, so that
what cancels is the distance to that row and not 1, and near-duplicates keep their digits. With q the squared distance
to the origin by the tensor core and Q by ordinary arithmetic, D_ij = (q - G_ij) Q / q of q = (q_i + q_j) / 2 and Q
alike: the quotient takes out the truncation, which is the same part of q and of G_ij where it matters. README.md has
the errors.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Squared lengths between which no square or product of a row over- or underflows in a way that matters.
SHORTEST = tl.constexpr(1e-24)
LONGEST = tl.constexpr(1e24)
# In place of the power of two that a row is multiplied by: why it has none. The least of a task is the reason to give.
HAS_NO_NUMBER = tl.constexpr(-2.0)
IS_ZERO = tl.constexpr(-1.0)
INFINITE_BITS = tl.constexpr(0x7F800000)
# The bits of a float32 that TF32 holds, and half of the first one below them.
TF32_BITS = tl.constexpr(-8192)
TF32_HALF = tl.constexpr(4096)
# Adding and subtracting it rounds a float64 below 2^51 half to even.
INTEGERS = tl.constexpr(6755399441055744.0)
# Below this a distance is rounding: the rows are one row.
NOTHING = tl.constexpr(1e-12)


@triton.jit
def rows_of(x_ptr, index_ptr, indexed, first, i, inside, row_stride):
    """Pointers to the rows of samples i of the task whose packed rows start at `first`."""
    row = first + i
    if indexed != 0:
        row = tl.load(index_ptr + row, mask=inside, other=0)
    return x_ptr + row * row_stride


@triton.jit
def compensated(total, lost, part):
    """A compensated sum, total - lost, with one more part in it."""
    part = part - lost
    new = total + part
    return new, (new - total) - part


@triton.jit
def _load(row, inside, k, d):
    return tl.load(row[:, None] + k[None, :], mask=inside[:, None] & (k < d)[None, :], other=0.0)


@triton.jit
def _load_origin(row, lift, unit, k, d):
    return tl.load(row[:, None] + k[None, :], mask=(k < d)[None, :], other=0.0) * lift[:, None] * unit[:, None]


@triton.jit
def _relative(x, lift, unit, origin):
    """Rows scaled to unit length, seen from the origin. Explicitly fused, so that equal rows are equal everywhere."""
    return tl.fma(x * lift[:, None], tl.broadcast_to(unit[:, None], x.shape), tl.broadcast_to(-origin, x.shape))


@triton.jit
def squared_lengths(
    row, inside, lift, unit, origin_row, origin_lift, origin_unit, d, CENTRED: tl.constexpr, COLUMNS: tl.constexpr
):
    """Squared lengths [R] float64 of the rows times lift, or where CENTRED of the differences to the origin."""
    column = tl.arange(0, COLUMNS)
    total = tl.zeros([lift.shape[0], COLUMNS], tl.float32)
    lost = total
    for start in range(0, d, COLUMNS):
        x = _load(row, inside, start + column, d)
        if CENTRED:
            x = _relative(x, lift, unit, _load_origin(origin_row, origin_lift, origin_unit, start + column, d))
        else:
            x = x * lift[:, None]
        total, lost = compensated(total, lost, x * x)
    return tl.sum(total.to(tl.float64) - lost.to(tl.float64), 1)


@triton.jit
def magnitude(x):
    """The bits of |x|, int32: they order as the floats do, and what is not finite comes last."""
    return x.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def lift_of(largest):
    """The power of two that brings the largest of a row's magnitudes near 1, or why there is none."""
    # The exponent is turned around its bias; what is left over at the ends of the range does no harm.
    exponent = tl.minimum(tl.maximum(254 - (largest >> 23), 1), 253)
    lift = (exponent << 23).to(tl.float32, bitcast=True)
    return tl.where(largest == 0, IS_ZERO, tl.where(largest >= INFINITE_BITS, HAS_NO_NUMBER, lift))


@triton.jit
def lifts_of(row, inside, d, COLUMNS: tl.constexpr):
    """Powers of two that bring the largest coordinates of rows near 1, or why there is none; 1 outside, [R]."""
    column = tl.arange(0, COLUMNS)
    largest = tl.zeros(inside.shape, tl.int32)
    for start in range(0, d, COLUMNS):
        largest = tl.maximum(largest, tl.max(magnitude(_load(row, inside, start + column, d)), 1))
    return tl.where(inside, lift_of(largest), 1.0)


@triton.jit
def is_odd(square, inside):
    """Whether squared lengths are of rows that need a lift, or of no usable row."""
    return inside & ~((square > SHORTEST) & (square < LONGEST))


@triton.jit
def measured(row, inside, d, COLUMNS: tl.constexpr):
    """Lifts of rows and the inverse lengths of the rows times those, [R] float32."""
    lift = tl.full(inside.shape, 1.0, tl.float32)
    square = squared_lengths(row, inside, lift, lift, row, lift, lift, d, False, COLUMNS)
    if tl.max(is_odd(square, inside).to(tl.int32), 0) > 0:
        lift = lifts_of(row, inside, d, COLUMNS)
        square = squared_lengths(row, inside & (lift > 0), lift, lift, row, lift, lift, d, False, COLUMNS)
    return lift, (1.0 / tl.sqrt(tl.where(square > 0, square, 1.0))).to(tl.float32)


@triton.jit
def high_of(x):
    """What TF32 holds of float32, to nearest."""
    return ((x.to(tl.int32, bitcast=True) + TF32_HALF) & TF32_BITS).to(tl.float32, bitcast=True)


@triton.jit
def dot(a, b, acc, UPCAST: tl.constexpr):
    """a [M, K] times the transpose of b [N, K], and acc [M, N] or None added in the tensor core; float32.

    float32 is rounded to TF32 there, so it should hold no more; 16-bit numbers are multiplied exactly.
    """
    if UPCAST:
        # The interpreter multiplies bfloat16 wrongly and adds float32 one by one, less exactly than a tensor core.
        acc = None if acc is None else acc.to(tl.float64)
        return tl.dot(a.to(tl.float64), tl.trans(b).to(tl.float64), acc, input_precision="ieee").to(tl.float32)
    else:
        return tl.dot(a, tl.trans(b), acc, input_precision="tf32" if a.dtype == tl.float32 else "ieee")


@triton.jit
def products(
    row,  # [TILE] pointers, with inside, lift and unit of those rows
    inside,
    lift,
    unit,
    other_row,  # [TILE] pointers and the same for the other rows; not read where SAME
    other_inside,
    other_lift,
    other_unit,
    origin_row,  # [1] pointer, with lift and unit; read where CENTRED
    origin_lift,
    origin_unit,
    d,
    SAME: tl.constexpr,
    CENTRED: tl.constexpr,
    LIFTED: tl.constexpr,
    UPCAST: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Products of rows, [TILE, TILE], as the difference of two float32."""
    k = tl.arange(0, BLOCK)
    total = tl.zeros([TILE, TILE], tl.float32)
    lost = tl.zeros([TILE, TILE], tl.float32)
    # Lifted products are rare: they take no memory for loads in advance.
    for start in tl.range(0, d, BLOCK, num_stages=1 if LIFTED else None):
        a = _load(row, inside, start + k, d)
        if not SAME:
            b = _load(other_row, other_inside, start + k, d)
        if CENTRED:
            origin = _load_origin(origin_row, origin_lift, origin_unit, start + k, d)
            a = _relative(a, lift, unit, origin)
            if not SAME:
                b = _relative(b, other_lift, other_unit, origin)
        elif LIFTED:
            a = (a.to(tl.float32) * lift[:, None]).to(a.dtype)
            if not SAME:
                b = (b.to(tl.float32) * other_lift[:, None]).to(b.dtype)
        if SAME:
            b = a
        # A new accumulator each time. Were `part` added to `total` as it is, the compiler would sum in the tensor core.
        if CENTRED:
            # As input_precision="tf32x3" does it, without its guards against what is not finite: there is none here.
            high = high_of(a)
            low = a - high
            other_high = high_of(b)
            other_low = b - other_high
            part = dot(low, other_high, None, UPCAST)
            part = dot(high, other_low, part, UPCAST)
            part = dot(high, other_high, part, UPCAST)
        else:
            part = dot(a, b, None, UPCAST)
        total, lost = compensated(total, lost, part)
    return total, lost


@triton.jit
def raised(distance, min_distance, ROUNDED: tl.constexpr):
    """At least min_distance, and where ROUNDED to 6 decimals, half to even."""
    distance = tl.maximum(distance, min_distance)
    if ROUNDED:
        millionths = distance.to(tl.float64) * 1e6
        whole = (millionths + INTEGERS) - INTEGERS
        distance = (tl.where(millionths < 2251799813685248.0, whole, millionths) / 1e6).to(tl.float32)
    return distance


@triton.jit
def centred_distance(gram, gram_lost, square, square_lost, true_square, other_square, other_lost, other_true_square):
    """Distances [TILE, TILE] float32 of rows seen from the origin.

    gram, gram_lost      their products
    square, square_lost  [TILE] diagonal of the products at the rows of the tile, and at its columns
    true_square          [TILE] the same by ordinary arithmetic
    """
    # Where they cancel, the differences are exact.
    apart = 0.5 * ((square[:, None] - gram) - (square_lost[:, None] - gram_lost))
    apart += 0.5 * ((other_square[None, :] - gram) - (other_lost[None, :] - gram_lost))
    middle = 0.5 * square[:, None] + 0.5 * other_square[None, :]
    shift = 0.5 * (true_square - square)[:, None] + 0.5 * (other_true_square - other_square)[None, :]
    # Nothing is apart where both rows are the origin.
    return tl.fma(apart, shift / tl.maximum(middle, 1e-30), apart)


@triton.jit
def direct_distance(gram, gram_lost, unit, unit_lost, other_unit, other_unit_lost):
    """Distances [TILE, TILE] float32 from products of rows and one over their lengths, unit + unit_lost.

    1 - gram * unit * other_unit to about 45 bits: each product is kept with what its rounding lost.
    """
    units = unit * other_unit
    units_lost = tl.fma(unit, other_unit, -units) + (unit * other_unit_lost + unit_lost * other_unit)
    cosine = gram * units
    cosine_lost = tl.fma(gram, units, -cosine) + (gram * units_lost - gram_lost * units)
    apart = (1.0 - cosine) - cosine_lost
    return tl.where(tl.abs(apart) < NOTHING, 0.0, apart)
