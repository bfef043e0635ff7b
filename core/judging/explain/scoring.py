"""Bars and scores that hypotheses share: fitted to every other row, scored on those between.

A hypothesis is claimed if, after undoing it, more than half of the scored rows keep at most a tenth of their squared
difference, and most of the single differences that it speaks of shrink to a third. Rounding cannot pass that: its
differences have either sign and no order. What is left must look like noise: at the grid of the dtype, or in no order
along the values that the hypothesis takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...text import floored_percent, number
from .rows import PairRows, RowPair, Values

EXPLAINED = 0.9  # of a row's squared difference
SHRUNK, _SHRUNK_SHARE = 1 / 3, 0.6  # to what single differences shrink, and how many of them
LEAST_ROWS = 4  # of either half
LEAST_TOKENS = 3  # of a row that is fitted with a constant of its own
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


@dataclass(frozen=True)
class Cause:
    """A claimed cause: one sentence, fitted parameters, and what it explains and leaves.

    explained: share of the squared difference over the scored rows, None for an observation; rows, rows_scored: at how
    many of them it explains nine tenths; left_rms: what is left, in the values' unit; left_floors: the same over the
    pair's noise floor.
    """

    name: str
    says: str
    parameters: dict[str, float | int | str | list[int]] = field(default_factory=dict)
    explained: float | None = None
    rows: int = 0
    rows_scored: int = 0
    left_rms: float | None = None
    left_floors: float | None = None

    @property
    def is_fault(self) -> bool:
        """True of a cause of nearly all of the difference, unless sound sides may have it: another dtype to save in,
        another input, a few far rows.
        """
        is_most = self.explained is None or self.explained >= EXPLAINED
        return is_most and self.name not in ("upcast", "rounded", "other tokens", "sampler", "jumps")


class Score(NamedTuple):
    """is_noise: what is left looks like noise, so amounts can be named."""

    explained: float
    rows: int
    rows_scored: int
    left_rms: float
    is_noise: bool = True

    def cause(self, name: str, says: str, **parameters: float | int | str | list[int]) -> Cause:
        share = f"{floored_percent(self.explained)} of the squared difference"
        if self.explained <= 0:  # other rows hold more than it explains
            share = f"nine tenths of the squared difference at {self.rows:,} of {self.rows_scored:,} rows"
        says += f"; it explains {share} and leaves {number(self.left_rms)} (rms)."
        return Cause(name, says, parameters, max(0.0, self.explained), self.rows, self.rows_scored, self.left_rms)

    def partial_cause(self, name: str, says: str, **parameters: str) -> Cause:
        """The cause without amounts: what it leaves is more than noise."""
        left = f"what it leaves ({number(self.left_rms)} rms) is more than noise, so something else differs as well."
        return Cause(name, f"{says}; but {left}", {**parameters}, *self[:4])


def halves(
    rows: Sequence[RowPair], least_tokens: int = LEAST_TOKENS, *, in_parts: bool = True
) -> tuple[list[RowPair], list[RowPair]] | None:
    """(rows to fit, rows to score), None if there are too few of either. in_parts: a few rows of many tokens are split
    into parts of those.
    """
    usable = [row for row in rows if len(row.x) >= least_tokens]
    if in_parts and len(usable) < 2 * LEAST_ROWS:
        most = max(1, _PARTS // max(1, len(usable)))
        counts = [min(most, len(row.x) // _LEAST_PART) for row in usable]
        usable = [
            row.part(slice(start, None, count))
            for row, count in zip(usable, counts, strict=True)
            for start in range(count)
        ]
    fitted, scored = usable[::2], usable[1::2]
    return None if min(len(fitted), len(scored)) < LEAST_ROWS else (fitted, scored)


def are_few(rows: Sequence[RowPair]) -> bool:
    """True for parts of so few rows that their own noise may look like a cause."""
    return len({(row.prompt, row.position) for row in rows}) < LEAST_ROWS


def centered(values: Values, has_constant: bool = True) -> Values:
    return values - np.median(values) if has_constant and len(values) else values


def score(
    pair: PairRows,
    rows: Sequence[RowPair],
    fit: Callable[[RowPair], tuple[Values, Values]],
    has_constant: bool,
    least: float = TRIMMED,
) -> Score | None:
    """Share of the difference that is gone after undoing a hypothesis, None if that is below the bar. What is left has
    to be as small compared with the side's own values: a factor near 0 explains most of what unrelated sides differ by.

    fit: a row -> values of a side, and what they should be. least: share of a row's tokens that it speaks of; those
    with the largest rest are left out.
    """
    before = after = 0.0
    explained = scored = tokens = 0
    bar = _OF_FEW_ROWS if are_few(rows) else 1 - EXPLAINED
    shrunk, orders, over_grid = [np.zeros(0, bool)], [], []
    for row in rows:
        held, made = fit(row)
        apart, left, values = centered(row.y - row.x, has_constant), centered(held - made, has_constant), row.x
        if (count := math.ceil(least * len(left))) < len(left):
            kept = np.sort(np.argpartition(np.abs(left), count - 1)[:count])
            apart, left, values, held = apart[kept], left[kept], values[kept], held[kept]
        squares, rest = float((apart**2).sum()), float((left**2).sum())
        before, after, tokens = before + squares, after + rest, tokens + len(left)
        if not squares:
            continue
        scored += 1
        explained += rest <= bar * min(squares, float(((held - held.mean()) ** 2).sum()))
        spoken_of = np.abs(apart - left) > _NOTICED * np.median(np.abs(left))
        shrunk.append(np.abs(left[spoken_of]) <= SHRUNK * np.abs(apart[spoken_of]))
        orders.append(_disorder(values, left))
        over_grid.append(math.sqrt(rest / len(left)) / pair.rounding_rms(row))
    together = np.concatenate(shrunk)
    if not scored or 2 * explained <= scored or not len(together) or together.mean() < _SHRUNK_SHARE:
        return None
    share = 1 - after / before
    is_noise = float(np.median(over_grid)) <= (_NEAR_GRID if share >= _NEARLY_ALL else _AT_GRID)
    is_noise = is_noise or float(np.mean([one for one in orders if one == one] or [0.0])) >= _NO_ORDER
    return Score(share, explained, scored, math.sqrt(after / max(tokens, 1)), is_noise)


def _disorder(values: Values, left: Values) -> float:
    """Squared steps of `left` in the order of `values`, over those in any order (von Neumann, 1941): about 1 for noise,
    0 for a smooth function; NaN if nothing is left or tokens are too few.
    """
    if len(left) < LEAST_TOKENS or not (spread := float(left.var(ddof=1))):
        return math.nan
    return float((np.diff(left[np.argsort(values, kind="stable")]) ** 2).mean() / 2 / spread)
