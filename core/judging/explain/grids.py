"""Hypotheses that one side holds the other's values on a coarser grid: another dtype, decimals, even steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...numerics.formats import FORMATS, FloatFormat
from ...text import plural
from .rows import PairRows, RowPair, Values
from .scoring import Cause, halves, score

_LEAST_LEVELS, _MOST_LEVELS = 8, 1 << 16  # of an evenly spaced grid
_SAME_LEVEL, _OFF_GRID = 1e-7, 0.02  # of the widest gap; of a step
_SIXTEEN = ("bfloat16", "float16")
_COARSER = (*_SIXTEEN, "float8_e4m3fn", "float8_e5m2")


def coarser(pair: PairRows) -> Iterator[Cause]:
    """One side is the other rounded to a coarser format, or to so many decimals."""
    if (split := halves(pair.rows, 1)) is None:
        return
    for side in (1, 0):
        coarser_rows = [row.y if side else row.x for row in split[0]]
        for name, rounded in _roundings(pair, coarser_rows):

            def fit(row: RowPair, side: int = side, rounded: Rounding = rounded) -> tuple[Values, Values]:
                fine, coarse = (row.x, row.y) if side else (row.y, row.x)
                return coarse, rounded(fine, coarse)

            found = score(pair, split[1], fit, False, 1.0)
            if found is not None and found.explained > 0.99:
                yield found.cause(
                    "rounded", f"'{pair.names[side]}' is '{pair.names[1 - side]}' rounded to {name}", to=name
                )
                return


Rounding = Callable[[Values, Values], Values]
"""(finer values, the coarser ones they may have become) -> the finer ones, rounded."""


def _roundings(pair: PairRows, coarser_rows: Sequence[Values]) -> Iterator[tuple[str, Rounding]]:
    if pair.values == "logit":
        for name in _COARSER:
            if name != pair.dtype:
                yield name, partial(_rounded_to, FORMATS[name])
    for places in range(1, 7):
        yield plural(places, "decimal"), partial(_to_decimals, places)
    grids = [grid_of(row) for row in coarser_rows] if pair.is_full else []
    levels = [grid.levels for grid in grids if grid is not None]
    if levels and 2 * len(levels) > len(grids):
        bits = max(1, math.ceil(math.log2(max(levels))))
        yield f"even steps, as {plural(bits, 'bit')} a row with a scale hold them", _to_grid


def _rounded_to(fmt: FloatFormat, fine: Values, _: Values | None = None) -> Values:
    within = np.clip(fine, -fmt.largest, fmt.largest)
    return np.asarray(within.astype(np.float32).astype(fmt.values), np.float64)


def _to_decimals(places: int, fine: Values, _: Values) -> Values:
    return np.asarray(np.round(fine, places), np.float64)


@dataclass(frozen=True)
class UniformGrid:
    """Evenly spaced values: start + step x 0 .. levels - 1."""

    start: float
    step: float
    levels: int


def grid_of(row: Values) -> UniformGrid | None:
    """The evenly spaced grid that all values of a row lie on, None where there is none of at most 2^16 levels."""
    held = np.unique(row)
    if not _LEAST_LEVELS <= len(held) <= len(row) // 2:
        return None
    gaps = np.diff(held)
    held = held[np.concatenate(([True], gaps > _SAME_LEVEL * gaps.max()))]  # a level that was rounded in two ways
    step = float(np.diff(held).min())
    if (held[-1] - held[0]) / step > _MOST_LEVELS:
        return None
    level = np.concatenate(([0], np.cumsum(np.round(np.diff(held) / step))))
    step = float(level @ (held - held[0]) / (level @ level))
    if np.abs(held - held[0] - step * level).max() > _OFF_GRID * step:
        return None
    return UniformGrid(float(held[0]), step, int(level[-1]) + 1)


def _to_grid(fine: Values, coarse: Values) -> Values:
    if (grid := grid_of(coarse)) is None:
        return fine
    level = np.clip(np.round((fine - grid.start) / grid.step), 0, grid.levels - 1)
    return np.asarray(grid.start + grid.step * level, np.float64)


def upcast(pair: PairRows) -> Iterator[Cause]:
    """Observation: the values of one side lie on a 16-bit grid, and the other's do not."""
    if not pair.is_full or pair.dtype != "float32" or not pair.rows:
        return
    sides = [np.concatenate([row.x for row in pair.rows]), np.concatenate([row.y for row in pair.rows])]
    for name in _SIXTEEN:
        on_grid = [bool((_rounded_to(FORMATS[name], side) == side).all()) for side in sides]
        side = 1 if on_grid[1] else 0
        if on_grid[0] != on_grid[1] and np.ptp(sides[side]) > 0:  # a constant is of every dtype
            yield Cause(
                "upcast",
                f"Every value of '{pair.names[side]}' is one of {name}, and those of '{pair.names[1 - side]}' are not:"
                f" it was computed in or saved as {name} and widened.",
                {"dtype": name},
            )
            return
