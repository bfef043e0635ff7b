"""Bars and scores that hypotheses share: fitted to every other row, scored on those between.

A hypothesis is claimed where, after undoing it, more than half of the scored rows keep at most a tenth of their squared
difference, and most of the single differences that it speaks of shrink to a third. Rounding cannot pass that: its
differences have either sign and no order. What is left must look like noise: at the grid of the dtype, or in no order
along the values that the hypothesis takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...text import floored_percent, number
from .rows import PairRows, RowPair, Values

EXPLAINED = 0.9  # of a row's squared difference
SHRUNK, SHRUNK_SHARE = 1 / 3, 0.6  # to what single differences shrink, and how many of them
LEAST_ROWS = 4  # of either half
LEAST_TOKENS = 3  # of a row that is fitted with a constant of its own
_PARTS, _LEAST_PART = 16, 16  # of too few rows; tokens of each
# A row's own noise may lie along a constant or a factor: of 131 rows of the trial's pairs, one at a time, at most 99 %.
_OF_FEW_ROWS = 0.0025  # of the squared difference, which is a twentieth of the rms
_NOTICED = 6.0  # times what is left of a row in the middle: a token that a hypothesis moves by more is spoken of
_TRIMMED = 0.75  # of a row's tokens that a hypothesis about all of them has to explain: others may be moved besides
# Times what rounding to the dtype leaves; real pairs of the trial leave 3 to 7 times as much, which is noise if hardly
# anything else was there.
_AT_GRID, _NEAR_GRID, _NEARLY_ALL = 3.0, 10.0, 0.999
# Squared steps of what is left, in the order of the values, over those of the same numbers in any order: real pairs of
# the trial have 0.63 to 1.2, a smooth function of the values 0.
_NO_ORDER = 0.5

Fit = Callable[[RowPair], tuple[Values, Values]]
"""A row -> (values of a side, what they should be by a hypothesis). [tokens] each"""


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

    @property
    def is_fault(self) -> bool:
        """True of a cause of nearly all of the difference, unless sound sides may have it: another dtype to save in,
        another input, a few far rows.
        """
        is_most = self.explained is None or self.explained >= EXPLAINED
        return is_most and self.name not in ("upcast", "rounded", "other tokens", "sampler", "jumps")


@dataclass(frozen=True)
class Score:
    """is_noise: what is left looks like noise, so that amounts can be told."""

    explained: float
    rows: int
    rows_scored: int
    left_rms: float
    is_noise: bool = True

    def cause(self, name: str, says: str, **parameters: float | int | str | list[int]) -> Cause:
        share, left = floored_percent(self.explained), number(self.left_rms)
        what = f"{share} of the squared difference"
        if self.explained <= 0:  # other rows hold more than it explains
            what = f"nine tenths of the squared difference at {self.rows:,} of {self.rows_scored:,} rows"
        says += f"; it explains {what} and leaves {left} (rms)."
        return Cause(name, says, parameters, max(0.0, self.explained), self.rows, self.rows_scored, self.left_rms)


def halves(
    rows: Sequence[RowPair], least_tokens: int = LEAST_TOKENS, *, in_parts: bool = True
) -> tuple[list[RowPair], list[RowPair]] | None:
    """(rows to fit, rows to score), None where there are too few of either. in_parts: a few rows of many tokens are
    split into parts of those.
    """
    usable = [row for row in rows if len(row.x) >= least_tokens]
    if in_parts and len(usable) < 2 * LEAST_ROWS:
        usable = [part for row in usable for part in _parts(row, max(1, _PARTS // len(usable)))]
    fitted, scored = usable[::2], usable[1::2]
    return None if min(len(fitted), len(scored)) < LEAST_ROWS else (fitted, scored)


def are_few(rows: Sequence[RowPair]) -> bool:
    """True for parts of so few rows that their own noise may look like a cause."""
    return len({(row.prompt, row.position) for row in rows}) < LEAST_ROWS


def _parts(row: RowPair, most: int) -> list[RowPair]:
    count = min(most, len(row.x) // _LEAST_PART)
    return [row.part(slice(start, None, count)) for start in range(count)]


def centred(values: Values, has_constant: bool) -> Values:
    return values - np.median(values) if has_constant and len(values) else values


def score(
    pair: PairRows, rows: Sequence[RowPair], fit: Fit, has_constant: bool, least: float = _TRIMMED
) -> Score | None:
    """Share of the difference that is gone after undoing a hypothesis, None where that is below the bar. What is left
    has to be as small beside the side's own values: a factor near 0 explains most of what unrelated sides differ by.

    least: share of a row's tokens that it speaks of; those with the largest rest are left out.
    """
    before = after = 0.0
    explained = scored = tokens = 0
    bar = _OF_FEW_ROWS if are_few(rows) else 1 - EXPLAINED
    shrunk: list[NDArray[np.bool_]] = []
    rests: list[tuple[Values, Values]] = []
    over_grid: list[float] = []
    for row in rows:
        held, made = fit(row)
        apart, left = centred(row.y - row.x, has_constant), centred(held - made, has_constant)
        values, own = row.x, held
        if (count := math.ceil(least * len(left))) < len(left):
            kept = np.sort(np.argpartition(np.abs(left), count - 1)[:count])
            apart, left, values, own = apart[kept], left[kept], values[kept], own[kept]
        squares, rest = float((apart**2).sum()), float((left**2).sum())
        before, after, tokens = before + squares, after + rest, tokens + len(left)
        if not squares:
            continue
        scored += 1
        explained += rest <= bar * min(squares, float(((own - own.mean()) ** 2).sum()))
        spoken_of = np.abs(apart - left) > _NOTICED * np.median(np.abs(left)) if len(left) else np.zeros(0, bool)
        shrunk.append(np.abs(left[spoken_of]) <= SHRUNK * np.abs(apart[spoken_of]))
        rests.append((values, left))
        over_grid.append(math.sqrt(rest / len(left)) / pair.grid_of(row))
    together = np.concatenate(shrunk) if shrunk else np.zeros(0, bool)
    if not scored or 2 * explained <= scored or not len(together) or together.mean() < SHRUNK_SHARE:
        return None
    share = 1 - after / before
    is_noise = float(np.median(over_grid)) <= (_NEAR_GRID if share >= _NEARLY_ALL else _AT_GRID)
    if not is_noise:
        known = [one for one in (disorder(*rest) for rest in rests) if one == one]
        is_noise = bool(known) and float(np.mean(known)) >= _NO_ORDER
    return Score(share, explained, scored, math.sqrt(after / max(tokens, 1)), is_noise)


def disorder(values: Values, left: Values) -> float:
    """Squared steps of `left` in the order of `values`, over those in any order (von Neumann, 1941): about 1 for noise,
    0 for a smooth function; NaN where nothing is left or tokens are too few.
    """
    if len(left) < LEAST_TOKENS or not (spread := float(left.var(ddof=1))):
        return math.nan
    return float((np.diff(left[np.argsort(values, kind="stable")]) ** 2).mean() / 2 / spread)
