"""Logits that a run keeps: all of them, those of flips and near ties, or none. Figures are always of all logits.

Of 512 positions of 128,256 tokens in bfloat16, two sides of 263 MB: 298 MB with all, 0.7 MB with figures
(`python -m benchmarks kept`, random logits).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...text import size

ALL, FLIPS, FIGURES = KEEPS = ("all", "flips", "figures")
NOTES = {  # what is kept where it is not all, for people
    FLIPS: "complete logits only at flips, at near ties and at the positions beside them",
    FIGURES: "figures only, no logits",
}
AGAIN = "capture it again with --keep all"

# Bytes that a run file takes beside its logits: of a position of a side, and what no run file is without. Files of
# random bfloat16 logits, 40 to 4,096 positions, 1,000 to 128,256 tokens, 2 and 5 sides, took 0.4 to 0.9 of that; one of
# float32 1.5, for there are as many ULP distances in its histogram.
_BYTES_OF_A_ROW = 900
_BYTES_OF_A_RUN = 400_000


def note(kept: str) -> str:
    """`Kept: figures only, no logits.`; empty where all logits are there."""
    return f"Kept: {NOTES[kept]}." if kept in NOTES else ""


def refusal(kept: str, where: str = "") -> str:
    """Sentence on logits that are asked for and were not kept. where: of a run that has some, which are asked for."""
    asked = f", and {where} is none of these" if where and kept == FLIPS else ""
    return f"this run keeps {NOTES[kept]}{asked}; {AGAIN}."


def beside(is_chosen: NDArray[np.bool_], is_first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The chosen rows and those next to them in the same prompt. [rows] is_first: rows that begin a prompt."""
    found = is_chosen.copy()
    found[1:] |= is_chosen[:-1] & ~is_first[1:]
    found[:-1] |= is_chosen[1:] & ~is_first[1:]
    return found


def takes(kept: str, file_bytes: int) -> str:
    """`The run file takes 1.2 MB`, with what it keeps where it does not keep all logits. file_bytes: of most_bytes."""
    if kept == ALL:
        return f"The run file takes {size(file_bytes)}"
    return f"The run file takes {'about' if kept == FIGURES else 'at most'} {size(file_bytes)}: {NOTES[kept]}"


def most_bytes(kept: str, sides: int, rows: int, side_bytes: int) -> int:
    """Bytes of a run file at most, or about. side_bytes: of one side's logits; where flips are kept nobody knows how
    many there will be.
    """
    if kept == FIGURES:
        return _BYTES_OF_A_RUN + sides * rows * _BYTES_OF_A_ROW
    return sides * side_bytes
