"""Places of positions, prompts one after another, and logits that are NaN or infinite on one side only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FLOAT16_MAX = 65504.0


def place_of(row: int, lengths: Sequence[int]) -> tuple[int, int]:
    """(prompt, position) of a row of prompts of these lengths, one after another."""
    begins = np.cumsum([0, *lengths])
    prompt = int(np.searchsorted(begins, row, side="right")) - 1
    return prompt, int(row - begins[prompt])


def place_in_words(row: int, lengths: Sequence[int]) -> str:
    """`position 3 of prompt 1`; of a single prompt the position alone."""
    prompt, position = place_of(row, lengths)
    return f"position {position}" + (f" of prompt {prompt}" if len(lengths) > 1 else "")


@dataclass(frozen=True)
class NotFinite:
    """Logits that are NaN or infinite on one side and not, or not alike, on the other: such a difference has no size.

    by_row: how many at each position; token, text: the lowest token at the first such position, '' if unknown; sides,
    values: names of reference and variant, and their values there; largest: of the other side there, NaN if not read.
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
        """`'mine' is NaN at position 3, token 7 (' the'), where 'prefill' is 1.25 (54 such logits)`."""
        wrong = 0 if np.isfinite(self.values[1]) else 1
        text = f" ({self.text!r})" if self.text else ""
        place = f"{place_in_words(int(self.rows[0]), lengths)}, token {self.token}{text}"
        what, other = (_number_in_words(self.values[side]) for side in (wrong, 1 - wrong))
        more = f" ({self.logits:,} such logits)" if self.logits > 1 else ""
        return f"'{self.sides[wrong]}' is {what} at {place}, where '{self.sides[1 - wrong]}' is {other}{more}"

    def place(self, lengths: Sequence[int]) -> tuple[int, int]:
        return place_of(int(self.rows[0]), lengths)


def _number_in_words(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{value:.6g}" if np.isfinite(value) else f"{'-' * bool(value < 0)}infinity"
