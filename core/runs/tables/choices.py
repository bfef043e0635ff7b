"""Discrete choices that the model makes on each side of a run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ...numerics.arrays import Floats, Ints
from ...numerics.formats import format_named, spacings
from ..file.table import Table, null_if_nan

CHOICE = Table(
    "choice",
    """
    -- what a side chose at each position: experts of a router, keys of a sparse-attention indexer;
    -- no rows if the model makes no choices, or they were not recorded
    side INTEGER -- index of the side
    prompt INTEGER -- index of the prompt
    ordinal INTEGER -- 0-based place in the order in which the choices were first made
    module VARCHAR -- name of the module that chooses
    call INTEGER -- 1-based: the choice among those of its module in a forward; the last is of
    -- experts or keys, earlier ones of their groups
    position INTEGER -- 0-based token index in its prompt
    ids INTEGER[] -- experts, groups or positions of keys that were chosen, ascending
    lowest_chosen DOUBLE -- score at the cut: the lowest that was chosen
    highest_left_out DOUBLE -- score at the cut: the highest that was not chosen
    dtype VARCHAR -- dtype in which the model compares the scores
    margin_row_ulps DOUBLE NULL -- lowest_chosen minus highest_left_out, in spacings of dtype at the
    -- position's largest score; null if a score is not finite
    """,
)


@dataclass(frozen=True)
class ChosenPart:
    """What one call chose at some positions of a prompt.

    ids: [positions, k], ascending; scores: the lowest one chosen, the highest one left out and the
    largest magnitude, [3, positions].
    """

    positions: Ints
    ids: Ints
    scores: Floats
    dtype: str


def choice_rows(
    side: int,
    prompt: int,
    place: tuple[int, str, int],
    parts: Sequence[ChosenPart],
) -> pa.Table:
    """Return rows of one choice of a prompt's forwards. place: ordinal, module and call."""
    ordinal, module, call = place
    # of a position that was computed twice the last counts
    backwards = np.concatenate([part.positions for part in parts])[::-1]
    positions, last = np.unique(backwards, return_index=True)
    ids = np.concatenate([part.ids for part in parts])[::-1][last]
    scores = np.concatenate([part.scores for part in parts], axis=1)
    chosen, left_out, largest = scores[:, ::-1][:, last]
    dtype = parts[0].dtype
    margins = (chosen - left_out) / spacings(largest, format_named(dtype))
    return CHOICE.arrow(
        side=side,
        prompt=prompt,
        ordinal=ordinal,
        module=module,
        call=call,
        position=positions,
        ids=list(ids),
        lowest_chosen=chosen,
        highest_left_out=left_out,
        dtype=dtype,
        margin_row_ulps=null_if_nan(margins),
    )
