"""Screen a pair by what its two arrays say, if no control is there to decide.

The limits are those of core/judging/judge.py; `python -m benchmarks.verdicts.screening` measures harmless paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence, ScreeningFigures
from ..runs.file.records import RunHeader
from ..runs.queries.flips import beyond_noise, dominating
from ..text import number, plural
from .judge import KL, ROW_ULPS, STANDS_OUT, STANDS_OUT_MOST
from .places import place_in_words

if TYPE_CHECKING:
    import pandas as pd

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
    dtype = header.compute_dtype
    rounding, bug, step = ROW_ULPS[dtype]
    rms = np.nan_to_num(positions["rms_row_ulps"].to_numpy(float))
    size = float(np.sqrt((rms**2).mean()))
    over_typical = rms / max(float(np.median(rms)), step)
    worst = float(over_typical.max())
    kl = float(np.nan_to_num(positions["kl"].to_numpy(float)).mean())
    outliers = np.flatnonzero(over_typical > STANDS_OUT)
    flips = int(beyond_noise(positions).sum())
    first = outliers[0] if len(outliers) else dominating(rms)
    of_16_bits = size / FLOAT32_STEPS
    may_be_16_bits = dtype == "float32" and not header.provenance.note.startswith(NAMED)
    measured = f"The rms difference is {number(size, 3)} row ULPs of {dtype}"
    outcome, undecided = FAILED, ""
    if causes:
        says = causes[0]
    elif kl > KL:
        says = f"The mean KL is {number(kl, 3)} nats (rounding: up to 0.02): a bug, or other weights."
    elif len(outliers) and not has_experts:
        where, ratio = place_in_words(int(outliers[0]), header.lengths), number(float(over_typical[outliers[0]]), 3)
        reach = f"{ratio}x the median position's (rounding: up to {STANDS_OUT_MOST}x)"
        says = f"The difference at {where} is {reach}. A mixture of experts may do this (--mixture-of-experts)."
    elif size > bug and may_be_16_bits and of_16_bits <= ROW_ULPS["bfloat16"][1]:
        undecided = f"{number(of_16_bits, 3)} if the model computes in bfloat16. Name its --compute-dtype."
    elif size > bug and not has_experts:
        causes_of_it = "a bug, other weights, lower precision, or a mixture of experts (--mixture-of-experts)"
        says = f"{measured} (rounding: up to {rounding:g}): {causes_of_it}."
    elif size > rounding:
        undecided = f"which does not decide; rounding usually stays below {rounding:g}."
    elif worst > STANDS_OUT_MOST:
        undecided = f"which does not decide: one position differs {number(worst, 3)}x as much as the median one."
    elif flips:
        undecided = f"which does not decide: {plural(flips, 'flip is', 'flips are')} beyond the noise."
    else:
        outcome = PASSED
        says = (
            f"Consistent with rounding in {dtype}: {number(size, 3)} row ULPs (rms). A fault below {rounding:g} row"
            f" ULPs, or {STANDS_OUT_MOST}x at one position, would not show."
        )
    if undecided:
        outcome, says = NOTED, f"{measured}, {undecided}"
    figures = ScreeningFigures(
        compute_dtype=dtype,
        rms_row_ulps=size,
        rounding_row_ulps=rounding,
        bug_row_ulps=bug,
        worst_position_ratio=worst,
        position_ratio_allowed=float(STANDS_OUT_MOST),
        positions_beyond=len(outliers),
        flips_beyond_noise=flips,
        first=None if first is None else header.places()[first],
        causes=tuple(causes),
    )
    return Evidence(Check.ARRAYS_ALONE, "the two arrays, without controls", figures, outcome, says)
