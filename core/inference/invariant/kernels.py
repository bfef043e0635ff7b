# mypy: ignore-errors
"""Products, attention, softmax and norms in numba, every reduction in one order for any other rows.

A dot product runs down k, and the compiler may spread it over lanes: which lane takes which term
then depends on the length alone, for one loop serves every row and column. Sums in which terms may
be masked (over keys) run one term after another, so that a zero changes nothing at any place.
Arrays are C-contiguous: another layout would be another compiled loop. bfloat16 comes as int16.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types
from numba.extending import overload

# so many rows of w stay in the second-level cache for all rows of x
_PANEL = 32
_QUERIES = 48  # queries whose scores are stored at once
# part of w that stays in the second-level cache
_COLUMNS, _DEPTH = 1024, 64
# a mask adds the most negative number of its dtype, or minus infinity
_MASKED = np.float32(-1e30)
# e to less is below the normal float32 numbers, and is taken as 0
_FLOOR = np.float32(-87.0)
_LOG2E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
# adding and taking it away rounds to a whole number
_ROUNDER = np.float32(1.5 * 2**23)


def _widen(value): ...


@overload(_widen, inline="always")
def _widen_typed(value):
    if isinstance(value, types.Float):
        return lambda value: value
    return lambda value: np.uint32(np.uint32(np.uint16(value)) << np.uint32(16)).view(np.float32)


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})
def _dot(x, w):
    total = np.float32(0.0)
    for k in range(x.shape[0]):
        total += _widen(x[k]) * _widen(w[k])
    return total


@njit(nogil=True, cache=True)
def dots(x, w, first, last, out):
    """out[m, n] = sum over k of x[m, k] w[n, k], for all m, and n from first to last - 1."""
    for panel in range(first, last, _PANEL):
        for m in range(x.shape[0]):
            for n in range(panel, min(panel + _PANEL, last)):
                out[m, n] = _dot(x[m], w[n])


@njit(nogil=True, cache=True)
def _add(out, factor, w):
    for n in range(out.shape[0]):
        out[n] += factor * _widen(w[n])


@njit(nogil=True, cache=True)
def columns(x, w, first, last, out):
    """out[m, n] = sum over k of x[m, k] w[k, n], one k after another, for all m, and n from first
    to last - 1.
    """
    for panel in range(first, last, _COLUMNS):
        end = min(panel + _COLUMNS, last)
        out[:, panel:end] = np.float32(0.0)
        for begin in range(0, x.shape[1], _DEPTH):
            for m in range(x.shape[0]):
                for k in range(begin, min(begin + _DEPTH, x.shape[1])):
                    _add(out[m, panel:end], _widen(x[m, k]), w[k, panel:end])


@njit(nogil=True, cache=True)
def _exp(x):
    """e**x for -87 <= x <= 0 in float32, within 2 ULPs; exactly 1 at 0.

    Cody and Waite's reduction by ln 2 in two parts; the polynomial is that of Cephes' expf.
    """
    n = (x * _LOG2E + _ROUNDER) - _ROUNDER
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = (p * (r * r) + r) + np.float32(1.0)
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(nogil=True, cache=True)
def _weights(scores):
    """Scores [n] -> e**(score - largest), in place; minus infinity (masked) gives 0. -> (largest,
    sum)
    """
    largest = np.float32(-np.inf)
    for j in range(scores.shape[0]):
        if scores[j] > largest or scores[j] != scores[j]:
            largest = scores[j]
    if largest == np.float32(-np.inf):
        scores[:] = np.float32(0.0)
        return largest, 0.0
    for j in range(scores.shape[0]):
        score = scores[j] - largest
        weight = _exp(score if score > _FLOOR else _FLOOR)
        weight = np.float32(0.0) if score < _FLOOR else weight
        scores[j] = score if score != score else weight
    total = 0.0
    for j in range(scores.shape[0]):
        total += np.float64(scores[j])
    return largest, total


@njit(nogil=True, cache=True)
def softmax(x, first, last, is_log, out):
    """Softmax or its logarithm of rows first to last - 1 of x [m, n], float32."""
    for row in range(first, last):
        out[row] = x[row]
        largest, total = _weights(out[row])
        if is_log:
            log_total = math.log(total) if total > 0.0 else -np.inf
            for j in range(x.shape[1]):
                out[row, j] = np.float32((np.float64(x[row, j]) - np.float64(largest)) - log_total)
        elif total == 0.0:
            out[row] = np.float32(np.nan)
        else:
            out[row] /= np.float32(total)


@njit(nogil=True, cache=True)
def row_sums(x, first, last, out):
    """Return the sums of rows first to last - 1 of x [m, n], in float64, one term after another."""
    for row in range(first, last):
        total = 0.0
        for j in range(x.shape[1]):
            total += np.float64(x[row, j])
        out[row] = np.float32(total)


@njit(nogil=True, cache=True)
def layer_norm(x, epsilon, first, last, out, mean_out, rstd_out):
    """(x - mean) / sqrt(variance + epsilon) of rows first to last - 1; sums in float64, one term
    after another.
    """
    length = x.shape[1]
    for row in range(first, last):
        mean, squares = 0.0, 0.0
        for j in range(length):
            mean += np.float64(x[row, j])
        mean /= length
        for j in range(length):
            squares += (np.float64(x[row, j]) - mean) ** 2
        rstd = 1.0 / math.sqrt(squares / length + epsilon)
        for j in range(length):
            out[row, j] = np.float32((np.float64(x[row, j]) - mean) * rstd)
        mean_out[row], rstd_out[row] = np.float32(mean), np.float32(rstd)


@njit(nogil=True, cache=True)
def attention(query, key, value, mask, is_causal, scale, first, last, out):
    """Rows first to last - 1 of [batch x heads] of attention, into out [batch, heads, queries,
    value width], float32.

    mask: added to the scores; an axis of one is broadcast.
    """
    heads, queries, keys = query.shape[1], query.shape[2], key.shape[2]
    shared = heads // key.shape[1]
    for place in range(first, last):
        b, h = place // heads, place % heads
        for begin in range(0, queries, _QUERIES):
            end = min(begin + _QUERIES, queries)
            visible = min(keys, end) if is_causal else keys
            scores = np.empty((end - begin, visible), dtype=np.float32)
            dots(query[b, h, begin:end], key[b, h // shared], 0, visible, scores)
            for i in range(end - begin):
                bias = mask[b % mask.shape[0], h % mask.shape[1], (begin + i) % mask.shape[2]]
                for j in range(visible):
                    is_hidden = bias[j] < _MASKED or (is_causal and j > begin + i)
                    scores[i, j] = (
                        np.float32(-np.inf) if is_hidden else scores[i, j] * scale + bias[j]
                    )
                _, total = _weights(scores[i])
                if total > 0.0:
                    scores[i] /= np.float32(total)
            columns(
                scores,
                value[b, h // shared, :visible],
                0,
                value.shape[3],
                out[b, h, begin:end],
            )
