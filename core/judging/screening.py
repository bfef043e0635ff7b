"""Screen a pair by what its two arrays say, if no control is there to decide.

Every limit is a multiple of what harmless paths of eight models did in the trial (docs/verdict_calibration.md,
`python -m benchmarks.verdicts.screening`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence, ScreeningFigures
from ..runs.file.records import RunHeader
from ..runs.queries.flips import beyond_noise, dominating
from ..text import number, plural
from .places import place_in_words

if TYPE_CHECKING:
    import pandas as pd


class RoundingLimits(NamedTuple):
    """Sizes in row ULPs: largest rms of harmless paths, rms of a bug, least that a position is compared with."""

    rounding: float
    bug: float
    step: float


# Harmless paths of dense models: up to 1.7 in 16 bits and 9.3 in float32; of mixtures of experts, whose router may
# choose another expert, up to 10 in bfloat16.
LIMITS = {
    "bfloat16": RoundingLimits(2, 24, 0.25),
    "float16": RoundingLimits(2, 24, 0.25),
    "float32": RoundingLimits(32, 1000, 1),
}
# Largest rms at one position over the median of the others: harmless 15 in dense models, 50 with experts.
STANDS_OUT_MOST, STANDS_OUT = 20, 100
KL = 0.25  # mean, nats: harmless up to 0.0017 in dense models, 0.022 with experts
# float32 arrays may hold what a 16-bit model computed, if a cast, softcap or log-softmax hides its grid. Only a dtype
# that somebody named is taken for the one of the computation.
NAMED = ("compute dtype declared:", "compute dtype override:")
FLOAT32_STEPS = 1 << 16  # row ULPs of float32 in one of bfloat16


def screen(
    header: RunHeader, positions: pd.DataFrame, causes: Sequence[str] = (), *, has_experts: bool = False
) -> Evidence:
    """Screen a pair by its figures at each position, as `run.positions` gives them.

    causes: sentences of simple causes that explain the difference; has_experts: a near tie of the router may choose
    another expert, which moves a position as far as a bug does. The evidence is noted if undecided.
    """
    limits, dtype = LIMITS[header.compute_dtype], header.compute_dtype
    rms = np.nan_to_num(positions["rms_row_ulps"].to_numpy(float))
    size = float(np.sqrt((rms**2).mean()))
    over_typical = rms / max(float(np.median(rms)), limits.step)
    worst = float(over_typical.max())
    kl = float(np.nan_to_num(positions["kl"].to_numpy(float)).mean())
    outliers = np.flatnonzero(over_typical > STANDS_OUT)
    flips = int(beyond_noise(positions).sum())
    first = outliers[0] if len(outliers) else dominating(rms)
    of_16_bits = size / FLOAT32_STEPS
    may_be_16_bits = dtype == "float32" and not header.provenance.note.startswith(NAMED)
    measured = f"The rms difference is {number(size, 3)} row ULPs of {dtype}"
    outcome = FAILED
    if causes:
        says = causes[0]
    elif kl > KL:
        says = f"The mean KL is {number(kl, 3)} nats (rounding: up to 0.02): a bug, or other weights."
    elif len(outliers) and not has_experts:
        where = place_in_words(int(outliers[0]), [prompt.positions for prompt in header.prompts])
        ratio = number(float(over_typical[outliers[0]]), 3)
        says = (
            f"The difference at {where} is {ratio}x the median position's (rounding: up to {STANDS_OUT_MOST}x). A"
            " mixture of experts may do this (--mixture-of-experts)."
        )
    elif size > limits.bug and may_be_16_bits and of_16_bits <= LIMITS["bfloat16"].bug:
        outcome = NOTED
        says = f"{measured}, {number(of_16_bits, 3)} if the model computes in bfloat16. Name its --compute-dtype."
    elif size > limits.bug and not has_experts:
        says = (
            f"{measured} (rounding: up to {limits.rounding:g}): a bug, other weights, lower precision, or a mixture of"
            " experts (--mixture-of-experts)."
        )
    elif size > limits.rounding:
        outcome, says = NOTED, f"{measured}, which does not decide; rounding usually stays below {limits.rounding:g}."
    elif worst > STANDS_OUT_MOST:
        outcome = NOTED
        says = f"{measured}, which does not decide: one position differs {number(worst, 3)}x as much as the median one."
    elif flips:
        outcome = NOTED
        says = f"{measured}, which does not decide: {plural(flips, 'flip is', 'flips are')} beyond the noise."
    else:
        outcome = PASSED
        says = (
            f"Consistent with rounding in {dtype}: {number(size, 3)} row ULPs (rms). A fault below"
            f" {limits.rounding:g} row ULPs, or {STANDS_OUT_MOST}x at one position, would not show."
        )
    figures = ScreeningFigures(
        compute_dtype=dtype,
        rms_row_ulps=size,
        rounding_row_ulps=limits.rounding,
        bug_row_ulps=limits.bug,
        worst_position_ratio=worst,
        position_ratio_allowed=float(STANDS_OUT_MOST),
        positions_beyond=len(outliers),
        flips_beyond_noise=flips,
        first=None if first is None else header.places()[first],
        causes=tuple(causes),
    )
    return Evidence(Check.ARRAYS_ALONE, "the two arrays, without controls", figures, outcome, says)
