"""The compiled loops of core.numerics.differences."""

import numpy as np
from numba import njit

from .kernel import block_sums, load_block, mask_nonfinite, scan_row
from .sizes import BLOCK, GROUP


@njit(nogil=True, cache=True, error_model="numpy")
def difference_rows(a, b, fmt):
    rows, width = a.shape
    counts = np.zeros((rows, 5), np.int64)
    figures = np.zeros((rows, 3), np.float64)
    ulps = np.empty(BLOCK, a.dtype)
    a_values = np.empty(BLOCK, np.float32)
    b_values = np.empty(BLOCK, np.float32)
    a_bits = a_values.view(np.uint32)
    b_bits = b_values.view(np.uint32)
    is_mismatch = np.empty(BLOCK // GROUP, np.bool_)
    for row in range(rows):
        nonfinite, differing, figures[row, 2] = scan_row(a[row], b[row], fmt)
        counts[row, 3] = width
        if not (nonfinite or differing):
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
                masked, mismatched, _, _ = mask_nonfinite(
                    a_values,
                    b_values,
                    ulps,
                    n,
                    is_mismatch,
                )
                counts[row, 0] += mismatched
                counts[row, 3] -= masked
                counts[row, 4] += mismatched
            total, neq = block_sums(ulps, n, fmt)
            most = ulps[0]
            for i in range(n):
                if ulps[i] > most:
                    most = ulps[i]
            largest, squares = _largest_and_squares(a_values, b_values, n)
            counts[row, 0] += neq
            counts[row, 1] = max(counts[row, 1], np.int64(most))
            counts[row, 2] += np.int64(total)
            figures[row, 0] = max(figures[row, 0], largest)
            figures[row, 1] += squares
    return counts, figures


@njit(fastmath={"reassoc"})
def _largest_and_squares(a, b, n):
    """Without branches and a fixed order of summation, the loop becomes vector instructions (a
    third of the time).
    """
    largest = np.int64(0)
    squares = 0.0
    for i in range(n):
        difference = np.float64(a[i]) - np.float64(b[i])
        # the bits of positive floats are in their order, and integers have a vector maximum
        bits = np.float64(difference).view(np.int64) & 0x7FFFFFFFFFFFFFFF
        largest = bits if bits > largest else largest
        squares += difference * difference
    return np.int64(largest).view(np.float64), squares
