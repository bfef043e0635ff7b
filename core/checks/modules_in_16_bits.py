"""Is each module of a side in 16 bits within its own rounding, given identical inputs?

A fault of one module hides in the rounding of all the others at the logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ..evidence import MISSING, OWN_DTYPE, PASSED, Check, CheckFigures, Dtype, Evidence, Limit
from ..numerics.arrays import Floats
from ..text import multiple, plural
from .modules_alone import in_words

# Times a module's own randomized rounding: sound modules reach 1.65, 1.87 if an engine changes an
# output behind the hook. docs/explanation/calibration.md
LARGEST_IN_16_BITS = 2.0
# Of the scores' scale: log2(e) rounded to bfloat16 is 0.0018 off. Sound attention in bfloat16 is
# within 1.2 standard deviations of the model's own, in float16 within 0.0001.
_SCALE_SPREADS, _LEAST_SCALE = 3.0, 2.0**-12


class ModuleRoundingFigures(CheckFigures):
    """The modules of a side in 16 bits, each given identical inputs."""

    compute_dtype: Dtype
    largest_ratio: Annotated[float, "largest RMS error of a module / RMS error of its rounding"]
    largest_ratio_allowed: Limit
    modules_beyond: Annotated[tuple[str, ...], "modules that differ by more given identical inputs"]
    modules: Annotated[int, "modules"]
    score_scale: Annotated[float | None, "relative error of the attention scores' scale"] = None
    largest_score_scale_allowed: Annotated[float | None, "largest such error allowed"] = None

    @property
    def leaves_16_bits_open(self) -> bool:
        """A module beyond its rounding is a fault or a lower precision."""
        return True


MODULE_ROUNDING = Check("each module in 16 bits", OWN_DTYPE, ModuleRoundingFigures)


@dataclass(frozen=True)
class ModuleRounding:
    """Errors of modules in 16 bits to float32 on identical inputs, in units of their outputs.

    side: mean squares [modules]; draws: those of randomized rounding [draws, modules];
    score_scale: relative error of the scale of attention scores, by least squares over all modules,
    own_score_scale: of the model's own forward, drawn_score_scales: of the draws [draws]; NaN if
    the model says no scale.
    """

    names: tuple[str, ...]
    side: Floats
    draws: Floats
    score_scale: float
    own_score_scale: float
    drawn_score_scales: Floats

    @property
    def ratios(self) -> Floats:
        """RMS of the side over that of randomized rounding. [modules]"""
        # a module that only hands on an output has no rounding: a ratio of 1e6 at most
        least = np.maximum(1e-12 * self.side, np.finfo(np.float64).tiny)
        drawn = np.maximum(self.draws.mean(axis=0), least)
        return np.asarray(np.sqrt(self.side / drawn))


def module_rounding_row(rounding: ModuleRounding, side: str, dtype: str) -> Evidence:
    """Return the row on a side's modules. It never accuses: a lower precision looks the same."""
    ratios = rounding.ratios
    beyond = [
        name
        for name, ratio in zip(rounding.names, ratios, strict=True)
        if not ratio <= LARGEST_IN_16_BITS
    ]
    spread = float(np.std(rounding.drawn_score_scales))
    # the model's own forward is off too; a side nearer to float32 than that is no worse
    own = rounding.own_score_scale
    scale = min(rounding.score_scale, rounding.score_scale - own, key=abs)
    scale_limit = max(_LEAST_SCALE, _SCALE_SPREADS * spread)
    figures = ModuleRoundingFigures(
        compute_dtype=dtype,
        largest_ratio=float(ratios.max()),
        largest_ratio_allowed=LARGEST_IN_16_BITS,
        modules_beyond=tuple(beyond),
        modules=len(rounding.names),
    )
    if np.isfinite(scale):
        figures.score_scale = scale
        figures.largest_score_scale_allowed = scale_limit
    size = multiple(figures.largest_ratio)
    outcome = MISSING
    if beyond:
        modules = in_words(beyond, rounding.names)
        says = (
            f"In {dtype} {modules} of '{side}' reach {size} their rounding given identical inputs:"
            " a fault, or a lower precision?"
        )
    elif abs(scale) > scale_limit:
        direction = "large" if scale > 0 else "small"
        says = (
            f"In {dtype} the attention scores of '{side}' are {abs(scale):.2%} too {direction}"
            " given identical inputs: a rounded constant?"
        )
    else:
        outcome = PASSED
        says = (
            f"In {dtype} all {plural(len(rounding.names), 'module')} of '{side}' are within {size}"
            " their rounding given identical inputs."
        )
    control = f"every module of '{side}' in {dtype}, compared with float32 on identical inputs"
    return Evidence(MODULE_ROUNDING, control, figures, outcome, says, side)
