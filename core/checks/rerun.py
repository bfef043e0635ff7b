"""Does each side repeat its bits when it is called again, and if not, how far does it go?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from ..evidence import FAILED, PASSED, RERUN, Check, CheckFigures, Evidence, Subject, WorstRatio
from ..numerics.arrays import Floats
from ..numerics.statistic import floor_test, rms_of
from ..places import place_in_words
from ..text import multiple, number, plural
from .pair import OWN, WIDE, WIDE_DTYPES


@dataclass(frozen=True)
class Rerun:
    """Sides that were called twice. unstable: those whose bits differ; squares: the largest
    difference of a side from itself [positions], None if not measured; mismatches: logits that are
    not finite in one call only.
    """

    control: str
    sides: tuple[str, ...]
    unstable: tuple[str, ...]
    squares: Floats | None = None
    mismatches: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)


class RerunFigures(CheckFigures):
    """All but the first of a dump alone, whose reruns are uploaded."""

    not_repeatable: Annotated[tuple[str, ...], "sides that do not repeat"]
    rerun_rms_logits: Annotated[float | None, "RMS of the rerun to its first call, logits"] = None
    rerun_neq: Annotated[
        Mapping[str, int | None] | None,
        "logits that differ in the rerun, by side",
    ] = None
    rerun_noise_ratio: Annotated[float | None, "rerun / noise floor, RMS"] = None
    largest_ratio_allowed: Annotated[float | None, "its limit"] = None
    rerun_worst_position_ratio: WorstRatio = None
    beyond_noise_floor: Annotated[bool | None, "the rerun differs by more than rounding"] = None
    rerun_row_ulps: Annotated[float | None, "largest difference of the rerun, row ULPs"] = None

    @property
    def names_position(self) -> bool:
        return self.rerun_noise_ratio is not None


AGAIN = Check("each side again", RERUN, RerunFigures)


def rerun_row(rerun: Rerun, names: Sequence[str]) -> Evidence:
    """Return whether each side repeats its bits. names: of both sides."""
    figures = RerunFigures(not_repeatable=rerun.unstable, **rerun.figures)
    others = [name for name in names if name not in rerun.sides]
    says = "Both sides are bitwise reproducible from run to run."
    if rerun.unstable:
        size = figures.rerun_row_ulps
        far = f": two calls differ by up to {number(size, 3)} row ULPs" if size else ""
        verb = "is" if len(rerun.unstable) == 1 else "are"
        says = f"{_quote(rerun.unstable)} {verb} not bitwise reproducible{far}."
    elif others:
        says = f"{_quote(rerun.sides)} is bitwise reproducible; {_quote(others)} has no rerun."
    return Evidence(AGAIN, rerun.control, figures, FAILED if rerun.unstable else PASSED, says)


def rerun_over_floor(subject: Subject, rerun: Rerun, squares: Floats, floor: Floats) -> Evidence:
    """Compare the difference of a side from itself with the noise floor in the same dtype."""
    is_16_bits = subject.dtype not in WIDE_DTYPES
    limits = OWN if is_16_bits else WIDE
    test = floor_test(squares, floor, limits)
    worst, limit = test.worst or 0.0, test.position.limit
    # in 16 bits a near tie of a router may move one position as far as it likes
    at_one = np.inf if subject.has_experts and is_16_bits else limits.over_all
    if np.isfinite(limit):
        at_one = max(at_one, limit)
    is_beyond = bool(rerun.mismatches) or test.ratio > limits.over_all or worst > at_one
    sizes = {}
    size = f"differs between two calls by {multiple(test.ratio)} the noise floor"
    if rerun.mismatches:
        logits = plural(rerun.mismatches, "logit")
        says = f"has {logits} that are NaN or infinite in one of two calls."
    else:
        sizes = {"rerun_noise_ratio": test.noise_ratio, "rerun_worst_position_ratio": worst}
        if not is_beyond:
            says = f"{size}, as rounding does."
        elif subject.chooses_keys:
            is_beyond = False
            says = f"{size}: other keys, by near ties of the indexer?"
        else:
            place = place_in_words(test.position.worst_place, subject.lengths)
            says = f"{size}, up to {multiple(worst)} at {place}, more than rounding."
    sizes["rerun_rms_logits"] = rms_of(squares)
    says = f"{_quote(rerun.unstable)} {says}"
    return Evidence(
        AGAIN,
        rerun.control,
        RerunFigures(
            not_repeatable=rerun.unstable,
            largest_ratio_allowed=limits.over_all,
            beyond_noise_floor=is_beyond,
            **{**rerun.figures, **sizes},
        ),
        FAILED,
        says,
    )


def _quote(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
