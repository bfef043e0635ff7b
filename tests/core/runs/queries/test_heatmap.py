"""Tiles of the heatmap: every cell is the maximum of what it covers, at every level, in every view;
nothing that differs is lost.
"""

import itertools

import numpy as np
import pandas as pd
import pytest

from core.checks.pair import OWN_PAIR, WIDE_PAIR
from core.errors import UsageError
from core.numerics import pyramid
from core.numerics.formats import values_of
from core.runs.queries import heatmap
from core.runs.queries.heatmap import (
    MEASURES,
    ORDERS,
    TILE_COLUMNS,
    TILE_ROWS,
    Tile,
    View,
    tile_cells,
)
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.numerics.oracle import spacing
from tests.core.runs.judged_runs import judged_run, ratio_row
from tests.core.runs.made_runs import (
    bits_of_sides,
    calm_sides,
    header_of,
    sides_one_ulp_apart,
    write_run,
)
from tests.covering import few

LENGTHS, VOCAB = (
    (130, 11, 9),
    33000,
)  # 150 rows: three tiles; 33 tiles of columns; two stored levels need more rows or columns


def nothing_kept(key, make):
    return make()


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def opened(request, tmp_path_factory):
    """A run with every kind of value in it, and its sides."""
    header = header_of(request.param, LENGTHS, VOCAB)
    sides = calm_sides(header)
    sides[1][:100] = sides[0][:100]  # mostly equal, so that single elements are seen
    odd = bits_of_sides(header_of(request.param, LENGTHS, 40))
    for side, more in zip(sides, odd, strict=True):
        side[:, 7000:7040] = more
    with RunReader(write_run(Store(tmp_path_factory.mktemp("runs")), header, sides)) as run:
        yield run, sides


def elements_of(sides, fmt, order, measure):
    """Distances of single elements, columns in the asked order. [rows, vocab]"""
    # numerics/test_pyramid_elements.py has these functions against definitions and numpy's sort
    if order == "rank":
        ranks = pyramid.descending(sides[0], fmt)
        sides = [np.take_along_axis(bits, ranks, 1) for bits in sides]
    if measure == "ulps":
        return pyramid.element_ulps(*sides, fmt)
    steps = np.ones(len(sides[0]))
    if measure == "row_ulps":
        values = np.abs(values_of(sides[0], fmt))
        largest = values.max(axis=1, where=np.isfinite(values), initial=0.0)
        steps = np.array([spacing(float(value), fmt) for value in largest])
    return pyramid.element_row_ulps(*sides, fmt, steps)


def slow_tile(elements, tile):
    tall = 1 << tile.row_level
    wide = 1 << tile.column_level
    part = elements[tile.row * TILE_ROWS * tall :, tile.column * TILE_COLUMNS * wide :][
        : TILE_ROWS * tall,
        : TILE_COLUMNS * wide,
    ]
    rows = np.maximum.reduceat(
        part,
        np.arange(0, part.shape[0], tall),
        axis=0,
    )
    return np.maximum.reduceat(
        rows,
        np.arange(0, part.shape[1], wide),
        axis=1,
    )


def tiles_of(run):
    """First, middle and last tiles of every level."""
    for row_level in range(heatmap.largest_level(run.header.rows, TILE_ROWS) + 1):
        for column_level in range(heatmap.largest_level(run.header.vocab, TILE_COLUMNS) + 1):
            last = [
                (run.header.rows - 1) // (TILE_ROWS << row_level),
                (run.header.vocab - 1) // (TILE_COLUMNS << column_level),
            ]
            for row, column in itertools.product(
                {0, last[0]},
                {0, last[1] // 2, last[1]},
            ):
                yield Tile(row_level, column_level, row, column)


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("opened", "measure", "order"),
    few(
        itertools.product(("bfloat16", "float32"), MEASURES, ORDERS),
        ("bfloat16", "difference", "rank"),
        ("float32", "ulps", "id"),
        ("bfloat16", "row_ulps", "id"),
    ),
    indirect=["opened"],
)
def test_every_cell_is_the_maximum_of_the_elements_it_covers(opened, order, measure):
    run, sides = opened
    elements = elements_of(sides[:2], run.header.format, order, measure)
    kept = {}
    for tile in tiles_of(run):
        got = tile_cells(
            View(run, 0, order, measure),
            tile,
            lambda key, make: kept.setdefault(key, make()),
        )
        expected = slow_tile(elements, tile)
        assert got.dtype == (run.header.format.carrier if measure == "ulps" else np.uint32)
        assert got.shape == expected.shape
        assert np.array_equal(got, expected), tile


ROW, TOKEN = 137, 20011


@pytest.fixture(scope="module")
def one_differs(tmp_path_factory):
    header = header_of("bfloat16", LENGTHS, VOCAB)
    sides = sides_one_ulp_apart(header, ROW, TOKEN)
    with RunReader(write_run(Store(tmp_path_factory.mktemp("one")), header, sides)) as run:
        yield run


