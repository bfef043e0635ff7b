"""Does the difference of two arrays look like rounding, without any control?

`python -m benchmarks.verdicts.screening` measures what harmless paths do
(docs/explanation/calibration.md).
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from ..evidence import (
    FAILED,
    NOTED,
    PASSED,
    SCREENING,
    Check,
    CheckFigures,
    Dtype,
    Evidence,
    FirstPlace,
    Outliers,
    Subject,
)
from ..numerics.arrays import Floats
from ..numerics.statistic import rms_of
from ..numerics.totals import dominating
from ..places import place_in_words, place_of
from ..text import multiple, number, plural, series
from ..verdict import LIKELY_ROUNDING

# Rms in row ULPs: (largest of harmless paths, of a bug, least that one position is compared with).
# Harmless paths of dense models reach 1.7 in 16 bits and 9.3 in float32, mixtures of experts 10 in
# bfloat16.
ROW_ULPS = {"bfloat16": (2, 24, 0.25), "float16": (2, 24, 0.25), "float32": (32, 1000, 1)}
FLOAT32_STEPS = 1 << 16  # row ULPs of float32 in one of bfloat16
# one position over the median one: 15 in dense models, 50 with experts
STANDS_OUT_MOST, STANDS_OUT = 20, 100
# Largest value of a row over its median: of logits of the samples up to 12. Beyond, row ULPs are so
# large that the differences of most values are small in them. Of 324 pairs of random encoders in
# three dtypes (hidden states, embeddings, scores; other batch, padding and attention) none was
# accused, and two were undecided. Over the larger of its best and its median one, the largest logit
# is up to 2.6 in rows of the sample model and of 15 families with random weights.
MOST_PEAK = 16
LEAST_VALUES = 16  # fewer have no typical size that rounding could be compared with
# of a difference, that goes with the logits: of rounding up to 0.5 over some rows of all prompts
# and 0.6 within prompts; of a bias of the head, or a scale as large as rounding, 0.75 and more
SYSTEMATIC_SHARE = 0.65
# logits: no model's are further; beyond, a mask by a number is the row's largest value
LARGEST_LOGIT = 4096.0
MOST_KL = 0.25  # mean, nats: harmless up to 0.0017 in dense models, 0.022 with experts


class ScreeningFigures(CheckFigures):
    compute_dtype: Dtype
    rms_row_ulps: Annotated[float, "RMS of the pair, row ULPs"]
    rounding_row_ulps: Annotated[float, "largest RMS that looks like rounding, row ULPs"]
    bug_row_ulps: Annotated[float, "RMS that rounding never comes near, row ULPs"]
    worst_position_ratio: Annotated[float, "largest RMS at one position over the median position"]
    position_ratio_allowed: Annotated[float, "largest such ratio of rounding"]
    positions_beyond: Outliers
    flips_beyond_noise: Annotated[int | None, "flips beyond the noise"]
    first: FirstPlace
    causes: Annotated[tuple[str, ...], "common causes"]
    peak: Annotated[float | None, "largest value of a row over its median"] = None
    systematic_share: Annotated[float, "part of the difference that goes with the logits"] = 0.0


ARRAYS_ALONE = Check("the arrays alone", SCREENING, ScreeningFigures, LIKELY_ROUNDING)


def kl_in_words(size: str) -> str:
    return f"The mean KL is {size} nats (limit {MOST_KL}): a bug, or other weights."


def screening_row(
    subject: Subject,
    rms: Floats,
    *,
    kl: float,
    flips: int | None,
    causes: Sequence[str],
    may_be_16_bits: bool,
    peak: float | None,
    systematic: float,
    is_masked: bool,
) -> Evidence:
    """Screen a pair by its figures; the evidence is noted if undecided.

    rms: row ULPs at each position; kl: mean, nats; flips: beyond the noise, None of values that are
    no logits; causes: sentences of common causes that explain the difference; may_be_16_bits:
    float32 arrays whose dtype was not named; peak: of values that are no logits, the largest of a
    row over its median, NaN of too few; systematic: share of the difference that goes with the
    logits; is_masked: a row has a value beyond LARGEST_LOGIT, or far beyond its best and its median
    one.
    """
    dtype = subject.dtype
    lengths = subject.lengths
    has_experts = subject.has_experts  # near ties of a router move a position as far as a bug does
    rounding, bug, step = ROW_ULPS[dtype]
    size = rms_of(rms**2)
    over_typical = rms / max(np.median(rms), step)
    worst = float(over_typical.max())
    outliers = np.flatnonzero(over_typical > STANDS_OUT)
    first = outliers[0] if len(outliers) else dominating(rms)
    has_few = peak is not None and np.isnan(peak)
    is_uneven = peak is not None and peak > MOST_PEAK
    of_16_bits = size / FLOAT32_STEPS
    larger = {
        f"RMS {number(size, 3)} row ULPs of {dtype} (limit {rounding:g})": size > rounding,
        f"{multiple(worst)} the median at one position (limit {STANDS_OUT_MOST}x)": (
            worst > STANDS_OUT_MOST
        ),
        f"{plural(flips or 0, 'flip')} beyond the noise": bool(flips),
        f"{systematic:.0%} of it follows the logits (limit {SYSTEMATIC_SHARE:.0%})": (
            systematic > SYSTEMATIC_SHARE
        ),
    }
    reach = [text for text, is_larger in larger.items() if is_larger]
    measurement = f"The RMS difference is {number(size, 3)} row ULPs of {dtype}"
    outcome = FAILED
    if causes:
        says = causes[0]
    elif kl > MOST_KL:
        says = kl_in_words(number(kl, 3))
    elif has_few or (is_uneven and size <= bug):
        outcome = NOTED
        reason = f"Rows have fewer than {LEAST_VALUES} values, too few to know what rounding does"
        if not has_few:
            reason = (
                f"The largest value of a row is {multiple(peak or 0)} its median (limit"
                f" {MOST_PEAK}x), so row ULPs hide differences of the others"
            )
        says = f"{reason}: bring an exact result to `ulpscope.close`."
    elif len(outliers) and not has_experts:
        place = place_in_words(outliers[0], lengths)
        ratio = multiple(over_typical[outliers[0]])
        says = (
            f"The difference at {place} is {ratio} the median position's (limit {STANDS_OUT}x). A"
            " mixture of experts may do this (--mixture-of-experts)."
        )
    elif size > bug and may_be_16_bits and of_16_bits <= ROW_ULPS["bfloat16"][1]:
        outcome, in_16_bits = NOTED, f"{number(of_16_bits, 3)} if the model computes in bfloat16"
        says = (
            f"{measurement}, {in_16_bits}. If it does, save its logits in that dtype, before a"
            " log-softmax; if it computes in float32, name that as --compute-dtype."
        )
    elif size > bug and not has_experts:
        causes_of_it = (
            "a bug, other weights, lower precision, or a mixture of experts (--mixture-of-experts)"
        )
        says = f"{measurement} (limit {bug:g}): {causes_of_it}."
    elif is_masked:
        outcome = NOTED
        says = (
            "Values far beyond the others of a row, as of a mask, make row ULPs so large that they"
            " hide differences of the others: save -inf in their place."
        )
    elif reach:
        outcome = NOTED
        says = f"Larger than rounding usually is: {series(reach)}. A control decides."
    else:
        outcome = PASSED
        says = (
            f"Consistent with rounding in {dtype}: {number(size, 3)} row ULPs (RMS). A fault below"
            f" {rounding:g} row ULPs, or {STANDS_OUT_MOST}x at one position, would not show."
        )
        if peak is not None:
            says += (
                " The limits are those of language models; `ulpscope.close` with an exact result"
                " decides."
            )
    return Evidence(
        ARRAYS_ALONE,
        "the two arrays, without controls",
        ScreeningFigures(
            compute_dtype=dtype,
            rms_row_ulps=size,
            rounding_row_ulps=rounding,
            bug_row_ulps=bug,
            worst_position_ratio=worst,
            position_ratio_allowed=float(STANDS_OUT_MOST),
            positions_beyond=len(outliers),
            flips_beyond_noise=flips,
            first=None if first is None else place_of(first, lengths),
            causes=tuple(causes),
            peak=peak if peak is not None and np.isfinite(peak) else None,
            systematic_share=systematic,
        ),
        outcome,
        says,
    )
