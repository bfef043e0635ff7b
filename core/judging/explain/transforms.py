"""Hypotheses that one side is one function of the other, value by value: a temperature, a constant, a cap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...text import joined, number
from .rows import PairRows, RowPair, Values
from .scoring import LEAST_TOKENS, Cause, Score, are_few, halves, score

_LEAST_CONSTANT = 0.05  # a constant in logits that is more than a normaliser's
_OF_REST = 20.0  # a constant is so many times what it leaves
_ONE_SIDED = 0.8  # nine of ten constants
_FEW_TOKENS = 32  # of a row, whose slopes are taken pair by pair
_MOST_FACTOR = 10.0  # that is told of logits which something else was done to
_CAPPED_ROWS, _CAPPED_TOKENS = 8, 512  # to which a cap is fitted
_NEAR_NORMALISED = 0.05  # nats


@dataclass(frozen=True)
class Transform:
    """A cause with what it does: undo(row) is the row as it would be without it, reference and variant comparable.

    factor: by which differences in the variant's values are larger than before it.
    """

    cause: Cause
    undo: Callable[[RowPair], RowPair]
    factor: float = 1.0
    is_noise: bool = True


def transform_of(pair: PairRows) -> Transform | None:
    """The function of values that explains a pair best, None where none does. One that leaves more than noise is given
    only where it is a temperature, and names no amount.
    """
    candidates = [one for of in (scale, constant, soft_capping, clamped) if (one := of(pair)) is not None]
    exact = [one for one in candidates if one.is_noise]
    if exact:
        return min(exact, key=lambda one: one.cause.left_rms or 0.0)
    return next((one for one in candidates if one.cause.name == "temperature"), None)


def scale(pair: PairRows) -> Transform | None:
    """variant = factor x reference + a number at each position, as a temperature of 1 / factor on the variant makes it.

    Tokens of the text are left out where enough others are there, for a penalty may have moved them besides.
    """
    split = halves([_outside_text(row) for row in pair.rows])
    if split is None:
        return None
    slopes = [slope for row in split[0] if (slope := _slope(row)) is not None]
    factor = float(np.median(slopes)) if slopes else 0.0
    if factor <= 0:
        return None
    found = score(pair, split[1], lambda row: (row.y, factor * row.x), True)
    if found is None:
        return None
    kind = "logits" if pair.values == "logit" else "log-probabilities"
    constants = np.array([np.median(row.y - factor * row.x) for row in split[1]])
    has_constant = pair.has_constants or float(np.abs(constants).mean()) > _OF_REST * found.left_rms + _LEAST_CONSTANT
    plus = ", up to a constant at each position," if has_constant else ""
    if found.is_noise:
        cause = found.cause(
            "temperature",
            f"The {kind} of '{pair.variant}'{plus} are {factor:.4g} times those of '{pair.reference}', as a temperature"
            f" of {1 / factor:.3g} on '{pair.variant}' makes them (or of {factor:.3g} on '{pair.reference}')",
            factor=factor,
            temperature=1 / factor,
        )
    elif not 1 / _MOST_FACTOR <= factor <= _MOST_FACTOR:
        return None
    else:
        wider, than = ("further", "below") if factor > 1 else ("less far", "above")
        cause = more_remains(
            found,
            "temperature",
            f"The {kind} of '{pair.variant}' are {wider} from each other than those of '{pair.reference}', as a"
            f" temperature {than} 1 makes them",
        )
    return Transform(cause, lambda row: replace(row, x=factor * row.x), factor, found.is_noise)


def more_remains(found: Score, name: str, says: str, **parameters: float | int | str | list[int]) -> Cause:
    """The cause with its kind and no amounts: what it leaves is more than noise."""
    says += (
        f"; but what it leaves ({number(found.left_rms)} rms) is more than noise, so something else differs as well."
    )
    return Cause(name, says, parameters, found.explained, found.rows, found.rows_scored, found.left_rms)


def _outside_text(row: RowPair) -> RowPair:
    outside = row.times_before == 0
    return row if outside.all() or outside.sum() < max(LEAST_TOKENS, len(outside) // 2) else row.part(outside)


def _slope(row: RowPair) -> float | None:
    """Slope of y over x, not moved by a quarter of the tokens: the middle slope of all pairs of few tokens, weighted by
    their distance; of many, least squares of the three quarters that lie nearest to it.
    """
    x, y = row.x - row.x.mean(), row.y - row.y.mean()
    if len(x) <= _FEW_TOKENS:
        first, second = np.triu_indices(len(x), 1)
        apart = x[first] - x[second]
        is_apart = apart != 0
        if not is_apart.any():
            return None
        slopes, weights = (y[first] - y[second])[is_apart] / apart[is_apart], np.abs(apart[is_apart])
        order = np.argsort(slopes)
        return float(slopes[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])
    for _ in range(4):
        if not (spread := float(x @ x)):
            return None
        slope = float(x @ y) / spread
        left = row.y - slope * row.x
        left = np.abs(left - np.median(left))
        nearest = left <= np.quantile(left, 0.75)
        x, y = (side[nearest] - side[nearest].mean() for side in (row.x, row.y))
    return slope


def constant(pair: PairRows) -> Transform | None:
    """variant = reference + one number at each position, as log-probabilities are logits less their log-sum."""
    if (split := halves(pair.rows)) is None:
        return None
    found = score(pair, split[1], lambda row: (row.y, row.x + np.median(row.y - row.x)), False)
    if found is None:
        return None
    constants = np.array([np.median(row.y - row.x) for row in split[1]])
    size = float(np.median(np.abs(constants)))
    is_one_sided = abs(np.sign(constants).mean()) >= _ONE_SIDED  # the noise of a row has any sign
    if not is_one_sided or size < max(
        _LEAST_CONSTANT, _OF_REST * found.left_rms if pair.has_constants or are_few(split[1]) else 0.0
    ):
        return None
    middle = number(float(np.median(constants)))
    normalised = [name for name, side in zip(pair.names, (0, 1), strict=True) if _is_normalised(pair, side)]
    why = (
        f": '{normalised[0]}' holds log-probabilities, and the other side logits"
        if len(normalised) == 1
        else ", as other values in the rest of each row make it"
        if pair.has_constants
        else ""
    )
    cause = found.cause(
        "constant",
        f"'{pair.variant}' is '{pair.reference}' plus one number at each position ({middle} in the middle){why}",
        constant=float(np.median(constants)),
    )
    return Transform(cause, lambda row: replace(row, x=row.x + np.median(row.y - row.x)), 1.0, found.is_noise)


def _is_normalised(pair: PairRows, side: int) -> bool:
    """True where probabilities of a side's complete rows sum to 1."""
    if not pair.is_full:
        return False
    for prompt, position in pair.places[:8]:
        listed = pair.at(side, prompt, position)
        if listed is None:
            return False
        finite = listed.values[np.isfinite(listed.values)].astype(np.float64)
        if not len(finite):
            return False
        top = float(finite.max(initial=0.0))
        if abs(top + math.log(float(np.exp(finite - top).sum()))) > _NEAR_NORMALISED:
            return False
    return True


