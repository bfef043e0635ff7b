# mypy: ignore-errors
# ruff: noqa: N803 - constants of a kernel are in capitals, as usual in Triton
"""Products, attention, softmax and norms on CUDA in one fixed order, whatever the number of rows, keys or programs.

What keeps the order: a program's tile is chosen by the weight, never by rows or keys; no sum is shared by programs; and
what grows with the prompt (rows, keys, strides of activations) is never specialised on, so that a kernel is compiled
once and all batches run the same instructions. A multiplication and an addition become one instruction only where `fma`
says so (`enable_fp_fusion=False`, launch.py).
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_MASK, BOOLEAN, ADDED = 0, 1, 2
ONE = 2.0**40
"""What a weight of 1 is as a whole number: sums of whole numbers have no order. Room for 2**22 keys; beyond 2**-16
float32 fits exactly.
"""

_MASKED = tl.constexpr(-1e30)  # a mask adds the most negative number of its dtype, or minus infinity
_FLOOR = tl.constexpr(-87.0)  # e to less is below the normal float32 numbers, and taken as 0
_LOG2E = tl.constexpr(1.44269504)
_LN2_HIGH = tl.constexpr(0.693359375)
_LN2_LOW = tl.constexpr(-2.12194440e-4)
_ROUNDER = tl.constexpr(1.5 * 2**23)  # adding and taking it away rounds to a whole number
_ONE = tl.constexpr(ONE)


@triton.jit(do_not_specialize=["rows"])
def dots(
    x,
    w,
    bias,
    out,
    rows,
    columns,
    length,
    w_k,
    w_n,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out[m, n] = sum over k of x[m, k] w[k, n] + bias[n]; x [rows, length] and out [rows, columns] without gaps.

    One program a tile, blocks of k one after another into one accumulator. Columns and length are the weight's.
    """
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offsets = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, length, BLOCK_K):
        k = (begin + offsets).to(tl.int64)
        left = tl.load(
            x + m[:, None] * length + k[None, :], mask=(m < rows)[:, None] & (k < length)[None, :], other=0.0
        )
        right = tl.load(
            w + k[:, None] * w_k + n[None, :] * w_n, mask=(k < length)[:, None] & (n < columns)[None, :], other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + m[:, None] * columns + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(m < rows)[:, None] & (n < columns)[None, :],
    )


