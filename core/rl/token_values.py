"""What values of sampled tokens are instead of the token's log-probability: placeholders, other
units, sums, values of another token. Each is looked for before causes of a small difference are.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..cause import Cause
from ..numerics.arrays import Flags, Floats
from ..text import number, percent, plural
from .figures import Integers, SampledTokens

MOST = 0.1  # of the squared difference, that a named cause leaves
CONTRAST = 9.0  # of squared differences per token, within a part of the tokens and outside
_OUTLIERS = 0.01  # of the tokens, which a cause need not explain
# of so many tokens the difference has to shrink too, not that of one outlier alone
_MANY = 0.9
# of the squared difference, left by values in other units, which noise alone sets apart
EXACTLY = 0.02
_CONSTANT = 0.01  # of the tokens
_FAR = 5.0  # nats, from a placeholder to any other value of its side
# a whole number below is no value: no model samples a token of probability 1e-22
_SENTINEL = -50.0
# a renormalization adds no more to a log-probability: no sampler keeps less than 0.05
MOST_MASS = 3.0
_CERTAIN = -0.01  # log-probability
_LIKELY = 0.2  # standard deviations above the mean
# nats, of a constant: less may be a renormalization of flat distributions, which halves at most
_LEAST_OFFSET = 0.7
_UNITS = {
    1 / np.log(2): "logarithms to base 2",
    np.log(2): "the other is in logarithms to base 2",
    1 / np.log(10): "logarithms to base 10",
    np.log(10): "the other is in logarithms to base 10",
}
# values of another token differ by more nats, those of engines by less
_DIFFERENT = 0.25
_RELATED = 0.8  # correlation of values of one token
_QUANTILES, _MOST_RESPONSES, _LEAST_RESPONSE = 16, 512, 8


def is_explained(square: Floats, rest: Floats, most: float = MOST) -> bool:
    """Return whether a cause leaves little of the squared difference, whatever a few tokens do."""
    usual = len(rest) - int(_OUTLIERS * len(rest))
    kept = np.argsort(rest, kind="stable")[:usual]
    # a difference of a few tokens alone is none that a cause of all of them explains
    is_small = 0 < square[kept].sum() >= rest[kept].sum() / most
    is_shrunk = np.quantile(rest, _MANY) <= 0.5 * np.quantile(square, _MANY)
    return bool(is_small and is_shrunk)


def has_certain(values: Floats) -> bool:
    """Return whether more than a few tokens are certain, as a confident model's are."""
    return bool((values > _CERTAIN).mean() > _CONSTANT)


def sides_of(tokens: SampledTokens) -> Iterator[tuple[int, Floats, Floats, str, str]]:
    """Yield each side's number, its values, the other's, its name and the other's."""
    yield 0, tokens.rollout, tokens.trainer, *tokens.names
    yield 1, tokens.trainer, tokens.rollout, *tokens.names[::-1]


def placeholders(tokens: SampledTokens) -> Iterator[Cause]:
    """Missing values, and one value of a side at tokens to which the other side gives all kinds of
    values.
    """
    square = np.nan_to_num(tokens.r) ** 2
    for side, own, other, name, other_name in sides_of(tokens):
        share = float((~np.isfinite(own) & np.isfinite(other)).mean())
        if share > _CONSTANT:
            yield Cause(
                "missing",
                f"'{name}' has no value for {percent(share)} of the tokens.",
                {"side": side, "value": None, "share": share},
            )
        # + 0: of -0.0 and 0.0 one is left
        values, counts = np.unique(own[np.isfinite(own)] + 0.0, return_counts=True)
        above = np.append(values, np.inf)[1:]
        # as far below the lowest as the next one is above it
        below = np.append(2 * values[:1] - above[:1], values)[:-1]
        is_frequent = counts > max(8, _CONSTANT * len(own))
        # equal ones or whole numbers far below the rest
        is_sentinel = (counts > 1) | ((values <= _SENTINEL) & (values == np.round(values)))
        is_far = is_sentinel & (np.diff(values, append=np.inf) > _FAR)
        is_far[-1:] = False
        # nothing but such values lies below it
        is_far &= np.logical_and.accumulate(is_sentinel)
        # the lowest value, if it repeats, may be a bound
        is_frequent[:1] |= counts[:1] > 2
        values, below, above = np.array([values, below, above])[:, is_frequent | is_far]
        others = square[~np.isin(own, values)]
        usual = float(others.mean()) if len(others) else 0.0
        for value, least, most in zip(values, below, above, strict=True):
            is_value = own == value
            others_there = other[is_value]
            # 0.0 is right for a certain token, and for the one that top-p leaves: there the sides
            # agree as elsewhere.
            mean = square[is_value].mean()
            # A filled token is any token; those that top-p leaves at 0.0 are the likely ones.
            likely = np.nanmean(other) + _LIKELY * np.nanstd(other)
            # Moved values are as frequent on either side.
            here, there = ((np.abs(each - value) < -_CERTAIN).mean() for each in (own, other))
            is_any = here - there > MOST / 2 and mean > 1 and np.nanmean(others_there) <= likely
            # Responses that begin alike repeat the value on both sides; on a coarse grid, as of
            # float8, the nearest values are rounded to it.
            is_alike = np.nanvar(others_there) * CONTRAST < mean
            is_rounded = ((least < others_there) & (others_there < most)).mean() > 1 - MOST
            is_of_both = mean < 1 and (is_alike or is_rounded)
            if is_of_both or not (is_any or mean > CONTRAST * usual):
                continue
            share = float(is_value.mean())
            says = f"'{name}' is {number(value)} for {percent(share)} of the tokens"
            is_lowest = value == np.nanmin(own) < np.nanmax(own)
            is_beyond = others_there <= value + max(0.1, 3 * usual**0.5)
            name_of_cause = "placeholders"
            about = ": placeholders."
            if is_lowest and is_beyond.mean() > 1 - MOST:
                name_of_cause = "clipped"
                about = f", at which '{other_name}' is lower: a lower bound."
            yield Cause(
                name_of_cause,
                says + about,
                {"side": side, "value": float(value), "share": share},
            )


