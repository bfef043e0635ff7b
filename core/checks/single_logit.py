"""Does one logit differ far more than the others at its position? Rounding moves them alike."""

from collections.abc import Callable
from typing import Annotated

import numpy as np

from ..evidence import FAILED, OWN_DTYPE, Check, CheckFigures, Dtype, Evidence, Limit, Subject
from ..numerics.arrays import Floats
from ..places import place_in_words, place_of
from ..text import multiple

# Largest difference at a position over the others there: of rounding up to 8, in tiny models and
# SmolLM2 alike.
LARGEST_PEAK = 16.0


class SingleLogitFigures(CheckFigures):
    """A logit that differs far more than the others at its position."""

    names_position = True

    compute_dtype: Dtype
    ratio_to_others: Annotated[float, "difference of the logit / RMS of the others at its position"]
    largest_ratio_allowed: Limit
    positions_beyond: Annotated[int, "positions with such a logit"]
    first: Annotated[tuple[int, int], "first (prompt, position)"]
    token: Annotated[int, "token id of the first"]


SINGLE_LOGIT = Check("a single logit", OWN_DTYPE, SingleLogitFigures)


def single_logit_row(
    subject: Subject,
    peaks: Floats | None,
    differences: Callable[[int, str], Floats | None],
) -> Evidence | None:
    """Return the row on the first such logit, None if there is none.

    peaks: `peaks_of` of every position, None if not measured; differences: returns the squared
    differences of a row in a dtype [vocab].
    """
    if peaks is None or peaks.max() <= LARGEST_PEAK:
        return None
    rows = np.flatnonzero(peaks > LARGEST_PEAK)
    row = int(rows[0])
    squares = differences(row, subject.dtype)
    assert squares is not None  # what has peaks has logits
    token, place = int(squares.argmax()), place_in_words(row, subject.lengths)
    reach = f"{multiple(float(peaks[row]))} the others at {place}"
    return Evidence(
        SINGLE_LOGIT,
        "logits compared with the others at their position",
        SingleLogitFigures(
            compute_dtype=subject.dtype,
            ratio_to_others=float(peaks[row]),
            largest_ratio_allowed=LARGEST_PEAK,
            positions_beyond=len(rows),
            first=place_of(row, subject.lengths),
            token=token,
        ),
        FAILED,
        f"Token {token} differs by {reach}: rounding moves no logit alone.",
    )
