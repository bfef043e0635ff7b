"""Row ULPs: bit patterns by hand in every format, and faults that the oracle must catch."""

import numpy as np
import pytest

from core.numerics.differences import differences
from core.numerics.divergence import compare
from core.numerics.formats import BFLOAT16, FLOAT16, FLOAT32
from core.numerics.totals import PairTotal
from tests.core.numerics import oracle

NONE = float("nan")
# Format; a row of the reference and of the variant, as bits; the spacing; the largest difference in
# it.
ROWS = [
    ("a power of two at the top", BFLOAT16, [0x4080, 0], [0x4080, 0x3D00], 2.0**-5, 1.0),
    ("a step below a power of two", BFLOAT16, [0x407F, 0], [0x407F, 0x3D00], 2.0**-6, 2.0),
    (
        "the other side's top is not asked",
        BFLOAT16,
        [0x3F80, 0],
        [0x4780, 0],
        2.0**-7,
        (65536 - 1) * 2.0**7,
    ),
    ("subnormals", BFLOAT16, [0x0001, 0], [0x0003, 0], 2.0**-133, 2.0),
    ("zeros of both signs", BFLOAT16, [0x0000, 0x8000], [0x0001, 0], 2.0**-133, 1.0),
    ("the largest finite", BFLOAT16, [0x7F7F, 0], [0x7F7E, 0], 2.0**120, 1.0),
    ("an infinity on both sides", BFLOAT16, [0x7F80, 0x3F80], [0x7F80, 0x3F81], 2.0**-7, 1.0),
    ("an infinity of the variant", BFLOAT16, [0x4080, 0x3F80], [0x7F80, 0x3F80], 2.0**-5, 0.0),
    ("NaN in the reference", BFLOAT16, [0x7FC0, 0x3F80], [0x4080, 0x3F82], 2.0**-7, 2.0),
    ("nothing finite in the variant", BFLOAT16, [0x4080, 0], [0x7FC0, 0xFF80], 2.0**-5, 0.0),
    ("nothing finite in the reference", BFLOAT16, [0x7FC0, 0xFF80], [0x4080, 0], NONE, NONE),
    ("float16, subnormal", FLOAT16, [0x03FF, 0], [0x03FE, 0], 2.0**-24, 1.0),
    (
        "float32, from end to end",
        FLOAT32,
        [0x7F7FFFFF, 0],
        [0xFF7FFFFF, 0],
        2.0**104,
        2.0 * (2**24 - 1),
    ),
    ("float32, next to nothing", FLOAT32, [0x7F7FFFFF, 0], [0x7F7FFFFF, 1], 2.0**104, 2.0**-253),
]


@pytest.mark.parametrize(
    ("fmt", "a", "b", "spacing", "largest"),
    [row[1:] for row in ROWS],
    ids=[row[0] for row in ROWS],
)
def test_a_row_is_counted_in_the_spacing_at_its_largest_magnitude(
    fmt,
    a,
    b,
    spacing,
    largest,
):
    sides = [np.array([bits], fmt.carrier) for bits in (a, b)]
    found = compare(sides[0], sides[1], fmt)
    assert np.array_equal(
        [found.spacing[0], found.max_row_ulps[0]],
        [spacing, largest],
        equal_nan=True,
    )
    pairs = np.isfinite([oracle.values(side[0], fmt) for side in sides]).all(axis=0)
    squares = found.rms_row_ulps[0] ** 2 * max(1, pairs.sum())
    # one element differs, in every row above
    assert squares == pytest.approx(largest**2, rel=1e-15, nan_ok=True)
    assert differences(sides[0], sides[1], fmt).max_row_ulps[0] == pytest.approx(
        largest,
        rel=0,
        nan_ok=True,
    )
    total = PairTotal()
    total.add(found)
    summary = total.summary()
    assert summary.max_row_ulps == (None if np.isnan(largest) else largest)
    expected = None if not pairs.any() else np.sqrt(largest**2 / pairs.sum())
    assert summary.rms_row_ulps == (
        expected if expected is None else pytest.approx(expected, rel=1e-15)
    )


def test_a_difference_however_small_beside_its_row_leaves_a_cell_that_is_not_0():
    a = np.zeros((1, 64), np.uint32)
    a[0, 0] = 0x7F7FFFFF
    b = a.copy()
    b[0, 40] = 1
    assert compare(a, b, FLOAT32).row_tiles.tolist() == [[0, 1]]


def test_a_difference_beyond_float32_has_its_cell():
    """6.8e38 in spacings of 2e31; the float32 difference alone is infinite."""
    a, b = (np.array([[bits, 0]], np.uint32) for bits in (0x7F7FFFFF, 0xFF7FFFFF))
    cell = compare(a, b, FLOAT32).row_tiles.view(np.float32)
    assert cell.tolist() == [[2.0 * (2**24 - 1)]]
