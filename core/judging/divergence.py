"""The distance of one side's logits from another's: one record for models, dumps and controls of a dump."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROW_ULP_SHIFT = 12  # of a float32's bits, those that are left to tell numbers apart: sign, exponent and 11 of mantissa


@dataclass(frozen=True)
class Divergence:
    """Divergence of two sides at the same positions, over the elements finite on both.

    squares, elements: sum of squared differences and number of elements [positions]; mismatches: elements that are NaN
    or infinite on a side and differ [positions]; first_mismatch: token of the first and its values; neq: elements that
    differ; row_ulps: bits of row ULPs, shifted by ROW_ULP_SHIFT, with their counts [2, n]. None if not measured.
    """

    squares: NDArray[np.float64]
    elements: NDArray[np.int64]
    mismatches: NDArray[np.int64]
    first_mismatch: tuple[int, float, float] | None = None
    neq: int | None = None
    is_bit_identical: bool | None = None
    row_ulps: NDArray[np.int64] | None = None
    largest_row_ulps: float | None = None

    @property
    def nonfinite_mismatch(self) -> int:
        return int(self.mismatches.sum())

    @property
    def mean_squares(self) -> NDArray[np.float64]:
        """Mean squares in logits^2; 0 if no element is finite on both sides. [positions]"""
        return np.asarray(self.squares / np.maximum(self.elements, 1))

    @property
    def rms_of_positions(self) -> float:
        """rms over all positions, each as much as any other, in logits."""
        return float(np.sqrt(self.mean_squares.mean()))


def row_ulp_percentile(divergences: Sequence[Divergence], share: float) -> float | None:
    """Least row ULPs within which that share of all finite elements lies, to 1 part in 2048; None if not counted."""
    histograms = [one.row_ulps for one in divergences if one.row_ulps is not None]
    bins, counts = np.concatenate(histograms, axis=1) if histograms else np.zeros((2, 0), np.int64)
    if len(histograms) < len(divergences) or not counts.any():
        return None
    place = int(np.quantile(bins, share, weights=counts, method="inverted_cdf"))
    return float(np.array(place << ROW_ULP_SHIFT, np.uint32).view(np.float32))


def mean_squares(divergences: Sequence[Divergence]) -> NDArray[np.float64]:
    """Mean square of each position of all prompts, 0 if nothing is finite on both sides. [positions]"""
    return np.concatenate([one.mean_squares for one in divergences])


def join_parts(parts: Sequence[Divergence]) -> Divergence:
    """Divergence of all positions, one part after another, all of which know their `neq`."""
    return Divergence(
        np.concatenate([part.squares for part in parts]),
        np.concatenate([part.elements for part in parts]),
        np.concatenate([part.mismatches for part in parts]),
        next((part.first_mismatch for part in parts if part.first_mismatch is not None), None),
        sum(part.neq or 0 for part in parts),
        all(part.is_bit_identical for part in parts),
        largest_row_ulps=max((part.largest_row_ulps or 0.0 for part in parts), default=None),
    )
