"""Hypotheses about some tokens, which are moved where the others are not: a penalty, a logit bias.

They are held to the bars at these tokens, and the others have to be a third as far apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .rows import PairRows, RowPair, Values
from .scoring import EXPLAINED, LEAST_ROWS, SHRUNK, Cause, Score, halves

_FEW = 0.5  # of a row's tokens are few
_SEEN = 3  # rows in which a biased token has to stand
_STEADY = 0.3  # of a bias, how far it may vary
_ABOVE_NOISE = 4.0  # times the middle difference of other tokens


def penalty(pair: PairRows) -> Iterator[Cause]:
    """The tokens that stand in the text already are moved, and the others are not."""
    split = halves([row for row in pair.rows if row.before], 8)
    if split is None:
        return
    weights: dict[str, Callable[[RowPair], Values]] = {
        "presence": lambda row: np.ones(len(row.x)),
        "frequency": lambda row: np.array([row.before.get(token, 0) for token in row.token_ids.tolist()], float),
    }
    if pair.values == "logit":
        weights["repetition of positive logits"] = lambda row: np.maximum(row.x, 0.0)
        weights["repetition"] = _by_repetition
    best: tuple[float, str, float, Score] | None = None
    for name, weight in weights.items():
        strengths = []
        for row in split[0]:
            affected = _in_text(row)
            apart, size = _from_others(row, affected), weight(row)
            usable = affected & (size != 0)
            strengths += (apart[usable] / size[usable]).tolist()
        if not strengths:
            continue
        strength = float(np.median(strengths))
        found = _score_at(split[1], _in_text, lambda row: strength * weight(row))  # noqa: B023  (used at once)
        if found is not None and (best is None or found.left_rms < best[0]):
            best = found.left_rms, name, strength, found
    if best is None:
        if _are_moved(split[1]):
            yield Cause(
                "penalty",
                f"On '{pair.variant}' the tokens that stand in the text already are moved to one side, and the others"
                " are not, as a penalty moves them; its form does not show in these values.",
                {"kind": "unknown"},
            )
        return
    _, name, strength, found = best
    kind = name.split()[0]
    told = {
        "presence": f"by {strength:.4g} each, as a presence penalty of {-strength:.4g} moves them",
        "frequency": f"by {strength:.4g} for each time, as a frequency penalty of {-strength:.4g} moves them",
        "repetition": f"in proportion, as a repetition penalty of {_penalty_of(strength):.4g} moves them",
    }[kind]
    yield found.cause(
        "penalty",
        f"On '{pair.variant}' the tokens that stand in the text already, and no others, are moved {told}",
        kind=kind,
        strength=_penalty_of(strength) if kind == "repetition" else -strength,
    )


def _are_moved(rows: Sequence[RowPair]) -> bool:
    """Whether the tokens of the text are moved to one side by more than others are, in most rows."""
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


def _by_repetition(row: RowPair) -> Values:
    """Logits as a repetition penalty moves them, for each part that it takes: a positive one is divided by it, a
    negative one multiplied, which is nearly the same part where the penalty is near 1.
    """
    return np.where(row.x > 0, row.x, -row.x)


def _penalty_of(strength: float) -> float:
    """The penalty p that takes a share 1 - 1 / p of a positive logit."""
    return 1 / (1 + strength) if strength > -1 else math.inf


def _in_text(row: RowPair) -> NDArray[np.bool_]:
    return np.array([token in row.before for token in row.token_ids.tolist()], bool)


def _from_others(row: RowPair, affected: NDArray[np.bool_]) -> Values:
    """Differences less the middle one of the tokens that a hypothesis does not speak of."""
    apart = row.y - row.x
    others = apart[~affected]
    return apart - (np.median(others) if len(others) else 0.0)


def _score_at(
    rows: Sequence[RowPair], affected_of: Callable[[RowPair], NDArray[np.bool_]], moves: Callable[[RowPair], Values]
) -> Score | None:
    """The score of a hypothesis that moves some tokens, at these; None where it is below the bar, or others are moved
    as well. The share that it explains is of all tokens.
    """
    before = after = 0.0
    explained = scored = tokens = 0
    for row in rows:
        affected = affected_of(row)
        if not affected.any() or affected.mean() > _FEW or not (row.y != row.x).any():
            continue
        apart = _from_others(row, affected)
        left = apart - np.where(affected, moves(row), 0.0)
        noise = float(np.sqrt((apart[~affected] ** 2).mean()))
        squares, rest = float((apart[affected] ** 2).mean()), float((left[affected] ** 2).mean())
        scored += 1
        explained += squares > 0 and rest <= (1 - EXPLAINED) * squares and noise <= SHRUNK * math.sqrt(squares)
        before, after, tokens = before + float((apart**2).sum()), after + float((left**2).sum()), tokens + len(left)
    if scored < LEAST_ROWS or 2 * explained <= scored:
        return None
    return Score(1 - after / before, explained, scored, math.sqrt(after / tokens))


def bias(pair: PairRows) -> Iterator[Cause]:
    """A logit bias: the same few tokens are moved by the same amount wherever they stand."""
    split = halves(pair.rows, 8)
    if split is None:
        return
    found: dict[int, list[float]] = {}
    sizes = []
    for row in split[0]:
        apart = row.y - row.x - np.median(row.y - row.x)
        sizes.append(float(np.median(np.abs(apart))))
        for token, value in zip(row.token_ids.tolist(), apart.tolist(), strict=True):
            found.setdefault(token, []).append(value)
    noise = float(np.median(sizes))
    fixed = {}
    for token, values in found.items():
        middle = float(np.median(values))
        is_seen = len(values) >= _SEEN and abs(middle) > _ABOVE_NOISE * noise + 1e-4
        if is_seen and np.median(np.abs(np.array(values) - middle)) <= _STEADY * abs(middle):
            fixed[token] = middle
    if not fixed or len(fixed) > 64:
        return

    def affected(row: RowPair) -> NDArray[np.bool_]:
        return np.array([token in fixed for token in row.token_ids.tolist()], bool)

    def moves(row: RowPair) -> Values:
        return np.array([fixed.get(token, 0.0) for token in row.token_ids.tolist()])

    score_of = _score_at(split[1], affected, moves)
    if score_of is None:
        return
    ids = sorted(fixed, key=lambda token: -abs(fixed[token]))
    shown = ", ".join(f"{token} by {fixed[token]:.4g}" for token in ids[:5])
    yield score_of.cause(
        "logit bias",
        f"On '{pair.variant}' the same tokens are moved wherever they stand: {shown}{', ...' if len(ids) > 5 else ''}",
        tokens=ids[:64],
        largest=fixed[ids[0]],
    )
