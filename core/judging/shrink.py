"""A pair in 16 bits compared with the same in float32, without a noise floor: rounding shrinks, a
fault does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..runs.file.evidence import FAILED, MISSING, PASSED, Check, Evidence, ShrinkFigures
from ..text import three_digits
from .places import place_in_words, place_of

# How far a pair of pure rounding shrinks from 16 bits to float32, as a share of what the two
# precisions differ by; docs/explanation/calibration.md has the trial. Between the two it is
# undecided.
SHRINKS_LIKE_ROUNDING = 0.05
SHRINKS_TOO_LITTLE = 0.001
# more than the precisions differ by: the two pairs are not of the same sides
SHRINKS_TOO_MUCH = 10.0
# times the median position in float32; of rounding without a floor, 17 were measured
STANDS_OUT_ALONE = 100.0
# beyond which one position is too far from the median to be passed without a floor
ASKS_FOR_A_FLOOR = 50.0


def shrink_evidence(
    narrow: NDArray[np.float64],
    wide: NDArray[np.float64],
    significand_bits: int,
    lengths: Sequence[int],
    control: str = "",
    available: tuple[str, ...] | None = None,
) -> Evidence:
    """Compare mean squares of a pair [positions] in a dtype of so many significand bits (bfloat16
    8, float16 11) with those in float32 (24).

    Rounding errors are proportional to the unit roundoff (Higham, Accuracy and Stability of
    Numerical Algorithms, 2.2); a fault is another function and does not shrink. Positions equal in
    float32 are left out. If hardly any position moves in 16 bits, the size there is no measure, and
    only a floor decides. available: controls that were given.
    """
    full, differs = 2.0 ** (24 - significand_bits), wide > 0
    coarse, fine = np.sqrt(narrow), np.sqrt(wide)
    outcome, shrink, worst, row, moving_share = PASSED, np.inf, 0.0, 0, 1.0
    says = "In float32 the two sides are equal."  # and rounding apart in 16 bits
    if differs.any():
        shrink = float(np.sqrt(narrow[differs].mean() / wide[differs].mean()))
        moving_share = float((narrow[differs] > 0).mean())
        relative = fine / np.median(fine[differs])
        lags = (coarse > 0) & (coarse < SHRINKS_TOO_LITTLE * full * fine)
        stands_out = (relative > STANDS_OUT_ALONE) & lags
        row = int(np.argmax(relative))
        worst = float(relative[row])
        smaller = f"In float32 the RMS difference is {three_digits(shrink)} times smaller"
        finer = f"float32 is {full:,.0f} times finer"
        is_like_rounding = SHRINKS_LIKE_ROUNDING * full <= shrink <= SHRINKS_TOO_MUCH * full
        if stands_out.any():
            outcome, row = FAILED, int(np.argmax(stands_out))
            place = place_in_words(row, lengths)
            says = (
                f"{smaller}, but {place} does not shrink: it is {three_digits(worst)}x the median"
                " position."
            )
        elif shrink < SHRINKS_TOO_LITTLE * full and moving_share >= 0.5:
            outcome, row = FAILED, int(np.argmax(lags)) if lags.any() else row
            says = f"{smaller}, though {finer}: the sides compute different functions."
        elif is_like_rounding and worst <= ASKS_FOR_A_FLOOR:
            says = f"{smaller}; {finer}, so it shrinks as rounding does."
        else:
            outcome = MISSING
            says = f"{smaller}, which neither rounding nor a fault explains. A noise floor decides."
            if not narrow.any():
                rms = f"{np.sqrt(wide.mean()):.3g} logits (rms)"
                says = f"Only float32 shows a difference: {rms}. A noise floor decides."
    figures = ShrinkFigures(
        compute_dtype="float32",
        pair_rms_logits=float(np.sqrt(wide.mean())),
        own_dtype_rms_logits=float(np.sqrt(narrow.mean())),
        times_smaller_in_float32=shrink if np.isfinite(shrink) else None,
        times_finer_float32_is=full,
        positions_that_move_in_own_dtype=moving_share,
        worst_position_ratio=worst,
        worst_position=place_of(row, lengths),
        controls=available if outcome == MISSING else None,
    )
    return Evidence(Check.SHRINK, control, figures, outcome, says)
