"""Causes that make one side a function of the other's values: a temperature, a constant, bounds, a coarser grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from ...numerics.formats import FORMATS, FloatFormat
from ...text import number, plural
from .rows import PairRows, RowPair, TooFewError, Values
from .scoring import LEAST_TOKENS, TRIMMED, Cause, Undo, are_few, halves, score

_LEAST_CONSTANT = 0.05  # a constant in logits that is more than a normalizer's
_OF_REST = 20.0  # a constant is so many times what it leaves
_ONE_SIDED = 0.8  # nine of ten constants
_SLOPE_TOKENS = 64  # of a row
_MOST_FACTOR = 10.0  # that is named of logits which something else was done to
_CAPPED_ROWS, _CAPPED_TOKENS = 8, 512  # to which a cap is fitted
_LEAST_LEVELS, _MOST_LEVELS = 8, 1 << 16  # of an evenly spaced grid
_SAME_LEVEL, _OFF_GRID = 1e-7, 0.02  # of the widest gap; of a step
_ROUNDED = 0.99  # of the squared difference


def temperature(pair: PairRows) -> Iterator[Cause]:
    """variant = factor x reference + a number at each position, as a temperature of 1 / factor on the variant makes it.

    Tokens of the text are left out if enough others are there, for a penalty may have moved them besides.
    """
    outside = [(row, ~row.in_text) for row in pair.rows]
    fitted, rows = halves(
        [row.part(which) if which.sum() >= max(LEAST_TOKENS, len(which) // 2) else row for row, which in outside]
    )
    factor = float(np.median([_slope(row) for row in fitted]))

    def undo(row: RowPair) -> RowPair:
        return replace(row, x=factor * row.x)

    scored = score(pair, rows, undo, TRIMMED, has_constant=True) if factor > 0 else None
    if scored is not None and (scored.is_noise or 1 / _MOST_FACTOR <= factor <= _MOST_FACTOR):
        above = "below 1" if factor > 1 else "above 1"
        amount = f"of {1 / factor:.4g} (values x {factor:.4g})" if scored.is_noise else above
        says = f"Up to a constant in each row, '{pair.names[1]}' is '{pair.names[0]}' at a temperature {amount}."
        parameters = {"factor": factor, "temperature": 1 / factor} if scored.is_noise else {}
        yield replace(scored, name="temperature", says=says, parameters=parameters, undo=undo)


def _slope(row: RowPair) -> float:
    """Slope of y over x that a quarter of the tokens does not move: the median over pairs, weighted by distance."""
    row = row.part(slice(None, None, 1 + len(row.x) // _SLOPE_TOKENS))
    first, second = np.triu_indices(len(row.x), 1)
    apart = row.x[first] - row.x[second]
    slopes = np.divide(row.y[first] - row.y[second], apart, out=np.zeros(len(apart)), where=apart != 0)
    order = np.argsort(slopes)
    weights = np.cumsum(np.abs(apart[order]))
    return float(slopes[order][np.searchsorted(weights, weights[-1] / 2)])


def constant(pair: PairRows) -> Iterator[Cause]:
    """variant = reference + one number at each position, as log-probabilities are logits less their log-sum."""
    _, rows = halves(pair.rows)

    def undo(row: RowPair) -> RowPair:
        return replace(row, x=row.x + np.median(row.y - row.x))

    scored = score(pair, rows, undo, TRIMMED)
    if scored is None or not scored.is_noise:
        return
    constants = np.array([np.median(row.y - row.x) for row in rows])
    least = _OF_REST * (scored.left_rms or 0.0) if pair.has_constants or are_few(rows) else 0.0
    is_one_sided = abs(np.sign(constants).mean()) >= _ONE_SIDED  # the noise of a row has any sign
    if is_one_sided and np.median(np.abs(constants)) >= max(_LEAST_CONSTANT, least):
        middle = float(np.median(constants))
        says = (
            f"'{pair.names[1]}' is '{pair.names[0]}' plus one number in each row (median {number(middle)}), as"
            " log-probabilities are logits less a log-sum."
        )
        yield replace(scored, name="constant", says=says, parameters={"constant": middle}, undo=undo)


def soft_capping(pair: PairRows) -> Iterator[Cause]:
    """cap x tanh(logit / cap) on one side."""
    yield from _bounded(pair, "soft-capping", _cap_of, lambda values, cap: cap * np.tanh(values / cap), TRIMMED)


def _cap_of(held: list[Values], plain: list[Values]) -> dict[str, float]:
    few = [np.stack(both)[:, :: 1 + len(both[0]) // _CAPPED_TOKENS] for both in zip(held, plain, strict=True)]

    def error(cap: float) -> float:
        return float(np.median([np.abs(own - cap * np.tanh(other / cap)).mean() for own, other in few[:_CAPPED_ROWS]]))

    cap = float(min(np.geomspace(2.0, 400.0, 54), key=error))
    for width in (1.05, 1.01, 1.002, 1.0004):
        cap = float(min((cap * width**step for step in range(-5, 6)), key=error))
    return {"cap": cap}


def clamped(pair: PairRows) -> Iterator[Cause]:
    """No logit below or above a bound on one side."""
    yield from _bounded(pair, "clamped", _bounds_of, lambda values, low=None, high=None: values.clip(low, high), 1.0)


def _bounds_of(held: list[Values], _: list[Values]) -> dict[str, float]:
    values = np.concatenate(held)
    bounds = {"low": float(values.min()), "high": float(values.max())}
    return {name: one for name, one in bounds.items() if (values == one).sum() > 1}  # one token's value is no bound


def _bounded(
    pair: PairRows, name: str, fit: Callable[..., dict[str, float]], bound: Callable[..., Values], least: float
) -> Iterator[Cause]:
    """Logits of one side are the other's within bounds, and what that leaves is noise."""
    if pair.values != "logit":
        raise TooFewError("logits")
    fitted, rows = halves(pair.rows)
    sides = [row.x for row in fitted], [row.y for row in fitted]
    for side in (1, 0):
        parameters = fit(sides[side], sides[1 - side])
        undo = _applied(side, partial(bound, **parameters))
        scored = score(pair, rows, undo, least)
        if scored is not None and scored.is_noise:
            amounts = ", ".join(f"{key} {value:.4g}" for key, value in parameters.items())
            says = f"Logits of '{pair.names[side]}' are those of '{pair.names[1 - side]}', {name} ({amounts})."
            yield replace(scored, name=name, says=says, parameters=parameters, undo=undo)


