"""The figures of a pair over all its rows, added up chunk by chunk."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np

from .divergence import RowFigures, histogram_of
from .metrics import NULLABLE, Reduction, Summary, SummaryRule
from .sizes import BINS, DENSE


class _Total:
    """One figure of a pair, as far as rows were added."""

    def __init__(self, rule: SummaryRule) -> None:
        self._rule = rule
        self._sum: float = 0
        self._count = 0
        self._extreme: Any = None

    def add(self, figures: RowFigures) -> None:
        values = getattr(figures, self._rule.figure)
        defined = values[~np.isnan(values)]
        self._count += int(getattr(figures, self._rule.denominator).sum()) if self._rule.denominator else len(defined)
        if self._rule.reduction in _EXTREMES:
            pick = _EXTREMES[self._rule.reduction]
            extremes = [] if self._extreme is None else [self._extreme]
            self._extreme = pick([*extremes, *defined.tolist()], default=None)
        elif defined.dtype.kind == "f":
            self._sum = math.fsum([self._sum, *defined.tolist()])
        else:
            self._sum += int(defined.sum())

    def value(self) -> Any:
        """Return the reduced figure, None if it is over nothing."""
        kind = self._rule.reduction
        if kind in _EXTREMES:
            return self._extreme
        if kind is Reduction.SUM:
            return self._sum
        if kind is Reduction.DEFINED:
            return self._count
        if not self._count:
            return None
        mean = self._sum / self._count
        return math.sqrt(mean) if kind is Reduction.ROOT_MEAN else 1.0 - mean if kind is Reduction.REST else mean


_EXTREMES = {Reduction.LARGEST: max, Reduction.LEAST: min}


class PairTotal:
    """Sums of a pair's `RowFigures`. `summary()` needs at least one row."""

    def __init__(self) -> None:
        self._totals = {total.name: _Total(total.metadata["rule"]) for total in fields(Summary)}
        self._distances = np.zeros(BINS, np.int64)

    def add(self, figures: RowFigures) -> None:
        """Add the figures of more rows."""
        for total in self._totals.values():
            total.add(figures)
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
        values = {name: total.value() for name, total in self._totals.items()}
        for total in fields(Summary):
            if values[total.name] is None and total.name not in NULLABLE:
                values[total.name] = 0.0
        return Summary(**values)
