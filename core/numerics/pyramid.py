"""The heatmap pyramid: maxima of ULP distances over ever larger cells, so that one differing element stays visible at any zoom.

Level 0 has cells of 1 position x 32 tokens (the kernel's `tiles`); each further level takes the maximum of 4 x 4 cells of the
one before. Cells are unsigned integers of the compute dtype's width; all ones means a NaN or infinity mismatch inside.

What the stored levels do not hold is computed from the logits: finer cells, cells of absolute differences, and cells over ranks
in place of token ids. Differences are float32, kept as their bits: those of non-negative floats are in the order of the values.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from core.numerics.formats import FloatFormat, widen
from core.numerics.kernel import GROUP

FACTOR = 4


def cell_shape(level: int) -> tuple[int, int]:
    """(positions, tokens) of one cell of a level."""
    return FACTOR**level, GROUP * FACTOR**level


def pool(cells: NDArray, positions: int, tokens: int) -> NDArray:
    """Maxima over blocks of `positions` x `tokens` cells; the last of an axis may be smaller. [rows, columns], same dtype."""
    rows = np.maximum.reduceat(cells, np.arange(0, cells.shape[0], positions), axis=0) if positions > 1 else cells
    return np.maximum.reduceat(rows, np.arange(0, rows.shape[1], tokens), axis=1) if tokens > 1 else rows


def levels_for(rows: int, vocab: int) -> int:
    """How many levels are worth keeping: until a level fits a picture of about 400 x 1000 cells."""
    level = 0
    while -(-rows // cell_shape(level)[0]) > 400 or -(-vocab // cell_shape(level)[1]) > 1000:
        level += 1
    return level + 1


def element_ulps(a: NDArray[np.unsignedinteger], b: NDArray[np.unsignedinteger], fmt: FloatFormat) -> NDArray[np.unsignedinteger]:
    """ULP distances of single elements, as cells of the finest kind. [rows, tokens], the compute dtype's carrier."""
    out = np.empty(a.shape, fmt.carrier)
    _ulps(np.ascontiguousarray(a), np.ascontiguousarray(b), fmt.bits, fmt.first_nonfinite, out)
    return out


def element_differences(a: NDArray[np.unsignedinteger], b: NDArray[np.unsignedinteger], fmt: FloatFormat) -> NDArray[np.uint32]:
    """Absolute differences of single elements in logits, float32 as its bits; all ones: NaN or infinity mismatch. [rows, tokens]"""
    out = np.empty(a.shape, np.uint32)
    wide = [np.ascontiguousarray(widen(bits, fmt)) for bits in (a, b)]
    _differences(wide[0].view(np.float32), wide[1].view(np.float32), out.view(np.float32), out)
    return out


