"""Causes that one log-probability per sampled token can show: trainer against rollout (docs/guides/rl.md).

To add one: a function over `SampledTokens` that yields it, a line in `CAUSES`, and a planted cause in
`benchmarks/verdicts/rollouts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...numerics.formats import FORMATS
from ...numerics.mismatch import SampledTokens
from ...text import clean, number, percent
from .fits import round_to
from .scoring import Cause

_LEAST = 64  # tokens
_MOST = 0.1  # of the squared difference, that a named cause leaves
_SHIFTS = (1, -1, 2, -2, 3, -3)
_CONSTANT = 0.01  # of the tokens
_EXACT = 0.01  # rms of r of the other sign, of the largest r
_ONE_SIDED = 0.1  # rms of r of one sign over that of the other
_LEAST_MASS = 0.02  # that a renormalization adds to a log-probability, at most of all tokens
_OPEN, _RAISED = -0.05, 0.75  # log-probability of a token that others compete with; share of those that are raised
_CONTRAST = 9.0  # of squared differences per token, within a part of the tokens and outside
_OUTLYING = 16.0  # times the mean square of the other tokens, for at least half of a part's
_UNRELATED = 1e-3  # mean square of r over the variance of log-probabilities, if some are of other tokens
_LAGGED = 3.0  # times mean |r| of the best step
_OLDER, _SURE = 2.0, 4.0  # times mean |r| of the newest weights, and standard errors above it


def explain_tokens(tokens: SampledTokens, names: tuple[str, str] = ("rollout", "trainer")) -> list[Cause]:
    """Return the causes that account for the difference, the most telling first; none if it looks like noise.

    If all tokens together show none, those of the steps, environments and so on that differ most are looked at alone.
    """
    if causes := _causes_of(tokens, names):
        return causes
    sizes = np.nan_to_num(np.abs(tokens.r))
    places = [(name, *_worst_of(name, values, sizes)) for name, values in tokens.groups.items()]
    for _, place, is_worst in places:
        if causes := _causes_of(tokens.select(is_worst), names):
            return [replace(cause, says=f"At {place}: {cause.says}") for cause in causes]
    square = sizes**2
    for name, place, is_worst in places:
        if min(is_worst.sum(), (~is_worst).sum()) >= _LEAST and _is_most(square, is_worst):
            share = percent(float(square[is_worst].sum() / square.sum()))
            says = f"'{names[1]}' and '{names[0]}' differ at {place}: {share} of the squared difference."
            return [Cause("part of the sequences", says, {"part": name})]
    return []


def _worst_of(name: str, values: NDArray, sizes: NDArray[np.float64]) -> tuple[str, NDArray[np.bool_]]:
    """Return the values of a group of tokens whose mean |r| is large, in words, and which tokens have one."""
    is_text = values.dtype.kind == "U"
    each = np.unique(values[values != "" if is_text else np.isfinite(values)])
    means = np.array([sizes[values == value].mean() for value in each])
    worst = each[(means > 0) & (means >= _LAGGED * means.min())] if len(each) > 1 else each[:0]
    first = "" if not len(worst) else f"'{clean(worst[0], 60)}'" if is_text else f"{worst[0]:g}"
    return f"{name} {first}" if len(worst) == 1 else f"{len(worst)} {name}s, the first {first}", np.isin(values, worst)


def _is_most(square: NDArray[np.float64], part: NDArray[np.bool_]) -> bool:
    """Return whether nearly all of the squared difference lies in a part of the tokens, at a much higher density."""
    inside, outside = square[part], square[~part]
    is_dense = inside.mean() >= _CONTRAST * max(outside.mean(), 1e-300)
    return bool(is_dense and inside.sum() >= (1 - _MOST) * square.sum())


def _causes_of(tokens: SampledTokens, names: tuple[str, str]) -> list[Cause]:
    causes = list(_placeholders(tokens, names))
    usable = np.isfinite(tokens.r)
    for cause in causes:
        usable &= ~_is_placeholder(tokens, cause)
    tokens = tokens.select(usable)
    if len(tokens.r) < _LEAST or not tokens.r.any():
        return causes
    for find in CAUSES:
        if matches := list(find(tokens, names)):
            return causes + matches
    return causes


def _placeholders(tokens: SampledTokens, names: tuple[str, str]) -> Iterator[Cause]:
    """One value of a side at many tokens to which the other side gives all kinds of values."""
    sides = (tokens.rollout, tokens.trainer)
    for side, (own, other) in enumerate((sides, sides[::-1])):
        missing = ~np.isfinite(own) & np.isfinite(other)
        if missing.sum() > _CONSTANT * len(own):
            says = f"'{names[side]}' has no value for {percent(missing.mean())} of the tokens."
            yield Cause("missing", says, {"side": side, "value": None, "share": float(missing.mean())})
        values, counts = np.unique(own[np.isfinite(own)], return_counts=True)
        if not len(values) or counts.max() <= max(8, _CONSTANT * len(own)):
            continue
        value = float(values[counts.argmax()])
        is_value = own == value
        inside, outside = (_mean_square((tokens.r)[part & np.isfinite(tokens.r)]) for part in (is_value, ~is_value))
        # 0.0 is right for a certain token, and for the one that top-p leaves: there the sides agree as elsewhere.
        if inside > _CONTRAST * outside:
            share = is_value.mean()
            says = f"'{names[side]}' is {number(value)} for {percent(share)} of the tokens: placeholders."
            yield Cause("placeholders", says, {"side": side, "value": value, "share": float(share)})


def _mean_square(values: NDArray[np.float64]) -> float:
    return float((values**2).mean()) if len(values) else 0.0


def _is_placeholder(tokens: SampledTokens, cause: Cause) -> NDArray[np.bool_]:
    own = (tokens.rollout, tokens.trainer)[cause.parameters["side"]]
    value = cause.parameters["value"]
    return ~np.isfinite(own) if value is None else own == value


def _shift(tokens: SampledTokens, names: tuple[str, str]) -> Iterator[Cause]:
    """Each value of the trainer is the rollout's of another token of its sequence."""
    for shift in _SHIFTS:
        own_places, other_places = (
            (slice(None, -shift), slice(shift, None)) if shift > 0 else (slice(-shift, None), slice(None, shift))
        )
        is_same = tokens.sequence[own_places] == tokens.sequence[other_places]
        own = tokens.r[own_places][is_same] ** 2
        moved_r = (tokens.trainer[own_places] - tokens.rollout[other_places])[is_same] ** 2
        if len(own) >= _LEAST // 4 and moved_r.sum() <= _MOST * own.sum():
            by = f"{abs(shift)} token{'s' * (abs(shift) > 1)} {'later' if shift > 0 else 'earlier'}"
            says = f"Off by {abs(shift)}: '{names[1]}' at each token is '{names[0]}' {by}."
            yield Cause("shifted", says, {"tokens": shift}).score(own, moved_r, len(own))
            return


