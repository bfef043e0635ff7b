"""The compiled loops of core.numerics.differences."""

from __future__ import annotations

import numpy as np
from numba import njit

from .kernel import largest_finite, load_block, spacing_at_float32
from .sizes import BLOCK

_MAGNITUDE, _INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)


@njit(nogil=True, cache=True, error_model="numpy")
def difference_rows(a, b, fmt, counts, figures, ulps):
    a_values, b_values = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    a_bits, b_bits = a_values.view(np.uint32), b_values.view(np.uint32)
    differences = np.empty(BLOCK, np.float64)
    difference_bits = differences.view(np.int64)
    width = a.shape[1]
    for row in range(a.shape[0]):
        largest = np.int64(-1)
        for start in range(0, width, BLOCK):
            n = min(BLOCK, width - start)
            load_block(
                a[row, start : start + n], b[row, start : start + n], fmt, a_bits, b_bits, a_values, b_values, ulps
            )
            of_block = _largest_magnitude(a_bits, n)
            if max(of_block, _largest_magnitude(b_bits, n)) < _INFINITE:
                _add_finite(a_values, b_values, ulps, differences, difference_bits, n, counts[row], figures[row])
            else:
                _add_block(a_values, b_values, ulps, n, counts[row], figures[row])
                of_block = largest_finite(a_bits[:n], _MAGNITUDE, _INFINITE)
            largest = max(largest, np.int64(of_block))
        figures[row, 2] = spacing_at_float32(largest, fmt)


@njit(cache=True)
def _largest_magnitude(bits, n):
    """Largest magnitude of a block of float32, as its bits."""
    largest = np.uint32(0)
    for i in range(n):
        magnitude = np.uint32(bits[i] & _MAGNITUDE)
        largest = magnitude if magnitude > largest else largest
    return largest


@njit(cache=True)
def _add_finite(a_values, b_values, ulps, differences, difference_bits, n, counts, figures):
    """Add a block of finite values: without branches, loops become vector instructions (a third of the time)."""
    neq, total = np.int64(0), np.int64(0)
    most = ulps[0]
    for i in range(n):
        neq += ulps[i] != 0
    if neq:
        for i in range(n):
            if ulps[i] > most:
                most = ulps[i]
        for i in range(n):
            total += np.int64(ulps[i])
        largest = np.int64(0)
        for i in range(n):
            differences[i] = abs(np.float64(a_values[i]) - np.float64(b_values[i]))
        for i in range(n):  # the bits of positive floats are in their order, and integers have a vector maximum
            if difference_bits[i] > largest:
                largest = difference_bits[i]
        squares = _squares(differences, n)
        difference_bits[0] = largest
        figures[0] = max(figures[0], differences[0])
        figures[1] += squares
        counts[1] = max(counts[1], np.int64(most))
        counts[0] += neq
        counts[2] += total
    counts[3] += n


@njit(fastmath={"reassoc"})
def _squares(terms, n):
    total = 0.0
    for i in range(n):
        total += terms[i] * terms[i]
    return total


@njit(forceinline=True)
def _add_block(a_values, b_values, ulps, n, counts, figures):
    for i in range(n):
        x, y = np.float64(a_values[i]), np.float64(b_values[i])
        if np.isfinite(x) and np.isfinite(y):
            distance = np.int64(ulps[i])
            counts[0] += distance != 0
            counts[1] = max(counts[1], distance)
            counts[2] += distance
            counts[3] += 1
            figures[0] = max(figures[0], abs(x - y))
            figures[1] += (x - y) * (x - y)
        elif not (x == y or (np.isnan(x) and np.isnan(y))):
            counts[0] += 1
            counts[4] += 1
