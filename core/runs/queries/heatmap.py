"""The heatmap in tiles: one pair's distances over rows x columns, each cell the maximum of what it
covers, at any level of detail.

A cell of levels (r, c) covers 2^r rows x 2^c columns; a tile is 64 x 1024 cells, fewer at the ends.
Columns are token ids, or ranks: column k of a row is then the token whose logit is the reference's
k-th largest of that row. A cell holds the largest difference in row ULPs, the largest ULP distance
or the largest absolute difference (the first and the last float32 as bits); all ones means a NaN or
infinity mismatch inside, in any measure.

Row ULPs and ULPs by token id come from the stored pyramids if their cells fit into the asked ones,
everything else from the logits. What neighboring tiles share, whole rows of stored cells or blocks
of 64 rows by rank or of differences, the caller may keep (`Keep`); nothing is kept here.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics import pyramid
from ...numerics.arrays import Bits, DataFrame, Span
from ...places import words_of
from ...text import all_of, number, out_of
from ..figures import STORED_CELLS
from ..reader import RunReader
from .by_position import floor_checks
from .elements import every_element, place_of, rank_of

Order = Literal["id", "rank"]
Measure = Literal["row_ulps", "ulps", "difference"]
ORDERS: tuple[Order, ...] = ("id", "rank")
# the first is what the page opens in
MEASURES: tuple[Measure, ...] = ("row_ulps", "ulps", "difference")

Cells = Bits
# (key within the pair, how to make it) -> made or remembered
Keep = Callable[[tuple, Callable[[], Cells]], Cells]

TILE_ROWS = 64
TILE_COLUMNS = 1024
# the stored pyramid and the blocks begin with cells of 2^5 columns
GROUP_LEVEL = 5
# logits, or cells of the stored pyramid, that one tile may read: 60 ms
WORK = 1 << 24
RANKED_WORK = 1 << 26  # logits that one tile may put in order of rank for single ranks
# Logits of whole rows that one picture may read: single logits lie in blocks of 32 to 64 tiles, so
# a row is read whole. 130 ms.
MOST_READ = 48 << 20
RANKS = 64  # of the page's first look
MOST_TEXTS = 4096  # of one picture
# logits of a pair beyond which it is shown as its file holds it: the rest would read all of it
WHOLE_RUN = 1 << 30
_LEVELS = 32  # more than any axis has
_SKEW = 32  # a linear scale has about as many colors that an eye tells apart
READ_ELEMENTS = 1 << 21  # logits of a side that are in memory at a time


class View(NamedTuple):
    """A pair of a run as it is looked at: columns in this order, cells of this measure."""

    run: RunReader
    pair: int
    order: Order
    measure: Measure


class Tile(NamedTuple):
    """A place in the heatmap of a run: its levels, and which tile of them, counted from 0."""

    row_level: int
    column_level: int
    row: int
    column: int


class Element(NamedTuple):
    """One logit of both sides. Ranks: 1 is the argmax; `row_ulps`, `ulps` and `difference` are None
    if a NaN or infinity is on one side only.
    """

    row: int
    token: int
    reference: float
    variant: float
    row_ulps: float | None
    ulps: int | None
    difference: float | None
    reference_rank: int
    variant_rank: int


def largest_level(size: int, cells: int) -> int:
    """Return the level at which an axis of `size` fits one tile of `cells`."""
    return max(0, -(-size // cells) - 1).bit_length()


def is_offered(run: RunReader, order: Order, measure: Measure) -> bool:
    """Return whether the whole run can be viewed this way; what cannot is too large to be computed
    in a request, or its logits were not stored.
    """
    is_readable = run.has_all_logits and run.header.rows * run.header.vocab <= WHOLE_RUN
    return is_readable or _is_stored(order, measure)


def _is_stored(order: Order, measure: Measure) -> bool:
    return order == "id" and measure in STORED_CELLS


def floor_row_ulps(run: RunReader, pair: int) -> float | None:
    """Return the 99.9th percentile of the pair's noise floor in the run's own dtype, in row ULPs;
    None if none was measured.
    """
    for check in floor_checks(run, pair):
        if check.compute_dtype == run.header.compute_dtype:
            return check.floor_row_ulps
    return None


def is_skewed(table: DataFrame) -> bool:
    """Return whether one position differs so much more than most that a linear scale would show
    those in its first color.
    """
    row_ulps = table["max_row_ulps"].to_numpy(float)
    differing = row_ulps[row_ulps > 0]
    return len(differing) > 0 and bool(differing.max() > _SKEW * np.median(differing))


def finest_columns(run: RunReader, order: Order, measure: Measure) -> list[int]:
    """Return the column level of every row level from which on no tile reads more than a bounded
    share of the run.
    """
    header, finest = run.header, []
    # finer cells are not there
    least_stored = 0 if run.has_all_logits else pyramid.cell_shape(run.levels().start)[1]
    for row_level in range(largest_level(header.rows, TILE_ROWS) + 1):
        rows = min(header.rows, TILE_ROWS << row_level)
        least = 0
        for level in range(_LEVELS):
            work = 0  # whole rows are read, and no more of them than `is_offered` allows
            if level < GROUP_LEVEL:
                work = rows * min(header.vocab, TILE_COLUMNS << level)
                if order == "rank" and rows * header.vocab > RANKED_WORK:
                    least = level + 1
            elif _is_stored(order, measure):
                height, width = pyramid.cell_shape(_stored_level(run, row_level, level))
                work = (rows // height) * (header.vocab // width)
            if work > WORK or 1 << level < least_stored:
                least = level + 1
        finest.append(least)
    return finest


def _stored_level(run: RunReader, row_level: int, column_level: int) -> int:
    """Return the coarsest stored level whose cells fit into these; the finest one if none does."""
    levels = run.levels()
    fitting = min(row_level // 2, (column_level - GROUP_LEVEL) // 2, levels.stop - 1)
    return max(levels.start, fitting)


def tile_cells(view: View, tile: Tile, keep: Keep) -> Cells:
    """Return the cells of a tile. [up to 64, up to 1024], the compute dtype's carrier for ULPs,
    uint32 for the others.
    """
    rows, columns = _extent(view, tile)
    run, pair, order, measure = view
    tall, wide = 1 << tile.row_level, 1 << tile.column_level
    is_single = tile.column_level < GROUP_LEVEL
    is_stored = not is_single and _is_stored(order, measure)
    if is_stored or not run.has_all_logits:
        level = _stored_level(run, tile.row_level, tile.column_level)
        height, width = pyramid.cell_shape(level)
        key = ("stored", measure, level, rows)
        grid = keep(key, lambda: run.stored_cells(measure, pair, level, rows))
        cells = grid[:, columns[0] // width : -(-columns[1] // width)]
        cells = pyramid.maxima(cells, max(1, tall // height), max(1, wide // width))
        # a finer cell holds the maximum of the stored one that it lies in
        if tall < height:
            cells = cells[np.arange(*rows, tall) // height - rows[0] // height]
        if wide < width:
            cells = cells[:, np.arange(*columns, wide) // width - columns[0] // width]
        return cells
    if is_single and order == "id":
        return _pool(view, rows, columns, tall, wide)
    # Maxima of a block of rows each, of a tile's single ranks or of groups of 32 of whole rows:
    # other tiles share them.
    group, across = (1, columns) if is_single else (1 << GROUP_LEVEL, (0, run.header.vocab))
    first, last = ((column - across[0]) for column in columns)
    parts = []
    for start in range(*rows, TILE_ROWS):
        span = start, min(start + TILE_ROWS, rows[1])
        of_block = ("block", across, order, measure, span)
        block = keep(of_block, partial(_pool, view, span, across, 1, group))
        parts.append(block[:, first // group : -(-last // group)])
    return pyramid.maxima(np.concatenate(parts), tall, wide // group)


def _extent(view: View, tile: Tile) -> tuple[Span, Span]:
    """Return (rows, columns) that a tile covers; UsageError if there is no such tile."""
    run, pair, order, measure = view
    header = run.header
    if not 0 <= pair < len(header.sides) - 1:
        raise UsageError(
            f"pair {pair} does not exist; the run has pairs 0 to {len(header.sides) - 2}.",
        )
    if not is_offered(run, order, measure):
        reason = f"more than {WHOLE_RUN} logits." if run.has_all_logits else header.without_logits
        raise UsageError(f"by rank and as differences a pair is not shown: {reason}")
    spans = []
    for what, level, place, cells, size in (
        ("row", tile.row_level, tile.row, TILE_ROWS, header.rows),
        ("column", tile.column_level, tile.column, TILE_COLUMNS, header.vocab),
    ):
        # the level first: a shift by a billion would not come back
        is_level = 0 <= level <= largest_level(size, cells)
        start = place * (cells << level) if is_level else size
        if not 0 <= start < size:
            raise UsageError(f"{what} {place} of level {level} is no tile of {size} {what}s.")
        spans.append((start, min(size, start + (cells << level))))
    finest = finest_columns(run, order, measure)[tile.row_level]
    if tile.column_level < min(finest, largest_level(header.vocab, TILE_COLUMNS)):
        raise UsageError(
            f"columns of level {tile.column_level}: with rows of level {tile.row_level} the least"
            f" level is {finest}.",
        )
    return spans[0], spans[1]


def _elements(view: View, rows: Span, columns: Span) -> tuple[Cells, NDArray | None]:
    """Return (cells of single logits, their token ids if by rank), of a rectangle of columns.
    [rows, columns] each
    """
    run, pair, order, measure = view
    fmt, whole = run.header.format, (0, run.header.vocab) if order == "rank" else columns
    reference, variant = (run.read_window(side, rows, whole) for side in (0, pair + 1))
    ids = None
    if order == "rank":
        ids = pyramid.descending(reference, fmt)[:, slice(*columns)]
        reference, variant = (
            np.stack(list(map(np.take, bits, ids))) for bits in (reference, variant)
        )
    if measure == "ulps":
        return pyramid.element_ulps(reference, variant, fmt), ids
    spacing = run.spacing(pair, rows) if measure == "row_ulps" else np.ones(rows[1] - rows[0])
    return pyramid.element_row_ulps(reference, variant, fmt, spacing), ids


def _pool(view: View, rows: Span, columns: Span, tall: int, wide: int) -> Cells:
    """Return a rectangle by token id, or whole rows by rank; some rows at a time, whole cells of
    them, so that memory stays bounded. [rows / tall, columns / wide]
    """
    at_once = max(1, READ_ELEMENTS // (columns[1] - columns[0]) // tall) * tall
    parts = []
    for start in range(*rows, at_once):
        cells, _ = _elements(view, (start, min(start + at_once, rows[1])), columns)
        parts.append(pyramid.maxima(cells, tall, wide))
    return np.concatenate(parts)


def largest_in(view: View, rows: Span, columns: Span) -> Element:
    """Return the largest difference in a rectangle, the first of equals: what a cell of the heatmap
    stands for.
    """
    _check_rectangle(view, rows, columns)
    cells, ids = _elements(view, rows, columns)
    row, column = divmod(int(cells.argmax()), cells.shape[1])
    token = columns[0] + column if ids is None else int(ids[row, column])
    return element(view.run, view.pair, rows[0] + row, token)


def tokens_in(view: View, rows: Span, columns: Span) -> NDArray[np.integer]:
    """Return the token ids of a rectangle; by token id one row is valid for all. [rows or 1,
    columns]
    """
    _check_rectangle(view, rows, columns)
    if (count := (rows[1] - rows[0]) * (columns[1] - columns[0])) > MOST_TEXTS:
        raise UsageError(f"{count} tokens: expected at most {MOST_TEXTS}.")
    if view.order == "id":
        return np.arange(*columns)[None]
    bits = view.run.read_rows(0, *rows)
    return pyramid.descending(bits, view.run.header.format)[:, slice(*columns)]


def _check_rectangle(view: View, rows: Span, columns: Span) -> None:
    """Raise UsageError if there is no such rectangle, or too much would be read for it."""
    header, pair = view.run.header, view.pair
    pairs = len(header.sides) - 1
    (top, bottom), (left, right) = rows, columns
    is_there = 0 <= top < bottom <= header.rows and 0 <= left < right <= header.vocab
    if not is_there or not 0 <= pair < pairs:
        raise UsageError(
            f"pair {pair}, rows {top} to {bottom}, columns {left} to {right} do not exist: there"
            f" are {pairs} pairs, {header.rows} rows and {header.vocab} columns.",
        )
    width = header.vocab if view.order == "rank" else right - left
    if (bottom - top) * width > WORK:
        raise UsageError(
            f"{bottom - top} rows x {width} logits are too many to read; expected at most {WORK}.",
        )


def element(run: RunReader, pair: int, row: int, token: int) -> Element:
    """Return exact figures of one logit of both sides, and its rank in either row."""
    table = every_element(run, pair, *place_of(run, row))
    sides = [table[f"{side}_logit"].to_numpy() for side in ("reference", "variant")]
    ranks = [rank_of(side, token) for side in sides]
    logits = [side[token] for side in sides]
    figures = [table[name][token] for name in ("row_ulps", "ulps", "difference")]
    if np.isnan(figures[-1]):
        figures = [None] * 3
    return Element(row, token, *logits, *figures, *ranks)


def sentence(run: RunReader, table: DataFrame) -> str:
    """Say how many logits differ, at how many positions, and where most, in markdown. table:
    figures by position.
    """
    header, differing = run.header, table[table["neq"] > 0]
    total = header.rows * header.vocab
    if differing.empty:
        return header.worded(
            f"**Nothing differs**: all {total:,} logits have the same value on both sides.",
        )
    count = differing["neq"].sum()
    text = f"**{out_of(count, total)} logits {'differs' if count == 1 else 'differ'}**"
    text = header.worded(f"{text}, at {all_of(len(differing), header.rows, 'position')}")
    largest = differing["max_abs"].fillna(0.0)
    if not (largest > 0).any():
        return f"{text}, by NaN or infinity on one side only."
    worst = differing.loc[largest.idxmax()]
    place = header.worded(words_of((worst["prompt"], worst["position"]), header.lengths))
    return (
        f"{text}. Max {number(worst['max_abs'])} {header.unit} ({place}); max"
        f" {number(differing['max_row_ulps'].max())} row ULPs."
    )
