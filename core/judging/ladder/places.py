"""Rows of several prompts, one after another, as a prompt and a position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def place_of(row: int, lengths: Sequence[int]) -> tuple[int, int]:
    """(prompt, position) of a row of prompts of these lengths, one after another."""
    begins = np.cumsum([0, *lengths])
    prompt = int(np.searchsorted(begins, row, side="right")) - 1
    return prompt, int(row - begins[prompt])


def place_in_words(row: int, lengths: Sequence[int]) -> str:
    """`position 3 of prompt 1`: a row of prompts of these lengths, one after another; of a single prompt the position
    alone.
    """
    for prompt, length in enumerate(lengths):
        if row < length:
            return f"position {row}" + (f" of prompt {prompt}" if len(lengths) > 1 else "")
        row -= length
    return f"row {row}"
