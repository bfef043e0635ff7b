"""The figures of a pair over all its rows, added up chunk by chunk."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .divergence import DENSE_DISTANCES, EXACT_DISTANCES, RowFigures


@dataclass(frozen=True)
class Summary:
    """A pair in one row: the `summary` object of the metric contract, same names, same order.

    Counts are elements (neq, nonfinite_mismatch) or positions (flips, ties, near_ties); logits for max_abs, rms and
    min_margin; ULPs of the compute dtype for max_ulps and mean_ulps; nats for KL. None where nothing defines the
    figure.

    What figures are over (COUNTS): mean_kl and max_kl over kl_positions, which leaves out kl_infinite positions where
    the variant has no mass that the reference has, and those where it is undefined; min_margin over margin_positions;
    max_abs, rms and ULPs over finite elements.
    """

    bit_identical: bool
    neq: int
    neq_share: float
    max_abs: float
    rms: float
    max_ulps: int
    mean_ulps: float
    nonfinite_mismatch: int
    flips: int
    ties: int
    near_ties: int
    mean_kl: float | None
    max_kl: float | None
    same_top1: float
    min_margin: float | None
    kl_positions: int
    kl_infinite: int
    margin_positions: int
    finite: int


COUNTS = ("kl_positions", "kl_infinite", "margin_positions", "finite")


class ExactSum:
    """A sum of float64 numbers without any rounding, so that neither their order nor how they were grouped shows in it.

    Every finite float64 is a whole number of 2^-1074, and Python's integers hold as many of those as come.
    """

    def __init__(self) -> None:
        self._units = 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Finite values, of any shape. ValueError or OverflowError where one is not."""
        for value in values.ravel().tolist():
            numerator, denominator = value.as_integer_ratio()
            self._units += numerator << (1075 - denominator.bit_length())

    def over(self, count: int) -> float:
        """The sum divided by a positive count, rounded once. OverflowError where no float64 is as large."""
        return self._units / (count << 1074)


def _least(values: NDArray[np.float64]) -> float:
    known = values[~np.isnan(values)]
    return float(known.min()) if known.size else math.inf


class PairTotal:
    """Sums of a pair's `RowFigures`. `summary()` may be asked for once anything was added."""

    def __init__(self) -> None:
        self._rows = self._elements = self._neq = self._mismatch = self._finite = self._sum_ulps = 0
        self._flips = self._ties = self._near_ties = self._kl_rows = self._kl_infinite = self._margin_rows = 0
        self._max_abs = 0.0
        self._sum_squares, self._sum_kl = ExactSum(), ExactSum()
        self._max_kl = -math.inf
        self._max_ulps = 0
        self._min_margin = math.inf
        self._bit_identical = True
        self._histogram: Counter[int] = Counter()
        self.is_histogram_exact = True

    def add(self, figures: RowFigures) -> None:
        """Take in the figures of some more rows."""
        rows = len(figures.neq)
        self._rows += rows
        self._elements += rows * figures.vocab
        self._neq += int(figures.neq.sum())
        self._mismatch += int(figures.nonfinite_mismatch.sum())
        self._finite += int(figures.finite.sum())
        self._sum_ulps += int(
            figures.sum_ulps.astype(object).sum()
        )  # Python integers: 2**32 ULPs times 2**31 elements overflows
        self._flips += int(figures.is_flip.sum())
        self._ties += int(figures.is_tie.sum())
        self._near_ties += int(figures.is_near_tie.sum())
        self._max_abs = max(self._max_abs, float(figures.max_abs.max()))
        self._sum_squares.add(figures.sum_squares)
        self._max_ulps = max(self._max_ulps, int(figures.max_ulps.max()))
        self._min_margin = min(self._min_margin, _least(figures.smaller_margin))
        self._margin_rows += int((~np.isnan(figures.smaller_margin)).sum())
        self._bit_identical &= bool(figures.is_bit_identical.all())
        kl = figures.kl[~np.isnan(figures.kl)]
        self._kl_rows += len(kl)
        is_finite = np.isfinite(figures.reference.logsumexp) & np.isfinite(figures.variant.logsumexp)
        self._kl_infinite += int((np.isnan(figures.kl) & is_finite).sum())
        self._sum_kl.add(kl)
        self._max_kl = max(self._max_kl, float(kl.max(initial=-math.inf)))
        self._histogram.update(figures.histogram)
        if len(self._histogram) > EXACT_DISTANCES or not figures.is_histogram_exact:
            self._coarsen()

    def _coarsen(self) -> None:
        """Round distances of 65536 and more down to a power of two: two unrelated float32 sides have millions of
        them.
        """
        self.is_histogram_exact = False
        coarse: Counter[int] = Counter()
        for distance, elements in self._histogram.items():
            coarse[distance if distance < DENSE_DISTANCES else 1 << (distance.bit_length() - 1)] += elements
        self._histogram = coarse

    @property
    def histogram(self) -> dict[int, int]:
        """ULP distance to number of elements, ascending; above 65535 powers of two unless `is_histogram_exact`."""
        if not self.is_histogram_exact:
            self._coarsen()
        return dict(sorted(self._histogram.items()))

    def summary(self) -> Summary:
        return Summary(
            bit_identical=self._bit_identical,
            neq=self._neq,
            neq_share=self._neq / self._elements,
            max_abs=self._max_abs,
            rms=math.sqrt(self._sum_squares.over(self._finite)) if self._finite else 0.0,
            max_ulps=self._max_ulps,
            mean_ulps=self._sum_ulps / self._finite if self._finite else 0.0,
            nonfinite_mismatch=self._mismatch,
            flips=self._flips,
            ties=self._ties,
            near_ties=self._near_ties,
            mean_kl=self._sum_kl.over(self._kl_rows) if self._kl_rows else None,
            max_kl=self._max_kl if self._kl_rows else None,
            same_top1=1.0 - self._flips / self._rows,
            min_margin=self._min_margin if math.isfinite(self._min_margin) else None,
            kl_positions=self._kl_rows,
            kl_infinite=self._kl_infinite,
            margin_positions=self._margin_rows,
            finite=self._finite,
        )