def _applied(side: int, of: Callable[[Values], Values]) -> Undo:
    """Give the other side's values what `side` did to them."""
    return lambda row: replace(row, x=of(row.x)) if side else replace(row, y=of(row.y))


def rounded(pair: PairRows) -> Iterator[Cause]:
    """One side is the other rounded to a coarser format, to so many decimals, or to even steps."""
    fitted, rows = halves(pair.rows, 1)
    for side in (1, 0):
        roundings: dict[str, Undo] = {}
        if pair.values == "logit":
            names = (name for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2") if name != pair.dtype)
            roundings = {name: _applied(side, partial(rounded_to, FORMATS[name])) for name in names}
        roundings |= {plural(places, "decimal"): _applied(side, partial(_decimals, places)) for places in range(1, 7)}
        grids = [_grid_of(row.y if side else row.x) for row in fitted] if pair.dtype else []
        levels = [grid[2] for grid in grids if grid is not None]
        if 2 * len(levels) > len(grids):
            bits = math.ceil(math.log2(max(levels)))
            roundings[f"even steps, as {bits} bits a row with a scale hold them"] = partial(_to_grid, side)
        for name, undo in roundings.items():
            scored = score(pair, rows, undo)
            if scored is not None and (scored.explained or 0.0) > _ROUNDED:
                says = f"'{pair.names[side]}' is '{pair.names[1 - side]}' rounded to {name}."
                yield replace(scored, name="rounded", says=says, parameters={"to": name})
                return


def rounded_to(fmt: FloatFormat, values: Values) -> Values:
    within = np.clip(values, -fmt.largest, fmt.largest)
    return within.astype(np.float32).astype(fmt.values).astype(np.float64)


def _decimals(places: int, values: Values) -> Values:
    return values.round(places)


def _grid_of(row: Values) -> tuple[float, float, int] | None:
    """(start, step, levels) of the even grid that all values of a row lie on, None if there is none of at most 2^16."""
    held = np.unique(row)
    if not _LEAST_LEVELS <= len(held) <= len(row) // 2:
        return None
    gaps = np.diff(held)
    held = held[np.append(True, gaps > _SAME_LEVEL * gaps.max())]  # a level that was rounded in two ways
    step = float(np.diff(held).min())
    if (held[-1] - held[0]) / step > _MOST_LEVELS:
        return None
    level = np.append(0, np.cumsum(np.round(np.diff(held) / step)))
    step = float(level @ (held - held[0]) / (level @ level))
    is_even = np.abs(held - held[0] - step * level).max() <= _OFF_GRID * step
    return (float(held[0]), step, int(level[-1]) + 1) if is_even else None


def _to_grid(side: int, row: RowPair) -> RowPair:
    if (grid := _grid_of(row.y if side else row.x)) is None:
        return row
    start, step, levels = grid
    return _applied(side, lambda fine: start + step * np.clip(np.round((fine - start) / step), 0, levels - 1))(row)