def _retokenized(tokens: SampledTokens, names: tuple[str, str]) -> Iterator[Cause]:
    """From some token of a sequence on, each value of the trainer is the rollout's of another token."""
    if _mean_square(tokens.r) < _UNRELATED * tokens.rollout.var():
        return
    starts = np.flatnonzero(np.append(True, tokens.sequence[1:] != tokens.sequence[:-1]))
    ends = np.append(starts[1:], len(tokens.r)) - 1
    gains, places = [], []
    for shift in _SHIFTS:
        at = np.arange(len(tokens.r))
        other = np.clip(at + shift, 0, len(at) - 1)
        moved_r = np.where(tokens.sequence[other] == tokens.sequence, tokens.trainer - tokens.rollout[other], tokens.r)
        total = np.cumsum(tokens.r**2 - moved_r**2)
        gain = np.repeat(total[ends], ends - starts + 1) - np.append(0, total[:-1])  # if it starts at this token
        best = np.maximum.reduceat(gain, starts)
        gains.append(best)
        is_best = gain == np.repeat(best, ends - starts + 1)
        places.append(np.minimum.reduceat(np.where(is_best, at, len(at)), starts))
    best, of = np.max(gains, axis=0), np.argmax(gains, axis=0)
    rest = np.add.reduceat(tokens.r**2, starts) - np.maximum(best, 0)
    places = np.choose(of, places)
    is_moved = best > (1 - _MOST) * np.add.reduceat(tokens.r**2, starts)
    if rest.sum() <= _MOST * (tokens.r**2).sum() and (ends - places)[is_moved].sum() >= _LEAST // 4:
        first, shift = int(places[is_moved][0]), _SHIFTS[of[is_moved][0]]
        place = f"from token {tokens.position[first]} of sequence {tokens.sequence[first]} on"
        by = f"{abs(shift)} token{'s' * (abs(shift) > 1)} {'later' if shift > 0 else 'earlier'}"
        count = f"{is_moved.sum():,} of {len(starts):,} sequences"
        says = f"Other token ids in {count}: {place}, '{names[1]}' is '{names[0]}' {by}."
        parameters = {"sequences": int(is_moved.sum()), "sequence": int(tokens.sequence[first])}
        parameters |= {"token": int(tokens.position[first]), "tokens": shift}
        yield Cause("retokenized", says, parameters).score(tokens.r**2, rest, len(tokens.r))


def _grid(tokens: SampledTokens, names: tuple[str, str]) -> Iterator[Cause]:
    """Values of one side lie on the grid of a 16-bit dtype, and the other's do not."""
    sides = (tokens.rollout, tokens.trainer)
    for name in ("bfloat16", "float16"):
        on_grid = [bool((round_to(FORMATS[name], side) == side).all()) for side in sides]
        if on_grid[0] != on_grid[1]:
            side = int(on_grid[1])
            grid = round_to(FORMATS[name], sides[1 - side])
            if len(np.unique(sides[side])) > 8:
                says = f"'{names[side]}' stores log-probabilities in {name}."
                cause = Cause("rounded", says, {"side": side, "dtype": name})
                rest = (grid - sides[side]) ** 2
                is_all = rest.sum() <= _MOST * (tokens.r**2).sum()
                yield cause.score(tokens.r**2, rest, len(rest)) if is_all else cause


