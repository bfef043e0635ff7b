"""Places of the positions that stand out: from where on, to the end, at the boundaries of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...runs.file.evidence import NOTED, PASSED, Check, Evidence, StructureFigures
from .noise_ratio import FloorTest
from .places import place_in_words

BLOCKS = (8, 16, 32, 64, 128, 256)  # block sizes that engines use
_LEAST_PLACES = 3  # that name a block: one place is a multiple of a larger block than its own every other time
_NO_BLOCK = 0.01  # chance that places anywhere are all multiples of a size, above which no block is named
_SMALLER_BLOCK = 0.05  # chance that places of a smaller block are, above which that one is named beside it


@dataclass(frozen=True)
class Structure:
    """Places of the positions that stand out. starts: of runs of neighbouring ones; block: the likeliest size of
    `blocks` for these starts, None where chance explains them or they are too few; smaller_block: one that they do not
    rule out, None where they do; tail: they are all from the first one on. places: different starts beside 0, which
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
        """Its figures for evidence. of: positions looked at, where that is to be said."""
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
        """`a multiple of 16, a block's boundary`; '' where no block is named."""
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


def structure_evidence(shown: Structure, test: FloorTest, lengths: Sequence[int]) -> Evidence:
    """The row on where positions stand out from the deciding floor. Never decides."""
    outcome, says = PASSED, "No position stands out from the floor."
    if shown.rows:
        outcome = NOTED
        reach = " and is everywhere" if shown.rows == sum(lengths) else " and goes on to the end" * shown.is_tail
        block = f"; every place where it begins is {shown.block_in_words}" if shown.block else ""
        first = place_in_words(int(test.outliers[0]), lengths)
        says = f"It begins at {first}{_of_position_0(shown, test)}{reach}{block}."
    elif test.ratio > test.largest_ratio:
        outcome, says = NOTED, "No position stands out from the floor, it is larger everywhere alike."
    control = "positions of the pair that stand out from the floor, in the dtype that decided"
    return Evidence(Check.OUTLIERS, control, shown.figures(), outcome, says)


def structure_in_16_bits(shown: Structure, dtype: str, lengths: Sequence[int]) -> Evidence:
    """The row on where a side stands out from roundings drawn anew in 16 bits. Never decides."""
    says = "No single position stands out."
    if shown.first is not None:
        prompt, position = shown.first
        says = f"It begins at {place_in_words(sum(lengths[:prompt]) + position, lengths)}."
    control = f"positions that stand out from roundings drawn anew in {dtype}"
    return Evidence(Check.OUTLIERS, control, shown.figures(), NOTED, says)


def _of_position_0(shown: Structure, test: FloorTest) -> str:
    """Reason why a fault that begins at position 1 may have been made at 0: one key has all the weight there, whatever
    the key and the scale are.
    """
    if shown.first is None or shown.first[1] != 1:
        return ""
    ratio = float(test.by_position[test.outliers[0] - 1])
    if ratio:
        return f" (at position 0 it is {ratio:.2f} times the floor)"
    return (
        " (position 0, where attention has one key only, is equal: a fault of keys, masks, scales or positions cannot"
        " show there)"
    )
