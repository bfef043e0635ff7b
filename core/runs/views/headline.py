"""Headline figures of a pair that its summary does not hold: percentiles of its ULPs, and its size in noise floors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...text import number
from ..file.evidence import FLOAT32, OWN_DTYPE, Evidence, PairFigures
from .verdicts import times


@dataclass(frozen=True)
class NoiseRatio:
    """rms of a pair over rms of the model's noise floor in one dtype, and the largest ratio that rounding reaches."""

    compute_dtype: str
    ratio: float
    limit: float

    @property
    def words(self) -> str:
        """`0.94x the noise floor in float32 (limit 4x)`."""
        return f"{self.multiple} the noise floor in {self.compute_dtype} (limit {number(self.limit)}x)"

    @property
    def multiple(self) -> str:
        return multiple(self.ratio)


def multiple(ratio: float) -> str:
    """`0.94x`, `35,600x`: a ratio to the noise floor."""
    return f"{times(ratio)}x" if math.isfinite(ratio) else "infinitely many times"


def ulp_percentile(histogram: Mapping[int, int], share: float) -> int | None:
    """Return the least distance that at least this share of the elements does not exceed; None of no elements.

    histogram: ULP distance to number of elements.
    """
    total = sum(histogram.values())
    seen = 0
    for distance in sorted(histogram):
        seen += histogram[distance]
        if total and seen >= share * total:
            return distance
    return None


def noise_ratios(evidence: Sequence[Evidence]) -> list[NoiseRatio]:
    """Return the measured noise ratios of a pair, the deciding one (float32) first."""
    rows = [row.figures for rung in (FLOAT32, OWN_DTYPE) for row in reversed(evidence) if row.rung == rung]
    return [
        NoiseRatio(figures.compute_dtype, figures.noise_ratio, figures.largest_ratio_allowed)
        for figures in rows
        if isinstance(figures, PairFigures) and figures.noise_ratio is not None
    ]
