"""The compiled loops of the heatmap pyramid; what each is for says core.numerics.pyramid."""

import numpy as np
from numba import njit

from .kernel import row_cell


@njit(nogil=True, cache=True)
def ulps(a, b, width, first_nonfinite):
    out = np.empty_like(a)
    sign = np.int64(1) << (width - 1)
    low = sign - 1
    for row in range(a.shape[0]):
        for j in range(a.shape[1]):
            x = np.int64(a[row, j])
            y = np.int64(b[row, j])
            p = x & low
            q = y & low
            distance = abs((-p if x & sign else p) - (-q if y & sign else q))
            if max(p, q) >= first_nonfinite:
                are_nan = min(p, q) > first_nonfinite
                distance = 0 if are_nan or x == y else (sign << 1) - 1
            out[row, j] = distance
    return out


@njit(nogil=True, cache=True, error_model="numpy")
def row_ulps(a, b, spacing):
    out = np.empty(a.shape, np.uint32)
    for row in range(a.shape[0]):
        for j in range(a.shape[1]):
            x = np.float64(a[row, j])
            y = np.float64(b[row, j])
            if np.isfinite(x) and np.isfinite(y):
                out[row, j] = row_cell(abs(x - y), spacing[row])
            else:
                out[row, j] = 0 if x == y or (np.isnan(x) and np.isnan(y)) else 0xFFFFFFFF
    return out


@njit(nogil=True, cache=True)
def maxima(cells, positions, tokens):
    rows, columns = cells.shape
    out = np.zeros((-(-rows // positions), -(-columns // tokens)), cells.dtype)
    for row in range(rows):
        target = row // positions
        for j in range(out.shape[1]):
            largest = out[target, j]
            for k in range(j * tokens, min((j + 1) * tokens, columns)):
                largest = max(largest, cells[row, k])
            out[target, j] = largest
    return out


@njit(nogil=True, cache=True)
def descending(bits, width, first_nonfinite):
    rows, vocab = bits.shape
    out = np.empty(bits.shape, np.uint32)
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
            for j in range(vocab):
                digit = (keys[ids[j]] >> np.uint32(shift)) & np.uint32(0xFFFF)
                out[row, starts[digit]] = ids[j]
                starts[digit] += 1
            ids[:] = out[row]
    return out