def _renormalized(tokens: SampledTokens, names: tuple[str, str]) -> Iterator[Cause]:
    """One side is never below the other: its probabilities were renormalized after top-p, top-k or min-p."""
    r = tokens.r
    for side, excess in enumerate((-r, r)):  # of the rollout over the trainer, of the trainer over the rollout
        above, below = (float(np.sqrt((part**2).mean())) for part in (np.maximum(excess, 0), np.minimum(excess, 0)))
        is_open = (tokens.trainer if side == 0 else tokens.rollout) < _OPEN  # what was left out had some probability
        if below > _ONE_SIDED * above or float(np.quantile(excess, 0.99)) < _LEAST_MASS:
            continue
        if not is_open.any() or (excess[is_open] > 0).mean() < _RAISED:
            continue
        most = float(excess.max())
        least = float(np.exp(-most)) if below <= _EXACT * most else None  # with noise, the largest is no bound
        says = (
            f"'{names[side]}' is renormalized after top-p, top-k or min-p: never below '{names[1 - side]}', and at most"
            f" {number(most, 3)} above{f' (top-p would be {least:.3g})' if least else ''}."
        )
        yield Cause("renormalized", says, {"side": side, "top_p": least})


def _temperature(tokens: SampledTokens, names: tuple[str, str]) -> Iterator[Cause]:
    """r follows log-probability plus entropy, its derivative by the inverse temperature. Needs the entropy."""
    if tokens.entropy is None or not np.isfinite(tokens.entropy).all():
        return
    y = -tokens.r
    x = np.column_stack([tokens.trainer, tokens.entropy])
    slopes = np.linalg.lstsq(x, y, rcond=None)[0]
    rest, steeper = (y - x @ slopes) ** 2, float(slopes[0])
    if rest.sum() <= 1.5 * _MOST * (y**2).sum() and (min(slopes) > 0 or max(slopes) < 0):
        temperature = 1 / (1 + steeper)
        says = f"'{names[0]}' is sampled at a temperature of about {temperature:.2g} times that of '{names[1]}'."
        yield Cause("temperature", says, {"temperature": temperature}).score(y**2, rest, len(y))


def _parts(tokens: SampledTokens, names: tuple[str, str]) -> Iterator[Cause]:
    """Find the part of each response that differs: its first or last token, or what follows a masked turn."""
    starts = np.append(True, tokens.sequence[1:] != tokens.sequence[:-1])
    ends = np.append(starts[1:], True)
    parts = {"first": (starts, "the first token of each response"), "last": (ends, "the last token of each response")}
    if tokens.turn is not None and tokens.turn.any():
        is_first = starts | np.append(False, np.diff(tokens.turn) != 0)
        parts["first of a turn"] = (is_first, "the first token of each turn")
        for turn in range(int(tokens.turn.max()), 0, -1):
            parts[f"turn {turn}"] = (tokens.turn >= turn, f"tokens from turn {turn + 1} on")
    square = tokens.r**2
    for kind, (part, words) in parts.items():
        inside, outside = square[part], square[~part]
        if len(inside) < 8 or len(outside) < 8:
            continue
        is_most = inside.sum() >= (1 - _MOST) * square.sum() and inside.mean() >= _CONTRAST * outside.mean()
        if is_most or np.median(inside) >= _OUTLYING * max(outside.mean(), 1e-300):
            share = float(inside.sum() / square.sum())
            says = f"'{names[1]}' and '{names[0]}' differ at {words}: {percent(share)} of the squared difference."
            yield Cause("part of the response", says, {"part": kind})
            return


def _lag(tokens: SampledTokens, _: tuple[str, str]) -> Iterator[Cause]:
    """|r| grows with the lag of the rollout's weights."""
    if tokens.lag is None:
        return
    lags = np.unique(tokens.lag[np.isfinite(tokens.lag)])
    means, logs, errors = [], [], []
    for lag in lags:
        of_lag = tokens.select(tokens.lag == lag)
        _, sequence = np.unique(of_lag.sequence, return_inverse=True)
        sizes = np.bincount(sequence, np.abs(of_lag.r)) / np.bincount(sequence)  # of a sequence: its tokens are alike
        if len(sizes) > 1:
            means.append(float(np.abs(of_lag.r).mean()))
            sizes = np.log(np.maximum(sizes, np.finfo(float).tiny))  # their spread is in proportion to their size
            logs.append(sizes.mean())
            errors.append(sizes.var(ddof=1) / len(sizes))
    is_sure = len(means) == len(lags) > 1 and logs[-1] - logs[0] >= _SURE * (errors[0] + errors[-1]) ** 0.5
    if is_sure and means[-1] >= _OLDER * means[0] and min(means[1:]) > means[0]:
        says = (
            f"Older weights: mean |r| is {number(means[0], 2)} at a lag of {lags[0]:g} and {number(means[-1], 2)} at"
            f" {lags[-1]:g}."
        )
        yield Cause("lag", says, {"lags": lags.tolist(), "mean_abs": means})


CAUSES = (_shift, _retokenized, _parts, _renormalized, _temperature, _grid, _lag)
