"""Causes that make one side a function of the other's values: a temperature, a constant, a cap, a coarser grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from ...numerics.formats import FORMATS, FloatFormat
from ...text import joined, number, plural
from .rows import PairRows, RowPair, Values
from .scoring import LEAST_TOKENS, TRIMMED, Cause, are_few, centered, halves, score

_LEAST_CONSTANT = 0.05  # a constant in logits that is more than a normalizer's
_OF_REST = 20.0  # a constant is so many times what it leaves
_ONE_SIDED = 0.8  # nine of ten constants
_FEW_TOKENS = 32  # of a row, whose slopes are taken pair by pair
_MOST_FACTOR = 10.0  # that is named of logits which something else was done to
_CAPPED_ROWS, _CAPPED_TOKENS = 8, 512  # to which a cap is fitted
_LARGEST_CAP = 390.0  # a larger one is the end of the search
_NEAR_NORMALIZED = 0.05  # nats
_LEAST_LEVELS, _MOST_LEVELS = 8, 1 << 16  # of an evenly spaced grid
_SAME_LEVEL, _OFF_GRID = 1e-7, 0.02  # of the widest gap; of a step
_SIXTEEN = ("bfloat16", "float16")


class Transform(NamedTuple):
    """A cause with what it does: undo(row) is the row as it would be without it, both sides comparable.

    factor: by which differences in the variant's values are larger than before it.
    """

    cause: Cause
    undo: Callable[[RowPair], RowPair]
    factor: float = 1.0
    is_noise: bool = True


def transform_of(pair: PairRows) -> Transform | None:
    """The function of values that explains a pair best, None if none does. One that leaves more than noise is returned
    only if it is a temperature, and names no amount.
    """
    scaled = temperature(pair)
    exact = [one for one in (scaled, constant(pair), soft_capping(pair), clamped(pair)) if one and one.is_noise]
    return min(exact, key=lambda one: one.cause.left_rms or 0.0) if exact else scaled


def temperature(pair: PairRows) -> Transform | None:
    """variant = factor x reference + a number at each position, as a temperature of 1 / factor on the variant makes it.

    Tokens of the text are left out if enough others are there, for a penalty may have moved them besides.
    """
    split = halves([_outside_text(row) for row in pair.rows])
    if split is None:
        return None
    slopes = [slope for row in split[0] if (slope := _slope(row)) is not None]
    factor = float(np.median(slopes)) if slopes else 0.0
    scored = score(pair, split[1], lambda row: (row.y, factor * row.x), True) if factor > 0 else None
    if scored is None:
        return None
    reference, variant = pair.names
    kind = "logits" if pair.values == "logit" else "log-probabilities"
    if scored.is_noise:
        constants = np.array([np.median(row.y - factor * row.x) for row in split[1]])
        has_constant = float(np.abs(constants).mean()) > _OF_REST * scored.left_rms + _LEAST_CONSTANT
        plus = ", up to a constant at each position," if pair.has_constants or has_constant else ""
        cause = scored.cause(
            "temperature",
            f"The {kind} of '{variant}'{plus} are {factor:.4g} times those of '{reference}', as a temperature"
            f" of {1 / factor:.3g} on '{variant}' makes them (or of {factor:.3g} on '{reference}')",
            factor=factor,
            temperature=1 / factor,
        )
    elif not 1 / _MOST_FACTOR <= factor <= _MOST_FACTOR:
        return None
    else:
        wider, than = ("further", "below") if factor > 1 else ("less far", "above")
        says = f"The {kind} of '{variant}' are {wider} from each other than those of '{reference}', as a temperature"
        cause = scored.partial_cause("temperature", f"{says} {than} 1 makes them")
    return Transform(cause, lambda row: replace(row, x=factor * row.x), factor, scored.is_noise)


def _outside_text(row: RowPair) -> RowPair:
    outside = ~row.in_text
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
        left = np.abs(centered(row.y - slope * row.x))
        nearest = left <= np.quantile(left, 0.75)
        x, y = (side[nearest] - side[nearest].mean() for side in (row.x, row.y))
    return slope


def constant(pair: PairRows) -> Transform | None:
    """variant = reference + one number at each position, as log-probabilities are logits less their log-sum."""
    if (split := halves(pair.rows)) is None:
        return None
    scored = score(pair, split[1], lambda row: (row.y, row.x + np.median(row.y - row.x)), False)
    if scored is None:
        return None
    constants = np.array([np.median(row.y - row.x) for row in split[1]])
    is_one_sided = abs(np.sign(constants).mean()) >= _ONE_SIDED  # the noise of a row has any sign
    least = _OF_REST * scored.left_rms if pair.has_constants or are_few(split[1]) else 0.0
    if not is_one_sided or float(np.median(np.abs(constants))) < max(_LEAST_CONSTANT, least):
        return None
    middle = float(np.median(constants))
    normalized = [name for side, name in enumerate(pair.names) if _is_normalized(pair, side)]
    why = ", as other values in the rest of each row make it" if pair.has_constants else ""
    if len(normalized) == 1:
        why = f": '{normalized[0]}' holds log-probabilities, and the other side logits"
    cause = scored.cause(
        "constant",
        f"'{pair.names[1]}' is '{pair.names[0]}' plus one number at each position ({number(middle)} in the middle)"
        f"{why}",
        constant=middle,
    )
    return Transform(cause, lambda row: replace(row, x=row.x + np.median(row.y - row.x)), 1.0, scored.is_noise)


def _is_normalized(pair: PairRows, side: int) -> bool:
    """True if probabilities of a side's complete rows sum to 1."""
    for place in pair.places[:8] if pair.is_full else ():
        listed = pair.at(side, *place)
        finite = np.zeros(0) if listed is None else listed.values[np.isfinite(listed.values)].astype(np.float64)
        if not len(finite):
            return False
        top = max(0.0, float(finite.max()))
        if abs(top + math.log(float(np.exp(finite - top).sum()))) > _NEAR_NORMALIZED:
            return False
    return pair.is_full


