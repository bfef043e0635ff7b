"""Bars and scores that hypotheses share: fitted to every other row, scored on those between (docs/causes.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...text import floored_percent, number
from .rows import Flags, PairRows, RowPair, TooFewError, Values

EXPLAINED = 0.9  # of a row's squared difference
SHRUNK, _SHRUNK_SHARE = 1 / 3, 0.6  # to what single differences shrink, and how many of them
LEAST_ROWS = 4  # of either half
LEAST_TOKENS = 3  # of a row that is fitted with a constant of its own, or most of whose tokens are not moved
_PARTS, _LEAST_PART = 16, 16  # of too few rows; tokens of each
# A row's own noise may lie along a constant or a factor: of 131 rows of the trial's pairs, one at a time, at most 99 %.
_OF_FEW_ROWS = 0.0025  # of the squared difference, which is a twentieth of the rms
_NOTICED = 6.0  # times what is left of a row in the middle: a token that a hypothesis moves by more is spoken of
TRIMMED = 0.75  # of a row's tokens that a hypothesis about all of them has to explain: others may be moved besides
# Times what rounding to the dtype leaves; real pairs of the trial leave 3 to 7 times as much, which is noise if hardly
# anything else was there.
_AT_GRID, _NEAR_GRID, _NEARLY_ALL = 3.0, 10.0, 0.999
# Squared steps of what is left, in the order of the values, over those of the same numbers in any order: real pairs of
# the trial have 0.63 to 1.2, a smooth function of the values 0.
_NO_ORDER = 0.5

Undo = Callable[[RowPair], RowPair]  # the row as it would be without a cause, both sides comparable


@dataclass(frozen=True)
class Cause:
    """A claimed cause: one sentence, fitted parameters, and what it explains and leaves.

    explained: share of the squared difference over the scored rows, None for an observation; rows: at how many of them
    it explains nine tenths. left_rms: in the values' unit; left_floors: in noise floors; is_noise: so amounts can be
    named. undo(row): the row without a cause that all values have.
    """

    name: str = ""
    says: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    explained: float | None = None
    rows: int = 0
    rows_scored: int = 0
    left_rms: float | None = None
    is_noise: bool = True
    left_floors: float | None = None
    undo: Undo | None = None

    @property
    def is_fault(self) -> bool:
        """Whether it explains nearly all of the difference and sound sides do not have it."""
        is_most = self.explained is None or self.explained >= EXPLAINED
        return is_most and self.name not in ("upcast", "rounded", "other tokens", "sampler", "jumps")

    @property
    def text(self) -> str:
        if self.explained is None:
            return self.says
        floors = "" if self.left_floors is None else f", {number(self.left_floors, 3)} noise floors"
        besides = "" if self.is_noise else ", more than noise: something else differs as well"
        share = f"{floored_percent(self.explained)} of the squared difference"
        return f"{self.says} Explains {share}; leaves {number(self.left_rms)} (rms){floors}{besides}."

    def in_floors(self, floor_rms: float) -> Cause:
        """Return the cause with what it leaves over a noise floor. floor_rms: in the values' unit."""
        return self if self.left_rms is None else replace(self, left_floors=self.left_rms / floor_rms)

    def to_json(self) -> dict[str, Any]:
        return {**{name: value for name, value in vars(self).items() if name != "undo"}, "text": self.text}


def claim(before: Values, after: Values, tokens: float, is_explained: Flags, is_noise: bool = True) -> Cause:
    """Return a cause without a name. before, after: sums of squared differences of each row, over `tokens` together."""
    share, left = max(0.0, 1 - float(after.sum() / before.sum())), math.sqrt(after.sum() / tokens)
    rows, rows_scored = int(is_explained.sum()), len(is_explained)
    return Cause(explained=share, rows=rows, rows_scored=rows_scored, left_rms=left, is_noise=is_noise)


def halves(
    rows: Sequence[RowPair], least_tokens: int = LEAST_TOKENS, *, in_parts: bool = True
) -> tuple[list[RowPair], list[RowPair]]:
    """Return (rows to fit, rows to score), TooFewError if either are few. in_parts: split a few rows of many tokens."""
    usable = [row for row in rows if len(row.x) >= least_tokens]
    if in_parts and len(usable) < 2 * LEAST_ROWS:
        most = _PARTS // max(1, len(usable))
        counts = [(row, min(most, len(row.x) // _LEAST_PART)) for row in usable]
        usable = [row.part(slice(start, None, count)) for row, count in counts for start in range(count)]
    if len(usable) < 2 * LEAST_ROWS:
        one_row = f", or a row of {2 * LEAST_ROWS * _LEAST_PART}" if in_parts else ""
        raise TooFewError(f"{2 * LEAST_ROWS} rows of {least_tokens} shared values{one_row}")
    return usable[::2], usable[1::2]


def are_few(rows: Sequence[RowPair]) -> bool:
    """True for parts of so few rows that their own noise may look like a cause."""
    return len({(row.prompt, row.position) for row in rows}) < LEAST_ROWS


def centered(values: Values, has_constant: bool = True) -> Values:
    return values - np.median(values) if has_constant and len(values) else values


def score(
    pair: PairRows, rows: Sequence[RowPair], undo: Undo, least: float = 1.0, has_constant: bool = False
) -> Cause | None:
    """Score what undoing a hypothesis leaves, None if that is too much. It has to be as small compared with the sides'
    own values: a factor near 0 explains most of what unrelated sides differ by.

    least: share of a row's tokens, nearest first, that it speaks of; has_constant: it leaves a constant at each row.
    """
    bar = _OF_FEW_ROWS if are_few(rows) else 1 - EXPLAINED
    measured, shrunk = [], [np.zeros(0, bool)]
    for row in rows:
        undone = undo(row)
        apart, left = centered(row.y - row.x, has_constant), centered(undone.y - undone.x, has_constant)
        nearest = np.sort(np.argsort(np.abs(left), kind="stable")[: math.ceil(least * len(left))])
        apart, left = apart[nearest], left[nearest]
        squares, rest = float(apart @ apart), float(left @ left)
        if not squares:
            continue
        most = min(squares, len(left) * float(min(undone.x[nearest].var(), undone.y[nearest].var())))
        over_grid = math.sqrt(rest / len(left)) / pair.rounding_rms(row)
        measured.append((squares, rest, len(left), rest <= bar * most, _disorder(row.x[nearest], left), over_grid))
        spoken_of = np.abs(apart - left) > _NOTICED * np.median(np.abs(left))
        shrunk.append(np.abs(left[spoken_of]) <= SHRUNK * np.abs(apart[spoken_of]))
    together = np.concatenate(shrunk)
    if not len(together) or together.mean() < _SHRUNK_SHARE:
        return None
    before, after, tokens, is_explained, disorder, over_grid = np.array(measured).T
    if is_explained.mean() <= 0.5:
        return None
    is_nearly_all = after.sum() <= (1 - _NEARLY_ALL) * before.sum()
    is_noise = np.median(over_grid) <= (_NEAR_GRID if is_nearly_all else _AT_GRID) or np.mean(disorder) >= _NO_ORDER
    return claim(before, after, tokens.sum(), is_explained == 1, bool(is_noise))


def _disorder(values: Values, left: Values) -> float:
    """Return von Neumann's ratio (1941) of `left` in the order of `values`: 1 for noise, 0 for a smooth function."""
    steps = np.diff(left[np.argsort(values, kind="stable")])
    return float((steps**2).mean() / 2 / max(left.var(ddof=1), 1e-300)) if len(steps) > 1 else 0.0
