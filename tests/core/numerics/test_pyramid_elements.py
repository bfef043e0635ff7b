"""Cells that the stored pyramid does not hold: single distances and differences, and rows in the
order of rank.
"""

import numpy as np
import pytest

from core.numerics import pyramid
from core.numerics.formats import BFLOAT16, FLOAT16, FLOAT32, values_of
from tests.core.numerics import oracle

FORMATS = [BFLOAT16, FLOAT16, FLOAT32]


def any_bits(fmt):
    """Two sides of any bit patterns, a third of them equal, the first row finite."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(
        0,
        1 << fmt.bits,
        (2, 12, 700),
        dtype=fmt.carrier,
    )
    b[:, ::3] = a[:, ::3]
    # without its sign and its highest exponent bit no pattern is infinite or NaN
    finite_bits = (1 << (fmt.bits - 2)) - 1
    a[0] &= fmt.carrier.type(finite_bits)
    b[0] = a[0] ^ fmt.carrier.type(1)
    return a, b


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_cells_of_any_bit_patterns_are_those_of_the_values(fmt):
    a, b = any_bits(fmt)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = values_of(a, fmt).astype(float)
        y = values_of(b, fmt).astype(float)
    finite = np.isfinite(x) & np.isfinite(y)
    is_same = (x == y) | (np.isnan(x) & np.isnan(y))
    ulps = pyramid.element_ulps(a, b, fmt)
    # powers of two divide without rounding: the expected cells need no tolerance
    spacing = 2.0 ** np.arange(len(a))
    differences = pyramid.element_row_ulps(a, b, fmt, spacing)
    expected = np.where(is_same, 0, np.iinfo(fmt.carrier).max)
    steps = oracle.ordinal(x[finite], fmt) - oracle.ordinal(y[finite], fmt)
    expected[finite] = np.abs(steps)
    assert ulps.dtype == fmt.carrier
    assert np.array_equal(ulps, expected)
    single = np.finfo(np.float32)
    with np.errstate(all="ignore"):
        in_spacings = np.abs(x - y) / spacing[:, None]
    # an infinite cell would stand for a mismatch
    exact = np.minimum(in_spacings, single.max)
    # what differs is never 0, however small it is next to its row
    at_least = np.maximum(exact, single.smallest_subnormal)
    exact = np.where(exact > 0, at_least, 0.0)
    found = differences.view(np.float32)
    assert np.array_equal(found[finite], exact[finite].astype(np.float32))
    expected = np.where(is_same[~finite], 0, 0xFFFFFFFF)
    assert np.array_equal(differences[~finite], expected)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_rows_by_rank_are_largest_first_equal_ones_by_id_and_nan_last(fmt):
    rng = np.random.default_rng(1)
    # one decimal of 900 values: most of them are tied
    normal = rng.standard_normal((5, 900))
    values = np.round(normal * 4, 1).astype(np.float32)
    values[0, :6] = [np.nan, np.inf, -np.inf, -0.0, 0.0, np.nan]
    bits = values.astype(fmt.values).view(fmt.carrier)
    # numpy's stable sort leaves equal values in the order of their ids and NaN last
    expected = np.argsort(-values_of(bits, fmt).astype(float), axis=1, kind="stable")
    assert np.array_equal(pyramid.descending(bits, fmt), expected)
