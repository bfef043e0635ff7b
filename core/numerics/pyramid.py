"""The heatmap pyramid: maxima of ULP distances over ever larger cells, so that one differing
element stays visible at any zoom.

Level 0 has cells of 1 position x 32 tokens (the kernel's `group_ulps`); each further level takes
the maximum of 4 x 4 cells of the one before. Cells are unsigned integers of the compute dtype's
width; all ones means a NaN or infinity mismatch inside.

A second pyramid of the same shape holds the largest differences in row ULPs, and what neither holds
is computed from the logits: finer cells, cells of absolute differences, and cells over ranks in
place of token ids. Row ULPs and differences are float32, kept as their bits: those of non-negative
floats are in the order of the values.
"""

from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from .arrays import Bits, Floats
from .formats import FloatFormat, widen
from .sizes import GROUP

FACTOR = 4
# Cells: 190 KB of a bfloat16 pair in both pyramids. 512 positions of 128,256 tokens are 32 x 251
# cells of 16 x 512.
MOST_COARSE = 1 << 15


def cell_shape(level: int) -> tuple[int, int]:
    """(positions, tokens) of one cell of a level."""
    return FACTOR**level, GROUP * FACTOR**level


def levels_for(rows: int, vocab: int) -> int:
    """Return the number of levels worth storing: until a level fits a picture of about 400 x 1000
    cells.
    """
    level = 0
    while -(-rows // cell_shape(level)[0]) > 400 or -(-vocab // cell_shape(level)[1]) > 1000:
        level += 1
    return level + 1


def coarse_levels(rows: int, vocab: int) -> range:
    """Levels of the pyramid that is stored if logits are not: from the first of at most MOST_COARSE
    cells on.
    """
    first = 0
    while -(-rows // cell_shape(first)[0]) * -(-vocab // cell_shape(first)[1]) > MOST_COARSE:
        first += 1
    return range(first, max(first + 1, levels_for(rows, vocab)))


def element_ulps(
    a: Bits,
    b: Bits,
    fmt: FloatFormat,
) -> Bits:
    """ULP distances of single elements, as cells of the finest kind. [rows, tokens], the compute
    dtype's carrier.
    """
    wide = map(np.ascontiguousarray, (a, b))
    return _loops().ulps(*wide, fmt.bits, fmt.first_nonfinite)


def element_row_ulps(
    a: Bits,
    b: Bits,
    fmt: FloatFormat,
    spacing: Floats,
) -> NDArray[np.uint32]:
    """Absolute differences of single elements over the spacing of their row [rows] (1: in logits),
    float32 as its bits, never 0 if they differ; all ones: NaN or infinity mismatch. [rows, tokens]
    """
    wide = [np.ascontiguousarray(widen(bits, fmt)).view(np.float32) for bits in (a, b)]
    return _loops().row_ulps(*wide, np.ascontiguousarray(spacing))


def maxima(
    cells: Bits,
    positions: int,
    tokens: int,
) -> Bits:
    """Maxima over blocks of `positions` x `tokens` cells; the last of an axis may be smaller. Same
    dtype.

    Compiled: four to nine times as fast as numpy's reduceat, and other threads go on meanwhile.
    """
    if positions == 1 and tokens == 1:
        return cells
    return _loops().maxima(np.ascontiguousarray(cells), positions, tokens)


def descending(bits: Bits, fmt: FloatFormat) -> NDArray[np.uint32]:
    """Token ids of every row, the largest logit first; equal ones by id, NaNs last. [rows, vocab]
    -> the same shape

    A stable counting sort by 16 bits at a time: 0.4 ms a bfloat16 row of 128256; a sort by
    comparisons takes about 9.
    """
    return _loops().descending(np.ascontiguousarray(bits), fmt.bits, fmt.first_nonfinite)


@cache
def _loops() -> ModuleType:
    """Import the loops when first needed: numba takes a third of a second, and most pages never
    call it.
    """
    from . import pyramid_loops

    return pyramid_loops


def prepare(fmt: FloatFormat) -> None:
    """Compile the loops for a format, or load them compiled: 0.2 s that no request should wait
    for.
    """
    bits = np.zeros((1, 2), fmt.carrier)
    for cells in (element_ulps(bits, bits, fmt), element_row_ulps(bits, bits, fmt, np.ones(1))):
        maxima(cells, 1, 2)
    descending(bits, fmt)
