"""The heatmap's two pyramids: the largest ULP distance of a pair, and its largest difference in row ULPs, in ever
larger cells.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics import pyramid
from ..file.blob_tiles import binary_rows, joined
from ..file.database import Database
from ..file.records import RunHeader
from ..file.table import Table

ULP_TILE = Table(
    "ulp_tile",
    """
    -- heatmap pyramid: largest ULP distance in cells of 4^level rows x 32 * 4^level tokens
    pair INTEGER -- index of the pair
    level INTEGER -- level of detail, 0 is the finest
    first_row INTEGER -- first row of the cells; rows count positions of all prompts, one after another
    cells BLOB USING COMPRESSION uncompressed -- one cell for each group of tokens, ULPs, unsigned little-endian of the
    -- compute dtype's width; all ones: NaN or infinity mismatch
    """,
)
ROW_ULP_TILE = Table(
    "row_ulp_tile",
    """
    -- heatmap pyramid: largest difference in row ULPs, in cells as in ulp_tile
    pair INTEGER -- index of the pair
    level INTEGER -- level of detail, 0 is the finest
    first_row INTEGER -- first row of the cells; rows count positions of all prompts, one after another
    cells BLOB USING COMPRESSION uncompressed -- one cell for each group of tokens, little-endian bits of a float32; all
    -- ones: NaN or infinity mismatch
    """,
    since=2,
)
PYRAMIDS = (ULP_TILE, ROW_ULP_TILE)


def _cell_dtype(table: Table, header: RunHeader) -> np.dtype:
    return np.dtype("<u4") if table is ROW_ULP_TILE else header.format.carrier


def tile_rows(
    table: Table, pair: int, level: int, rows: NDArray[np.int32], cells: NDArray[np.unsignedinteger]
) -> pa.Table:
    """Cells [rows, columns] of a level of one of PYRAMIDS, each row's first row of logits in `rows`."""
    bits, _ = binary_rows(cells, cells.shape[1] * cells.itemsize)
    return table.arrow(pair=pair, level=level, first_row=rows, cells=bits)


def insert_levels(database: Database, table: Table, header: RunHeader, pair: int) -> None:
    """The coarser levels, 4 x 4 cells to one, from level 0 as it lies in the file; 4096 rows at a time."""
    for level in range(1, pyramid.levels_for(header.rows, header.vocab)):
        span = pyramid.cell_shape(level)[0]
        at_once = max(4096, span)
        for start in range(0, header.rows, at_once):
            finer = read_cells(database, table, header, pair, level - 1, (start, min(start + at_once, header.rows)))
            coarser = pyramid.pool(finer, pyramid.FACTOR, pyramid.FACTOR)
            rows = np.arange(start, start + len(coarser) * span, span, dtype=np.int32)
            database.insert(table.name, tile_rows(table, pair, level, rows, coarser))


def read_cells(
    database: Database, table: Table, header: RunHeader, pair: int, level: int, rows: tuple[int, int]
) -> NDArray[np.unsignedinteger]:
    """Cells of a level that cover rows [start, stop). [cells of positions, cells of tokens]; see numerics.pyramid."""
    pairs, levels = len(header.sides) - 1, pyramid.levels_for(header.rows, header.vocab)
    if not (0 <= rows[0] < rows[1] <= header.rows and 0 <= level < levels and 0 <= pair < pairs):
        there = f"the run has {pairs} pairs, {levels} levels and {header.rows} rows"
        raise UsageError(f"pair {pair}, level {level}, rows {rows[0]} to {rows[1]} asked for; {there}.")
    span, tokens = pyramid.cell_shape(level)
    found = database.table(
        f"""SELECT cells FROM {table.name} WHERE pair = ? AND level = ? AND first_row >= ? AND first_row < ?
            ORDER BY first_row""",
        [pair, level, rows[0] // span * span, rows[1]],
    )
    shape = (-(-rows[1] // span) - rows[0] // span, -(-header.vocab // tokens))
    with database.decoding("heatmap"):
        return joined(found.column("cells"), _cell_dtype(table, header)).reshape(shape)
