"""A pair beside a rounding floor: its noise ratio over all positions, and the positions that stand out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from .places import NotFinite

# Noise ratios up to which a pair may be rounding; docs/verdict_calibration.md has the trial they were chosen by. In 16
# bits another path may also round between operations where the reference does not (a fused kernel), which reordering
# sums does not show.
LARGEST_RATIO = 4.0
LARGEST_RATIO_16_BITS = 10.0
FALSE_ALARM = 1e-3  # chance that one position of a pair of pure rounding stands out, over all of its positions together
_LEAST_SPREAD = (
    0.1  # of log ratios: a handful of positions can agree by luck, and a spread of 0 would make each an outlier
)


@dataclass(frozen=True)
class FloorTest:
    """A pair against the floor. Ratios are rms over rms of the floor; `by_position` [positions] of all prompts one
    after another.

    ratio: over all positions, at most `largest_ratio` to pass; worst: the largest at one position, at most `threshold`
    to pass; spread: standard deviation of log ratios that rounding has here; seed_ratios: each reordering against the
    others. not_finite: logits that are NaN or infinite on one side only, None where there are none; with any there is
    no ratio (infinity), and their positions are among the outliers.
    """

    ratio: float
    largest_ratio: float
    worst: float
    worst_row: int
    threshold: float
    spread: float
    seed_ratios: tuple[float, ...]
    by_position: NDArray[np.float64]
    outliers: NDArray[np.int64] = field(repr=False)
    not_finite: NotFinite | None = None

    @property
    def nonfinite(self) -> int:
        """Logits that are NaN or infinite on one side only."""
        return self.not_finite.logits if self.not_finite is not None else 0

    @property
    def is_passed(self) -> bool:
        return self.ratio <= self.largest_ratio and not len(self.outliers)

    def threshold_or(self, otherwise: float) -> float:
        """Largest ratio allowed at one position; `otherwise` in 16 bits, where a pair is not asked there."""
        return self.threshold if np.isfinite(self.threshold) else otherwise

    @property
    def noise_ratio(self) -> float | None:
        """Noise ratio of all positions; None where it has no size."""
        return self.ratio if np.isfinite(self.ratio) else None

    @property
    def finite_worst(self) -> float | None:
        """Largest ratio at one position; None where it has no size."""
        return self.worst if np.isfinite(self.worst) else None


def floor_test(
    pair: NDArray[np.float64],
    floor: NDArray[np.float64],
    *,
    not_finite: NotFinite | None = None,
    is_16_bits: bool = False,
    own_rounding: NDArray[np.float64] | None = None,
) -> FloorTest:
    """Mean squares of a pair [positions] against those of reorderings [seeds, positions], in the same dtype.

    Two questions. Is the whole pair larger than rounding? And does any one position stand out, which a mean over
    thousands would hide? For the second, log ratios of rounding are taken as normal around the pair's own median: their
    spread is the larger of what the reorderings show against each other and of what the pair itself shows (median
    absolute deviation, which a fault at fewer than half of the positions hardly moves), and the threshold is where one
    of all positions would pass by chance with probability FALSE_ALARM (Bonferroni); at least the largest ratio times
    the median in any case. A pair that fails as a whole is no measure of rounding: there the reorderings alone say
    which positions stand out, so that the fault has a place.

    In 16 bits only the first question is asked. A product moves perhaps one element in a thousand there, and what the
    layers make of that one varies by orders of magnitude from position to position, in rounding too; positions are held
    against the floor of their own or of the average position, whichever is larger, and only shown. And sums are kept in
    float32, so in a narrow model another order of them may move nothing at all, where another kernel rounds elsewhere
    and moves all: the floor is the larger of the reorderings and of `own_rounding` [positions], mean squares of a
    forward in 16 bits to the same one in float32.
    """
    positions = len(pair)
    largest = LARGEST_RATIO_16_BITS if is_16_bits else LARGEST_RATIO
    mean = floor.mean(axis=0)
    total = float(floor.mean())
    if own_rounding is not None:
        mean, total = np.maximum(mean, own_rounding), max(total, float(own_rounding.mean()))
    least = (
        mean.mean() if is_16_bits else np.median(mean) * 1e-4
    )  # a position whose floor is next to 0 has no scale of its own
    mean = np.maximum(mean, max(float(least), np.finfo(np.float64).tiny))
    by_position = np.sqrt(pair / mean)
    ratio = float(np.sqrt(pair.mean() / total)) if total > 0 else (0.0 if not pair.any() else float("inf"))
    spread, median = _LEAST_SPREAD if is_16_bits else max(_LEAST_SPREAD, _spread_of_seeds(floor)), 1.0
    differs = by_position > 0
    if (
        not is_16_bits and ratio <= largest
    ):  # beyond that the pair's own figures are those of a fault, which has failed already
        median = max(1.0, float(np.median(by_position)))
        if 2 * differs.sum() > positions:  # of a pair equal at most positions, the others are no measure of themselves
            spread = max(spread, _robust_spread(np.log(by_position[differs])))
    z = NormalDist().inv_cdf(1 - FALSE_ALARM / positions)
    threshold = float("inf") if is_16_bits else median * max(largest, math.exp(z * spread))
    if not_finite is not None:  # over the finite logits alone it would look small
        ratio = float("inf")
        by_position[not_finite.rows] = np.inf
    worst_row = int(np.argmax(by_position))
    return FloorTest(
        ratio=ratio,
        largest_ratio=largest,
        worst=float(by_position[worst_row]),
        worst_row=worst_row,
        threshold=threshold,
        spread=spread,
        seed_ratios=tuple(float(x) for x in _seed_ratios(floor)),
        by_position=by_position,
        outliers=np.flatnonzero((by_position > threshold) | np.isinf(by_position)),
        not_finite=not_finite,
    )


def is_larger_everywhere(test: FloorTest) -> bool:
    """True where the pair is beyond the floor at nine of ten positions: by a lowered precision, not by some jumps."""
    return float(np.quantile(test.by_position, 0.1)) > test.largest_ratio


def _others(floor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean square of the other seeds, for each seed. [seeds, positions]"""
    return (floor.sum(axis=0) - floor) / (len(floor) - 1)


def _seed_ratios(floor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noise ratio of each seed against the others, over all positions. [seeds]"""
    others = _others(floor).mean(axis=1)
    return np.sqrt(np.divide(floor.mean(axis=1), others, out=np.ones(len(floor)), where=others > 0))


def _spread_of_seeds(floor: NDArray[np.float64]) -> float:
    """Standard deviation of the log ratio of one seed to the others at a position."""
    others = _others(floor)
    known = (floor > 0) & (others > 0)
    logs = 0.5 * np.log(floor[known] / others[known])
    return _robust_spread(logs)


def _robust_spread(logs: NDArray[np.float64]) -> float:
    """Standard deviation of a normal with this median absolute deviation; 0 of nothing. Rousseeuw and Croux (1993)."""
    return float(1.4826 * np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0
