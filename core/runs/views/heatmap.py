"""The heatmap in tiles: one pair's distances over rows x columns, each cell the maximum of what it covers, at any level
of detail.

A cell of levels (r, c) covers 2^r rows x 2^c columns; a tile is 64 x 1024 cells, fewer at the ends. Columns are token
ids, or ranks: column k of a row is then the token whose logit is the reference's k-th largest of that row. A cell holds
the largest difference in row ULPs, the largest ULP distance or the largest absolute difference (the first and the last
float32 as bits); all ones means a NaN or infinity mismatch inside, in any measure.

Row ULPs and ULPs by token id come from the stored pyramids wherever their cells fit into the asked ones, everything
else from the logits; files older than row ULPs hold the pyramid in ULPs alone. What tiles beside each other share,
whole rows of stored cells or blocks of 64 rows by rank or of differences, the caller may keep (`Keep`); nothing is kept
here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics import pyramid
from ...numerics.formats import values_of
from ...text import number, out_of, plural
from ..figures import STORED_CELLS
from ..file.evidence import PairFigures
from ..file.kept import REFUSAL
from ..queries.elements import place_of, rank_of
from ..reader import RunReader

if TYPE_CHECKING:
    import pandas as pd

Order = Literal["id", "rank"]
Measure = Literal["row_ulps", "ulps", "difference"]
ORDERS: tuple[Order, ...] = ("id", "rank")
MEASURES: tuple[Measure, ...] = ("row_ulps", "ulps", "difference")  # the first is what the page opens in
Cells = NDArray[np.unsignedinteger]
Keep = Callable[
    [tuple, Callable[[], Cells]], Cells
]  # (key within the pair, how to make it) -> the array, made or remembered

TILE_ROWS = 64
TILE_COLUMNS = 1024
GROUP_LEVEL = 5  # the stored pyramid and the blocks begin with cells of 2^5 columns
WORK = 1 << 24  # logits, or cells of the stored pyramid, that one tile may read: 60 ms
RANKED_WORK = 1 << 26  # logits that one tile may put in order of rank where single ranks are asked for
# Logits of whole rows that one picture may read: single logits lie in blocks of 32 to 64 tiles, so a row is read whole.
# 130 ms.
MOST_READ = 48 << 20
WHOLE_RUN = (
    1 << 30
)  # a pair of more logits than this is shown as its file holds it, by token id: the rest would read all of it first
_LEVELS = 32  # more than any axis has
READ_ELEMENTS = 1 << 21  # logits of a side that are in memory at a time


@dataclass(frozen=True)
class Tile:
    """A place in the heatmap of a run: its levels, and which tile of them, counted from 0."""

    row_level: int
    column_level: int
    row: int
    column: int


@dataclass(frozen=True)
class Element:
    """One logit of both sides. Ranks: 1 is the argmax; `row_ulps`, `ulps` and `difference` are None where a NaN or
    infinity is not met by the same.
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
    """The level at which an axis of `size` fits one tile of `cells`."""
    return max(0, -(-size // cells) - 1).bit_length()


def is_offered(run: RunReader, order: Order, measure: Measure) -> bool:
    """Return whether the whole run can be looked at this way; what cannot is too large to be computed while somebody
    waits, or its logits were not kept.
    """
    is_readable = run.has_all_logits and run.header.rows * run.header.vocab <= WHOLE_RUN
    return is_readable or _is_stored(order, measure)


def _is_stored(order: Order, measure: Measure) -> bool:
    """Return whether the file holds a pyramid of that."""
    return order == "id" and measure in STORED_CELLS


def floor_row_ulps(run: RunReader, pair: int) -> float | None:
    """99.9th percentile of the pair's rounding floor in the run's own dtype, in row ULPs; None if none was
    measured.
    """
    figures = [row.figures for row in run.evidence(pair) if isinstance(row.figures, PairFigures)]
    return next((each.floor_row_ulps for each in figures if each.compute_dtype == run.header.compute_dtype), None)


def finest_columns(run: RunReader, order: Order, measure: Measure) -> list[int]:
    """Column level, for every row level, from which on no tile reads more than a bounded share of the run."""
    found = []
    for row_level in range(largest_level(run.header.rows, TILE_ROWS) + 1):
        too_much = [c for c in range(_LEVELS) if not _work_fits(run, order, measure, row_level, c)]
        found.append(too_much[-1] + 1 if too_much else 0)
    return found


def _work_fits(run: RunReader, order: Order, measure: Measure, row_level: int, column_level: int) -> bool:
    header = run.header
    if not run.has_all_logits and 1 << column_level < pyramid.cell_shape(run.levels().start)[1]:
        return False  # no finer cells are there
    rows = min(header.rows, TILE_ROWS << row_level)
    if column_level < GROUP_LEVEL:
        columns = min(header.vocab, TILE_COLUMNS << column_level)
        return rows * columns <= WORK and (order == "id" or rows * header.vocab <= RANKED_WORK)
    if not _is_stored(order, measure):
        return True  # whole rows, and no more of them than `is_offered` allows
    height, width = pyramid.cell_shape(_stored_level(run, row_level, column_level))
    return (rows // height) * (header.vocab // width) <= WORK


def _stored_level(run: RunReader, row_level: int, column_level: int) -> int:
    """The coarsest stored level whose cells fit into these; the finest one where none does."""
    levels = run.levels()
    return max(levels.start, min(row_level // 2, (column_level - GROUP_LEVEL) // 2, levels.stop - 1))


def tile_cells(run: RunReader, pair: int, tile: Tile, order: Order, measure: Measure, keep: Keep) -> Cells:
    """The cells of a tile. [up to 64, up to 1024], the compute dtype's carrier for ULPs, uint32 for the others."""
    rows, columns = _extent(run, pair, tile, order, measure)
    tall, wide = 1 << tile.row_level, 1 << tile.column_level
    if not run.has_all_logits:
        return _kept_cells(run, pair, tile, rows, columns, measure)
    if tile.column_level < GROUP_LEVEL:
        if order == "id":
            return _pooled(run, pair, rows, columns, order, measure, tall, wide)
        parts = [part[:, columns[0] : columns[1]] for part in _blocks(run, pair, rows, order, measure, 1, keep)]
        return pyramid.maxima(np.concatenate(parts), tall, wide)
    if _is_stored(order, measure):
        level = _stored_level(run, tile.row_level, tile.column_level)
        height, width = pyramid.cell_shape(level)
        stored = keep(
            ("stored", measure, level, rows), lambda: run.stored_cells(measure, pair, level, rows)
        )  # whole rows: tiles beside each other share
        return pyramid.maxima(stored[:, columns[0] // width : -(-columns[1] // width)], tall // height, wide // width)
    first, last = (edge >> GROUP_LEVEL for edge in (columns[0], columns[1] + (1 << GROUP_LEVEL) - 1))
    groups = [part[:, first:last] for part in _blocks(run, pair, rows, order, measure, 1 << GROUP_LEVEL, keep)]
    return pyramid.maxima(np.concatenate(groups), tall, wide >> GROUP_LEVEL)


def _kept_cells(
    run: RunReader, pair: int, tile: Tile, rows: tuple[int, int], columns: tuple[int, int], measure: Measure
) -> Cells:
    """The cells of a tile where only the coarser levels of the pyramid are kept: one that is finer than those holds the
    maximum of the kept cell that it lies in.
    """
    tall, wide = 1 << tile.row_level, 1 << tile.column_level
    level = _stored_level(run, tile.row_level, tile.column_level)
    height, width = pyramid.cell_shape(level)
    cells = run.stored_cells(measure, pair, level, rows)[:, columns[0] // width : -(-columns[1] // width)]
    cells = pyramid.maxima(cells, max(1, tall // height), max(1, wide // width))
    if tall < height:
        cells = cells[np.arange(rows[0], rows[1], tall) // height - rows[0] // height]
    if wide < width:
        cells = cells[:, np.arange(columns[0], columns[1], wide) // width - columns[0] // width]
    return cells


def _extent(
    run: RunReader, pair: int, tile: Tile, order: Order, measure: Measure
) -> tuple[tuple[int, int], tuple[int, int]]:
    """(rows, columns) that a tile covers, half open; UsageError where there is no such tile."""
    header = run.header
    if not 0 <= pair < len(header.sides) - 1:
        raise UsageError(f"pair {pair} asked for; the run has pairs 0 to {len(header.sides) - 2}.")
    if not is_offered(run, order, measure):
        if not run.has_all_logits:
            raise UsageError(f"by rank and as differences a pair is not shown: {REFUSAL}")
        raise UsageError(
            f"a pair of {header.rows * header.vocab} logits is shown in row ULPs and ULPs by token id only."
        )
    spans = []
    for what, level, place, cells, size in (
        ("row", tile.row_level, tile.row, TILE_ROWS, header.rows),
        ("column", tile.column_level, tile.column, TILE_COLUMNS, header.vocab),
    ):
        if not 0 <= level <= largest_level(size, cells) or not 0 <= place <= (size - 1) // (cells << level):
            raise UsageError(f"{what} {place} of level {level} asked for; there is no such tile in {size} {what}s.")
        spans.append((place * (cells << level), min(size, (place + 1) * (cells << level))))
    finest = finest_columns(run, order, measure)[tile.row_level]
    if tile.column_level < min(finest, largest_level(header.vocab, TILE_COLUMNS)):
        raise UsageError(
            f"columns of level {tile.column_level} asked for; with rows of level {tile.row_level} there are {finest}"
            " and more."
        )
    return spans[0], spans[1]


def _values(
    measure: Measure, reference: Cells, variant: Cells, run: RunReader, pair: int, rows: tuple[int, int]
) -> Cells:
    if measure == "row_ulps":
        return pyramid.element_row_ulps(reference, variant, run.header.format, run.spacing(pair, rows))
    elements = pyramid.element_ulps if measure == "ulps" else pyramid.element_differences
    return elements(reference, variant, run.header.format)


def _pooled(
    run: RunReader,
    pair: int,
    rows: tuple[int, int],
    columns: tuple[int, int],
    order: Order,
    measure: Measure,
    tall: int,
    wide: int,
) -> Cells:
    """A rectangle by token id, or whole rows by rank; some rows at a time, whole cells of them, so that memory stays
    bounded. [rows / tall, columns / wide]
    """
    at_once = max(1, READ_ELEMENTS // (columns[1] - columns[0]) // tall) * tall
    parts = []
    for start in range(rows[0], rows[1], at_once):
        some = start, min(start + at_once, rows[1])
        sides = [run.read_window(side, some, columns) for side in (0, pair + 1)]
        if order == "rank":
            ids = pyramid.descending(sides[0], run.header.format)
            sides = [pyramid.taken(side, ids) for side in sides]
        parts.append(pyramid.maxima(_values(measure, sides[0], sides[1], run, pair, some), tall, wide))
    return np.concatenate(parts)


def _blocks(
    run: RunReader, pair: int, rows: tuple[int, int], order: Order, measure: Measure, wide: int, keep: Keep
) -> list[Cells]:
    """Maxima of `wide` columns of whole rows, a block of rows each; a tile begins with one. [block][rows, columns]"""
    spans = [(start, min(start + TILE_ROWS, rows[1])) for start in range(rows[0], rows[1], TILE_ROWS)]
    whole = (0, run.header.vocab)
    return [
        keep(("block", wide, order, measure, span), partial(_pooled, run, pair, span, whole, order, measure, 1, wide))
        for span in spans
    ]


def largest_in(
    run: RunReader, pair: int, rows: tuple[int, int], columns: tuple[int, int], order: Order, measure: Measure
) -> Element:
    """The element of a rectangle that is furthest apart (the first of equals): what a cell of the heatmap stands
    for.
    """
    header = run.header
    if not (
        0 <= pair < len(header.sides) - 1
        and 0 <= rows[0] < rows[1] <= header.rows
        and 0 <= columns[0] < columns[1] <= header.vocab
    ):
        raise UsageError(
            f"pair {pair}, rows {rows[0]} to {rows[1]}, columns {columns[0]} to {columns[1]} asked for; there are "
            f"{len(header.sides) - 1} pairs, {header.rows} rows and {header.vocab} columns."
        )
    width = header.vocab if order == "rank" else columns[1] - columns[0]
    if (rows[1] - rows[0]) * width > WORK:
        raise UsageError(
            f"{rows[1] - rows[0]} rows x {width} logits are too many to look for one; expected at most {WORK}."
        )
    whole = (0, header.vocab) if order == "rank" else columns
    sides = [run.read_window(side, rows, whole) for side in (0, pair + 1)]
    ids = None
    if order == "rank":
        ids = pyramid.descending(sides[0], header.format)[:, columns[0] : columns[1]]
        sides = [pyramid.taken(side, ids) for side in sides]
    values = _values(measure, sides[0], sides[1], run, pair, rows)
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    token = columns[0] + int(column) if ids is None else int(ids[row, column])
    return element(run, pair, rows[0] + int(row), token)


def element(run: RunReader, pair: int, row: int, token: int) -> Element:
    """Exact figures of one logit of both sides, and where it stands in either row."""
    fmt = run.header.format
    prompt, position = place_of(run, row)
    bits = [run.at(side, prompt, position) for side in (0, pair + 1)]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        values = [values_of(side, fmt).astype(np.float64) for side in bits]
    ulps = int(pyramid.element_ulps(bits[0][None, token : token + 1], bits[1][None, token : token + 1], fmt)[0, 0])
    is_mismatch = ulps == (1 << fmt.bits) - 1
    reference, variant = (float(side[token]) for side in values)
    spacing = float(run.spacing(pair, (row, row + 1))[0])
    return Element(
        row=row,
        token=token,
        reference=reference,
        variant=variant,
        row_ulps=None if is_mismatch else 0.0 if ulps == 0 else abs(variant - reference) / spacing,
        ulps=None if is_mismatch else ulps,
        difference=None if is_mismatch else 0.0 if ulps == 0 else variant - reference,
        reference_rank=rank_of(values[0], token),
        variant_rank=rank_of(values[1], token),
    )


def sentence(run: RunReader, table: pd.DataFrame) -> str:
    """A sentence on how many logits differ, at how many positions, and where most, in markdown.

    table: the pair's figures by position.
    """
    header, differing = run.header, table[table["neq"] > 0]
    total = header.rows * header.vocab
    if differing.empty:
        return f"**Nothing differs**: all {total:,} logits have the same value on both sides."
    count = int(differing["neq"].sum())
    said = f"**{out_of(count, total)} logits {'differs' if count == 1 else 'differ'}**"
    said += f", at {differing.shape[0]:,} of {plural(header.rows, 'position')}"
    largest = differing["max_abs"].fillna(0.0)
    if not (largest > 0).any():
        return f"{said}, by NaN or infinity on one side only."
    worst = differing.loc[largest.idxmax()]
    where = f"prompt {worst['prompt']}, position" if len(header.prompts) > 1 else "position"
    return (
        f"{said}. Max {number(float(worst['max_abs']))} logits ({where} {worst['position']}); max"
        f" {number(float(differing['max_row_ulps'].max()), 3)} row ULPs."
    )