def soft_capping(pair: PairRows) -> Transform | None:
    """variant = cap x tanh(reference / cap), or the other way round."""
    if pair.values != "logit" or (split := halves(pair.rows)) is None:
        return None
    for side in (1, 0):

        def fit(row: RowPair, cap: float, side: int = side) -> tuple[Values, Values]:
            plain, held = (row.x, row.y) if side else (row.y, row.x)
            return held, cap * np.tanh(plain / cap)

        few = [row.part(slice(None, None, 1 + len(row.x) // _CAPPED_TOKENS)) for row in split[0][:_CAPPED_ROWS]]

        def error(cap: float, few: list[RowPair] = few) -> float:
            return float(np.median([np.abs(np.subtract(*fit(row, cap))).mean() for row in few]))

        caps = np.geomspace(2.0, 400.0, 54)
        best = float(min(caps, key=error))
        for width in (1.05, 1.01, 1.002, 1.0004):
            best = float(min((best * width**step for step in range(-5, 6)), key=error))
        found = score(pair, split[1], lambda row: fit(row, best), False)  # noqa: B023  (used before the next turn)
        if found is not None and found.is_noise and best < 390:
            cause = found.cause(
                "soft-capping",
                f"The logits of '{pair.names[side]}' are those of '{pair.names[1 - side]}' capped softly at {best:.4g},"
                " cap x tanh(logit / cap)",
                cap=best,
            )
            plain = "x" if side else "y"
            return Transform(cause, _applied(plain, lambda values: best * np.tanh(values / best)))  # noqa: B023
    return None


def clamped(pair: PairRows) -> Transform | None:
    """variant = reference, but no lower or no higher than two bounds, or the other way round."""
    if pair.values != "logit" or (split := halves(pair.rows)) is None:
        return None
    for side in (1, 0):
        low, high = _bounds([row.y if side else row.x for row in split[0]])

        def fit(row: RowPair, low: float = low, high: float = high, side: int = side) -> tuple[Values, Values]:
            plain, held = (row.x, row.y) if side else (row.y, row.x)
            return held, np.clip(plain, low, high)

        found = score(pair, split[1], fit, False, 1.0)
        if found is not None and found.is_noise:
            bounds = [
                f"at least {low:.4g}" if low > -math.inf else "",
                f"at most {high:.4g}" if high < math.inf else "",
            ]
            cause = found.cause(
                "clamped",
                f"The logits of '{pair.names[side]}' are those of '{pair.names[1 - side]}' clamped to"
                f" {joined(list(filter(None, bounds)))}",
                **{name: bound for name, bound in (("low", low), ("high", high)) if math.isfinite(bound)},
            )
            plain = "x" if side else "y"
            return Transform(cause, _applied(plain, lambda values: np.clip(values, low, high)))  # noqa: B023
    return None


def _applied(side: str, of: Callable[[Values], Values]) -> Callable[[RowPair], RowPair]:
    return lambda row: replace(row, x=of(row.x)) if side == "x" else replace(row, y=of(row.y))


def _bounds(rows: Sequence[Values]) -> tuple[float, float]:
    """The least and the largest value of rows, infinite where only one token has it."""
    values = np.concatenate(rows)
    bounds = float(values.min()), float(values.max())
    low, high = (bound if (values == bound).sum() > 1 else None for bound in bounds)
    return -math.inf if low is None else low, math.inf if high is None else high
