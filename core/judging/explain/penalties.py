"""Hypotheses about some tokens, which are moved where the others are not: a penalty, a logit bias.

They are held to the bars at these tokens, and the others have to be a third as far apart. Amounts are told where what
is left at these tokens is not more than at the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .rows import PairRows, RowPair, Values
from .scoring import EXPLAINED, LEAST_ROWS, SHRUNK, Cause, Score, halves
from .transforms import more_remains

FEWEST_TOKENS = 3  # of a row, most of which are not moved
_FEW = 0.5  # of a row's tokens are few
_SEEN = 3  # rows in which a biased token has to stand
_MOST_BIASED = 64  # tokens
_STEADY = 0.3  # of a bias, how far it may vary
_ABOVE_NOISE = 4.0  # times what three quarters of the tokens differ by at most
_NOISE = 4.0  # times what the other tokens differ by, or rounding leaves: more is no noise

Moves = Callable[[RowPair], Values]


def penalty(pair: PairRows) -> Iterator[Cause]:
    """The tokens that stand in the text already are moved, and the others are not. Amounts are those before a
    temperature.
    """
    split = halves([row for row in pair.rows if row.before], FEWEST_TOKENS, in_parts=False)
    if split is None:
        return
    best: tuple[str, list[float], Score] | None = None
    for name, weights in _FORMS.items():
        if name == "repetition" and pair.values != "logit":
            continue
        fit = _repetition if name == "repetition" else partial(_strengths, weights=weights)
        if (strengths := fit(split[0])) is None:
            continue
        found = _score_at(pair, split[1], _in_text, partial(_moves, weights=weights, strengths=strengths))
        # A second strength has to leave a half of what one leaves.
        if found is not None and (best is None or found.left_rms * max(1, len(weights)) < best[2].left_rms):
            best = name, strengths, found
    if best is None:
        if _are_moved(split[1]):
            yield Cause(
                "penalty",
                f"On '{pair.variant}' the tokens that stand in the text already are moved to one side, and the others"
                " are not, as a penalty moves them; its form does not show in these values.",
                {"kind": "unknown"},
            )
        return
    name, strengths, found = best
    says = f"On '{pair.variant}' the tokens that stand in the text already, and no others, are moved"
    if not found.is_noise:
        yield more_remains(found, "penalty", f"{says}, as a penalty moves them", kind="unknown")
        return
    factor, first = pair.factor, _before_temperature(pair)
    if name == "repetition":
        told = f"in proportion, as a repetition penalty of {strengths[0]:.4g} moves them"
        yield found.cause("penalty", f"{says} {told}", kind=name, strength=strengths[0])
        return
    amounts = [-strength / factor for strength in strengths]
    if len(amounts) == 2:
        told = f"as a presence penalty of {amounts[0]:.4g} and a frequency penalty of {amounts[1]:.4g}{first} move them"
        yield found.cause("penalty", f"{says}, {told}", kind=name, presence=amounts[0], frequency=amounts[1])
        return
    each = "each" if name == "presence" else "for each time"
    told = f"by {strengths[0]:.4g} {each}, as a {name} penalty of {amounts[0]:.4g}{first} moves them"
    yield found.cause("penalty", f"{says} {told}", kind=name, strength=amounts[0])


def _before_temperature(pair: PairRows) -> str:
    return "" if pair.factor == 1.0 else f" before the temperature of {1 / pair.factor:.3g}"


def _presence(row: RowPair) -> Values:
    return np.ones(len(row.x))


def _frequency(row: RowPair) -> Values:
    return row.times_before.astype(np.float64)


_FORMS: dict[str, list[Moves]] = {
    "presence": [_presence],
    "frequency": [_frequency],
    "presence and frequency": [_presence, _frequency],
    "repetition": [],
}


def _moves(row: RowPair, weights: Sequence[Moves], strengths: Sequence[float]) -> Values:
    """Return what a penalty adds to tokens of the text. Repetition divides positive logits."""
    if not weights:
        return np.where(row.x > 0, row.x / strengths[0], row.x * strengths[0]) - row.x
    return np.asarray(sum(strength * of(row) for strength, of in zip(strengths, weights, strict=True)))


def _repetition(rows: Sequence[RowPair]) -> list[float] | None:
    penalties: list[float] = []
    for row in rows:
        affected = _in_text(row)
        x, y = row.x[affected], (row.x + _from_others(row, affected))[affected]
        usable = x * y > 0
        x, y = x[usable], y[usable]
        penalties += np.where(x > 0, x / y, y / x).tolist()
    return [float(np.median(penalties))] if penalties else None


def _strengths(rows: Sequence[RowPair], weights: Sequence[Moves]) -> list[float] | None:
    """Strength of each weight at the tokens of the text: the middle one of one weight, the least squares of two over
    the three quarters of tokens that lie nearest. None where the tokens do not tell them apart.
    """
    moved, sizes = [], []
    for row in rows:
        affected = _in_text(row)
        if affected.any() and affected.mean() <= _FEW:
            moved.append(_from_others(row, affected)[affected])
            sizes.append(np.stack([of(row)[affected] for of in weights], axis=1))
    if not moved:
        return None
    y, x = np.concatenate(moved), np.concatenate(sizes)
    if len(weights) == 1:
        usable = x[:, 0] != 0
        return [float(np.median(y[usable] / x[usable, 0]))] if usable.any() else None
    nearest = np.ones(len(y), bool)
    for _ in range(4):
        strengths, _, rank, _ = np.linalg.lstsq(x[nearest], y[nearest], rcond=1e-6)
        if rank < len(weights):
            return None
        left = np.abs(y - x @ strengths)
        nearest = left <= np.quantile(left, 0.75)
    return [float(strength) for strength in strengths]


def _are_moved(rows: Sequence[RowPair]) -> bool:
    """Test whether the tokens of the text are moved to one side by more than others are, in most rows."""
    seen = moved = 0
    for row in rows:
        affected = _in_text(row)
        if affected.sum() < 2 or affected.mean() > _FEW or not (row.y != row.x).any():
            continue
        apart = _from_others(row, affected)
        noise = float(np.sqrt((apart[~affected] ** 2).mean()))
        is_one_sided = abs(int(np.sign(apart[affected]).sum())) == int(affected.sum())
        seen += 1
        moved += is_one_sided and noise <= SHRUNK * float(np.sqrt((apart[affected] ** 2).mean()))
    return seen >= LEAST_ROWS and 2 * moved > seen


def _in_text(row: RowPair) -> NDArray[np.bool_]:
    return row.times_before > 0


def _from_others(row: RowPair, affected: NDArray[np.bool_]) -> Values:
    """Differences less the middle one of the tokens that a hypothesis does not speak of."""
    apart = row.y - row.x
    others = apart[~affected]
    return apart - (np.median(others) if len(others) else 0.0)


def _score_at(
    pair: PairRows, rows: Sequence[RowPair], affected_of: Callable[[RowPair], NDArray[np.bool_]], moves: Moves
) -> Score | None:
    """The score of a hypothesis that moves some tokens, at these; None where it is below the bar, or others are moved
    as well: they lie three times closer, and both sides vary alike there. The share that it explains is of all tokens.
    """
    before = after = 0.0
    explained = scored = tokens = at_noise = 0
    for row in rows:
        affected = affected_of(row)
        if not affected.any() or affected.mean() > _FEW or not (row.y != row.x).any():
            continue
        apart = _from_others(row, affected)
        left = apart - np.where(affected, moves(row), 0.0)
        noise = float(np.sqrt((apart[~affected] ** 2).mean()))
        squares, rest = float((apart[affected] ** 2).mean()), float((left[affected] ** 2).mean())
        scored += 1
        least = min(SHRUNK**2 * squares, (1 - EXPLAINED) * min(float(row.x.var()), float(row.y.var())))
        is_explained = squares > 0 and rest <= (1 - EXPLAINED) * squares and noise**2 <= least
        explained += is_explained
        at_noise += is_explained and math.sqrt(rest) <= _NOISE * (noise + pair.grid_of(row))
        before, after, tokens = before + float((apart**2).sum()), after + float((left**2).sum()), tokens + len(left)
    if scored < LEAST_ROWS or 2 * explained <= scored:
        return None
    return Score(1 - after / before, explained, scored, math.sqrt(after / tokens), 2 * at_noise > scored)


def bias(pair: PairRows) -> Iterator[Cause]:
    """A logit bias: the same few tokens are moved by the same amount wherever they stand. Amounts are those before a
    temperature.
    """
    split = halves(pair.rows, FEWEST_TOKENS, in_parts=False)
    if split is None:
        return
    apart = [row.y - row.x - np.median(row.y - row.x) for row in split[0]]
    noise = float(np.median([np.quantile(np.abs(values), 0.75) for values in apart]))
    ids, values = np.concatenate([row.token_ids for row in split[0]]), np.concatenate(apart)
    grid = float(np.median([pair.grid_of(row) for row in split[0]]))  # of rows that hardly differ, the noise is 0
    least = _ABOVE_NOISE * max(noise, 2 * grid) + 1e-4
    seen, counts = np.unique(ids[np.abs(values) > least], return_counts=True)
    fixed = {}
    for token in seen[counts >= _SEEN][: 4 * _MOST_BIASED].tolist():
        moves = values[ids == token]
        middle = float(np.median(moves))
        if abs(middle) > least and np.median(np.abs(moves - middle)) <= _STEADY * abs(middle):
            fixed[token] = middle
    if not fixed or len(fixed) > _MOST_BIASED:
        return

    def affected(row: RowPair) -> NDArray[np.bool_]:
        return np.isin(row.token_ids, list(fixed))

    def moves_of(row: RowPair) -> Values:
        return np.array([fixed.get(token, 0.0) for token in row.token_ids.tolist()])

    score_of = _score_at(pair, split[1], affected, moves_of)
    if score_of is None:
        return
    biased = sorted(fixed, key=lambda token: -abs(fixed[token]))
    says = f"On '{pair.variant}' the same tokens are moved wherever they stand"
    if not score_of.is_noise:
        yield more_remains(score_of, "logit bias", f"{says}, as a logit bias moves them")
        return
    factor, first = pair.factor, _before_temperature(pair)
    shown = ", ".join(f"{token} by {fixed[token] / factor:.4g}" for token in biased[:5])
    yield score_of.cause(
        "logit bias",
        f"{says}{first}: {shown}{', ...' if len(biased) > 5 else ''}",
        tokens=biased,
        largest=fixed[biased[0]] / factor,
    )
