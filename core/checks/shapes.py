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


def value_shapes_row(rows: int, values: int) -> Evidence:
    """Return the row on sides of one shape whose rows are no logits."""
    return Evidence(
        SHAPES,
        "shapes",
        ShapesFigures(positions=rows, vocab=values, highest_token_id=None),
        PASSED,
        f"Both sides have {plural(rows, 'row')} x {plural(values, 'value')}.",
    )


def shapes_row(positions: int, vocab: int, highest: int | None) -> Evidence:
    """Return the row on sides of one shape. highest: token id, None if the dump has none."""
    shape = f"Both sides have {plural(positions, 'position')} x {vocab:,} tokens"
    outcome, says = PASSED, f"{shape} and the same token ids."
    if highest is None:
        outcome, says = NOTED, f"{shape}; the dump has no token_ids."
    elif highest >= vocab:
        outcome = FAILED
        says = (
            f"Token ids reach {highest:,}, beyond the {vocab:,} logits of a row: they belong to"
            " another vocabulary."
        )
    return Evidence(
        SHAPES,
        "shapes, and token ids vs the vocabulary",
        ShapesFigures(positions=positions, vocab=vocab, highest_token_id=highest),
        outcome,
        says,
    )
