"""Are rows of a dump cut to few tokens, masked, padded, or of one value?"""

from typing import Annotated

from ..evidence import FAILED, NOTED, VALIDITY, Check, CheckFigures, Evidence
from ..text import series
from .probabilities import DumpSide


class TruncationFigures(CheckFigures):
    reference_filled_rows: Annotated[int, "rows of the reference that one value fills"]
    variant_filled_rows: Annotated[int, "rows of the variant that one value fills"]
    least_other_logits: Annotated[int | None, "least number of other logits in such a row"]


TRUNCATION = Check("truncation", VALIDITY, TruncationFigures)


def truncation_row(
    sides: tuple[DumpSide, DumpSide],
    positions: int,
    *,
    has_mismatch: bool,
) -> Evidence | None:
    """Return the row on rows that one value fills, None if there are none. has_mismatch: a logit is
    not finite on one side only.
    """
    filled_sides = [side for side in sides if side.filling.rows]
    if not filled_sides:
        return None
    most = max((side.filling for side in filled_sides), key=lambda filling: filling.rows)
    holds = filled_sides[0].holds
    least = min(side.filling.others for side in filled_sides)
    place = f"{most.rows:,} of {positions:,} positions"
    if most.rows == positions:
        place = "every position"
    verb = "holds" if len(filled_sides) == 1 else "hold"
    who = f"{series([repr(side.name) for side in filled_sides])} {verb}"
    clause = f"{holds} cut or masked to {least:,} tokens at {place}, {most.value:g} elsewhere"
    outcome, says = FAILED, f"{who} {clause}. Save the {holds} before that."
    if all(side.is_cut for side in sides) and not has_mismatch:
        outcome = NOTED
        says = (
            f"Both sides mask more than half of the vocabulary at {place}: only other logits are"
            " compared."
        )
    elif most.whole == most.rows and most.value != 0:
        says = (
            f"{who} one value, {most.value:g}, for all tokens at {place}: the output head computes"
            " nothing."
        )
    elif most.value == 0 and most.whole == most.rows:
        says = f"{who} rows of zeros at {place}: padding, or rows that were never written."
    elif most.value == 0:
        says = (
            f"{who} {clause}. If these are no logits, as of a sparse encoder, pass --holds values."
        )
    mine, theirs = (side.filling.rows for side in sides)
    return Evidence(
        TRUNCATION,
        "rows that one single value fills to more than a half",
        TruncationFigures(
            reference_filled_rows=mine,
            variant_filled_rows=theirs,
            least_other_logits=least,
        ),
        outcome,
        says,
    )
