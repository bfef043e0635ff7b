"""A pair in 16 bits compared with the same in float32, without a noise floor: rounding shrinks, a
fault does not.
"""

from typing import Annotated

import numpy as np

from ..evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    PASSED,
    Check,
    CheckFigures,
    Dtype,
    Evidence,
    Subject,
)
from ..numerics import formats
from ..numerics.arrays import Floats
from ..numerics.statistic import rms_of, rms_ratio
from ..places import place_in_words, place_of
from ..text import multiple, number
from ..verdict import ROUNDING

# How far a pair of pure rounding shrinks from 16 bits to float32, as a share of what the two
# precisions differ by; docs/explanation/calibration.md has the trial. Between the two it is
# undecided.
SHRINKS_LIKE_ROUNDING = 0.05
SHRINKS_TOO_LITTLE = 0.001
# more than the precisions differ by: the two pairs are not of the same sides
SHRINKS_TOO_MUCH = 10.0
# times the median position in float32; of rounding without a floor, 17 were measured
_STANDS_OUT = 100.0
# beyond which one position is too far from the median to be passed without a floor
ASKS_FOR_A_FLOOR = 50.0


class ShrinkFigures(CheckFigures, rename={"controls": "tried"}):
    """A pair in float32 compared with the same pair in 16 bits, if no noise floor is available."""

    compute_dtype: Dtype
    pair_rms_logits: Annotated[float, "RMS of the pair, logits"]
    own_dtype_rms_logits: Annotated[float, "RMS of the pair in its own dtype, logits"]
    times_smaller_in_float32: Annotated[float | None, "how many times smaller it is in float32"]
    times_finer_float32_is: Annotated[float, "how many times finer float32 is"]
    positions_that_move_in_own_dtype: Annotated[
        float,
        "share of positions that move in the own dtype too",
    ]
    worst_position_ratio: Annotated[float, "largest ratio at one position"]
    worst_position: Annotated[tuple[int, int], "(prompt, position) of it"]
    controls: Annotated[tuple[str, ...] | None, "controls that were given"] = None

    @property
    def names_position(self) -> bool:
        return self.worst_position_ratio > _STANDS_OUT


SHRINK = Check("the pair in two precisions", FLOAT32, ShrinkFigures, ROUNDING)


def shrink_row(
    subject: Subject,
    narrow: Floats,
    wide: Floats,
    available: tuple[str, ...] | None = None,
) -> Evidence:
    """Compare mean squares of a pair [positions] in 16 bits with those in float32.

    Rounding errors are proportional to the unit roundoff (Higham, Accuracy and Stability of
    Numerical Algorithms, 2.2); a fault is another function and does not shrink. Positions equal in
    float32 are left out. If hardly any position moves in 16 bits, the size there is no measure, and
    only a floor decides. available: controls that were given.
    """
    full = 2.0 ** (
        formats.FLOAT32.mantissa_bits - formats.format_named(subject.dtype).mantissa_bits
    )
    differs = wide > 0
    coarse, fine = np.sqrt(narrow), np.sqrt(wide)
    outcome, shrink, worst, row, moving_share = PASSED, np.inf, 0.0, 0, 1.0
    says = "In float32 the two sides are equal."  # and rounding apart in 16 bits
    if differs.any():
        shrink = rms_ratio(narrow[differs], wide[differs])
        moving_share = float((narrow[differs] > 0).mean())
        relative = fine / np.median(fine[differs])
        lags = (coarse > 0) & (coarse < SHRINKS_TOO_LITTLE * full * fine)
        stands_out = (relative > _STANDS_OUT) & lags
        row = int(np.argmax(relative))
        worst = float(relative[row])
        smaller = f"In float32 the RMS difference is {number(shrink)} times smaller"
        finer = f"float32 is {full:,.0f} times finer"
        is_like_rounding = SHRINKS_LIKE_ROUNDING * full <= shrink <= SHRINKS_TOO_MUCH * full
        if stands_out.any():
            outcome, row = FAILED, int(np.argmax(stands_out))
            place = place_in_words(row, subject.lengths)
            says = (
                f"{smaller}, but {place} does not shrink: it is {multiple(worst)} the median"
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
                rms = f"{number(rms_of(wide))} logits (rms)"
                says = f"Only float32 shows a difference: {rms}. A noise floor decides."
    reference, variant = subject.names
    control = (
        f"'{variant}' compared with '{reference}' in float32 and in {subject.dtype}, without a"
        " floor"
    )
    return Evidence(
        SHRINK,
        control,
        ShrinkFigures(
            compute_dtype="float32",
            pair_rms_logits=rms_of(wide),
            own_dtype_rms_logits=rms_of(narrow),
            times_smaller_in_float32=shrink if np.isfinite(shrink) else None,
            times_finer_float32_is=full,
            positions_that_move_in_own_dtype=moving_share,
            worst_position_ratio=worst,
            worst_position=place_of(row, subject.lengths),
            controls=available if outcome == MISSING else None,
        ),
        outcome,
        says,
    )
