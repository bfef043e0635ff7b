"""Bars and scores that hypotheses share: fitted to every other row, scored on those between.

A hypothesis is claimed where, after undoing it, more than half of the scored rows keep at most a tenth of their squared
difference, and most of the single differences that it speaks of shrink to a third. Rounding cannot pass that: its
differences have either sign and no order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...text import floored_percent, number
from .rows import RowPair, Values

EXPLAINED = 0.9  # of a row's squared difference
SHRUNK, SHRUNK_SHARE = 1 / 3, 0.6  # to what single differences shrink, and how many of them
LEAST_ROWS = 4  # of either half
_LEAST_TOKENS = 4  # of a row that is fitted with a constant of its own
_NOTICED = 6.0  # times what is left of a row in the middle: a token that a hypothesis moves by more is spoken of

Undo = Callable[[RowPair], Values]


@dataclass(frozen=True)
class Cause:
    """One cause that is claimed. parameters: as fitted; explained: share of the squared difference over the scored
    rows, None for an observation; rows, rows_scored: at how many of them it explains nine tenths; left_rms: what is
    left, in the values' unit; left_floors: over the pair's rounding floor, where it has one. says: one sentence.
    """

    name: str
    says: str
    parameters: dict[str, float | int | str | list[int]] = field(default_factory=dict)
    explained: float | None = None
    rows: int = 0
    rows_scored: int = 0
    left_rms: float | None = None
    left_floors: float | None = None


@dataclass(frozen=True)
class Score:
    explained: float
    rows: int
    rows_scored: int
    left_rms: float

    def cause(self, name: str, says: str, **parameters: float | int | str | list[int]) -> Cause:
        share, left = floored_percent(self.explained), number(self.left_rms)
        says += f"; it explains {share} of the squared difference and leaves {left} (rms)."
        return Cause(name, says, parameters, self.explained, self.rows, self.rows_scored, self.left_rms)


def halves(rows: Sequence[RowPair], least_tokens: int = _LEAST_TOKENS) -> tuple[list[RowPair], list[RowPair]] | None:
    """(rows to fit, rows to score), None where there are too few of either."""
    usable = [row for row in rows if len(row.x) >= least_tokens]
    fitted, scored = usable[::2], usable[1::2]
    return None if min(len(fitted), len(scored)) < LEAST_ROWS else (fitted, scored)


def centred(values: Values, has_constant: bool) -> Values:
    return values - np.median(values) if has_constant and len(values) else values


def score(rows: Sequence[RowPair], undo: Undo, has_constant: bool) -> Score | None:
    """How much of the difference is gone after undoing a hypothesis, None where that is below the bar."""
    before = after = 0.0
    explained = scored = tokens = 0
    shrunk: list[NDArray[np.bool_]] = []
    for row in rows:
        apart, left = centred(row.y - row.x, has_constant), centred(undo(row), has_constant)
        squares, rest = float((apart**2).sum()), float((left**2).sum())
        before, after, tokens = before + squares, after + rest, tokens + len(left)
        scored += squares > 0
        explained += squares > 0 and rest <= (1 - EXPLAINED) * squares
        spoken_of = np.abs(apart - left) > _NOTICED * np.median(np.abs(left)) if len(left) else np.zeros(0, bool)
        shrunk.append(np.abs(left[spoken_of]) <= SHRUNK * np.abs(apart[spoken_of]))
    together = np.concatenate(shrunk) if shrunk else np.zeros(0, bool)
    if not scored or 2 * explained <= scored or not len(together) or together.mean() < SHRUNK_SHARE:
        return None
    return Score(1 - after / before, explained, scored, math.sqrt(after / max(tokens, 1)))
