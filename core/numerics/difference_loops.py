"""The compiled loops of core.numerics.differences."""

import numpy as np
from numba import njit

from .kernel import block_sums, load_block, mask_nonfinite, scan_row
from .sizes import BLOCK, GROUP


@njit(nogil=True, cache=True, error_model="numpy")
def difference_rows(a, b, fmt, counts, figures, ulps):
    a_values, b_values = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    a_bits, b_bits = a_values.view(np.uint32), b_values.view(np.uint32)
    differences = np.empty(BLOCK, np.float64)
    is_mismatch = np.empty(BLOCK // GROUP, np.bool_)
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
            masked, mismatched = 0, 0
            if nonfinite:
                masked, mismatched, _, _ = mask_nonfinite(
                    a_values,
                    b_values,
                    ulps,
                    n,
                    is_mismatch,
                )
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
            counts[row, 0] += mismatched
            counts[row, 3] -= masked
            counts[row, 4] += mismatched


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
