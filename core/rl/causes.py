"""Causes that one log-probability per sampled token can show: trainer against rollout
(docs/guides/rl.md).

To add one: a function over `SampledTokens` that yields it, a line in `CAUSES`, and a planted cause
in `benchmarks/verdicts/rollouts.py`.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..cause import Cause
from ..numerics.arrays import Flags, Floats
from ..numerics.formats import FORMATS, round_to
from ..text import clean, number, percent, plural, scaling, series
from .figures import Integers, SampledTokens, stands_out
from .token_values import (
    CONTRAST,
    EXACTLY,
    MOST,
    MOST_MASS,
    another_token,
    has_certain,
    is_explained,
    other_order,
    placeholders,
    sides_of,
    units,
)

_LEAST = 64  # tokens
# nats, rms, of a part that differs: a step of bfloat16 in a logit is 0.03 to 0.25, and in a trial
# clean sides of which few tokens differ at all had 3e-6.
_LEAST_SIZE = 1e-3
_LEAST_VALUES = 8  # of a side, on a coarse grid
_SHIFTS = (1, -1, 2, -2, 3, -3)
_EXACT = 0.01  # rms of r of the other sign, of the largest r
_ONE_SIDED = 0.1  # rms of r of one sign over that of the other
_LEAST_MASS = 0.02  # that a renormalization adds to a log-probability, at most of all tokens
# log-probability of a token that others compete with; share of those that are raised
_OPEN = -0.05
_RAISED = 0.75
_OUTLYING = 16.0  # times the mean square of the other tokens, for at least half of a part's
# mean square of r over the variance of log-probabilities, if some are of other tokens
_UNRELATED = 1e-3
NO_TEMPERATURE = "Not checked: temperature (needs `entropy` of each token, or --trainer)."
_HOTTEST, _FITS = 10.0, 5  # temperature of one side over the other's; rounds of a robust fit
_FEW, _FAR = 0.05, 0.1  # of the tokens; nats, that they differ by if they are named
_LISTED = 4  # places in a sentence
_LEAST_TAIL = 4  # tokens, and before it
_OLDER, _SURE = 2.0, 4.0  # times mean |r| of the newest weights, and standard errors above it


def explain_tokens(tokens: SampledTokens) -> list[Cause]:
    """Return the causes that account for the difference, the most telling first; none if it looks
    like noise.

    If all tokens together show none, those of the steps, environments and so on that differ most
    are looked at alone.
    """
    causes = _causes_of(tokens)
    if _are_telling(causes):
        return causes
    sizes = np.nan_to_num(np.abs(tokens.r))
    places = []
    for name, values in tokens.groups.items():
        is_text = values.dtype.kind == "U"
        is_known = values != "" if is_text else np.isfinite(values)
        each = np.unique(values[is_known])
        means = np.array([sizes[values == value].mean() for value in each])
        worst = each[stands_out(means)]
        if not len(worst):
            continue
        first = f"'{clean(worst[0], 60)}'" if is_text else f"{worst[0]:g}"
        place = f"{len(worst)} {name}s, the first {first}"
        if len(worst) == 1:
            place = f"{name} {first}"
        places.append((name, place, np.isin(values, worst)))
    for _, place, is_worst in places:
        causes_there = _causes_of(tokens.select(is_worst))
        if _are_telling(causes_there):
            return [replace(cause, says=f"At {place}: {cause.says}") for cause in causes_there]
    square = sizes**2
    for name, place, is_worst in places:
        are_many = min(is_worst.sum(), (~is_worst).sum()) >= _LEAST
        if are_many and _is_most(square, is_worst):
            return [
                Cause(
                    "part of the sequences",
                    _differ_at(place, tokens, square, is_worst),
                    {"part": name},
                ),
                *causes,
            ]
    return [*_few(tokens, square), *causes]


def _differ_at(place: str, tokens: SampledTokens, square: Floats, part: Flags) -> str:
    rollout, trainer = tokens.names
    share = square[part].sum() / square.sum()
    return (
        f"'{trainer}' and '{rollout}' differ at {place}: {percent(share)} of the squared"
        " difference."
    )


def _are_telling(causes: list[Cause]) -> bool:
    return any(cause.name != "missing" for cause in causes)


def _few(tokens: SampledTokens, square: Floats) -> Iterator[Cause]:
    """Name the place of a few tokens that hold nearly all of the squared difference."""
    order = np.argsort(-square, kind="stable")
    total = square.sum()
    count = int(np.searchsorted(np.cumsum(square[order]), (1 - MOST) * total)) + 1
    few = order[:count]
    are_many = count > _FEW * len(square) or len(square) < _LEAST
    if are_many or square[few[-1]] < _FAR**2:
        return
    first = few.min()
    sequence = int(tokens.sequence[first])
    rollout, trainer = tokens.names
    yield Cause(
        "some tokens",
        f"'{trainer}' and '{rollout}': {count:,} of {len(square):,} tokens hold"
        f" {percent(square[few].sum() / total)} of the squared difference, first token"
        f" {tokens.position[first]} of sequence {sequence}.",
        {"tokens": count, "sequence": sequence},
    )


def _least_square(square: Floats, part: Flags) -> float:
    """Return the least mean squared difference of a part that is more than rounding.

    If most tokens outside are equal bit for bit, as those of a cached prefix are, they do not show
    how far the others round.
    """
    return (_LEAST_SIZE if np.median(square[~part]) else _FAR) ** 2


def _is_most(square: Floats, part: Flags) -> bool:
    """Return whether nearly all of the squared difference lies in a part of the tokens, at a much
    higher density.
    """
    inside = square[part]
    least = max(_least_square(square, part), CONTRAST * square[~part].mean())
    return bool(inside.mean() >= least and inside.sum() >= (1 - MOST) * square.sum())


def _causes_of(tokens: SampledTokens) -> list[Cause]:
    usable = np.isfinite(tokens.r)
    known = tokens.select(usable)
    if _is_enough(known) and (causes := list(units(known))):
        return causes
    causes = list(placeholders(tokens))
    for cause in causes:
        own = (tokens.rollout, tokens.trainer)[cause.parameters["side"]]
        usable &= own != cause.parameters["value"]
    tokens = tokens.select(usable)
    if not _is_enough(tokens):
        return causes
    for find in CAUSES:
        matches = list(find(tokens))
        if matches:
            return sorted([*causes, *matches], key=lambda cause: cause.name == "missing")
    return causes


def _is_enough(tokens: SampledTokens) -> bool:
    return len(tokens.r) >= _LEAST and bool(tokens.r.any())


def _elsewhere(tokens: SampledTokens, shift: int) -> tuple[Floats, Flags]:
    """Return squared differences of the trainer from the rollout `shift` tokens on, and which are
    of one sequence.
    """
    # at its ends the array begins again
    sequence = np.roll(tokens.sequence, -shift)
    at = np.arange(len(sequence)) + shift
    is_inside = (sequence == tokens.sequence) & (at >= 0) & (at < len(at))
    return (tokens.trainer - np.roll(tokens.rollout, -shift)) ** 2, is_inside


def _tokens_away(shift: int) -> str:
    return f"{plural(abs(shift), 'token')} {'later' if shift > 0 else 'earlier'}"


def _shift(tokens: SampledTokens) -> Iterator[Cause]:
    """Each value of the trainer is the rollout's of another token of its sequence."""
    rollout, trainer = tokens.names
    for shift in _SHIFTS:
        moved, is_inside = _elsewhere(tokens, shift)
        own = tokens.r[is_inside] ** 2
        moved = moved[is_inside]
        if len(own) >= _LEAST // 4 and is_explained(own, moved):
            says = (
                f"Off by {abs(shift)}: '{trainer}' at each token is '{rollout}'"
                f" {_tokens_away(shift)}."
            )
            yield Cause("shifted", says, {"tokens": shift}).score(own, moved, len(own))
            return


