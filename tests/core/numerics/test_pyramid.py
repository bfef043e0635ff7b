"""Levels of the heatmap: a cell is the maximum of what it covers, so one differing element stays
visible and no level invents a distance.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.numerics import pyramid


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    tall=st.integers(1, 5),
)
def test_the_maximum_of_a_cell_is_that_of_what_it_covers(seed, shape, tall):
    cells = np.random.default_rng(seed).integers(
        0,
        1 << 32,
        shape,
        dtype=np.uint32,
    )
    # one cell, a level's step, and more than most shapes are wide
    for wide in (1, 4, 64):
        pooled = pyramid.maxima(cells, tall, wide)
        assert pooled.dtype == cells.dtype
        assert pooled.shape == (-(-shape[0] // tall), -(-shape[1] // wide))
        for i, j in np.ndindex(pooled.shape):
            rows = slice(tall * i, tall * (i + 1))
            columns = slice(wide * j, wide * (j + 1))
            assert pooled[i, j] == cells[rows, columns].max()


@pytest.mark.parametrize(
    ("rows", "vocab", "levels"),
    # 400 rows and 1000 cells of 32 tokens fit, one more of either does not
    [
        (1, 2, 1),
        (400, 32000, 1),
        (401, 32000, 2),
        (400, 32001, 2),
        (256, 128256, 3),
        (1 << 20, 1 << 22, 7),
    ],
)
def test_the_coarsest_level_fits_a_picture(rows, vocab, levels):
    assert pyramid.levels_for(rows, vocab) == levels
    height, width = pyramid.cell_shape(levels - 1)
    assert -(-rows // height) <= 400
    assert -(-vocab // width) <= 1000