def _applied(
    pair: PairRows,
    rows: list[RowPair],
    side: int,
    of: Callable[[Values], Values],
    least: float,
    name: str,
    says: str,
    **parameters: float,
) -> Transform | None:
    """`side` holds `of` the other side's values, and what that leaves is noise."""
    scored = score(pair, rows, lambda row: (row.y, of(row.x)) if side else (row.x, of(row.y)), False, least)
    if scored is None or not scored.is_noise:
        return None
    says = f"The logits of '{pair.names[side]}' are those of '{pair.names[1 - side]}' {says}"
    cause = scored.cause(name, says, **parameters)
    return Transform(cause, lambda row: replace(row, x=of(row.x)) if side else replace(row, y=of(row.y)))


def soft_capping(pair: PairRows) -> Transform | None:
    """variant = cap x tanh(reference / cap), or the other way round."""
    if pair.values != "logit" or (split := halves(pair.rows)) is None:
        return None
    few = [row.part(slice(None, None, 1 + len(row.x) // _CAPPED_TOKENS)) for row in split[0][:_CAPPED_ROWS]]
    for side in (1, 0):
        sides = [(row.x, row.y) if side else (row.y, row.x) for row in few]

        def error(cap: float, sides: list[tuple[Values, Values]] = sides) -> float:
            return float(np.median([np.abs(held - cap * np.tanh(plain / cap)).mean() for plain, held in sides]))

        cap = float(min(np.geomspace(2.0, 400.0, 54), key=error))
        for width in (1.05, 1.01, 1.002, 1.0004):
            cap = float(min((cap * width**step for step in range(-5, 6)), key=error))
        says = f"capped softly at {cap:.4g}, cap x tanh(logit / cap)"
        capped = partial(lambda cap, values: cap * np.tanh(values / cap), cap)
        if cap < _LARGEST_CAP and (
            found := _applied(pair, split[1], side, capped, TRIMMED, "soft-capping", says, cap=cap)
        ):
            return found
    return None


def clamped(pair: PairRows) -> Transform | None:
    """variant = reference, but no lower or no higher than two bounds, or the other way round."""
    if pair.values != "logit" or (split := halves(pair.rows)) is None:
        return None
    for side in (1, 0):
        values = np.concatenate([row.y if side else row.x for row in split[0]])
        # A value that only one token has is no bound.
        bounds = {
            name: float(bound)
            for name, bound in (("low", values.min()), ("high", values.max()))
            if (values == bound).sum() > 1
        }
        clip = partial(np.clip, a_min=bounds.get("low", -math.inf), a_max=bounds.get("high", math.inf))
        words = [f"at {'least' if name == 'low' else 'most'} {bound:.4g}" for name, bound in bounds.items()]
        if found := _applied(pair, split[1], side, clip, 1.0, "clamped", f"clamped to {joined(words)}", **bounds):
            return found
    return None


def coarser(pair: PairRows) -> Iterator[Cause]:
    """One side is the other rounded to a coarser format, to so many decimals, or to even steps."""
    if (split := halves(pair.rows, 1)) is None:
        return
    for side in (1, 0):
        roundings: list[tuple[str, Callable[[Values, Values], Values]]] = []
        if pair.values == "logit":
            formats = (name for name in (*_SIXTEEN, "float8_e4m3fn", "float8_e5m2") if name != pair.dtype)
            roundings += [(name, partial(_rounded_to, FORMATS[name])) for name in formats]
        for places in range(1, 7):
            roundings.append((plural(places, "decimal"), partial(_to_decimals, places)))
        grids = [_grid_of(row.y if side else row.x) for row in split[0]] if pair.is_full else []
        levels = [grid[2] for grid in grids if grid is not None]
        if levels and 2 * len(levels) > len(grids):
            bits = max(1, math.ceil(math.log2(max(levels))))
            roundings.append((f"even steps, as {plural(bits, 'bit')} a row with a scale hold them", _to_grid))
        for name, rounded in roundings:

            def fit(row: RowPair, side: int = side, rounded: Callable[..., Values] = rounded) -> tuple[Values, Values]:
                fine, coarse = (row.x, row.y) if side else (row.y, row.x)
                return coarse, rounded(fine, coarse)

            scored = score(pair, split[1], fit, False, 1.0)
            if scored is not None and scored.explained > 0.99:
                says = f"'{pair.names[side]}' is '{pair.names[1 - side]}' rounded to {name}"
                yield scored.cause("rounded", says, to=name)
                return


def _rounded_to(fmt: FloatFormat, fine: Values, _: Values | None = None) -> Values:
    within = np.clip(fine, -fmt.largest, fmt.largest)
    return np.asarray(within.astype(np.float32).astype(fmt.values), np.float64)


def _to_decimals(places: int, fine: Values, _: Values) -> Values:
    return np.asarray(np.round(fine, places), np.float64)


def _grid_of(row: Values) -> tuple[float, float, int] | None:
    """(start, step, levels) of the even grid that all values of a row lie on, None if there is none of at most 2^16."""
    held = np.unique(row)
    if not _LEAST_LEVELS <= len(held) <= len(row) // 2:
        return None
    gaps = np.diff(held)
    held = held[np.concatenate(([True], gaps > _SAME_LEVEL * gaps.max()))]  # a level that was rounded in two ways
    step = float(np.diff(held).min())
    if (held[-1] - held[0]) / step > _MOST_LEVELS:
        return None
    level = np.concatenate(([0], np.cumsum(np.round(np.diff(held) / step))))
    step = float(level @ (held - held[0]) / (level @ level))
    is_even = np.abs(held - held[0] - step * level).max() <= _OFF_GRID * step
    return (float(held[0]), step, int(level[-1]) + 1) if is_even else None


def _to_grid(fine: Values, coarse: Values) -> Values:
    if (grid := _grid_of(coarse)) is None:
        return fine
    start, step, levels = grid
    return np.asarray(start + step * np.clip(np.round((fine - start) / step), 0, levels - 1), np.float64)


def upcast(pair: PairRows) -> Iterator[Cause]:
    """Observation: the values of one side lie on a 16-bit grid, and the other's do not."""
    if pair.dtype != "float32" or not pair.rows:
        return
    sides = [np.concatenate([row.x for row in pair.rows]), np.concatenate([row.y for row in pair.rows])]
    for name in _SIXTEEN:
        on_grid = [bool((_rounded_to(FORMATS[name], values) == values).all()) for values in sides]
        side = 1 if on_grid[1] else 0
        if on_grid[0] != on_grid[1] and np.ptp(sides[side]) > 0:  # a constant is of every dtype
            yield Cause(
                "upcast",
                f"Every value of '{pair.names[side]}' is one of {name}, and those of '{pair.names[1 - side]}' are not:"
                f" it was computed in or saved as {name} and widened.",
                {"dtype": name},
            )
            return