def _retokenized(tokens: SampledTokens) -> Iterator[Cause]:
    """From some token of a sequence on, each value of the trainer is the rollout's of another
    token.
    """
    square = tokens.r**2
    if square.mean() < _UNRELATED * tokens.rollout.var():
        return
    starts = tokens.starts
    lengths = tokens.lengths
    at = np.arange(len(square))
    gains = []
    places = []
    for shift in _SHIFTS:
        moved, is_inside = _elsewhere(tokens, shift)
        gain = _gains(np.where(is_inside, square - moved, 0.0), starts, lengths)
        gains.append(np.maximum.reduceat(gain, starts))
        first_best = np.where(gain == np.repeat(gains[-1], lengths), at, len(at))
        places.append(np.minimum.reduceat(first_best, starts))
    best = np.max(gains, axis=0)
    of = np.argmax(gains, axis=0)
    place = np.choose(of, places)
    whole = np.add.reduceat(square, starts)
    rest = whole - np.maximum(best, 0)
    is_moved = best > (1 - MOST) * whole
    if rest.sum() > MOST * whole.sum() or not is_moved.any():
        return
    shift = _SHIFTS[of[is_moved][0]]
    moved, is_inside = _elsewhere(tokens, shift)
    is_inside &= np.repeat(is_moved, lengths) & (at >= np.repeat(place, lengths))
    if is_inside.sum() < _LEAST // 4 or not is_explained(square[is_inside], moved[is_inside]):
        return
    first = int(place[is_moved][0])
    sequences = int(is_moved.sum())
    position = int(tokens.position[first])
    sequence = int(tokens.sequence[first])
    rollout, trainer = tokens.names
    by = f"'{trainer}' is '{rollout}' {_tokens_away(shift)}"
    count = f"{sequences:,} of {len(starts):,} sequences"
    name = "retokenized"
    says = f"Other token ids in {count}: from token {position} of sequence {sequence} on, {by}."
    if np.median((place - starts)[is_moved]) <= abs(shift):
        name = "shifted"
        says = f"Off by {abs(shift)} in {count}, the first {sequence}: {by}."
    parameters = {"sequences": sequences, "sequence": sequence, "token": position, "tokens": shift}
    yield Cause(name, says, parameters).score(square, rest, len(square))