@pytest.fixture
def view(one_differs):
    return View(one_differs, 0, "id", "ulps")


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("measure", MEASURES)
def test_the_element_of_a_cell_is_the_one_that_differs(one_differs, order, measure):
    span = (0, VOCAB) if order == "rank" else (TOKEN - 900, TOKEN + 900)
    found = heatmap.largest_in(View(one_differs, 0, order, measure), (130, 141), span)
    assert found.row == ROW
    assert found.token == TOKEN
    assert found.ulps == 1
    sides = [
        values_of(one_differs.read_rows(side, ROW, ROW + 1)[0], one_differs.header.format)
        for side in (0, 1)
    ]
    reference, variant = (float(side[TOKEN]) for side in sides)
    assert found[2:4] == (reference, variant)
    assert found.difference == variant - reference
    for side, rank in zip(sides, (found.reference_rank, found.variant_rank), strict=True):
        assert int(np.argsort(-side, kind="stable")[rank - 1]) == TOKEN


def test_a_nan_on_one_side_is_furthest_apart_and_has_no_distance(opened):
    run, sides = opened
    found = heatmap.largest_in(View(run, 0, "id", "ulps"), (0, 150), (7000, 7040))
    assert found.ulps is found.difference is None
    assert not (np.isfinite(found.reference) and np.isfinite(found.variant))
    assert sides[0][found.row, found.token] != sides[1][found.row, found.token]


@pytest.mark.parametrize(
    ("tile", "says"),
    [
        (Tile(0, 0, 3, 0), "row 3 of level 0"),
        (Tile(0, 0, 0, 33), "column 33 of level 0"),
        (Tile(3, 0, 0, 0), "row 0 of level 3"),
        (Tile(0, 7, 0, 0), "column 0 of level 7"),
        (Tile(10**9, 0, 0, 0), "level 1000000000"),
        (Tile(-1, 0, 0, 0), "level -1"),
        (Tile(0, 0, -1, 0), "row -1"),
    ],
)
def test_a_tile_that_is_not_there_is_refused(view, tile, says):
    with pytest.raises(UsageError, match=says):
        tile_cells(view, tile, nothing_kept)


@pytest.mark.parametrize("pair", [-1, 1])
def test_a_pair_that_is_not_there_is_refused(one_differs, pair):
    with pytest.raises(UsageError, match=f"pair {pair}"):
        tile_cells(View(one_differs, pair, "id", "ulps"), Tile(0, 0, 0, 0), nothing_kept)
    with pytest.raises(UsageError, match=f"pair {pair}"):
        heatmap.largest_in(View(one_differs, pair, "id", "ulps"), (0, 1), (0, 1))


def test_a_tile_that_would_read_too_much_is_refused_and_the_table_says_which_is_not(
    one_differs,
    view,
    monkeypatch,
):
    monkeypatch.setattr(heatmap, "WORK", 64 * 16384)
    finest = heatmap.finest_columns(one_differs, "id", "ulps")
    # 64 rows of up to 16384 columns may be read, 128 and 150 rows may not
    assert finest == [0, 5, 5]
    for row_level, column_level in enumerate(finest):
        assert tile_cells(view, Tile(row_level, column_level, 0, 0), nothing_kept).size
        if column_level:
            with pytest.raises(UsageError, match=f"the least level is {column_level}"):
                tile_cells(
                    view,
                    Tile(row_level, column_level - 1, 0, 0),
                    nothing_kept,
                )


def test_the_floor_is_marked_where_it_was_measured_in_the_runs_own_dtype(store):
    def marked(*rows):
        with RunReader(store.path_of(judged_run(store, "rounding", evidence=list(rows)))) as run:
            return heatmap.floor_row_ulps(run, 0)

    own, wide = (
        ratio_row(check, dtype, 1.0, "passed", "Rounding.", floor_row_ulps=value)
        for check, dtype, value in (
            (OWN_PAIR, "bfloat16", 2.5),
            (WIDE_PAIR, "float32", 40.0),
        )
    )
    assert marked() is None
    assert marked(wide) is None
    assert marked(wide, own) == 2.5


@pytest.mark.parametrize(
    ("row_ulps", "is_skewed"),
    [
        ([0.0, 1.0, 1.5, 2.0, 90.0], True),
        ([0.0, 1.0, 1.5, 2.0, 40.0], False),
        # a fault from one position on: most positions differ alike, and a linear scale shows them
        ([0.5, 90.0, 80.0, 70.0], False),
        # equal positions and NaN mismatches have no color on either scale
        ([0.0, 0.0, 0.0, 90.0], False),
        ([np.nan, 1.0, 1.0, 90.0], True),
        ([], False),
    ],
)
def test_colors_begin_logarithmic_if_one_position_hides_the_others(row_ulps, is_skewed):
    table = pd.DataFrame({"max_row_ulps": row_ulps})
    assert heatmap.is_skewed(table) == is_skewed


def test_a_rectangle_too_large_to_search_is_refused(view, monkeypatch):
    with pytest.raises(UsageError, match="expected at most 4096"):
        heatmap.tokens_in(view, (0, 1), (0, 4097))
    monkeypatch.setattr(heatmap, "WORK", 1000)
    with pytest.raises(UsageError, match="too many to read"):
        heatmap.largest_in(view, (0, 11), (0, 100))
    with pytest.raises(UsageError, match="there are"):
        heatmap.largest_in(view, (0, 1), (5, 5))
