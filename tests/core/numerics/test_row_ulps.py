"""Cells in row ULPs at both ends of what float32 holds."""

import numpy as np

from core.numerics.divergence import compare
from core.numerics.formats import FLOAT32


def test_a_difference_however_small_beside_its_row_leaves_a_cell_that_is_not_0():
    a = np.zeros((1, 64), np.uint32)
    # float32's largest value, and in the second group its smallest subnormal:
    # their quotient rounds to 0 in float32
    a[0, 0] = 0x7F7FFFFF
    b = a.copy()
    b[0, 40] = 1
    assert compare(a, b, FLOAT32).group_row_ulps.tolist() == [[0, 1]]


def test_a_difference_beyond_float32_has_its_cell():
    """6.8e38 in spacings of 2e31; the float32 difference alone is infinite."""
    largest = 0x7F7FFFFF
    sign = 1 << 31
    a = np.array([[largest, 0]], np.uint32)
    b = np.array([[largest | sign, 0]], np.uint32)
    cell = compare(a, b, FLOAT32).group_row_ulps.view(np.float32)
    # the largest value is 2**24 - 1 spacings of its binade, here on either side of 0
    assert cell.tolist() == [[2.0 * (2**24 - 1)]]