def _gains(of_tokens: Floats, starts: Integers, lengths: Integers) -> Floats:
    """Return the sum of a value from each token to the end of its sequence. [tokens]"""
    total = np.cumsum(of_tokens)
    before = np.append(0.0, total[:-1])
    at_end = np.repeat(total[starts + lengths - 1], lengths)
    return at_end - before


def _grid(tokens: SampledTokens) -> Iterator[Cause]:
    """Values of one side lie on the grid of a 16-bit dtype, or of whole numbers, and the other's do
    not.
    """
    for side, own, other, name, _ in sides_of(tokens):
        # the coarsest first, whose values are also on most of the finer ones
        for dtype in ("whole numbers", "bfloat16", "float16"):
            rounded, grid = (
                round_to(FORMATS[dtype], each) if dtype in FORMATS else np.rint(each)
                for each in (own, other)
            )
            is_on_grid = (rounded == own).all() and len(np.unique(own)) > _LEAST_VALUES
            if is_on_grid and (grid != other).any():
                says = f"'{name}' stores log-probabilities in {dtype}."
                cause = Cause("rounded", says, {"side": side, "dtype": dtype})
                square = tokens.r**2
                rest = (grid - own) ** 2
                if rest.sum() <= MOST * square.sum():
                    cause = cause.score(square, rest, len(rest))
                yield cause
                break


