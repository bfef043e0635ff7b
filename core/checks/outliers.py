"""Which positions stand out, or differ at all, and which structure do they have? It never
decides.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import structs

from ..evidence import (
    NOTED,
    STRUCTURE,
    Check,
    CheckFigures,
    Evidence,
    FirstPlace,
    Positions,
)
from ..numerics.arrays import Ints
from ..numerics.statistic import BLOCKS, FloorTest
from ..places import place_in_words, words_of
from ..text import number, plural

# that name a block: one place is a multiple of a larger block than its own every other time
_LEAST_PLACES = 3
# chance that places anywhere are all multiples of a size, above which no block is named
_NO_BLOCK = 0.01


class StructureFigures(CheckFigures, kw_only=True):
    positions: Positions
    of: Annotated[int | None, "positions compared"] = None
    first: FirstPlace
    starts: Annotated[tuple[int, ...], "positions at which outliers start"]
    block: Annotated[int | None, "block size"]
    is_tail: Annotated[bool, "continues to the end"]


OUTLIERS = Check("positions that stand out", STRUCTURE, StructureFigures)
DIFFERING = Check("positions that differ", STRUCTURE, StructureFigures)


def structure_of(
    outliers: Ints,
    lengths: Sequence[int],
    blocks: Sequence[int] = BLOCKS,
) -> StructureFigures:
    """Structure of the outlier positions, prompts of `lengths` positions one after another: the
    first one, starts of runs of neighbouring ones, the block size whose boundaries they are,
    whether they are all from the first one on.
    """
    if not len(outliers):
        return StructureFigures(positions=0, first=None, starts=(), block=None, is_tail=False)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    prompts = np.searchsorted(begins, outliers, side="right") - 1
    places = outliers - begins[prompts]
    starts = places[np.append(True, (np.diff(outliers) > 1) | (np.diff(prompts) > 0))]
    of_prompts = [(lengths[p], places[prompts == p]) for p in np.unique(prompts)]
    # Of a block of b tokens a boundary is a multiple of B with probability b / B, so n places that
    # are all multiples of B are B^n times likelier under B than under no block. Every prompt starts
    # at a multiple of everything, so 0 is left out.
    inner = np.unique(starts[starts > 0])
    block = max((size for size in blocks if not (inner % size).any()), default=1)
    is_block = len(inner) >= _LEAST_PLACES and block ** -len(inner) <= _NO_BLOCK
    return StructureFigures(
        positions=len(outliers),
        first=(int(prompts[0]), int(places[0])),
        starts=tuple(starts[:64].tolist()),
        block=block if is_block else None,
        is_tail=all(len(mine) == length - mine[0] for length, mine in of_prompts),
    )


def outliers_row(
    shape: StructureFigures,
    first: tuple[int, int] | None,
    test: FloorTest,
    dtype: str,
    lengths: Sequence[int],
) -> Evidence:
    """Return the row on the first place of the difference, in the dtype that decided. It never
    decides.

    first: first place of the fault, after the outliers if it is on top of a lower precision.
    """
    says = "No single position is an outlier: the difference is similar everywhere."
    if shape.first:
        prompt, position = shape.first
        row, place = sum(lengths[:prompt]) + position, words_of(shape.first, lengths)
        verb = "exceeds" if shape.positions == 1 else "exceed"
        who = f"{shape.positions:,} of {plural(sum(lengths), 'position')}, first {place}, {verb}"
        if shape.is_tail and len(lengths) == 1:
            who = f"Positions {row} to the end exceed" if row else "All positions exceed"
        block = ""
        if shape.block:
            block = f"; starts are multiples of {shape.block}, like blocks of a KV cache"
        limit = f"{number(test.position.limit)}x"
        says = f"{who} the {dtype} limit of one position ({limit}){block}."
        if first and first != shape.first:
            says = (
                f"Noise of the precision begins at {place}, the fault at"
                f" {words_of(first, lengths)}."
            )
        elif position == 1 and not test.by_position[row - 1]:
            says += (
                " Position 0 attends to one key only: faults of keys, masks or scales cannot show"
                " there."
            )
    return Evidence(
        OUTLIERS,
        f"positions above the limit of rounding in {dtype}",
        structs.replace(shape, first=first or shape.first),
        NOTED,
        says,
    )


def differing_row(rows: Ints, lengths: Sequence[int]) -> Evidence:
    """Return the row on the positions with a bit that differs."""
    total = sum(lengths)
    shape = structs.replace(structure_of(rows, lengths), of=total)
    tail = ", and all after it" if 1 < len(rows) < total and shape.is_tail else ""
    block = f"; differences begin at multiples of {shape.block}" if shape.block else ""
    first = place_in_words(rows[0], lengths)
    differ = "differs" if len(rows) == 1 else "differ"
    return Evidence(
        DIFFERING,
        "positions with a bit that differs",
        shape,
        NOTED,
        f"{len(rows):,} of {plural(total, 'position')} {differ}, first {first}{tail}{block}.",
    )
