"""The distance of one side's logits from another's: one record for models, dumps and controls of a
dump.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from .arrays import Floats, Ints
from .statistic import rms_of

FEW = 16  # logits of a row that a fault may move alone
ALIKE = 128  # rows that are compared with one another
# of a float32's bits, those that are left to tell numbers apart: sign, exponent and 11 of mantissa
ROW_ULP_SHIFT = 12


@dataclass(frozen=True)
class SystematicError:
    """Errors compared with one another: a stale weight errs alike if logits are alike, rounding
    hardly does.

    alike: products of two positions' errors times products of their logits; of_logits: the latter
    squared; errors, logits: squares of both. All are sums, less the mean of each position.
    """

    alike: float = 0.0
    of_logits: float = 0.0
    errors: float = 0.0
    logits: float = 0.0

    def __add__(self, other: SystematicError) -> SystematicError:
        return SystematicError(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def size(self) -> float:
        """Error that goes with the logits, relative to them, by least squares."""
        return math.sqrt(max(self.alike, 0.0) / self.of_logits) if self.of_logits else 0.0

    @property
    def share(self) -> float:
        """Part of the error, rms, that goes with the logits."""
        if not (self.errors and self.logits):
            return 0.0
        return self.size / math.sqrt(self.errors / self.logits)


def systematic_error(errors: Any, logits: Any) -> SystematicError:
    """Compare the errors of some rows of one prompt. errors, logits: finite, of numpy or torch.
    [rows, vocab]
    """
    step = max(1, -(-len(errors) // ALIKE))
    errors = errors[::step]
    logits = logits[::step]
    error = errors - errors.mean(1)[:, None]
    logit = logits - logits.mean(1)[:, None]
    products = error @ error.T
    of_logits = logit @ logit.T
    own = products.diagonal()
    own_of_logits = of_logits.diagonal()
    return SystematicError(
        float((products * of_logits).sum() - (own * own_of_logits).sum()),
        float((of_logits**2).sum() - (own_of_logits**2).sum()),
        float(own.sum()),
        float(own_of_logits.sum()),
    )


@dataclass(frozen=True)
class Divergence:
    """Divergence of two sides at the same positions, over the elements finite on both.

    squares: mean squares, logits^2, 0 if no element is finite on both [positions]; mismatches:
    elements that are NaN or infinite on a side and differ [positions]; first_mismatch: token of the
    first and its values; neq: elements that differ; row_ulps: bits of row ULPs, shifted by
    ROW_ULP_SHIFT, with their counts [2, n];
    peaks: `peaks_of` of every position [positions]. None if not measured. system: of errors.
    """

    squares: Floats
    mismatches: Ints
    first_mismatch: tuple[int, float, float] | None
    neq: int | None = None
    is_bit_identical: bool | None = None
    peaks: Floats | None = None
    system: SystematicError = SystematicError()
    row_ulps: Ints | None = None
    largest_row_ulps: float | None = None

    @property
    def nonfinite_mismatch(self) -> int:
        return int(self.mismatches.sum())

    @property
    def rms(self) -> float:
        """rms over all positions, each as much as any other, in logits."""
        return rms_of(self.squares)


def peaks_of(differences: Floats, least: Floats) -> Floats:
    """Return the largest difference of each row over the rms of its others that are not 0. [rows,
    vocab] -> [rows]

    least: that the others are taken for at least [rows]. The largest few are no others, for a fault
    may move several.
    """
    sizes = np.abs(differences)
    few = min(FEW, sizes.shape[1] // 8)
    if not few:
        return np.zeros(len(sizes))
    ordered = np.partition(sizes, -few, axis=1)
    others = ordered[:, :-few]
    count = np.maximum((others > 0).sum(axis=1), 1)
    rms = np.sqrt(np.square(others).sum(axis=1) / count)
    return ordered[:, -few:].max(axis=1) / np.maximum(rms, least)


def concatenate(parts: Sequence[Divergence]) -> Divergence:
    """Divergence of all positions, one part after another."""
    peaks = [part.peaks for part in parts if part.peaks is not None]
    ulps = [part.row_ulps for part in parts if part.row_ulps is not None]
    return Divergence(
        np.concatenate([part.squares for part in parts]),
        np.concatenate([part.mismatches for part in parts]),
        next((part.first_mismatch for part in parts if part.first_mismatch is not None), None),
        sum(part.neq or 0 for part in parts),
        all(part.is_bit_identical for part in parts),
        np.concatenate(peaks) if peaks else None,
        sum((part.system for part in parts), SystematicError()),
        np.concatenate(ulps, axis=1) if ulps else None,
        max((part.largest_row_ulps or 0.0 for part in parts), default=None),
    )


def row_ulp_percentile(parts: Sequence[Divergence], share: float) -> float | None:
    """Least row ULPs within which that share of all finite elements lies, to 1 part in 2048; None
    if not counted.
    """
    histogram = concatenate(parts).row_ulps
    if histogram is None or not histogram.size:
        return None
    place = int(np.quantile(histogram[0], share, weights=histogram[1], method="inverted_cdf"))
    return float(np.array(place << ROW_ULP_SHIFT, np.uint32).view(np.float32))
