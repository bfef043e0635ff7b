"""Places of positions, prompts one after another: in words, and where logits are not finite."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .numerics.arrays import Ints
from .numerics.statistic import SYSTEMATIC, FloorTest
from .text import multiple, number

FLOAT16_MAX = 65504.0
_OF_VALUES = {
    "position": "row",
    "positions": "rows",
    "Positions": "Rows",
    "logit": "value",
    "logits": "values",
    "token": "value",
    "Token": "Value",
}
_QUOTED_OR_WORD = re.compile(r"(?<!\w)'[^']*'|\b\w+\b")


def place_of(row: int | np.integer, lengths: Sequence[int]) -> tuple[int, int]:
    """(prompt, position) of a row of prompts of these lengths, one after another."""
    begins = np.cumsum([0, *lengths])
    prompt = int(np.searchsorted(begins, row, side="right")) - 1
    return prompt, int(row - begins[prompt])


def place_in_words(row: int | np.integer, lengths: Sequence[int]) -> str:
    """`position 3 of prompt 1`; of a single prompt the position alone."""
    return words_of(place_of(row, lengths), lengths)


def words_of(place: tuple[int, int], lengths: Sequence[int]) -> str:
    """Return `place_in_words` of a (prompt, position)."""
    prompt, position = place
    return f"position {position:,}" + (f" of prompt {prompt}" if len(lengths) > 1 else "")


def of_values(sentence: str) -> str:
    """Return a sentence on positions, logits and tokens as one on rows and values, outside
    quotes.
    """
    return _QUOTED_OR_WORD.sub(lambda match: _OF_VALUES.get(match[0], match[0]), sentence)


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
        first = place_in_words(test.outliers[0], lengths)
        is_one = len(test.outliers) == 1
        place = f"{worst} at {first}" if is_one else f"up to {worst} from {first}"
    return f"{size}, but {place} (limit for rounding: {number(most.limit)}x)."


@dataclass(frozen=True)
class NotFinite:
    """Logits that are NaN or infinite on one side and not, or not alike, on the other: such a
    difference has no size.

    by_row: how many at each position; token, text: the lowest token at the first such position, ''
    if unknown; sides, values: names of reference and variant, and their values there; largest: of
    the other side there, NaN if not read.
    """

    by_row: Ints
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
    def rows(self) -> Ints:
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
        place = f"{place_in_words(self.rows[0], lengths)}, token {self.token}{text}"
        values = [
            f"{value:.6g}".replace("nan", "NaN").replace("inf", "infinity") for value in self.values
        ]
        more = f" ({self.logits:,} such logits)" if self.logits > 1 else ""
        other = f"where '{self.sides[1 - wrong]}' is {values[1 - wrong]}"
        return f"'{self.sides[wrong]}' is {values[wrong]} at {place}, {other}{more}"

    def place(self, lengths: Sequence[int]) -> tuple[int, int]:
        return place_of(self.rows[0], lengths)

    def first(self, lengths: Sequence[int]) -> tuple[int, int, int]:
        """(prompt, position, token id) of the first such logit."""
        return *self.place(lengths), self.token
