"""Is one side further from itself in float32 than the other is? A fault of 16-bit kernels alone is.

docs/explanation/calibration.md has the measurements behind the limits.
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np

from ..evidence import FAILED, MISSING, OWN_DTYPE, PASSED, Check, CheckFigures, Evidence, Subject
from ..numerics.arrays import Floats
from ..numerics.side_divergence import Divergence
from ..numerics.statistic import TINY
from ..places import place_in_words
from ..text import multiple, number
from ..verdict import LIKELY_ROUNDING
from .arrays_alone import ROW_ULPS, STANDS_OUT, SYSTEMATIC_SHARE
from .pair import OWN

_SYSTEMATIC = 2.5  # times the other side's
# at one position over the median one: 5.7 in dense models, 54 with experts
_JUMP_OF_ROUNDING = 12.0
_RATIO_OF_ROUNDING = 2.0  # of the two errors: 1.5 in dense models


class NarrowingFigures(CheckFigures):
    leaves_16_bits_open = True

    reference_to_float32_logits: Annotated[
        float,
        "RMS of the reference to itself in float32, logits",
    ]
    variant_to_float32_logits: Annotated[float, "RMS of the variant to itself in float32, logits"]
    worst_position_ratio: Annotated[
        float | None,
        "largest ratio of the two at one position over the median one",
    ] = None
    systematic_share: Annotated[float | None, "part of the error that goes with the logits"] = None

    @property
    def names_position(self) -> bool:
        return (self.worst_position_ratio or 0.0) > STANDS_OUT


NARROWING = Check("each side against float32", OWN_DTYPE, NarrowingFigures)
# one result for both sides: of two that round alike neither has a fault, or both have it
AGAINST_EXACT = Check(
    "each side against the exact result",
    OWN_DTYPE,
    NarrowingFigures,
    LIKELY_ROUNDING,
)


def narrowing_row(
    subject: Subject,
    errors: Mapping[str, Divergence],
    one_rounding: float,
    check: Check,
) -> Evidence:
    """Compare the errors of both sides.

    errors: of each side to itself in float32, or to the exact result of both; one_rounding: rms of
    one rounding at most, logits.
    """
    names, dtype = subject.names, subject.dtype
    near, further = sorted(names, key=lambda name: errors[name].rms)
    ratio = errors[further].rms / max(errors[near].rms, TINY)
    is_of_both = check == AGAINST_EXACT
    target = "the exact result" if is_of_both else "its own float32 logits"
    of_all = target if is_of_both else "float32"
    row_ulps = errors[near].rms / (one_rounding * np.sqrt(12))
    most_row_ulps = ROW_ULPS[dtype][0]
    outcome = PASSED
    says = f"Rounding to {dtype} moves both sides about equally far from {of_all}."
    # all that is left of a side that computes in float32
    is_near_rounded_once = errors[near].rms <= one_rounding
    jumps = _jumps(errors[near].squares, errors[further].squares)
    row = jumps.argmax()
    jump = f"In {dtype} one side is {multiple(jumps[row])} further from {of_all} at"
    place = f"{jump} {place_in_words(row, subject.lengths)} than at others"
    other, side = sorted(names, key=lambda name: errors[name].system.size)
    system = errors[side].system
    is_systematic = (
        system.share > SYSTEMATIC_SHARE and system.size > _SYSTEMATIC * errors[other].system.size
    )
    if ratio > OWN.over_all and not is_near_rounded_once:
        times = number(ratio) if errors[near].rms else "infinitely many"
        outcome = FAILED
        says = f"'{further}' is {times} times as far from {target} as '{near}': more than rounding."
    elif subject.has_experts:
        pass  # a near tie of the router moves positions as far as a fault does
    elif is_systematic:
        outcome = FAILED
        share = f"{system.share:.0%} of the rounding error of '{side}' follows its logits"
        says = (
            f"{share} (limit {SYSTEMATIC_SHARE:.0%}): a stale weight or a scale in {dtype} alone."
        )
    elif jumps[row] > STANDS_OUT:
        outcome, says = FAILED, f"{place}. Pass --mixture-of-experts if it is one."
    elif jumps[row] > _JUMP_OF_ROUNDING:
        outcome = MISSING
        says = f"{place}: a fault, or a mixture of experts (--mixture-of-experts)."
    elif ratio > _RATIO_OF_ROUNDING and not is_near_rounded_once:
        outcome = MISSING
        times = f"{number(ratio)} times as far from {target} as '{near}'"
        says = f"'{further}' is {times}: more than usual for kernels. The model decides (--model)."
    elif is_of_both and errors[other].system.share > SYSTEMATIC_SHARE:
        outcome = MISSING
        share = f"{errors[other].system.share:.0%} of the error of both sides follows the logits"
        says = f"{share} (limit {SYSTEMATIC_SHARE:.0%}): a fault of both, or other weights?"
    elif is_of_both and row_ulps > most_row_ulps:
        outcome = MISSING
        size = f"Both sides are {number(row_ulps)} row ULPs from the exact result"
        says = f"{size} (rounding: up to {most_row_ulps}): a fault of both, or other weights?"
    other = "the exact result" if is_of_both else "itself in float32"
    return Evidence(
        check,
        f"each side in {dtype} compared with {other}",
        NarrowingFigures(
            reference_to_float32_logits=errors[names[0]].rms,
            variant_to_float32_logits=errors[names[1]].rms,
            worst_position_ratio=float(jumps[row]),
            systematic_share=system.share,
        ),
        outcome,
        says,
    )


def _jumps(one: Floats, other: Floats) -> Floats:
    """Return how far the ratio of two sides' errors at a position is from the median one.
    [positions]
    """
    is_known = (one > 0) & (other > 0)
    logs = 0.5 * np.log(np.where(is_known, one, 1.0) / np.where(is_known, other, 1.0))
    middle = np.median(logs[is_known]) if is_known.any() else 0.0
    return np.exp(np.abs(np.where(is_known, logs - middle, 0.0)))
