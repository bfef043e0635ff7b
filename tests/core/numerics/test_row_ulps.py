"""Cells in row ULPs at both ends of what float32 holds."""

import numpy as np

from core.numerics.divergence import compare
from core.numerics.formats import FLOAT32


def test_a_difference_however_small_beside_its_row_leaves_a_cell_that_is_not_0():
    a = np.zeros((1, 64), np.uint32)
    a[0, 0] = 0x7F7FFFFF
    b = a.copy()
    b[0, 40] = 1
    assert compare(a, b, FLOAT32).group_row_ulps.tolist() == [[0, 1]]


def test_a_difference_beyond_float32_has_its_cell():
    """6.8e38 in spacings of 2e31; the float32 difference alone is infinite."""
    a, b = (np.array([[bits, 0]], np.uint32) for bits in (0x7F7FFFFF, 0xFF7FFFFF))
    cell = compare(a, b, FLOAT32).group_row_ulps.view(np.float32)
    assert cell.tolist() == [[2.0 * (2**24 - 1)]]