def units(tokens: SampledTokens) -> Iterator[Cause]:
    """One side is the other in another unit, summed up, or with a constant: what leaves least."""
    starts = tokens.starts
    lengths = tokens.lengths
    square = tokens.r**2
    follows = np.append(False, np.diff(tokens.position) == 1)
    follows[starts] = False
    if not follows.any():
        return
    before = np.arange(len(square)) - np.repeat(starts, lengths)
    # a renormalization adds nothing to certain tokens
    is_sure = has_certain(np.maximum(tokens.rollout, tokens.trainer))
    least_offset = _DIFFERENT if is_sure else _LEAST_OFFSET
    scored: dict[float, Cause] = {}
    for side, own, other, name, other_name in sides_of(tokens):
        last = np.where(follows, np.roll(own, 1), own - other)
        sums = np.add.reduceat(other, starts)
        running = {
            "the running sum of": last + other,
            "the running mean of": (before * last + other) / (before + 1),
        }
        # what the values would be, in words
        candidates = running | {
            "the sum over the response of": np.repeat(sums, lengths),
            "the mean over the response of": np.repeat(sums / lengths, lengths),
        }
        amounts = {}
        if side == 0:
            factor = 1.0
            if other.any():
                # the median of ratios, each weighted by the value that it is over
                order = np.argsort(own / np.where(other == 0, 1e-300, other))
                weights = np.cumsum(np.abs(other[order]))
                middle = order[np.searchsorted(weights, weights[-1] / 2)]
                factor = float(own[middle] / other[middle])
            words = f"{factor:.4g} times"
            for unit, of_unit in _UNITS.items():
                if abs(factor / unit - 1) < 0.01:
                    words = f"{factor:.4g} ({of_unit}) times"
            candidates[words] = factor * other
            amounts[words] = {"factor": factor}
            offset = float(np.median(own - other))
            if abs(offset) > least_offset:
                words = f"{number(offset)} plus"
                candidates[words] = offset + other
                amounts[words] = {"offset": offset}
        # also of the values themselves: a small factor of sums is near any other values
        size = np.minimum(square, own**2)
        # what moves slowly is near its last value, whatever it is
        size_of_step = np.minimum(size, (own - last) ** 2)
        for words, expected in candidates.items():
            rest = (own - expected) ** 2
            least = size_of_step if words in running else size
            if least.any() and is_explained(least, rest, EXACTLY):
                cause = Cause(
                    "other units",
                    f"'{name}' is {words} '{other_name}'.",
                    {"side": side, **amounts.get(words, {})},
                )
                share = rest.sum() / (own**2).sum()
                scored.setdefault(share, cause.score(square, rest, len(rest)))
    if scored:
        yield scored[min(scored)]