def _renormalized(tokens: SampledTokens) -> Iterator[Cause]:
    """One side is never below the other: its probabilities were renormalized after top-p, top-k or
    min-p.
    """
    lengths = tokens.lengths
    for side, own, other, name, other_name in sides_of(tokens):
        excess = own - other
        above, below = (np.sqrt((np.maximum(each, 0) ** 2).mean()) for each in (excess, -excess))
        high = np.quantile(excess, 0.99)
        if below > _ONE_SIDED * above or not _LEAST_MASS <= high <= MOST_MASS:
            continue
        # It adds less to a certain token than to others, so a constant of a response is none.
        means = np.add.reduceat(excess, tokens.starts) / lengths
        around = excess - np.repeat(means, lengths)
        is_constant = has_certain(own) and (around**2).sum() <= EXACTLY * (excess**2).sum()
        if is_constant or any((np.rint(each) == each).all() for each in (own, other)):
            continue
        is_open = other < _OPEN  # what was left out had some probability
        if not is_open.any() or (excess[is_open] > 0).mean() < _RAISED:
            continue
        most = float(excess.max())
        least = None
        top_p = ""
        # With noise, or outliers, the largest is no bound.
        if below <= _EXACT * most and most <= MOST_MASS:
            least = float(np.exp(-most))
            top_p = f" (top-p would be {least:.3g})"
        yield Cause(
            "renormalized",
            f"'{name}' is renormalized after top-p, top-k or min-p: never below '{other_name}', and"
            f" at most {number(most)} above{top_p}.",
            {"side": side, "top_p": least},
        )


def _temperature(tokens: SampledTokens) -> Iterator[Cause]:
    """r follows log-probability plus entropy, its derivative by the inverse temperature.

    Needs the entropy.
    """
    if tokens.entropy is None or not np.isfinite(tokens.entropy).all():
        return
    y = -tokens.r
    x = np.column_stack([tokens.trainer, tokens.entropy])
    usual = np.ones(len(y), bool)
    for _ in range(2):
        slopes = np.linalg.lstsq(x[usual], y[usual], rcond=None)[0]
        rest = (y - x @ slopes) ** 2
        inverse = 1 + float(slopes[0])
        is_one_sign = min(slopes) > 0 or max(slopes) < 0
        is_plausible = is_one_sign and 1 / _HOTTEST <= inverse <= _HOTTEST
        if is_plausible and is_explained(y**2, rest, 1.5 * MOST):
            rollout, trainer = tokens.names
            cause = Cause(
                "temperature",
                f"'{rollout}' is sampled at a temperature of about {scaling(1 / inverse, 3)}"
                f" times that of '{trainer}'.",
                {"temperature": 1 / inverse},
            )
            near = rest <= np.quantile(rest, 0.99)
            yield cause.score(y[near] ** 2, rest[near], near.sum())
            return
        # all but the 2 % that are farthest from a line of least absolute deviations
        weights = np.ones(len(y))
        for _ in range(_FITS):
            slopes = np.linalg.lstsq(x * weights[:, None], y * weights, rcond=None)[0]
            distances = np.abs(y - x @ slopes)
            weights = 1 / np.sqrt(np.maximum(distances, 1e-3))
        usual = distances <= np.quantile(distances, 0.98)


