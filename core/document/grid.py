"""The heatmap of a pair as a small grid of colors, for a page and for a picture."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..markup import Markup
from ..numerics import pyramid
from ..numerics.arrays import DataFrame
from ..runs.file.records import StoredPair
from ..runs.queries import heatmap
from ..runs.reader import RunReader
from ..text import number, plural
from .charts import LEVELS, Axis, band

Cells = NDArray[np.unsignedinteger]  # bits of float32, or all ones
# so few cells a side that each has a pixel on a phone
MOST_CELLS = 320
MOST_READ = 1 << 22  # cells of the run's pyramid
_MISMATCH = np.uint32(0xFFFFFFFF)
# so few differing cells get more tokens each, so that one is seen on a phone too
_FEW = 400
_BROADER = 3


class Grid(NamedTuple):
    """Largest differences, as colors of at most MOST_CELLS cells a side. highest: of all, in
    `unit`.
    """

    levels: NDArray[np.uint8]
    highest: float
    unit: str
    x: Axis
    y: Axis
    note: str

    def bands(self) -> Iterator[Markup]:
        """Yield a mark over each row that differs, with its largest value."""
        low, high = sorted((self.y.low, self.y.high))
        edges = np.linspace(low, high, len(self.levels) + 1)
        name = self.y.title.partition(" (")[0]
        for largest, (start, end) in zip(self.levels.max(axis=1), pairwise(edges), strict=True):
            says = f"at most {number(float(largest) / LEVELS * self.highest)} {self.unit}"
            if largest > LEVELS:
                says = "NaN or infinity on one side only"
            if largest:
                title = f"{name} {start:.0f} to {end - 1:.0f}: {says}"
                yield band(self.y.at(start), self.y.at(end), title)


def overview(run: RunReader, pair: StoredPair, figures: DataFrame) -> Grid:
    """Return the heatmap in row ULPs; of runs without whole rows, differences by prompt and
    position.
    """
    of_run = _of_lists(run, figures) if run.header.is_list else _of_rows(run, pair)
    cells, unit, x, y, size = of_run
    note = f"A cell is the largest difference of {size}. Red: NaN or infinity on one side only."
    floor = heatmap.floor_row_ulps(run, pair.index)
    if floor is not None:
        says = f"The noise floor: 99.9% of logits move by at most {number(floor)} row ULPs."
        note += f" {run.header.worded(says)}"
    is_mismatch = cells == _MISMATCH
    values = np.ascontiguousarray(cells).view(np.float32)
    highest = values[~is_mismatch].max(initial=0.0)
    # a difference has a color, however small
    levels = np.clip(np.ceil(values / (highest or 1.0) * LEVELS), values > 0, LEVELS)
    levels[is_mismatch] = LEVELS + 1
    return Grid(
        levels.astype(np.uint8),
        highest,
        unit,
        x,
        y,
        note,
    )


def _of_rows(run: RunReader, pair: StoredPair) -> tuple[Cells, str, Axis, Axis, str]:
    """Return cells of the stored pyramid, their unit, axes, and of what each is the largest."""
    header = run.header
    least = header.rows * header.vocab / MOST_READ
    for level in run.levels():
        shape = pyramid.cell_shape(level)
        if math.prod(shape) >= least:
            break
    cells = run.stored_cells("row_ulps", pair.index, level, (0, header.rows))
    by = -(-np.array(cells.shape) // MOST_CELLS)
    cells = pyramid.maxima(cells, *by)
    # after the maxima: only what would be drawn counts
    if np.count_nonzero(cells) <= _FEW:
        by[1] *= _BROADER
        cells = pyramid.maxima(cells, 1, _BROADER)
    tall, wide = by * shape
    row, column = header.worded("position"), header.worded("token")
    name = f"{row} (prompts one after another)" if header.has_several_prompts else row
    x = Axis(
        f"{column} id" if header.has_tokens else column,
        0,
        cells.shape[1] * wide,
        step=1,
    )
    y = Axis(name, len(cells) * tall, 0, step=1)
    size = f"{plural(tall, row)} x {plural(wide, column)}"
    return cells, f"row ULPs of {header.compute_dtype}", x, y, size


def _of_lists(run: RunReader, figures: DataFrame) -> tuple[Cells, str, Axis, Axis, str]:
    """Return what `_of_rows` returns, of the figures of compared positions."""
    places = figures[["prompt", "position"]].to_numpy(int)
    start, end = places.min(axis=0), places.max(axis=0) + 1
    by = -(-(end - start) // MOST_CELLS)
    cells = np.zeros(-(-(end - start) // by), np.uint32)
    # the bits of floats from 0 up have their order
    largest = figures["max_abs"].to_numpy(np.float32)
    bits = np.nan_to_num(largest).view(np.uint32)
    bits = np.where(figures["nonfinite_mismatch"], _MISMATCH, bits)
    rows, columns = ((places - start) // by).T
    np.maximum.at(cells, (rows, columns), bits)
    x = Axis("position", start[1], end[1], step=1)
    y = Axis("prompt", end[0], start[0], step=1)
    size = f"{plural(by[0], 'prompt')} x {plural(by[1], 'position')}"
    return cells, run.header.unit, x, y, size
