"""The compiled loops of core.numerics.differences."""

from __future__ import annotations

import numpy as np
from numba import njit

from .kernel import block_sums, load_block, scan_row
from .sizes import BLOCK


@njit(nogil=True, cache=True, error_model="numpy")
def difference_rows(a, b, fmt, counts, figures, ulps):
    a_values, b_values = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    a_bits, b_bits = a_values.view(np.uint32), b_values.view(np.uint32)
    differences = np.empty(BLOCK, np.float64)
    width = a.shape[1]
    for row in range(a.shape[0]):
        nonfinite, differing, figures[row, 2] = scan_row(a[row], b[row], fmt)
        if not (nonfinite or differing):
            counts[row, 3] = width
            continue
        for start in range(0, width, BLOCK):
            n = min(BLOCK, width - start)
            load_block(
                a[row, start : start + n],
                b[row, start : start + n],
                fmt,
                a_bits,
                b_bits,
                ulps,
            )
            if nonfinite:
                _add_block(a_values, b_values, ulps, n, counts[row], figures[row])
            else:
                _add_finite(
                    a_values,
                    b_values,
                    fmt,
                    ulps,
                    differences,
                    n,
                    counts[row],
                    figures[row],
                )


@njit(cache=True)
def _add_finite(a_values, b_values, fmt, ulps, differences, n, counts, figures):
    """Add a block of finite values: without branches, loops become vector instructions (a third of
    the time).
    """
    total, neq = block_sums(ulps, n, fmt)
    most, largest = ulps[0], np.int64(0)
    for i in range(n):
        if ulps[i] > most:
            most = ulps[i]
    for i in range(n):
        differences[i] = abs(np.float64(a_values[i]) - np.float64(b_values[i]))
    difference_bits = differences.view(np.int64)
    # the bits of positive floats are in their order, and integers have a vector maximum
    for i in range(n):
        if difference_bits[i] > largest:
            largest = difference_bits[i]
    figures[0] = max(figures[0], np.int64(largest).view(np.float64))
    figures[1] += _squares(differences, n)
    counts[0] += neq
    counts[1] = max(counts[1], np.int64(most))
    counts[2] += np.int64(total)
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
