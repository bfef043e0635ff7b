"""Ordinals, spacing and lossless moves over every bit pattern there is (float32: a random
million).
"""

import numpy as np
import pytest

from core.errors import UsageError
from core.numerics.formats import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FORMATS,
    format_named,
    narrow,
    ordinals,
    spacings,
    values_of,
    widen,
)
from tests.core.numerics import oracle

FMT = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
SMALL = pytest.mark.parametrize(
    "fmt",
    [f for f in FORMATS.values() if f.bits <= 16],
    ids=lambda f: f.name,
)


def patterns(fmt):
    """Every pattern up to 16 bits; of float32 a million random ones and those around every power of
    two.
    """
    if fmt.bits <= 16:
        return np.arange(1 << fmt.bits, dtype=fmt.carrier)
    # the last value of a binade, the first of the next and the one after it
    powers = np.arange(256, dtype=np.uint32) << np.uint32(23)
    edges = np.concatenate([powers - np.uint32(1), powers, powers + np.uint32(1)])
    drawn = np.random.default_rng(1).integers(
        0,
        1 << 32,
        1 << 20,
        dtype=np.uint32,
    )
    return np.concatenate([edges, edges | np.uint32(1 << 31), drawn])


@FMT
def test_ordinals_are_the_ranks_of_the_values(fmt):
    bits = patterns(fmt)
    values = oracle.values(bits, fmt)
    is_finite = np.isfinite(values)
    expected = oracle.ordinal(values[is_finite], fmt)
    assert np.array_equal(ordinals(bits[is_finite], fmt), expected)


@FMT
def test_nans_lie_beyond_the_infinities(fmt):
    bits = patterns(fmt)
    steps = np.abs(ordinals(bits, fmt))
    values = oracle.values(bits, fmt)
    largest = steps[~np.isnan(values)].max()
    assert (steps[np.isnan(values)] > largest).all()


@FMT
def test_values_are_those_of_torch(fmt):
    bits = patterns(fmt)
    # signalling NaNs
    with np.errstate(invalid="ignore"):
        found = values_of(bits, fmt).astype(np.float64)
    assert np.array_equal(found, oracle.values(bits, fmt), equal_nan=True)


@SMALL
def test_spacing_is_the_gap_to_the_next_larger_magnitude(fmt):
    finite = oracle._distinct(fmt)
    magnitudes = finite[finite >= 0]
    # the largest has no next one: its gap is that below it
    beyond = magnitudes[-1] + (magnitudes[-1] - magnitudes[-2])
    gaps = np.diff(magnitudes, append=beyond)
    assert spacings(magnitudes, fmt).tolist() == gaps.tolist()
    assert spacings(-magnitudes, fmt).tolist() == gaps.tolist()


def test_spacing_of_float32_is_that_of_numpy():
    # whose spacing of the largest is infinite
    drawn = np.random.default_rng(2).integers(
        0,
        0x7F7FFFFF,
        4000,
        dtype=np.uint32,
    )
    single = drawn.view(np.float32)
    expected = np.spacing(single).astype(np.float64)
    assert spacings(single, FLOAT32).tolist() == expected.tolist()


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT16, FLOAT32], ids=lambda f: f.name)
def test_what_is_widened_comes_back(fmt):
    bits = patterns(fmt)
    # hardware quiets a signalling NaN on the way up; the dump reader checks for that
    if fmt is FLOAT16:
        is_signalling = np.isnan(oracle.values(bits, fmt)) & (bits & 0x0200 == 0)
        bits = bits[~is_signalling]
    assert np.array_equal(narrow(widen(bits, fmt), fmt), bits)


@pytest.mark.parametrize("fmt", [BFLOAT16, FLOAT16], ids=lambda f: f.name)
# one bit too fine, below the least subnormal, all 24 bits set, and no dyadic fraction
@pytest.mark.parametrize(
    "value",
    [
        1 + 2**-20,
        1e-45,
        np.nextafter(np.float32(3.4e38), 0),
        0.1,
    ],
)
def test_one_value_that_would_be_rounded_is_enough_to_refuse(fmt, value):
    exact = np.ones(5000, np.float32)
    assert narrow(exact.view(np.uint32), fmt) is not None
    exact[4321] = value
    assert narrow(exact.view(np.uint32), fmt) is None


def test_a_name_that_is_no_format_is_refused_with_the_list():
    assert format_named("torch.bfloat16") is BFLOAT16
    assert format_named("bf16") is BFLOAT16
    with pytest.raises(UsageError, match="float32, float16, bfloat16"):
        format_named("int8")
