"""The heatmap pyramid: maxima of ULP distances over ever larger cells, so that one differing element stays visible at any zoom.

Level 0 has cells of 1 position x 32 tokens (the kernel's `tiles`); each further level takes the maximum of 4 x 4 cells of the
one before. Cells are unsigned integers of the compute dtype's width; all ones means a NaN or infinity mismatch inside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.numerics.kernel import GROUP

FACTOR = 4


def cell_shape(level: int) -> tuple[int, int]:
    """(positions, tokens) of one cell of a level."""
    return FACTOR**level, GROUP * FACTOR**level


def pool(cells: NDArray, positions: int, tokens: int) -> NDArray:
    """Maxima over blocks of `positions` x `tokens` cells; the last of an axis may be smaller. [rows, columns], same dtype."""
    rows = np.maximum.reduceat(cells, np.arange(0, cells.shape[0], positions), axis=0) if positions > 1 else cells
    return np.maximum.reduceat(rows, np.arange(0, rows.shape[1], tokens), axis=1) if tokens > 1 else rows


def levels_for(rows: int, vocab: int) -> int:
    """How many levels are worth keeping: until a level fits a picture of about 400 x 1000 cells."""
    level = 0
    while -(-rows // cell_shape(level)[0]) > 400 or -(-vocab // cell_shape(level)[1]) > 1000:
        level += 1
    return level + 1