@triton.jit(
    do_not_specialize=[
        *(
            "rows",
            "columns",
            "length",
            "inner",
            "x_b",
            "x_h",
            "x_m",
            "x_k",
            "w_b",
            "w_h",
            "w_k",
            "w_n",
            "queries",
            "first",
        )
    ],
    do_not_specialize_on_alignment=["x", "w"],
)
def chain(
    x,
    w,
    out,
    rows,
    columns,
    length,
    inner,
    x_b,
    x_h,
    x_m,
    x_k,
    w_b,
    w_h,
    w_k,
    w_n,
    queries,
    first,
    IS_CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[b, h, m, n] = sum over k of x[b, h, m, k] w[b, h, k, n], one k after another; out without gaps; `inner` is
    the number of h.

    A term with a factor of 0 changes nothing wherever it stands. Causal: row m is query first + m % queries, and the
    terms beyond it are zeros; the loop ends after the tile's last.
    """
    place = tl.program_id(0).to(tl.int64)
    b, h = place // inner, place % inner
    m = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(2).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_at = x + b * x_b + h * x_h + m * x_m
    w_at = w + b * w_b + h * w_h + n * w_n
    last = length
    if IS_CAUSAL:
        last = tl.minimum(length, first + tl.max(tl.where(m < rows, m % queries, 0), axis=0).to(tl.int32) + 1)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, last):
        left = tl.load(x_at, mask=m < rows, other=0.0).to(tl.float32)
        right = tl.load(w_at, mask=n < columns, other=0.0).to(tl.float32)
        total = tl.fma(
            tl.broadcast_to(left[:, None], (BLOCK_M, BLOCK_N)),
            tl.broadcast_to(right[None, :], (BLOCK_M, BLOCK_N)),
            total,
        )
        x_at += x_k
        w_at += w_k
    tl.store(
        out + (place * rows + m[:, None]) * columns + n[None, :],
        total.to(out.dtype.element_ty),
        mask=(m < rows)[:, None] & (n < columns)[None, :],
    )


@triton.jit(
    do_not_specialize=[
        *("queries", "keys", "first", "q_b", "q_h", "q_m", "k_b", "k_h", "k_n", "mask_b", "mask_h", "mask_m", "mask_n")
    ],
    do_not_specialize_on_alignment=["mask"],
)
def scores(
    q,
    k,
    mask,
    out,
    heads,
    group,
    queries,
    keys,
    width,
    first,
    scale,
    q_b,
    q_h,
    q_m,
    k_b,
    k_h,
    k_n,
    mask_b,
    mask_h,
    mask_m,
    mask_n,
    MASK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """out[b, h, g * queries + i, j] = scale * q[b, h * group + g, i] . k[b, h, j] + mask, minus infinity where j may
    not be seen.

    Each score is a dot product of its own; `heads` are those of keys. Causal: query i is at first + i.
    """
    if IS_ALIGNED:  # launch.py has seen to it
        q_b, q_h, q_m = q_b // 16 * 16, q_h // 16 * 16, q_m // 16 * 16
        k_b, k_h, k_n = k_b // 16 * 16, k_h // 16 * 16, k_n // 16 * 16
    place = tl.program_id(0).to(tl.int64)
    b, h = place // heads, place % heads
    rows = group * queries
    row = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    head, i = h * group + row // queries, row % queries
    j = tl.program_id(2).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    q_at = q + b * q_b + head * q_h + i * q_m
    k_at = k + b * k_b + h * k_h + j * k_n
    offsets = tl.arange(0, BLOCK_D)
    found = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, width, BLOCK_D):
        d = begin + offsets
        left = tl.load(q_at[:, None] + d[None, :], mask=(row < rows)[:, None] & (d < width)[None, :], other=0.0)
        right = tl.load(k_at[None, :] + d[:, None], mask=(d < width)[:, None] & (j < keys)[None, :], other=0.0)
        found = tl.dot(left, right, found, input_precision="ieee")
    found = found * scale
    is_inside = (row < rows)[:, None] & (j < keys)[None, :]
    if MASK != 0:
        mask_at = mask + b * mask_b + (head * mask_h + i * mask_m)[:, None] + (j * mask_n)[None, :]
        if MASK == 1:
            seen = tl.load(mask_at, mask=is_inside, other=0)
            found = tl.where(seen != 0, found, float("-inf"))
        else:
            added = tl.load(mask_at, mask=is_inside, other=0.0)
            found = tl.where(added < _MASKED, float("-inf"), found + added)
    if IS_CAUSAL:
        found = tl.where(j[None, :] <= (first + i)[:, None], found, float("-inf"))
    tl.store(out + (place * rows + row[:, None]) * keys + j[None, :], found, mask=is_inside)


@triton.jit
def _exp(x):
    """e**x for x <= 0 in float32, within 2 ULPs: the steps of the CPU's (core/inference/invariant/kernels.py)."""
    n = (x * _LOG2E + _ROUNDER) - _ROUNDER
    r = tl.fma(n, tl.full(n.shape, -_LN2_LOW, tl.float32), tl.fma(n, tl.full(n.shape, -_LN2_HIGH, tl.float32), x))
    p = tl.full(x.shape, 1.9875691500e-4, tl.float32)
    p = tl.fma(p, r, tl.full(x.shape, 1.3981999507e-3, tl.float32))
    p = tl.fma(p, r, tl.full(x.shape, 8.3334519073e-3, tl.float32))
    p = tl.fma(p, r, tl.full(x.shape, 4.1665795894e-2, tl.float32))
    p = tl.fma(p, r, tl.full(x.shape, 1.6666665459e-1, tl.float32))
    p = tl.fma(p, r, tl.full(x.shape, 5.0000001201e-1, tl.float32))
    p = tl.fma(p, r * r, r) + 1.0
    return p * ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _weight(score, largest):
    """e**(score - largest) in float32; 0 below e**-87 and where the score is minus infinity."""
    shifted = score - largest
    return tl.where(shifted < _FLOOR, 0.0, _exp(tl.maximum(shifted, tl.full(shifted.shape, _FLOOR, tl.float32))))


@triton.jit(do_not_specialize=["rows", "length"])
def softmax(
    x, out, rows, length, IS_LOG: tl.constexpr, IS_ATTENTION: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """Softmax or its logarithm of rows of `length` without gaps; may be in place. Rows that are all minus infinity give
    NaN, in attention 0.

    The largest of a row has no order, nor has the sum, whose weights are whole numbers of 1 / ONE: neither where a
    masked element stands nor how rows are cut into tiles changes a bit.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    most = tl.full((ROWS, BLOCK), float("-inf"), tl.float32)
    broken = tl.zeros((ROWS, BLOCK), dtype=tl.int32)
    for begin in range(0, length, BLOCK):
        at = begin + lanes
        is_inside = (row < rows)[:, None] & (at < length)[None, :]
        values = tl.load(x + row[:, None] * length + at[None, :], mask=is_inside, other=float("-inf")).to(tl.float32)
        broken = broken | (values != values).to(tl.int32) | (values == float("inf")).to(tl.int32)
        most = tl.maximum(most, tl.where(values == values, values, float("-inf")))
    largest = tl.max(most, axis=1)
    is_broken = tl.max(broken, axis=1) != 0
    is_empty = largest == float("-inf")
    largest = tl.where(is_empty | is_broken, 0.0, largest)
    parts = tl.zeros((ROWS, BLOCK), dtype=tl.int64)
    for begin in range(0, length, BLOCK):
        at = begin + lanes
        is_inside = (row < rows)[:, None] & (at < length)[None, :]
        values = tl.load(x + row[:, None] * length + at[None, :], mask=is_inside, other=float("-inf")).to(tl.float32)
        weights = tl.where(is_broken[:, None], 0.0, _weight(values, largest[:, None]))
        parts += (weights * _ONE).to(tl.int64)
    total = tl.where(is_empty | is_broken, 1.0, tl.sum(parts, axis=1).to(tl.float64) / _ONE)
    divisor = tl.broadcast_to(total.to(tl.float32)[:, None], (ROWS, BLOCK))
    for begin in range(0, length, BLOCK):
        at = begin + lanes
        is_inside = (row < rows)[:, None] & (at < length)[None, :]
        values = tl.load(x + row[:, None] * length + at[None, :], mask=is_inside, other=float("-inf")).to(tl.float32)
        if IS_LOG:
            found = ((values - largest[:, None]).to(tl.float64) - tl.log(total)[:, None]).to(tl.float32)
        else:
            found = tl.div_rn(_weight(values, largest[:, None]), divisor)
        found = tl.where(is_empty[:, None], 0.0 if IS_ATTENTION else float("nan"), found)
        found = tl.where(is_broken[:, None], float("nan"), found)
        tl.store(out + row[:, None] * length + at[None, :], found.to(out.dtype.element_ty), mask=is_inside)


@triton.jit
def row_sums(x, out, length, BLOCK: tl.constexpr):
    """out[row] = sum of a row of `length` without gaps: term k to lane k mod BLOCK, the lanes added in one tree."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    parts = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, length, BLOCK):
        at = begin + lanes
        parts += tl.load(x + row * length + at, mask=at < length, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(parts, axis=0))


@triton.jit
def layer_norm(
    x,
    weight,
    bias,
    out,
    mean_out,
    rstd_out,
    length,
    epsilon,
    HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias of rows without gaps, one a program; sums as in
    `row_sums`.
    """
    row = tl.program_id(0).to(tl.int64)
    source, target = x + row * length, out + row * length
    lanes = tl.arange(0, BLOCK)
    parts = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, length, BLOCK):
        at = begin + lanes
        parts += tl.load(source + at, mask=at < length, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(parts, axis=0), length.to(tl.float32))
    parts = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, length, BLOCK):
        at = begin + lanes
        apart = tl.where(at < length, tl.load(source + at, mask=at < length, other=0.0).to(tl.float32) - mean, 0.0)
        parts += apart * apart
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(parts, axis=0), length.to(tl.float32)) + epsilon))
    for begin in range(0, length, BLOCK):
        at = begin + lanes
        found = (tl.load(source + at, mask=at < length, other=0.0).to(tl.float32) - mean) * rstd
        if HAS_WEIGHT:
            found = found * tl.load(weight + at, mask=at < length, other=0.0).to(tl.float32)
        if HAS_BIAS:
            found = found + tl.load(bias + at, mask=at < length, other=0.0).to(tl.float32)
        tl.store(target + at, found.to(out.dtype.element_ty), mask=at < length)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
