"""How strongly each token of a prompt is colored by a figure at its position, and the legend of
that.
"""

from dataclasses import dataclass

import numpy as np

from ...numerics.arrays import DataFrame
from ...text import number

COLOURS = {  # of the strip of tokens, and the figure each shows
    "largest difference": "max_abs",
    "max ULPs": "max_ulps",
    "mean ULPs": "mean_ulps",
    "max row ULPs": "max_row_ulps",
    "logits that differ": "neq",
    "KL": "kl",
    "near ties": "margin",
    "flips": "is_flip",
}
_UNITS = {  # of the columns that are coloured by their size; by the dtype and unit of the run
    "max_abs": "largest difference, {unit}",
    "max_ulps": "max ULPs of {dtype}, log scale",
    "mean_ulps": "mean ULPs of {dtype}",
    "max_row_ulps": "max row ULPs of {dtype}",
    "neq": "logits that differ",
    "kl": "KL, nats, log scale",
}


@dataclass(frozen=True)
class Heat:
    """Colour level of each token, and its legend. `levels` [positions] int, 0 to 100.

    `low` and `high` are the values at the ends of the scale, `stops` the levels between them, from
    left to right.
    """

    levels: np.ndarray
    unit: str
    low: str | None
    high: str | None
    stops: tuple[int, ...]


def heat(
    table: DataFrame,
    colour: str,
    dtype: str,
    unit_of_values: str = "logits",
    highest: float | None = None,
) -> Heat:
    """Colour levels of one prompt's positions, by one of COLOURS. highest: at the end of the scale,
    else the largest value.
    """
    column = COLOURS[colour]
    if column == "is_flip":
        levels = np.where(table["is_flip"], 100, np.where(table["near_tie"], 30, 0))
        return Heat(levels, "no near tie, near tie, flip", None, None, (0, 0, 30, 30, 100, 100))
    if column == "margin":
        margins = table[["reference_margin", "variant_margin"]].min(axis=1)
        share = (2 * table["max_abs"] / margins).mask(margins <= 2 * table["max_abs"], 1.0)
        unit = "twice the largest difference / smaller margin"
        return Heat(_levels(share), unit, "0", "1 or more: could flip", (0, 100))
    unit = _UNITS[column].format(dtype=dtype, unit=unit_of_values)
    values = np.nan_to_num(table[column].to_numpy(float))
    highest = highest or float(values.max())
    if highest <= 0:
        return Heat(np.zeros(len(values), int), unit, None, "0 everywhere", (0, 0))
    if not unit.endswith("log scale"):
        return Heat(_levels(values / highest), unit, "0", _figure(highest), (0, 100))
    lowest = values[values > 0].min()
    # begins below the lowest, so that the smallest that differs is still seen
    low, high = np.log(lowest) - 0.7, np.log(highest)
    logs = np.log(np.maximum(values, lowest))
    levels = _levels(np.where(values > 0, (logs - low) / (high - low), 0.0))
    stops = round(100 * 0.7 / (high - low)), 100
    return Heat(levels, unit, _figure(lowest), _figure(highest), stops)


def _levels(share: np.ndarray) -> np.ndarray:
    """Levels 0 to 100 of shares 0 to 1; what is not 0 is at least 1."""
    share = np.clip(np.nan_to_num(share), 0.0, 1.0)
    return np.where(share > 0, np.maximum(np.rint(100 * share), 1), 0).astype(int)


def _figure(value: float) -> str:
    return f"{int(value):,}" if value.is_integer() and abs(value) < 1e9 else number(value)
