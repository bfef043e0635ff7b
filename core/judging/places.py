"""Places of positions, prompts one after another: in words, where logits are not finite, and which
stand out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from ..numerics.statistic import BLOCKS, SYSTEMATIC, FloorTest
from ..runs.file.evidence import NOTED, Check, Evidence, StructureFigures
from ..text import multiple, plural

FLOAT16_MAX = 65504.0
# that name a block: one place is a multiple of a larger block than its own every other time
_LEAST_PLACES = 3
# chance that places anywhere are all multiples of a size, above which no block is named
_NO_BLOCK = 0.01


def place_of(row: int, lengths: Sequence[int]) -> tuple[int, int]:
    """(prompt, position) of a row of prompts of these lengths, one after another."""
    begins = np.cumsum([0, *lengths])
    prompt = int(np.searchsorted(begins, row, side="right")) - 1
    return prompt, int(row - begins[prompt])


def place_in_words(row: int, lengths: Sequence[int]) -> str:
    """`position 3 of prompt 1`; of a single prompt the position alone."""
    return words_of(place_of(row, lengths), lengths)


def words_of(place: tuple[int, int], lengths: Sequence[int]) -> str:
    """Return `place_in_words` of a (prompt, position)."""
    prompt, position = place
    return f"position {position}" + (f" of prompt {prompt}" if len(lengths) > 1 else "")


def beyond_in_words(test: FloorTest, size: str, lengths: Sequence[int]) -> str:
    """Say how large a difference is, and what lies beyond the limits. size: `In float32 the RMS
    difference is ...`.
    """
    exceeding = [each for each in test.places if len(each.outliers)]
    if test.ratio > test.limits.over_all or not exceeding:
        return f"{size} (limit for rounding: {test.limits.over_all:g}x)."
    most = exceeding[0]
    worst = multiple(most.worst)
    place = f"{worst} at {most.kind} {most.worst_place}"
    if most.kind == SYSTEMATIC:
        place = f"{worst} in its systematic part"
    elif most is test.position:
        first = place_in_words(int(test.outliers[0]), lengths)
        is_one = len(test.outliers) == 1
        place = f"{worst} at {first}" if is_one else f"up to {worst} from {first}"
    return f"{size}, but {place} (limit for rounding: {most.limit:.3g}x)."


@dataclass(frozen=True)
class NotFinite:
    """Logits that are NaN or infinite on one side and not, or not alike, on the other: such a
    difference has no size.

    by_row: how many at each position; token, text: the lowest token at the first such position, ''
    if unknown; sides, values: names of reference and variant, and their values there; largest: of
    the other side there, NaN if not read.
    """

    by_row: NDArray[np.int64]
    token: int
    text: str
    sides: tuple[str, str]
    values: tuple[float, float]
    largest: float = np.nan

    @property
    def is_overflow(self) -> bool:
        """True if the other side's logits come near the largest number of float16."""
        return self.largest > FLOAT16_MAX / 2 and -np.inf not in self.values

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.by_row)

    @property
    def logits(self) -> int:
        return int(self.by_row.sum())

    def says(self, lengths: Sequence[int]) -> str:
        """`'mine' is NaN at position 3, token 7 (' the'), where 'prefill' is 1.25 (54 such
        logits)`.
        """
        wrong = 0 if np.isfinite(self.values[1]) else 1
        text = f" ({self.text!r})" if self.text else ""
        place = f"{place_in_words(int(self.rows[0]), lengths)}, token {self.token}{text}"
        values = [
            f"{value:.6g}".replace("nan", "NaN").replace("inf", "infinity") for value in self.values
        ]
        more = f" ({self.logits:,} such logits)" if self.logits > 1 else ""
        other = f"where '{self.sides[1 - wrong]}' is {values[1 - wrong]}"
        return f"'{self.sides[wrong]}' is {values[wrong]} at {place}, {other}{more}"

    def place(self, lengths: Sequence[int]) -> tuple[int, int]:
        return place_of(int(self.rows[0]), lengths)

    def first(self, lengths: Sequence[int]) -> tuple[int, int, int]:
        """(prompt, position, token id) of the first such logit."""
        return *self.place(lengths), self.token


def structure_of(
    outliers: NDArray[np.int64],
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
    counts = {p: (prompts == p).sum() for p in np.unique(prompts)}
    return StructureFigures(
        positions=len(outliers),
        first=(int(prompts[0]), int(places[0])),
        starts=tuple(starts[:64].tolist()),
        block=_likeliest_block(np.unique(starts[starts > 0]), blocks),
        is_tail=all(
            count == lengths[p] - places[prompts == p].min() for p, count in counts.items()
        ),
    )


def _likeliest_block(places: NDArray[np.int64], blocks: Sequence[int]) -> int | None:
    """Return the largest size of which these places are all multiples, None if chance explains them
    or they are few.

    Of a block of b tokens a boundary is a multiple of B with probability b / B, so n places that
    are all multiples of B are B^n times likelier under B than under no block. Every prompt starts
    at a multiple of everything, so 0 is left out.
    """
    largest = max((size for size in blocks if not (places % size).any()), default=1)
    return (
        largest
        if len(places) >= _LEAST_PLACES and float(largest) ** -len(places) <= _NO_BLOCK
        else None
    )


def outliers_evidence(
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
    if shape.first is not None:
        prompt, position = shape.first
        row, place = sum(lengths[:prompt]) + position, words_of(shape.first, lengths)
        who = f"{shape.positions:,} of {plural(sum(lengths), 'position')}, first {place},"
        if shape.is_tail and len(lengths) == 1:
            who = f"Positions {row} to the end" if row else "All positions"
        block = (
            f"; starts are multiples of {shape.block}, like blocks of a KV cache"
            if shape.block
            else ""
        )
        says = (
            f"{who} exceed the {dtype} limit of one position ({test.position.limit:.3g}x){block}."
        )
        if first is not None and first != shape.first:
            says = (
                f"Noise of the precision begins at {place}, the fault at"
                f" {words_of(first, lengths)}."
            )
        elif position == 1 and not test.by_position[row - 1]:
            says += (
                " Position 0 attends to one key only: faults of keys, masks or scales cannot show"
                " there."
            )
    figures = structs.replace(shape, first=first or shape.first)
    return Evidence(
        Check.OUTLIERS,
        f"positions above the limit of rounding in {dtype}",
        figures,
        NOTED,
        says,
    )
