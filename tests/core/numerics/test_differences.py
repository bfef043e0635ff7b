"""Figures of keys, values and activations: the definitions written out in numpy, over random bit
patterns of every format.
"""

import numpy as np
import pytest

from core.numerics.differences import differences
from core.numerics.formats import BFLOAT16, LOGIT_FORMATS, FloatFormat, ordinals, values_of

WIDTHS = (1, 64, 2048, 5000)  # below, on and beyond a block


def sides(fmt: FloatFormat, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Any bit pattern at all, NaNs and infinities too; a third of the variant's differ in their
    last bit.
    """
    random = np.random.default_rng(width)
    a = random.integers(0, 1 << fmt.bits, (7, width), dtype=fmt.carrier)
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
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x, y = values_of(a, fmt).astype(np.float64), values_of(b, fmt).astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    equal = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.where(finite, np.abs(ordinals(a, fmt) - ordinals(b, fmt)), 0)
    with np.errstate(invalid="ignore"):
        difference = np.where(finite, x - y, 0.0)
    assert np.array_equal(found.neq, (~equal).sum(1))
    assert np.array_equal(found.nonfinite_mismatch, (~equal & ~finite).sum(1))
    assert np.array_equal(found.max_ulps, gap.max(1))
    assert np.array_equal(found.sum_ulps, gap.sum(1))
    assert np.array_equal(found.finite, finite.sum(1))
    assert np.array_equal(found.max_abs, np.abs(difference).max(1))
    assert np.allclose(found.sum_squares, (difference**2).sum(1), rtol=1e-12, atol=0)


def test_signed_zeros_and_equal_nans_do_not_differ():
    a = np.array([[0x0000, 0x7FC0, 0x7F80]], np.uint16)
    b = np.array([[0x8000, 0xFFC1, 0x7F80]], np.uint16)
    assert differences(a, b, BFLOAT16).neq.tolist() == [0]
