"""The figures of a pair over all its rows: added up chunk by chunk, and what stands out of them."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from .arrays import Flags, Floats
from .divergence import NEAR_TIE_ROW_ULPS, RowFigures, histogram_of
from .metrics import COUNTS_OF_TOKENS, NULLABLE, Reduction, Summary, SummaryRule
from .sizes import BINS, DENSE

# of harmless flips up to 1 in dense models, and 8 with experts (docs/explanation/calibration.md)
NOISE_MARGIN = 2
_RULES: dict[str, SummaryRule] = {total.name: total.metadata["rule"] for total in fields(Summary)}
_EXTREMES = {"largest": max, "least": min}


class PairTotal:
    """Sums of a pair's `RowFigures`. `summary()` needs at least one row."""

    def __init__(self) -> None:
        # extreme or sum of the rows so far, None of none
        self._parts = dict.fromkeys(_RULES)
        self._counts = dict.fromkeys(_RULES, 0)  # rows in which it is defined, or its denominator
        self._distances = np.zeros(BINS, np.int64)

    def add(self, figures: RowFigures) -> None:
        """Add the figures of more rows."""
        for name, rule in _RULES.items():
            values = figures.figure(rule.figure)
            defined = values[~np.isnan(values)].tolist()
            count = len(defined)
            if rule.denominator:
                count = int(getattr(figures, rule.denominator).sum())
            self._counts[name] += count
            if self._parts[name] is not None:
                defined.append(self._parts[name])
            if defined:
                add_up = math.fsum if values.dtype.kind == "f" else sum
                self._parts[name] = _EXTREMES.get(rule.reduction, add_up)(defined)
        self._distances += figures.distances

    @property
    def histogram(self) -> dict[int, int]:
        """ULP distance to number of elements, ascending; powers of two from 65536 on."""
        return histogram_of(self._distances)

    @property
    def is_histogram_exact(self) -> bool:
        return not self._distances[DENSE:].any()

    def summary(self) -> Summary:
        """Return the summary. Over no elements a mean is 0, or None if it may be None; what no row
        has a figure for is None.
        """
        values = {name: self._reduced(name, rule.reduction) for name, rule in _RULES.items()}
        for name, value in values.items():
            if value is None and name not in NULLABLE | COUNTS_OF_TOKENS:
                values[name] = 0.0
        return Summary(**values)

    def _reduced(self, name: str, kind: Reduction) -> Any:
        part = self._parts[name]
        count = self._counts[name]
        if kind == "rows defined":
            return count
        if kind in ("sum", *_EXTREMES):
            return part
        if not count:
            return None
        mean = (part or 0) / count
        if kind == "root of mean":
            return math.sqrt(mean)
        return mean if kind == "mean" else 1.0 - mean


def beyond_noise(table: Mapping[str, Any]) -> Flags:
    """Mask the flips that the pair's usual differences do not explain: both margins are more than
    NOISE_MARGIN times the median over positions of the largest difference, in row ULPs, or more
    than 2 row ULPs if that is larger. [rows]

    table: the pair's figures of all positions by name, arrays or the columns of a table.
    """
    flips = np.asarray(table["is_flip"], bool)
    difference, in_row_ulps, *margins = (
        np.asarray(table[name], float)
        for name in ("max_abs", "max_row_ulps", "reference_margin", "variant_margin")
    )
    if not flips.any() or np.isnan(in_row_ulps).all():  # lists have no row ULPs
        return np.zeros(len(flips), bool)
    typical = max(NOISE_MARGIN * np.nanmedian(in_row_ulps), NEAR_TIE_ROW_ULPS)
    with np.errstate(divide="ignore", invalid="ignore"):
        return flips & (np.fmin(*margins) * in_row_ulps / difference > typical)


def dominating(rms: Floats) -> int | None:
    """Return the row that holds more than half of a pair's squared difference, and is 10 times the
    median row; None if there is none.

    rms: by row, row ULPs; infinite if the row has NaN or infinity on one side only.
    """
    finite = np.nan_to_num(rms, posinf=1e150)
    largest = int(finite.argmax())
    squares = finite**2
    is_far = finite[largest] > 10 * np.median(finite) and squares[largest] > 0.5 * squares.sum()
    return largest if len(squares) > 1 and is_far else None
