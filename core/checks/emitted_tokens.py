"""Is each emitted token the argmax of its own logits?"""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

from ..evidence import FAILED, PASSED, SAMPLER, Check, CheckFigures, Evidence
from ..places import place_in_words


class SamplerFigures(CheckFigures):
    names_position = True

    tokens: Annotated[int, "emitted tokens"]
    not_the_argmax: Annotated[int, "tokens that are not the argmax"]
    first: Annotated[int | None, "first of them, counted among the emitted tokens"]


EMITTED = Check("emitted tokens", SAMPLER, SamplerFigures)


def sampler_evidence(
    choices: Sequence[tuple[int, int]],
    argmaxes: Mapping[int, Collection[int]],
    side: str,
    lengths: Sequence[int],
) -> Evidence:
    """Check whether each emitted token has the largest logit of the row it was chosen from.

    choices: (row, token) of each; argmaxes: the token ids with the largest logit, by row; lengths:
    positions by prompt.
    """
    wrong = [
        index for index, (row, token) in enumerate(choices) if token not in argmaxes.get(row, ())
    ]
    outcome, says = PASSED, "Every emitted token is the argmax of its own logits."
    if wrong:
        outcome, first = FAILED, place_in_words(choices[wrong[0]][0], lengths)
        count = f"{len(wrong):,} of {len(choices):,} emitted tokens"
        says = (
            f"{count} are not the argmax of their own logits, first at {first}: a fault of the"
            " sampler."
        )
    return Evidence(
        EMITTED,
        f"emitted tokens vs the argmax of '{side}'s own logits",
        SamplerFigures(
            tokens=len(choices),
            not_the_argmax=len(wrong),
            first=wrong[0] if wrong else None,
        ),
        outcome,
        says,
        side,
    )
