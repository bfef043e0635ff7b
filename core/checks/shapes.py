"""Do both sides have the same shape and token ids, and are the ids in the vocabulary?"""

from typing import Annotated

from ..evidence import (
    FAILED,
    NOTED,
    PASSED,
    VALIDITY,
    Check,
    CheckFigures,
    Evidence,
    Positions,
)
from ..text import plural


class ShapesFigures(CheckFigures):
    positions: Positions
    vocab: Annotated[int, "vocabulary"]
    highest_token_id: Annotated[int | None, "highest token id"]


SHAPES = Check("shapes and tokens", VALIDITY, ShapesFigures)


def shapes_row(rows: int, width: int, highest: int | None, *, has_tokens: bool) -> Evidence:
    """Return the row on sides of one shape. width: tokens, or values that are no logits; highest:
    token id, None if the dump has none.
    """
    outcome = PASSED
    control = "shapes, and token ids vs the vocabulary"
    shape = f"Both sides have {plural(rows, 'position')} x {width:,} tokens"
    says = f"{shape} and the same token ids."
    if not has_tokens:
        highest = None
        control = "shapes"
        says = f"Both sides have {plural(rows, 'row')} x {plural(width, 'value')}."
    elif highest is None:
        outcome = NOTED
        says = f"{shape}; the dump has no token_ids."
    elif highest >= width:
        outcome = FAILED
        says = (
            f"Token ids reach {highest:,}, beyond the {width:,} logits of a row: they belong to"
            " another vocabulary."
        )
    figures = ShapesFigures(positions=rows, vocab=width, highest_token_id=highest)
    return Evidence(SHAPES, control, figures, outcome, says)