def maxima(cells: NDArray[np.unsignedinteger], positions: int, tokens: int) -> NDArray[np.unsignedinteger]:
    """The same as `pool`, compiled: four to nine times as fast, and other threads go on meanwhile."""
    if positions == 1 and tokens == 1:
        return cells
    out = np.zeros((-(-cells.shape[0] // positions), -(-cells.shape[1] // tokens)), cells.dtype)
    _maxima(np.ascontiguousarray(cells), positions, tokens, out)
    return out


def descending(bits: NDArray[np.unsignedinteger], fmt: FloatFormat) -> NDArray[np.uint32]:
    """Token ids of every row, the largest logit first; equal ones by id, NaNs last. [rows, vocab] -> the same shape

    A stable counting sort by 16 bits at a time: 0.4 ms a bfloat16 row of 128256, where a sort by comparisons takes about 9.
    """
    out = np.empty(bits.shape, np.uint32)
    _descending(np.ascontiguousarray(bits), fmt.bits, fmt.first_nonfinite, out)
    return out


def taken(bits: NDArray[np.unsignedinteger], order: NDArray[np.uint32]) -> NDArray[np.unsignedinteger]:
    """Every row in the order that `descending` gave. [rows, vocab]; numpy's take_along_axis takes four times as long."""
    out = np.empty(order.shape, bits.dtype)
    _taken(np.ascontiguousarray(bits), np.ascontiguousarray(order), out)
    return out


def prepare(fmt: FloatFormat) -> None:
    """Compile the loops for a format, or load them compiled: 0.2 s that nobody should wait for."""
    bits = np.zeros((1, 2), fmt.carrier)
    for cells in (element_ulps(bits, bits, fmt), element_differences(bits, bits, fmt)):
        maxima(cells, 1, 2)
    taken(bits, descending(bits, fmt))


@njit(nogil=True, cache=True)
def _ulps(a, b, width, first_nonfinite, out):
    sign = np.int64(1) << (width - 1)
    low = sign - 1
    for row in range(a.shape[0]):
        largest = np.int64(0)
        for j in range(a.shape[1]):
            x, y = np.int64(a[row, j]), np.int64(b[row, j])
            p, q = x & low, y & low
            largest = max(largest, max(p, q))
            out[row, j] = abs((-p if x & sign else p) - (-q if y & sign else q))
        if largest < first_nonfinite:
            continue
        for j in range(a.shape[1]):
            x, y = np.int64(a[row, j]), np.int64(b[row, j])
            p, q = x & low, y & low
            if p < first_nonfinite and q < first_nonfinite:
                continue
            both_nan = p > first_nonfinite and q > first_nonfinite
            out[row, j] = 0 if both_nan or x == y else (sign << 1) - 1


@njit(nogil=True, cache=True)
def _differences(a, b, out, out_bits):
    for row in range(a.shape[0]):
        total = np.float32(0)
        for j in range(a.shape[1]):
            difference = abs(a[row, j] - b[row, j])
            total += difference * np.float32(0)  # stays 0 until something is NaN or infinite
            out[row, j] = difference
        if total == 0:
            continue
        for j in range(a.shape[1]):
            x, y = a[row, j], b[row, j]
            if np.isfinite(x) and np.isfinite(y):
                continue
            out_bits[row, j] = 0 if x == y or (np.isnan(x) and np.isnan(y)) else 0xFFFFFFFF


@njit(nogil=True, cache=True)
def _maxima(cells, positions, tokens, out):
    whole = cells.shape[1] // tokens
    for row in range(cells.shape[0]):
        target = row // positions
        for j in range(whole):
            largest = out[target, j]
            for k in range(j * tokens, (j + 1) * tokens):
                largest = max(largest, cells[row, k])
            out[target, j] = largest
        for k in range(whole * tokens, cells.shape[1]):
            out[target, whole] = max(out[target, whole], cells[row, k])


@njit(nogil=True, cache=True)
def _descending(bits, width, first_nonfinite, out):
    rows, vocab = bits.shape
    sign = np.int64(1) << (width - 1)
    low = sign - 1
    keys = np.empty(vocab, np.uint32)
    ids = np.empty(vocab, np.uint32)
    starts = np.empty(65537, np.int64)
    for row in range(rows):
        for j in range(vocab):
            x = np.int64(bits[row, j])
            magnitude = x & low
            ordinal = -magnitude if x & sign else magnitude
            # Smallest key first: +inf at the bottom, NaNs above everything.
            keys[j] = (sign << 1) - 1 if magnitude > first_nonfinite else first_nonfinite - ordinal
            ids[j] = j
        for shift in range(0, width, 16):
            starts[:] = 0
            for j in range(vocab):
                starts[((keys[j] >> np.uint32(shift)) & np.uint32(0xFFFF)) + 1] += 1
            for j in range(1, 65537):
                starts[j] += starts[j - 1]
            last = shift + 16 >= width
            if last:
                for j in range(vocab):
                    digit = (keys[ids[j]] >> np.uint32(shift)) & np.uint32(0xFFFF)
                    out[row, starts[digit]] = ids[j]
                    starts[digit] += 1
            else:
                for j in range(vocab):
                    digit = (keys[j] >> np.uint32(shift)) & np.uint32(0xFFFF)
                    out[row, starts[digit]] = j
                    starts[digit] += 1
                ids[:] = out[row]


@njit(nogil=True, cache=True)
def _taken(bits, order, out):
    for row in range(order.shape[0]):
        for j in range(order.shape[1]):
            out[row, j] = bits[row, order[row, j]]
