"""Do rows of the two sides agree best as they stand, or one or two further along?"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np

from ..evidence import FAILED, VALIDITY, Check, CheckFigures, Evidence
from ..numerics.arrays import Array
from ..text import plural

_LEAST_ROWS = 8  # fewer say nothing about a shift
_LEAST_TOKENS = 4  # different argmaxes, or every shift agrees
# A shift is believed if half of the rows agree under it, and twice as many as without one.
_AGREES, _MORE_OFTEN = 0.5, 2.0
_SHIFTS = {"unshifted": 0, "two_earlier": -2, "one_earlier": -1, "one_later": 1, "two_later": 2}
_IN_JSON = {name: f"same_argmax_shifted_by_{rows}" for name, rows in _SHIFTS.items()}


class ShiftFigures(CheckFigures, rename=_IN_JSON):
    """Share of the positions at which the argmax is the same."""

    unshifted: Annotated[float, "same argmax, both in row t"]
    two_earlier: Annotated[float, "same argmax, variant row t and reference row t + 2"]
    one_earlier: Annotated[float, "same argmax, variant row t and reference row t + 1"]
    one_later: Annotated[float, "same argmax, variant row t and reference row t - 1"]
    two_later: Annotated[float, "same argmax, variant row t and reference row t - 2"]


SHIFT = Check("shift", VALIDITY, ShiftFigures)


def shift_row(columns: Mapping[str, Array], names: tuple[str, str]) -> Evidence | None:
    """Return the row on a shift, None if there is none. columns: argmaxes by position, as
    `run.columns` gives them.
    """
    reference, variant, prompts = (
        columns[name] for name in ("reference_token", "variant_token", "prompt")
    )
    counts = {}
    shares = {}
    for name, shift in _SHIFTS.items():
        rows = np.arange(max(0, -shift), len(prompts) - max(0, shift))
        others = rows + shift
        # rows of a prompt of which both sides have an argmax
        is_known = ~np.isnan(reference[rows]) & ~np.isnan(variant[others])
        is_usable = is_known & (prompts[rows] == prompts[others])
        is_same = (reference[rows] == variant[others])[is_usable]
        counts[name] = len(is_same)
        shares[name] = float(is_same.mean()) if len(is_same) else 0.0
    unshifted = shares["unshifted"]
    best = max(list(shares)[1:], key=shares.__getitem__)
    tokens = np.unique(np.append(reference, variant))
    is_varied = np.isfinite(tokens).sum() >= _LEAST_TOKENS and counts[best] >= _LEAST_ROWS
    if not is_varied or shares[best] < _AGREES or shares[best] <= _MORE_OFTEN * unshifted:
        return None
    agrees = f"argmaxes agree at {shares[best]:.0%} of positions, unshifted at {unshifted:.0%}"
    return Evidence(
        SHIFT,
        "argmaxes of the two sides, up to two rows apart",
        ShiftFigures(**shares),
        FAILED,
        f"{shift_in_words(names, -_SHIFTS[best])} ({agrees}).",
    )


def shift_in_words(names: tuple[str, str], shift: int) -> str:
    """Say how far the rows of the variant are from those of the reference. names: of both."""
    row = f"row t {'+' if shift > 0 else '-'} {abs(shift)}"
    by = plural(abs(shift), "row")
    return f"'{names[1]}' is shifted by {by}: its row t holds {row} of '{names[0]}'"
