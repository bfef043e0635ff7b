"""Are logits NaN or infinite on one side only?"""

from collections.abc import Sequence
from typing import Annotated

from ..evidence import FAILED, VALIDITY, Check, CheckFigures, Evidence, FirstPlace, Mismatches
from ..places import FLOAT16_MAX, NotFinite, place_in_words
from ..text import plural


class NumbersFigures(CheckFigures):
    nonfinite_mismatch: Mismatches
    positions: Annotated[int, "positions with one"]
    first: FirstPlace
    token: Annotated[int | None, "token id of the first"] = None


NUMBERS = Check("NaN and infinity", VALIDITY, NumbersFigures)


def numbers_row(
    mismatch: NotFinite,
    lengths: Sequence[int],
    dtype: str,
    *,
    is_masked: bool,
) -> Evidence:
    """Return the row on such logits. is_masked: all of them are negative infinity."""
    reason = "mask, padding or kernel fault"
    if mismatch.is_overflow and dtype != "bfloat16":
        reason = f"an overflow of float16 (largest {FLOAT16_MAX:,.0f})"
    says = f"{mismatch.says(lengths)}: {reason}."
    if is_masked:
        count = plural(mismatch.logits, "logit is", "logits are")
        first = place_in_words(mismatch.rows[0], lengths)
        says = (
            f"{count} -inf on one side only, first at {first}, none is NaN: one side is masked,"
            " padded or cut."
        )
    return Evidence(
        NUMBERS,
        "NaN and infinities of one side vs the other",
        NumbersFigures(
            nonfinite_mismatch=mismatch.logits,
            positions=len(mismatch.rows),
            first=mismatch.place(lengths),
            token=None if is_masked else mismatch.token,
        ),
        FAILED,
        says,
    )
