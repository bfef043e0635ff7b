"""Causes that move some tokens and not the others: a penalty, a logit bias; the others have to be a third as far apart.

Amounts are named if what is left at these tokens is not more than at the others, and are those before a temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from .rows import Flags, PairRows, RowPair, TooFewError, Values
from .scoring import EXPLAINED, LEAST_ROWS, SHRUNK, Cause, centered, claim, halves

_FEW = 0.5  # of a row's tokens are few
_SEEN = 3  # rows in which a biased token has to stand
_MOST_BIASED = 64  # tokens
_STEADY = 0.3  # of a bias, how far it may vary
_ABOVE_NOISE = 4.0  # times what three quarters of the tokens differ by at most
_NOISE = 4.0  # times what the other tokens differ by, or rounding leaves: more is no noise
_TERMS = {"presence": [0], "frequency": [1], "presence and frequency": [0, 1]}  # of (stands in the text, how often)

Moved = tuple[RowPair, Flags, Values]  # a row, tokens that a hypothesis speaks of, and how far all are moved


def penalty(pair: PairRows) -> Iterator[Cause]:
    """The tokens that stand in the text already are moved, and the others are not."""
    if not any(row.in_text.any() for row in pair.rows):
        raise TooFewError("the token ids of the text")
    fitted, rows = (_moved(half, lambda row: row.in_text) for half in halves(pair.rows, in_parts=False))
    scored = {}
    for form in (*_TERMS, *(["repetition"] if pair.values == "logit" else [])):
        strengths = _strengths(fitted, form) if fitted else []
        cause = _score_at(pair, rows, partial(_moves, form, strengths)) if strengths else None
        if cause is not None:
            scored[form] = cause, strengths
    # A second strength has to leave a half of what one leaves.
    form = min(scored, key=lambda one: (scored[one][0].left_rms or 0.0) * len(scored[one][1]), default="")
    says = f"On '{pair.names[1]}' tokens that the text holds already are moved, and no others, as by a"
    if scored and scored[form][0].is_noise:
        cause, strengths = scored[form]
        amounts = strengths if form == "repetition" else [-one / pair.factor for one in strengths]
        names = ("strength",) if len(amounts) == 1 else ("presence", "frequency")
        says += f" {form} penalty of {' and '.join(f'{one:.4g}' for one in amounts)}{_before_temperature(pair)}."
        parameters = {"kind": form, **dict(zip(names, amounts, strict=True))}
        yield replace(cause, name="penalty", says=says, parameters=parameters)
    elif scored or _are_one_sided(rows):
        cause = scored[form][0] if scored else Cause()
        says += " penalty, whose form does not show."
        yield replace(cause, name="penalty", says=says, parameters={"kind": "unknown"})


def _before_temperature(pair: PairRows) -> str:
    return "" if pair.factor == 1.0 else f" before the temperature of {1 / pair.factor:.3g}"


def _moved(rows: Sequence[RowPair], affected_of: Callable[[RowPair], Flags]) -> list[Moved]:
    """Rows that differ and hold few tokens that a hypothesis speaks of. Moves are less the median of the others."""
    moved: list[Moved] = []
    for row in rows:
        affected, apart = affected_of(row), row.y - row.x
        if 0 < affected.mean() <= _FEW and apart.any():
            moved.append((row, affected, apart - np.median(apart[~affected])))
    return moved


def _terms(form: str, row: RowPair) -> Values:
    """What each strength of an additive penalty is multiplied by. [tokens, strengths]"""
    return np.stack([row.in_text, row.times], axis=1)[:, _TERMS[form]].astype(np.float64)


def _moves(form: str, strengths: Sequence[float], row: RowPair) -> Values:
    """What a penalty adds to each token. Repetition divides positive logits."""
    if form == "repetition":
        return row.in_text * (np.where(row.x > 0, row.x / strengths[0], row.x * strengths[0]) - row.x)
    return np.asarray(_terms(form, row) @ strengths)


def _strengths(rows: Sequence[Moved], form: str) -> list[float]:
    """Strengths of a penalty at the tokens of the text: the middle one of one strength, the least squares of two over
    the three quarters of tokens that lie nearest; none if the tokens do not tell.
    """
    apart = np.concatenate([moved[affected] for _, affected, moved in rows])
    if form == "repetition":
        x = np.concatenate([row.x[affected] for row, affected, _ in rows])
        x, y = x[x * (x + apart) > 0], (x + apart)[x * (x + apart) > 0]
        return [float(np.median(np.where(x > 0, x / y, y / x)))] if len(x) else []
    terms = np.concatenate([_terms(form, row)[affected] for row, affected, _ in rows])
    if terms.shape[1] == 1:
        return [float(np.median(apart / terms[:, 0]))]
    nearest = np.ones(len(apart), bool)
    for _ in range(4):
        strengths, _, rank, _ = np.linalg.lstsq(terms[nearest], apart[nearest], rcond=1e-6)
        left = np.abs(apart - terms @ strengths)
        nearest = left <= np.quantile(left, 0.75)
    return strengths.tolist() if rank == 2 else []


def _are_one_sided(rows: Sequence[Moved]) -> bool:
    """Test whether the tokens of most rows are moved to one side, by more than others are."""
    are_moved = [
        abs(np.sign(apart[affected]).sum()) == affected.sum() > 1
        and _rms(apart[~affected]) <= SHRUNK * _rms(apart[affected])
        for _, affected, apart in rows
    ]
    return len(rows) >= LEAST_ROWS and 2 * sum(are_moved) > len(rows)


def _rms(values: Values) -> float:
    return float(np.sqrt((values**2).mean()))


def _score_at(pair: PairRows, rows: Sequence[Moved], moves: Callable[[RowPair], Values]) -> Cause | None:
    """Score a hypothesis that moves some tokens, at these; None if it is below the bar, or others are moved as well:
    they lie three times closer, and both sides vary alike there. The share that it explains is of all tokens.
    """
    measured = []
    for row, affected, apart in rows:
        left = apart - moves(row)
        noise, moved, rest = _rms(apart[~affected]), _rms(apart[affected]), _rms(left[affected])
        most = min((SHRUNK * moved) ** 2, (1 - EXPLAINED) * float(min(row.x.var(), row.y.var())))
        is_explained = moved > 0 and rest**2 <= (1 - EXPLAINED) * moved**2 and noise**2 <= most
        is_noise = is_explained and rest <= _NOISE * (noise + pair.rounding_rms(row))
        measured.append((apart @ apart, left @ left, len(left), is_explained, is_noise))
    if len(measured) < LEAST_ROWS:
        return None
    before, after, tokens, is_explained, is_noise = np.array(measured, np.float64).T
    if is_explained.mean() <= 0.5:
        return None
    return claim(before, after, tokens.sum(), is_explained == 1, bool(is_noise.mean() > 0.5))


def bias(pair: PairRows) -> Iterator[Cause]:
    """A logit bias: the same few tokens are moved by the same amount wherever they stand."""
    fitted, rows = halves(pair.rows, in_parts=False)
    apart = [centered(row.y - row.x) for row in fitted]
    noise = float(np.median([np.quantile(np.abs(values), 0.75) for values in apart]))
    grid = float(np.median([pair.rounding_rms(row) for row in fitted]))  # of rows that hardly differ, the noise is 0
    least = _ABOVE_NOISE * max(noise, 2 * grid) + 1e-4
    ids, values = np.concatenate([row.token_ids for row in fitted]), np.concatenate(apart)
    seen, counts = np.unique(ids[np.abs(values) > least], return_counts=True)
    moves = {}
    for token in seen[counts >= _SEEN][: 4 * _MOST_BIASED].tolist():
        middle = float(np.median(values[ids == token]))
        if abs(middle) > least and np.median(np.abs(values[ids == token] - middle)) <= _STEADY * abs(middle):
            moves[token] = middle
    if not 0 < len(moves) <= _MOST_BIASED:
        return
    moved = _moved(rows, lambda row: np.isin(row.token_ids, list(moves)))
    scored = _score_at(pair, moved, lambda row: np.array([moves.get(token, 0.0) for token in row.token_ids.tolist()]))
    if scored is not None:
        biased = sorted(moves, key=lambda token: -abs(moves[token]))
        largest = moves[biased[0]] / pair.factor
        amount = f": {largest:.4g} for token {biased[0]}, {len(biased)} in all{_before_temperature(pair)}"
        says = f"On '{pair.names[1]}' the same tokens are moved in each row, as by a logit bias"
        says += f"{amount if scored.is_noise else ''}."
        parameters = {"tokens": biased, "largest": largest} if scored.is_noise else {}
        yield replace(scored, name="logit bias", says=says, parameters=parameters)
