# mypy: ignore-errors
"""Products, attention and softmax on a CPU in one fixed order (tiles.py), whatever the number of rows, keys or threads.

All take addresses, and strides in elements; they release the GIL and write float32. Threads are the caller's.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from .tiles import (
    BFLOAT16,
    BFLOAT16_PAIRS,
    FLOAT32,
    HAS_PAIRS,
    HAS_WIDE_VECTORS,
    column_tile,
    dot_tile,
    fma,
    power_of_two,
    read_byte,
    read_float,
    write_float,
)

DEPTH = 1024
"""Terms of a dot product after which its lanes are added: 6 rows of x and 4 of w of so many stay in the first-level
cache.
"""
_PANEL = 32  # rows of w that all rows of x pass by before the next: with DEPTH, a quarter of a second-level cache
_QUERIES = 48  # queries whose scores are kept at once
NO_MASK, BOOLEAN, ADDED = 0, 1, 2
_MASKED = np.float32(-1e30)  # a mask adds the most negative number of its dtype, or minus infinity
_FLOOR = np.float32(-87.0)  # e to less is below the normal float32 numbers, and taken as 0
_LOG2E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUNDER = np.float32(1.5 * 2**23)  # adding and taking it away rounds to a whole number


def _dots(kind):
    # Accumulators, two operands and what widening takes have to fit the registers.
    most = (4 if kind == BFLOAT16 else 6) if HAS_WIDE_VECTORS else 2
    across = 4 if HAS_WIDE_VECTORS else 2
    tile_most, tile_four, tile_two, tile_one = (dot_tile(rows, across, kind) for rows in (most, min(most, 4), 2, 1))
    tile_single = dot_tile(1, 1, kind)
    size = 4 if kind == FLOAT32 else 2

    @njit(nogil=True, cache=True)
    def dots(x, x_row, w, w_row, rows, first, last, length, out, out_row):
        """out[m, n] = sum over k of x[m, k] w[n, k], for all m, and n from first to last - 1."""
        for panel in range(first, last, _PANEL):
            end = min(panel + _PANEL, last)
            for begin in range(0, length, DEPTH):
                depth = min(DEPTH, length - begin)
                fresh = begin == 0
                m = 0
                while m < rows:
                    left = rows - m
                    taken = most if left >= most else 4 if left >= 4 else 2 if left >= 2 else 1
                    x_at = x + (m * x_row + begin) * size
                    n = panel
                    while n + across <= end:
                        w_at = w + (n * w_row + begin) * size
                        out_at = out + (m * out_row + n) * 4
                        if taken == most:
                            tile_most(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh)
                        elif taken == 4:
                            tile_four(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh)
                        elif taken == 2:
                            tile_two(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh)
                        else:
                            tile_one(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh)
                        n += across
                    while n < end:
                        w_at = w + (n * w_row + begin) * size
                        for r in range(taken):
                            out_at = out + ((m + r) * out_row + n) * 4
                            tile_single(x_at + r * x_row * size, x_row, w_at, w_row, depth, out_at, out_row, fresh)
                        n += 1
                    m += taken

    return dots


def _columns(x_kind, kind):
    most = 6 if HAS_WIDE_VECTORS else 2
    across = 4 if HAS_WIDE_VECTORS else 2
    tile_most, tile_one = (column_tile(rows, across, x_kind, kind) for rows in (most, 1))
    edge_most, edge_one = (column_tile(rows, 1, x_kind, kind, is_masked=True) for rows in (most, 1))
    x_size, size = (4 if one == FLOAT32 else 2 for one in (x_kind, kind))
    wide, deep = 16 * across, 256

    @njit(nogil=True, cache=True)
    def columns(x, x_row, w, w_row, rows, first, last, length, out, out_row):
        """out[m, n] = sum over k of x[m, k] w[k, n], one k after another, for all m, and n from first to last - 1."""
        n = first
        while n < last:
            is_whole = n + wide <= last
            count = wide if is_whole else min(16, last - n)
            for begin in range(0, length, deep):
                depth = min(deep, length - begin)
                fresh = begin == 0
                w_at = w + (begin * w_row + n) * size
                m = 0
                while m < rows:
                    x_at = x + (m * x_row + begin) * x_size
                    out_at = out + (m * out_row + n) * 4
                    taken = most if rows - m >= most else 1
                    if is_whole and taken == most:
                        tile_most(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh, count)
                    elif is_whole:
                        tile_one(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh, count)
                    elif taken == most:
                        edge_most(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh, count)
                    else:
                        edge_one(x_at, x_row, w_at, w_row, depth, out_at, out_row, fresh, count)
                    m += taken
            n += count

    return columns


dots_float32 = _dots(FLOAT32)
dots_bfloat16 = _dots(BFLOAT16)
dots_pairs = _dots(BFLOAT16_PAIRS) if HAS_PAIRS else dots_bfloat16
columns_float32 = _columns(FLOAT32, FLOAT32)
columns_bfloat16 = _columns(BFLOAT16, BFLOAT16)
columns_of_weights = _columns(FLOAT32, BFLOAT16)  # float32 weights of attention, values in bfloat16


@njit(forceinline=True)
def exp(x):
    """e**x for x <= 0 in float32, within 2 ULPs; exactly 1 at 0, 0 below e**-87. The same steps for one number as for a
    vector of them.

    Cody and Waite's reduction by ln 2 in two parts; the polynomial is that of Cephes' expf.
    """
    n = (x * _LOG2E + _ROUNDER) - _ROUNDER
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    p = np.float32(1.9875691500e-4)
    p = fma(p, r, np.float32(1.3981999507e-3))
    p = fma(p, r, np.float32(8.3334519073e-3))
    p = fma(p, r, np.float32(4.1665795894e-2))
    p = fma(p, r, np.float32(1.6666665459e-1))
    p = fma(p, r, np.float32(5.0000001201e-1))
    p = fma(p, r * r, r) + np.float32(1.0)
    return p * power_of_two(np.int32(n))


@njit(forceinline=True)
def _weights_of(at, count):
    """Scores [count] at an address -> e**(score - largest), in place; minus infinity (masked) gives 0. -> (largest,
    sum)

    The sum runs from key to key, so that masked ones, wherever they stand, change nothing.
    """
    largest = np.float32(-np.inf)
    for j in range(count):
        value = read_float(at + 4 * j)
        if value > largest or value != value:
            largest = value
    if largest == np.float32(-np.inf):
        for j in range(count):
            write_float(at + 4 * j, np.float32(0.0))
        return largest, 0.0
    for j in range(count):
        shifted = read_float(at + 4 * j) - largest
        clamped = shifted if shifted > _FLOOR else _FLOOR
        weight = exp(clamped)
        weight = np.float32(0.0) if shifted < _FLOOR else weight
        weight = shifted if shifted != shifted else weight
        write_float(at + 4 * j, weight)
    total = 0.0
    for j in range(count):
        total += np.float64(read_float(at + 4 * j))
    return largest, total


@njit(nogil=True, cache=True)
def softmax(x, x_row, first, last, length, out, out_row, is_log):
    """Softmax or its logarithm of rows first to last - 1 of `length` float32 each."""
    for row in range(first, last):
        source, target = x + row * x_row * 4, out + row * out_row * 4
        for j in range(length):
            write_float(target + 4 * j, read_float(source + 4 * j))
        largest, total = _weights_of(target, length)
        if is_log:
            log_total = math.log(total) if total > 0.0 else -np.inf
            for j in range(length):
                shifted = np.float64(read_float(source + 4 * j)) - np.float64(largest)
                write_float(target + 4 * j, np.float32(shifted - log_total))
        elif total == 0.0:
            for j in range(length):
                write_float(target + 4 * j, np.float32(np.nan))
        else:
            share = np.float32(total)
            for j in range(length):
                write_float(target + 4 * j, read_float(target + 4 * j) / share)


@njit(nogil=True, cache=True)
def layer_norm(x, x_row, first, last, length, out, out_row, mean_out, rstd_out, epsilon):
    """(x - mean) / sqrt(variance + epsilon) of rows first to last - 1; sums in float64, one term after another in 4
    lanes.
    """
    for row in range(first, last):
        source, target = x + row * x_row * 4, out + row * out_row * 4
        mean = _sum_of(source, length, 0.0, False) / length
        rstd = 1.0 / math.sqrt(_sum_of(source, length, mean, True) / length + epsilon)
        for j in range(length):
            write_float(target + 4 * j, np.float32((np.float64(read_float(source + 4 * j)) - mean) * rstd))
        write_float(mean_out + 4 * row, np.float32(mean))
        write_float(rstd_out + 4 * row, np.float32(rstd))


@njit(forceinline=True)
def _sum_of(at, length, mean, is_squared):
    """Sum of x - mean, or of its square, in float64 and 8 lanes."""
    lanes = (0.0, 0.0, 0.0, 0.0)
    a, b, c, d = lanes
    whole = length - length % 4
    for j in range(0, whole, 4):
        p = np.float64(read_float(at + 4 * j)) - mean
        q = np.float64(read_float(at + 4 * j + 4)) - mean
        r = np.float64(read_float(at + 4 * j + 8)) - mean
        s = np.float64(read_float(at + 4 * j + 12)) - mean
        if is_squared:
            p, q, r, s = p * p, q * q, r * r, s * s
        a, b, c, d = a + p, b + q, c + r, d + s
    for j in range(whole, length):
        p = np.float64(read_float(at + 4 * j)) - mean
        a += p * p if is_squared else p
    return (a + b) + (c + d)


@njit(forceinline=True)
def _attention(
    dots,
    weighted,
    size,
    q,
    q_strides,
    k,
    k_strides,
    v,
    v_strides,
    mask,
    mask_strides,
    mask_kind,
    is_causal,
    scale,
    shape,
    first,
    last,
    out,
):
    """Rows first to last - 1 of [batch x heads] of attention, into out [batch, heads, queries, value width], float32.

    Strides are of (batch, head, token); shape: heads, heads a key head serves, queries, keys, width, value width. For
    each query, scores are dot products of fixed order, and the sums over keys run from key to key, so that masked keys
    (of the future, of padding, of unused cache) change nothing wherever they stand.
    """
    heads, shared, queries, keys, width, value_width = shape
    scores = np.empty((min(_QUERIES, queries), keys), dtype=np.float32)
    base = scores.ctypes.data
    for place in range(first, last):
        b, h = place // heads, place % heads
        for begin in range(0, queries, _QUERIES):
            count = min(_QUERIES, queries - begin)
            seen = min(keys, begin + count) if is_causal else keys
            q_at = q + (b * q_strides[0] + h * q_strides[1] + begin * q_strides[2]) * size
            k_at = k + (b * k_strides[0] + (h // shared) * k_strides[1]) * size
            dots(q_at, q_strides[2], k_at, k_strides[2], count, 0, seen, width, base, keys)
            out_at = out + ((place * queries) + begin) * value_width * 4
            for i in range(count):
                row = base + i * keys * 4
                own = min(seen, begin + i + 1) if is_causal else seen
                mask_at = b * mask_strides[0] + h * mask_strides[1] + (begin + i) * mask_strides[2]
                for j in range(own):
                    score = read_float(row + 4 * j) * scale
                    if mask_kind == BOOLEAN:
                        if read_byte(mask + mask_at + j * mask_strides[3]) == 0:
                            score = np.float32(-np.inf)
                    elif mask_kind == ADDED:
                        added = read_float(mask + (mask_at + j * mask_strides[3]) * 4)
                        score = np.float32(-np.inf) if added < _MASKED else score + added
                    write_float(row + 4 * j, score)
                for j in range(own, seen):
                    write_float(row + 4 * j, np.float32(-np.inf))
                _, total = _weights_of(row, seen)
                if total > 0.0:
                    share = np.float32(total)
                    for j in range(seen):
                        write_float(row + 4 * j, read_float(row + 4 * j) / share)
            v_at = v + (b * v_strides[0] + (h // shared) * v_strides[1]) * size
            weighted(base, keys, v_at, v_strides[2], count, 0, value_width, seen, out_at, value_width)


@njit(nogil=True, cache=True)
def attention_float32(
    q, q_strides, k, k_strides, v, v_strides, mask, mask_strides, mask_kind, is_causal, scale, shape, first, last, out
):
    """`_attention` of float32."""
    _attention(
        dots_float32,
        columns_float32,
        4,
        q,
        q_strides,
        k,
        k_strides,
        v,
        v_strides,
        mask,
        mask_strides,
        mask_kind,
        is_causal,
        scale,
        shape,
        first,
        last,
        out,
    )


@njit(nogil=True, cache=True)
def attention_bfloat16(
    q, q_strides, k, k_strides, v, v_strides, mask, mask_strides, mask_kind, is_causal, scale, shape, first, last, out
):
    """`_attention` of bfloat16."""
    _attention(
        dots_pairs,
        columns_of_weights,
        2,
        q,
        q_strides,
        k,
        k_strides,
        v,
        v_strides,
        mask,
        mask_strides,
        mask_kind,
        is_causal,
        scale,
        shape,
        first,
        last,
        out,
    )
