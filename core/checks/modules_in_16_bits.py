"""Is each module of a side in 16 bits within its own rounding, given identical inputs?

A fault of one module hides in the rounding of all the others at the logits.
"""

from collections.abc import Mapping
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


class ModuleRoundingFigures(CheckFigures):
    """The modules of a side in 16 bits, each given identical inputs."""

    leaves_16_bits_open = True  # a module beyond its rounding is a fault or a lower precision

    compute_dtype: Dtype
    largest_ratio: Annotated[float, "largest RMS error of a module / RMS error of its rounding"]
    largest_ratio_allowed: Limit
    modules_beyond: Annotated[tuple[str, ...], "modules that differ by more given identical inputs"]
    modules: Annotated[int, "modules"]
    directions: Annotated[Mapping[str, str], "modules whose errors have a direction"] = {}


MODULE_ROUNDING = Check("each module in 16 bits", OWN_DTYPE, ModuleRoundingFigures)


@dataclass(frozen=True)
class ModuleRounding:
    """Errors of modules in 16 bits to float32 on identical inputs.

    side: mean squares [modules]; draws: those of randomized rounding [draws, modules]; directions:
    of modules whose errors have one, in words.
    """

    names: tuple[str, ...]
    side: Floats
    draws: Floats
    directions: Mapping[str, str]

    @property
    def ratios(self) -> Floats:
        """RMS of the side over that of randomized rounding. [modules]"""
        # a module that only hands on an output has no rounding: a ratio of 1e6 at most
        least = np.maximum(1e-12 * self.side, np.finfo(np.float64).tiny)
        drawn = np.maximum(self.draws.mean(axis=0), least)
        return np.sqrt(self.side / drawn)


def module_rounding_row(rounding: ModuleRounding, side: str, dtype: str) -> Evidence:
    """Return the row on a side's modules. It never accuses: a lower precision looks the same."""
    ratios = rounding.ratios
    beyond = [
        name
        for name, ratio in zip(rounding.names, ratios, strict=True)
        if not ratio <= LARGEST_IN_16_BITS
    ]
    figures = ModuleRoundingFigures(
        compute_dtype=dtype,
        largest_ratio=float(ratios.max()),
        largest_ratio_allowed=LARGEST_IN_16_BITS,
        modules_beyond=tuple(beyond),
        modules=len(rounding.names),
        directions=rounding.directions,
    )
    size = multiple(figures.largest_ratio)
    outcome = MISSING
    if beyond:
        modules = in_words(beyond, rounding.names)
        says = (
            f"In {dtype} {modules} of '{side}' reach {size} their rounding given identical inputs:"
            " a fault, or a lower precision?"
        )
    elif rounding.directions:
        modules = in_words(list(rounding.directions), rounding.names)
        direction = next(iter(rounding.directions.values()))
        says = (
            f"In {dtype} the errors of {modules} of '{side}' have a direction ({direction}) given"
            " identical inputs: a fault, or a lower precision?"
        )
    else:
        outcome = PASSED
        says = (
            f"In {dtype} all {plural(len(rounding.names), 'module')} of '{side}' are within {size}"
            " their rounding given identical inputs."
        )
    return Evidence(
        MODULE_ROUNDING,
        f"every module of '{side}' in {dtype}, compared with float32 on identical inputs",
        figures,
        outcome,
        says,
        side,
    )
