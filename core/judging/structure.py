"""Structure of the outlier positions: the first one, to the end, at the boundaries of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..runs.file.evidence import NOTED, Check, Evidence, StructureFigures
from .places import place_in_words
from .statistic import BLOCKS, FloorTest

_LEAST_PLACES = 3  # that name a block: one place is a multiple of a larger block than its own every other time
_NO_BLOCK = 0.01  # chance that places anywhere are all multiples of a size, above which no block is named
_SMALLER_BLOCK = 0.05  # chance of places of a smaller block, above which that one is named too


@dataclass(frozen=True)
class Structure:
    """Places of the positions that stand out. starts: of runs of neighbouring ones; block: the likeliest size of
    `blocks` for these starts, None if chance explains them or they are too few; smaller_block: one that they do not
    rule out, None if they do; tail: they are all from the first one on. places: different starts except 0, which
    every block has.
    """

    rows: int
    first: tuple[int, int] | None
    starts: tuple[int, ...]
    block: int | None
    is_tail: bool
    smaller_block: int | None = None
    places: int = 0

    def figures(self, of: int | None = None) -> StructureFigures:
        """Its figures for evidence. of: positions looked at, if it is reported."""
        return StructureFigures(
            positions=self.rows,
            of=of,
            first=self.first,
            starts=self.starts,
            block=self.block,
            smaller_block=self.smaller_block,
            is_tail=self.is_tail,
        )

    @property
    def block_in_words(self) -> str:
        """`a multiple of 16, a block's boundary`; '' if no block is named."""
        if self.block is None:
            return ""
        if self.smaller_block is None:
            return f"a multiple of {self.block}, a block's boundary"
        return (
            f"a multiple of {self.block}: a boundary of blocks of {self.block}, or of {self.smaller_block}, which"
            f" {self.places} places do not tell apart"
        )


def structure_of(outliers: NDArray[np.int64], lengths: Sequence[int], blocks: Sequence[int] = BLOCKS) -> Structure:
    """`outliers`: rows, prompts of `lengths` positions one after another."""
    if not len(outliers):
        return Structure(0, None, (), None, False)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    prompts = np.searchsorted(begins, outliers, side="right") - 1
    places = outliers - begins[prompts]
    is_start = np.ones(len(outliers), bool)
    is_start[1:] = (np.diff(outliers) > 1) | (np.diff(prompts) > 0)
    starts = places[is_start]
    inner = np.unique(starts[starts > 0])  # every prompt starts at a multiple of everything
    block, smaller = _likeliest_block(inner, blocks)
    first = (int(prompts[0]), int(places[0]))
    is_tail = all(
        set(places[prompts == p]) >= set(range(int(places[prompts == p].min()), lengths[p])) for p in np.unique(prompts)
    )
    return Structure(len(outliers), first, tuple(int(s) for s in starts[:64]), block, is_tail, smaller, len(inner))


def _likeliest_block(places: NDArray[np.int64], blocks: Sequence[int]) -> tuple[int | None, int | None]:
    """(the size whose boundaries these places are most likely drawn from, the smallest other that chance leaves
    possible).

    Of a block of b tokens a boundary is a multiple of B with probability b / B, so n places that are all multiples of B
    are (B / b)^n times likelier under B; under no block at all (b = 1), B^n times.
    """
    fitting = sorted(size for size in blocks if not (places % size).any())
    if len(places) < _LEAST_PLACES or not fitting or float(fitting[-1]) ** -len(places) > _NO_BLOCK:
        return None, None
    best = fitting[-1]
    return best, next((size for size in fitting[:-1] if (size / best) ** len(places) > _SMALLER_BLOCK), None)


def outliers_evidence(
    shape: Structure, first: tuple[int, int] | None, test: FloorTest, dtype: str, lengths: Sequence[int]
) -> Evidence:
    """Return the row on the first place of the difference, in the dtype that decided. It never decides.

    first: first place of the fault, after the outliers if it is on top of a lower precision.
    """

    def row_of(place: tuple[int, int]) -> int:
        return sum(lengths[: place[0]]) + place[1]

    says = "No single position is an outlier: the difference is larger everywhere alike."
    if shape.first is not None:
        row = row_of(shape.first)
        reach = ", at every position" if shape.rows == sum(lengths) else ", and continues to the end" * shape.is_tail
        block = f"; every start is {shape.block_in_words}" if shape.block else ""
        says = f"It begins at {place_in_words(row, lengths)}{reach}{block}."
        if first is not None and first != shape.first:
            fault = place_in_words(row_of(first), lengths)
            says = f"Noise begins at {place_in_words(row, lengths)}, the fault at {fault}."
        elif shape.first[1] == 1 and not test.by_position[row - 1]:
            says += " Position 0 has one key only, so a fault of keys, masks or scales cannot show there."
    figures = replace(shape, first=first or shape.first).figures()
    return Evidence(Check.OUTLIERS, f"positions beyond what rounding reaches in {dtype}", figures, NOTED, says)
