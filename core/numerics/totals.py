"""The figures of a pair over all its rows, added up chunk by chunk."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np

from .divergence import RowFigures, histogram_of
from .metrics import NULLABLE, Reduction, Summary, SummaryRule
from .sizes import BINS, DENSE

_RULES: dict[str, SummaryRule] = {total.name: total.metadata["rule"] for total in fields(Summary)}
_EXTREMES = {Reduction.LARGEST: max, Reduction.LEAST: min}


class PairTotal:
    """Sums of a pair's `RowFigures`. `summary()` needs at least one row."""

    def __init__(self) -> None:
        # extreme or sum of the rows so far, None of none
        self._parts: dict[str, Any] = dict.fromkeys(_RULES)
        self._counts = dict.fromkeys(_RULES, 0)  # rows in which it is defined, or its denominator
        self._distances = np.zeros(BINS, np.int64)

    def add(self, figures: RowFigures) -> None:
        """Add the figures of more rows."""
        for name, rule in _RULES.items():
            values = getattr(figures, rule.figure)
            defined = values[~np.isnan(values)].tolist()
            self._counts[name] += (
                int(getattr(figures, rule.denominator).sum()) if rule.denominator else len(defined)
            )
            defined += [] if self._parts[name] is None else [self._parts[name]]
            reduce: Any = _EXTREMES.get(
                rule.reduction,
                math.fsum if values.dtype.kind == "f" else sum,
            )
            self._parts[name] = reduce(defined) if defined else None
        self._distances += figures.distances

    @property
    def histogram(self) -> dict[int, int]:
        """ULP distance to number of elements, ascending; powers of two from 65536 on."""
        return histogram_of(self._distances)

    @property
    def is_histogram_exact(self) -> bool:
        return not self._distances[DENSE:].any()

    def summary(self) -> Summary:
        """Return the summary. Over no elements a mean is 0, or None if it may be None."""
        values = {name: self._reduced(name, rule.reduction) for name, rule in _RULES.items()}
        empty: dict[str, Any] = {
            name: 0.0 for name in values if values[name] is None and name not in NULLABLE
        }
        return Summary(**values | empty)

    def _reduced(self, name: str, kind: Reduction) -> Any:
        part, count = self._parts[name], self._counts[name]
        if kind in _EXTREMES:
            return part
        if kind in (Reduction.SUM, Reduction.DEFINED):
            return count if kind is Reduction.DEFINED else part or 0
        if not count:
            return None
        mean = (part or 0) / count
        if kind is Reduction.ROOT_MEAN:
            return math.sqrt(mean)
        return 1.0 - mean if kind is Reduction.REST else mean
