"""A pair in 16 bits compared with the same in float32, without a noise floor: rounding shrinks, a fault does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..runs.file.evidence import FAILED, MISSING, PASSED

# How far a pair of pure rounding shrinks from 16 bits to float32, as a share of what the two precisions differ by;
# docs/explanation/calibration.md has the trial. Between the two it is undecided.
SHRINKS_LIKE_ROUNDING = 0.05
SHRINKS_TOO_LITTLE = 0.001
SHRINKS_TOO_MUCH = 10.0  # more than the precisions differ by: the two pairs are not of the same sides
STANDS_OUT_ALONE = 100.0  # times the median position in float32; of rounding without a floor, 17 were measured
ASKS_FOR_A_FLOOR = 50.0  # beyond which one position is too far from the median to be passed without a floor


@dataclass(frozen=True)
class ShrinkTest:
    """shrink: how many times smaller a pair is in float32; full: how many times finer float32 is; share: shrink over
    full; moving_share: of positions that differ in float32, those that do in 16 bits too; worst: the largest
    position in float32 over the median one; first_row: first position that does not shrink, else the largest;
    stands_out: a position fails by itself; outcome: passed, failed, or missing, if only a floor decides.
    """

    shrink: float
    full: float
    share: float
    moving_share: float
    worst: float
    first_row: int
    stands_out: bool
    outcome: str


def shrink_test(narrow: NDArray[np.float64], wide: NDArray[np.float64], significand_bits: int) -> ShrinkTest:
    """Compare mean squares of a pair [positions] in a dtype of so many significand bits (bfloat16 8, float16 11) with
    those in float32 (24).

    Rounding errors are proportional to the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms, 2.2);
    a fault is another function and does not shrink. Positions equal in float32 are left out. If hardly any position
    moves in 16 bits, the size there is no measure, and only a floor decides.
    """
    full = 2.0 ** (24 - significand_bits)
    differs = wide > 0
    if not differs.any():  # equal in float32, rounding apart in 16 bits
        return ShrinkTest(float("inf"), full, float("inf"), 1.0, 0.0, 0, False, PASSED)
    coarse, fine = np.sqrt(narrow), np.sqrt(wide)
    shrink = float(np.sqrt(narrow[differs].mean() / wide[differs].mean()))
    moving_share = float((narrow[differs] > 0).mean())
    relative = fine / np.median(fine[differs])
    lags = (coarse > 0) & (coarse < SHRINKS_TOO_LITTLE * full * fine)
    stands_out = (relative > STANDS_OUT_ALONE) & lags
    worst_row = int(np.argmax(relative))
    outcome = MISSING
    if stands_out.any() or (shrink < SHRINKS_TOO_LITTLE * full and moving_share >= 0.5):
        outcome = FAILED
    elif SHRINKS_LIKE_ROUNDING * full <= shrink <= SHRINKS_TOO_MUCH * full and relative[worst_row] <= ASKS_FOR_A_FLOOR:
        outcome = PASSED
    first_row = (
        int(np.argmax(stands_out if stands_out.any() else lags)) if outcome == FAILED and lags.any() else worst_row
    )
    worst = float(relative[worst_row])
    return ShrinkTest(shrink, full, shrink / full, moving_share, worst, first_row, bool(stands_out.any()), outcome)