def _parts(tokens: SampledTokens) -> Iterator[Cause]:
    """Find the part of each response that differs: places from its start or end, what follows a
    masked turn, a tail.
    """
    square = tokens.r**2
    starts = tokens.starts
    lengths = tokens.lengths
    index = np.arange(len(square)) - np.repeat(starts, lengths)
    to_end = np.repeat(lengths, lengths) - 1 - index
    parts = {}
    # The first place has a part of its own below: 0 of a response, 1 from its end.
    for places, words, least in (
        (tokens.position, "of each response", 1),
        (to_end + 1, "from the end of each response", 2),
    ):
        each, place_of, counts = np.unique(places, return_inverse=True, return_counts=True)
        in_order = square[np.lexsort((square, place_of))]
        medians = in_order[np.cumsum(counts) - 1 - counts // 2]
        means = np.bincount(place_of, square) / counts
        # most responses differ there much more than anywhere else
        bad = each[(counts >= 4) & (medians >= _OUTLYING * np.median(means))]
        if 0 < len(bad) <= _LISTED and bad[0] >= least:
            noun = "token" if len(bad) == 1 else "tokens"
            listed = f"{noun} {series([*map(str, bad)])} {words}"
            parts[listed] = (np.isin(places, bad), listed)
    parts["first"] = (index == 0, "the first token of each response")
    parts["last"] = (to_end == 0, "the last token of each response")
    turns = np.zeros_like(index) if tokens.turn is None else tokens.turn
    for turn in range(turns.max(), 0, -1):
        parts[f"turn {turn}"] = (turns >= turn, f"tokens from turn {turn + 1} on")
    # from its first token on most of a sequence differs, and little before it does
    is_far = square > _OUTLYING * np.median(square)
    gain = _gains(np.where(is_far, 1.0, -1.0), starts, lengths)
    best = np.repeat(np.maximum.reduceat(gain, starts), lengths)
    is_begin = (gain == best) & (best >= _LEAST_TAIL)
    begin = np.where(is_begin, np.arange(len(gain)), -1)
    tail = np.maximum.accumulate(begin) - np.repeat(starts, lengths) >= _LEAST_TAIL
    if tail.any():
        first = tail.argmax()
        place = f"token {tokens.position[first]} of sequence {tokens.sequence[first]}"
        count = f"{len(np.unique(tokens.sequence[tail])):,} of {len(starts):,} sequences"
        parts["end"] = (tail, f"the end of {count}, first from {place} on")
    is_first = (index == 0) | np.append(False, np.diff(turns) != 0)
    parts["first of a turn"] = (is_first, "the first token of each turn")
    for kind, (part, words) in parts.items():
        inside = square[part]
        outside = square[~part]
        # responses that begin alike have the same values there
        if len(np.unique(inside)) < 8 or len(outside) < 8:
            continue
        if inside.mean() < _least_square(square, part):
            continue
        is_outlying = np.median(inside) >= _OUTLYING * max(outside.mean(), 1e-300)
        if is_outlying or (kind != "end" and _is_most(square, part)):
            yield Cause(
                "part of the response",
                _differ_at(words, tokens, square, part),
                {"part": kind},
            )
            return


def _lag(tokens: SampledTokens) -> Iterator[Cause]:
    """|r| grows with the lag of the rollout's weights."""
    if tokens.lag is None:
        return
    lags = np.unique(tokens.lag[np.isfinite(tokens.lag)])
    of_lags = []
    for lag in lags:
        of_lag = tokens.select(tokens.lag == lag)
        _, sequence = np.unique(of_lag.sequence, return_inverse=True)
        # of a sequence: its tokens are alike
        sizes = np.bincount(sequence, np.abs(of_lag.r)) / np.bincount(sequence)
        if len(sizes) > 1:
            # their spread is in proportion to their size
            sizes = np.log(np.maximum(sizes, np.finfo(float).tiny))
            error = sizes.var(ddof=1) / len(sizes)
            of_lags.append((float(np.abs(of_lag.r).mean()), sizes.mean(), error))
    if not len(of_lags) == len(lags) > 1:
        return
    means, logs, errors = zip(*of_lags, strict=True)
    newest, *older = means
    is_sure = logs[-1] - logs[0] >= _SURE * (errors[0] + errors[-1]) ** 0.5
    if is_sure and older[-1] >= _OLDER * newest and min(older) > newest:
        yield Cause(
            "lag",
            f"Older weights: mean |r| is {number(newest, 2)} at a lag of {lags[0]:g} and"
            f" {number(older[-1], 2)} at {lags[-1]:g}.",
            {"lags": lags.tolist(), "mean_abs": [*means]},
        )


CAUSES = (
    units,
    _shift,
    _retokenized,
    other_order,
    _parts,
    another_token,
    _renormalized,
    _temperature,
    _grid,
    _lag,
)
