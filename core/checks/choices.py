"""Does a side take the experts or keys that the model takes, but for near ties?"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated

from ..evidence import (
    FAILED,
    FLOAT32,
    OWN_DTYPE,
    PASSED,
    Check,
    CheckFigures,
    Dtype,
    Evidence,
    FirstPlace,
    Limit,
)
from ..places import words_of
from ..text import multiple, plural

# How far apart the model's scores may be if a side takes the other one, over the largest difference
# that rounding makes there: a pair may differ by 4 noise floors. Sound sides reach 0.4.
LARGEST_GAP = 4.0


@dataclass(frozen=True)
class OtherChoices:
    """Choices of a side in a prompt that are not the model's. total: choices compared; others:
    position, module and gap of each, as modules run. Gap: how far apart the model's scores of the
    two are, over what rounding moves scores there.
    """

    total: int
    others: list[tuple[int, str, float]]


class ChoicesFigures(CheckFigures):
    """Experts or keys that a side would have taken, if all earlier choices were the model's."""

    compute_dtype: Dtype
    choices: Annotated[int, "choices, a position and layer each"]
    differing: Annotated[int, "choices that differ"]
    beyond: Annotated[int, "choices that differ beyond a near tie"]
    largest_gap: Annotated[float, "largest difference of the scores / what rounding moves them"]
    largest_gap_allowed: Limit
    rounding_row_ulps: Annotated[float | None, "what rounding moves a score at most, row ULPs"] = (
        None
    )
    replayed_share: Annotated[
        float | None,
        "RMS difference of the logits with the model's choices / with each side's own",
    ] = None
    first: FirstPlace = None

    @property
    def names_position(self) -> bool:
        return self.first is not None


CHOICES = Check("choices", FLOAT32, ChoicesFigures)
CHOICES_IN_16_BITS = Check("choices in 16 bits", OWN_DTYPE, ChoicesFigures)


def choices_row(
    found: Sequence[OtherChoices],
    lengths: Sequence[int],
    side: str,
    dtype: str,
    rounding_row_ulps: float | None = None,
    replayed_share: float | None = None,
) -> Evidence:
    """Return the row on a side's choices. found: of each prompt; the others are figures."""
    others = [(prompt, *each) for prompt, one in enumerate(found) for each in one.others]
    beyond = [each for each in others if each[-1] > LARGEST_GAP]
    total = sum(one.total for one in found)
    figures = ChoicesFigures(
        compute_dtype=dtype,
        choices=total,
        differing=len(others),
        beyond=len(beyond),
        largest_gap=max((gap for *_, gap in others), default=0.0),
        largest_gap_allowed=LARGEST_GAP,
        rounding_row_ulps=rounding_row_ulps,
        replayed_share=replayed_share,
    )
    of_all = f"{len(others):,} of {plural(total, 'choice')}"
    of_all = f"In {dtype} '{side}' takes other experts or keys at {of_all}"
    outcome = PASSED
    says = f"{of_all}, each a near tie."
    if not others:
        says = f"In {dtype} '{side}' takes the experts or keys that the model takes."
    if beyond:
        outcome = FAILED
        # the first position and, there, the first that ran
        prompt, position, module, _ = min(beyond, key=itemgetter(0, 1))
        figures.first = prompt, position
        size = f"up to {multiple(figures.largest_gap)} what rounding moves their scores"
        place = words_of(figures.first, lengths)
        says = f"{of_all}, {size}, first at {module}, {place}."
    return Evidence(
        CHOICES if dtype == "float32" else CHOICES_IN_16_BITS,
        f"what '{side}' would take by itself in {dtype}, one choice at a time",
        figures,
        outcome,
        says,
        side,
    )
