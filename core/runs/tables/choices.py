"""Discrete choices that the model makes on each side of a run."""

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
    lowest_chosen DOUBLE NULL -- score at the cut: the lowest that was chosen
    highest_left_out DOUBLE NULL -- score at the cut: the highest that was not chosen
    dtype VARCHAR NULL -- dtype in which the model compares the scores; null if these are unknown
    margin_row_ulps DOUBLE NULL -- lowest_chosen minus highest_left_out, in spacings of dtype at the
    -- position's largest score; null if a score is not finite
    """,
)


def choice_rows(
    side: int,
    prompt: int,
    ordinal: int,
    call: tuple[str, int],
    ids: Ints,
    cut: Floats,
    dtype: str,
) -> pa.Table:
    """Return rows of one choice of a prompt's forwards. call: module, and its earlier choices in a
    forward; ids: ascending, -1 if there was no choice [positions, k]; cut: scores, the lowest
    chosen, the highest left out and the largest magnitude [positions, 3].
    """
    module, earlier = call
    positions = np.flatnonzero(ids[:, 0] >= 0)
    chosen, left_out, largest = cut[positions].T
    margins = (chosen - left_out) / spacings(largest, format_named(dtype))
    return CHOICE.arrow(
        side=side,
        prompt=prompt,
        ordinal=ordinal,
        module=module,
        call=earlier + 1,
        position=positions,
        ids=list(ids[positions]),
        lowest_chosen=chosen,
        highest_left_out=left_out,
        dtype=dtype,
        margin_row_ulps=null_if_nan(margins),
    )