def another_token(tokens: SampledTokens) -> Iterator[Cause]:
    """Where the sides differ, their values are of two tokens of one distribution: they add up to at
    most 1.
    """
    differs = np.abs(tokens.r) > _DIFFERENT
    rollout = tokens.rollout[differs]
    trainer = tokens.trainer[differs]
    # sums are no values of tokens
    are_few = min(len(rollout), (~differs).sum()) < 16
    if are_few or min(np.median(rollout), np.median(trainer)) <= _SENTINEL:
        return
    if np.corrcoef(rollout, trainer)[0, 1] > _RELATED:
        return
    above = (rollout > trainer).mean()
    is_far = np.quantile(np.abs(rollout - trainer), 0.9) > MOST_MASS / 2
    is_largest = max(above, 1 - above) > 0.99 and is_far
    at_random = np.random.default_rng(0).permutation(rollout)
    limit = np.exp(2 * np.median(np.abs(tokens.r[~differs])))
    together = (np.exp(rollout) + np.exp(trainer) > limit).sum()
    expected = (np.exp(at_random) + np.exp(trainer) > limit).sum()
    # Renormalized values of one token add up to more: 0.9 and 0.5.
    if together <= 0.01 * len(rollout) and (is_largest or expected >= 8):
        share = float(differs.mean())
        name = tokens.names[0 if above > 0.5 else 1]
        which = ", as of the most likely one" if is_largest else ""
        yield Cause(
            "another token",
            f"'{name}' has another token's value{which} at {percent(share)} of the tokens.",
            {"share": share},
        )


def other_order(tokens: SampledTokens) -> Iterator[Cause]:
    """Find responses with values of another one, or with their own in another order: sorted, they
    are the same.
    """
    bounds = np.append(tokens.starts, len(tokens.r))
    spans = [slice(start, end) for start, end in pairwise(bounds) if end - start >= _LEAST_RESPONSE]
    rows = spans[:_MOST_RESPONSES]
    if len(rows) < 4:
        return
    shares = np.linspace(0, 1, _QUANTILES)
    rollout, trainer = (
        np.array([np.quantile(side[row], shares) for row in rows])
        for side in (tokens.rollout, tokens.trainer)
    )
    square = np.array([(tokens.r[row] ** 2).mean() for row in rows])
    # Sides that rank their tokens alike are no others: a temperature moves values, and keeps their
    # order.
    with np.errstate(invalid="ignore"):  # of values that are all one
        is_other = np.array(
            [np.corrcoef(tokens.rollout[r], tokens.trainer[r])[0, 1] < _RELATED for r in rows],
        )
    nearest, is_close = _nearest(rollout, trainer, square)
    least = (1 - MOST) * square.sum()
    if square[is_close & is_other].sum() < least:
        # exchanged responses of other lengths share how they begin
        at = np.array([row.start for row in rows])[:, None] + np.arange(_LEAST_RESPONSE)
        own = (tokens.r[at] ** 2).mean(axis=1)
        nearest, is_close = _nearest(tokens.rollout[at], tokens.trainer[at], own)
    is_close &= is_other
    is_own = nearest == np.arange(len(rows))
    # among many responses the nearest one may be alike by chance: its tokens have to agree
    for row in np.flatnonzero(is_close & ~is_own):
        values = tokens.trainer[rows[row]]
        of_other = tokens.rollout[rows[nearest[row]]]
        both = min(len(values), len(of_other))
        rest = ((values[:both] - of_other[:both]) ** 2).mean()
        is_close[row] = rest <= MOST * min(square[row], values.var())
    if square[is_close].sum() < least:
        return
    first = is_close.argmax()
    sequence, other = (int(tokens.sequence[rows[row].start]) for row in (first, nearest[first]))
    sequences = int(is_close.sum())
    count = f"{sequences:,} of {plural(len(rows), 'response')}"
    parameters = {"sequences": sequences, "sequence": sequence}
    rollout_name, trainer_name = tokens.names
    name = "other order"
    says = (
        f"'{trainer_name}' has the values of '{rollout_name}' in another order in {count}, first"
        f" in sequence {sequence}."
    )
    if is_own[is_close].mean() <= 0.5:
        name = "exchanged"
        parameters["other"] = other
        says = (
            f"'{trainer_name}' has another response's values in {count}: in sequence {sequence}"
            f" those of {other}."
        )
    yield Cause(name, says, parameters)


def _nearest(rollout: Floats, trainer: Floats, square: Floats) -> tuple[Integers, Flags]:
    """Return the rollout's response nearest to each of the trainer's, and whether it is much nearer
    than its own. rollout, trainer: [responses, values]; square: mean square of r of each
    """
    distances = ((trainer[:, None] - rollout[None]) ** 2).mean(axis=2)
    limit = MOST * np.minimum(square, np.median(distances, axis=1))
    return distances.argmin(axis=1), distances.min(axis=1) <= limit
