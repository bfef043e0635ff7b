"""Figures of keys, values and activations: those of the slow oracle, over random bit patterns of
every format.
"""

import numpy as np
import pytest

from core.numerics.differences import differences
from core.numerics.formats import BFLOAT16, LOGIT_FORMATS
from tests.core.numerics.oracle import expected_figures

WIDTHS = (1, 64, 2048, 5000)  # below, on and beyond a block


def sides(fmt, width):
    """Any bit pattern at all, NaNs and infinities too; a third of the variant's differ in their
    last bit.
    """
    random = np.random.default_rng(width)
    a = random.integers(
        0,
        1 << fmt.bits,
        (7, width),
        dtype=fmt.carrier,
    )
    b = a.copy()
    b[random.random(b.shape) < 0.3] ^= 1
    return a, b


@pytest.mark.spread(1)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", LOGIT_FORMATS)
def test_figures_are_those_of_their_definitions(name, width):
    fmt = LOGIT_FORMATS[name]
    a, b = sides(fmt, width)
    found = differences(a, b, fmt)
    expected = expected_figures(a, b, fmt)
    for name in ("neq", "nonfinite_mismatch", "max_ulps", "sum_ulps", "finite", "max_abs"):
        assert np.array_equal(getattr(found, name), expected.exact[name]), name
    for name in ("spacing", "max_row_ulps"):
        np.testing.assert_array_equal(getattr(found, name), expected.exact[name])
    np.testing.assert_allclose(found.sum_squares, expected.close["sum_squares"], rtol=1e-12)


def test_signed_zeros_and_equal_nans_do_not_differ():
    a = np.array([[0x0000, 0x7FC0, 0x7F80]], np.uint16)
    b = np.array([[0x8000, 0xFFC1, 0x7F80]], np.uint16)
    assert differences(a, b, BFLOAT16).neq.tolist() == [0]
