"""The heatmap's two pyramids: the largest ULP distance of a pair, and its largest difference in row
ULPs, in ever larger cells.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...numerics import pyramid
from ...numerics.arrays import Bits, Span
from ..file.database import Database
from ..file.records import ALL, RunHeader
from ..file.table import Table
from .logits import binary_rows, join_tiles

_TILES = """
    -- heatmap pyramid: {help}
    pair INTEGER -- index of the pair
    level INTEGER -- level of detail, 0 is the finest
    first_row INTEGER -- first row of the cells; rows count positions of all prompts, one after
    -- another
    cells BLOB USING COMPRESSION uncompressed -- one cell for each group of tokens, {bits}; all
    -- ones: NaN or infinity mismatch
    """
_ULPS = "largest ULP distance in cells of 4^level rows x 32 * 4^level tokens"
_ROW_ULPS = "largest difference in row ULPs, in cells as in ulp_tile"
_ULP_BITS = "ULPs, unsigned little-endian of the compute dtype's width"
ULP_TILE = Table("ulp_tile", _TILES.format(help=_ULPS, bits=_ULP_BITS))
ROW_ULP_TILE = Table(
    "row_ulp_tile",
    _TILES.format(help=_ROW_ULPS, bits="little-endian bits of a float32"),
)
PYRAMIDS = (ULP_TILE, ROW_ULP_TILE)


def levels_of(header: RunHeader) -> range:
    """Levels that the file of a run holds; the finest are left out if not all logits are stored."""
    if header.keep == ALL:
        return range(pyramid.levels_for(header.rows, header.vocab))
    return pyramid.coarse_levels(header.rows, header.vocab)


def narrow_cells(
    header: RunHeader,
    cells: Bits,
) -> Bits:
    """Return rows of the finest level [rows, columns] in columns of the first level that is
    stored.
    """
    return pyramid.maxima(cells, 1, pyramid.FACTOR ** levels_of(header).start)


def cell_rows(
    table: Table,
    pair: int,
    level: int,
    start: int,
    cells: Bits,
) -> pa.Table:
    """Cells [rows, columns] of a level of one of PYRAMIDS, from row `start` of the logits on."""
    # one tile a row of cells: a picture reads whole rows
    bits, _ = binary_rows(cells, cells.shape[1] * cells.itemsize)
    rows = start + np.arange(len(cells)) * pyramid.cell_shape(level)[0]
    return table.arrow(pair=pair, level=level, first_row=rows, cells=bits)


def insert_levels(
    database: Database,
    table: Table,
    header: RunHeader,
    pair: int,
    narrow: Sequence[Bits],
) -> None:
    """Insert the levels of one of PYRAMIDS, 4 x 4 cells to one, from the first one in the file;
    4096 rows at a time. narrow: all rows, `narrow_cells`, if that first one is not there yet.
    """
    levels = levels_of(header)
    if narrow:
        cells = pyramid.maxima(np.concatenate(narrow), pyramid.FACTOR**levels.start, 1)
        database.insert(table.name, cell_rows(table, pair, levels.start, 0, cells))
    for level in levels[1:]:
        at_once = max(4096, pyramid.cell_shape(level)[0])
        for start in range(0, header.rows, at_once):
            rows = start, min(start + at_once, header.rows)
            finer = read_cells(database, table, header, pair, level - 1, rows)
            coarser = pyramid.maxima(finer, pyramid.FACTOR, pyramid.FACTOR)
            database.insert(table.name, cell_rows(table, pair, level, start, coarser))


def read_cells(
    database: Database,
    table: Table,
    header: RunHeader,
    pair: int,
    level: int,
    rows: Span,
) -> Bits:
    """Cells of a level that cover rows [start, stop). [cells of positions, cells of tokens]; see
    numerics.pyramid.
    """
    span, tokens = pyramid.cell_shape(level)
    result = database.table(
        f"""SELECT cells FROM {table.name}
            WHERE pair = ? AND level = ? AND first_row >= ? AND first_row < ?
            ORDER BY first_row""",
        [pair, level, rows[0] // span * span, rows[1]],
    )
    shape = (-(-rows[1] // span) - rows[0] // span, -(-header.vocab // tokens))
    with database.decoding("heatmap"):
        dtype = np.dtype("<u4") if table is ROW_ULP_TILE else header.format.carrier
        return join_tiles(result.column("cells"), dtype).reshape(shape)
