"""Causes that move or leave out some tokens and not the others: a penalty, a logit bias, masks, padding.

Penalties and biases are held to the bars at their tokens, and the others have to be a third as far apart. Amounts are
named if what is left at these tokens is not more than at the others. Masks and padding are seen as they are: nothing is
fitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ...text import joined, number, plural
from .rows import Flags, Ids, PairRows, Place, RowPair, Values
from .scoring import EXPLAINED, LEAST_ROWS, SHRUNK, Cause, Score, centered, halves

FEWEST_TOKENS = 3  # of a row, most of which are not moved
_FEW = 0.5  # of a row's tokens are few
_SEEN = 3  # rows in which a biased token has to stand
_MOST_BIASED = 64  # tokens
_STEADY = 0.3  # of a bias, how far it may vary
_ABOVE_NOISE = 4.0  # times what three quarters of the tokens differ by at most
_NOISE = 4.0  # times what the other tokens differ by, or rounding leaves: more is no noise
_NAMED = 5  # tokens
# By what the sum of a row's probabilities may miss 1: of the least one, of which the next one would be a part; and for
# float32. A row whose least probability is smaller says nothing.
_SURE, _SUM_ERROR, _LEAST_SHARE = 0.01, 2e-6, 1e-4
_MISSING = 0.01  # what the other side's probabilities lack of 1, at least


def penalty(pair: PairRows) -> Iterator[Cause]:
    """The tokens that stand in the text already are moved, and the others are not. Amounts are those before a
    temperature.
    """
    split = halves([row for row in pair.rows if row.times is not None], FEWEST_TOKENS, in_parts=False)
    if split is None:
        return
    best: tuple[str, list[float], Score] | None = None
    for form in ("presence", "frequency", "presence and frequency", "repetition"):
        if form == "repetition" and pair.values != "logit":
            continue
        if (strengths := _strengths(split[0], form)) is None:
            continue
        scored = _score_at(pair, split[1], lambda row: row.in_text, partial(_moves, form=form, strengths=strengths))
        # A second strength has to leave a half of what one leaves.
        if scored is not None and (best is None or scored.left_rms * len(strengths) < best[2].left_rms):
            best = form, strengths, scored
    name = f"On '{pair.names[1]}' the tokens that stand in the text already"
    if best is None:
        if _are_moved(split[1]):
            says = f"{name} are moved to one side, and the others are not, as a penalty moves them; its form does not"
            yield Cause("penalty", f"{says} show in these values.", {"kind": "unknown"})
        return
    form, strengths, scored = best
    says = f"{name}, and no others, are moved"
    if not scored.is_noise:
        yield scored.partial_cause("penalty", f"{says}, as a penalty moves them", kind="unknown")
        return
    if form == "repetition":
        says += f" in proportion, as a repetition penalty of {strengths[0]:.4g} moves them"
        yield scored.cause("penalty", says, kind=form, strength=strengths[0])
        return
    first, (amount, *second) = _before_temperature(pair), [-strength / pair.factor for strength in strengths]
    if second:
        says += f", as a presence penalty of {amount:.4g} and a frequency penalty of {second[0]:.4g}{first} move them"
        yield scored.cause("penalty", says, kind=form, presence=amount, frequency=second[0])
        return
    each = "each" if form == "presence" else "for each time"
    says += f" by {strengths[0]:.4g} {each}, as a {form} penalty of {amount:.4g}{first} moves them"
    yield scored.cause("penalty", says, kind=form, strength=amount)


def _before_temperature(pair: PairRows) -> str:
    return "" if pair.factor == 1.0 else f" before the temperature of {1 / pair.factor:.3g}"


def _weights(row: RowPair, form: str) -> Values:
    """What each strength of an additive penalty is multiplied by. [tokens, strengths]"""
    times = np.zeros(len(row.x)) if row.times is None else row.times.astype(np.float64)
    columns = {"presence": [np.ones(len(row.x))], "frequency": [times]}
    return np.stack([column for name in form.split(" and ") for column in columns[name]], axis=1)


def _moves(row: RowPair, form: str, strengths: Sequence[float]) -> Values:
    """What a penalty adds to tokens of the text. Repetition divides positive logits."""
    if form == "repetition":
        return np.where(row.x > 0, row.x / strengths[0], row.x * strengths[0]) - row.x
    return np.asarray(_weights(row, form) @ np.array(strengths), np.float64)


def _strengths(rows: Sequence[RowPair], form: str) -> list[float] | None:
    """Strengths of a penalty at the tokens of the text: the middle one of one strength, the least squares of two over
    the three quarters of tokens that lie nearest. None if the tokens do not tell them apart.
    """
    is_repetition = form == "repetition"
    rows = [row for row in rows if is_repetition or (row.in_text.any() and row.in_text.mean() <= _FEW)]
    if not rows:
        return None
    y = np.concatenate([_from_others(row, row.in_text)[row.in_text] for row in rows])
    if is_repetition:
        x = np.concatenate([row.x[row.in_text] for row in rows])
        y = x + y
        ratios = np.where(x > 0, x, y)[x * y > 0] / np.where(x > 0, y, x)[x * y > 0]
        return [float(np.median(ratios))] if len(ratios) else None
    weights = np.concatenate([_weights(row, form)[row.in_text] for row in rows])
    if weights.shape[1] == 1:
        return [float(np.median(y / weights[:, 0]))]
    nearest = np.ones(len(y), bool)
    for _ in range(4):
        strengths, _, rank, _ = np.linalg.lstsq(weights[nearest], y[nearest], rcond=1e-6)
        if rank < 2:
            return None
        left = np.abs(y - weights @ strengths)
        nearest = left <= np.quantile(left, 0.75)
    return [float(strength) for strength in strengths]


def _are_moved(rows: Sequence[RowPair]) -> bool:
    """Test whether the tokens of the text are moved to one side by more than others are, in most rows."""
    seen = moved = 0
    for row in rows:
        affected = row.in_text
        if affected.sum() < 2 or affected.mean() > _FEW or not (row.y != row.x).any():
            continue
        apart = _from_others(row, affected)
        is_one_sided = abs(int(np.sign(apart[affected]).sum())) == int(affected.sum())
        seen += 1
        moved += is_one_sided and _rms(apart[~affected]) <= SHRUNK * _rms(apart[affected])
    return seen >= LEAST_ROWS and 2 * moved > seen


def _rms(values: Values) -> float:
    return float(np.sqrt((values**2).mean()))


def _from_others(row: RowPair, affected: Flags) -> Values:
    """Differences less the middle one of the tokens that a hypothesis does not speak of."""
    apart = row.y - row.x
    return apart - (np.median(apart[~affected]) if not affected.all() else 0.0)


def _score_at(
    pair: PairRows, rows: Sequence[RowPair], affected_of: Callable[[RowPair], Flags], moves: Callable[[RowPair], Values]
) -> Score | None:
    """The score of a hypothesis that moves some tokens, at these; None if it is below the bar, or others are moved as
    well: they lie three times closer, and both sides vary alike there. The share that it explains is of all tokens.
    """
    before = after = 0.0
    explained = scored = tokens = at_noise = 0
    for row in rows:
        affected = affected_of(row)
        if not affected.any() or affected.mean() > _FEW or not (row.y != row.x).any():
            continue
        apart = _from_others(row, affected)
        left = apart - np.where(affected, moves(row), 0.0)
        noise, moved, rest = _rms(apart[~affected]), _rms(apart[affected]), _rms(left[affected])
        least = min((SHRUNK * moved) ** 2, (1 - EXPLAINED) * min(float(row.x.var()), float(row.y.var())))
        is_explained = moved > 0 and rest**2 <= (1 - EXPLAINED) * moved**2 and noise**2 <= least
        scored += 1
        explained += is_explained
        at_noise += is_explained and rest <= _NOISE * (noise + pair.rounding_rms(row))
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
    apart = [centered(row.y - row.x) for row in split[0]]
    noise = float(np.median([np.quantile(np.abs(values), 0.75) for values in apart]))
    grid = float(np.median([pair.rounding_rms(row) for row in split[0]]))  # of rows that hardly differ, the noise is 0
    least = _ABOVE_NOISE * max(noise, 2 * grid) + 1e-4
    ids, values = np.concatenate([row.token_ids for row in split[0]]), np.concatenate(apart)
    seen, counts = np.unique(ids[np.abs(values) > least], return_counts=True)
    fixed = {}
    for token in seen[counts >= _SEEN][: 4 * _MOST_BIASED].tolist():
        middle = float(np.median(values[ids == token]))
        if abs(middle) > least and np.median(np.abs(values[ids == token] - middle)) <= _STEADY * abs(middle):
            fixed[token] = middle
    if not 0 < len(fixed) <= _MOST_BIASED:
        return
    scored = _score_at(
        pair,
        split[1],
        lambda row: np.isin(row.token_ids, list(fixed)),
        lambda row: np.array([fixed.get(token, 0.0) for token in row.token_ids.tolist()]),
    )
    if scored is None:
        return
    says = f"On '{pair.names[1]}' the same tokens are moved wherever they stand"
    if not scored.is_noise:
        yield scored.partial_cause("logit bias", f"{says}, as a logit bias moves them")
        return
    biased = sorted(fixed, key=lambda token: -abs(fixed[token]))
    shown = ", ".join(f"{token} by {fixed[token] / pair.factor:.4g}" for token in biased[:5])
    says += f"{_before_temperature(pair)}: {shown}{', ...' if len(biased) > 5 else ''}"
    yield scored.cause("logit bias", says, tokens=biased, largest=fixed[biased[0]] / pair.factor)


def masked(pair: PairRows) -> Iterator[Cause]:
    """One side leaves out all but its top tokens (top-k, top-p), the same tokens everywhere, or other ones by row."""
    for side in (1, 0):
        masks: dict[Place, tuple[Ids, Ids, float]] = {}  # tokens that are masked, and kept; the value of a mask
        for place in pair.places:
            own, other = pair.at(side, *place), pair.at(1 - side, *place)
            assert own is not None
            assert other is not None
            left_out = pair.left_out[side, *place]
            ids = np.flatnonzero(left_out & ~pair.left_out[1 - side, *place] & np.isfinite(other.values))
            kept = np.flatnonzero(np.isfinite(own.values) & ~left_out)
            if len(ids) and len(kept):
                masks[place] = ids, kept, float(np.median(own.values[ids].astype(np.float64)))
        if masks and (len(masks) > 1 or len(pair.places) == 1):
            yield _mask(pair, side, masks)


def _mask(pair: PairRows, side: int, masks: Mapping[Place, tuple[Ids, Ids, float]]) -> Cause:
    name, count = pair.names[side], len(masks)
    filler = float(np.median(list({value for _, _, value in masks.values()})))
    value = "" if np.isneginf(filler) else f" with {number(filler)}"
    where = "at every position"
    if count < len(pair.places):
        prompt, position = next(iter(masks))
        of_prompt = f" of prompt {prompt}" if len(pair.lengths) > 1 else ""
        where = f"at {count} of {len(pair.places)} positions (first at {position}{of_prompt})"
    sizes = [len(ids) for ids, _, _ in masks.values()]
    always = np.flatnonzero(np.bincount(np.concatenate([ids for ids, _, _ in masks.values()])) == count)
    if len(always) and 2 * sum(size > len(always) for size in sizes) < count:
        first, last = int(always[0]), int(always[-1])
        is_range = len(always) == last - first + 1
        if is_range and last == pair.vocab - 1 and count == len(pair.places):
            tokens = plural(len(always), "token")
            says = f"'{name}' has no token from id {first:,} on ({tokens}): its vocabulary is cut or padded."
            return Cause("cut vocabulary", says, {"first": first, "tokens": len(always)})
        listed = [f"{token:,}" for token in always[:_NAMED].tolist()]
        which = f"{len(always):,} tokens ({', '.join(listed)}, ...) are"
        if len(always) == 1:
            which = f"token {first:,} is"
        elif is_range:
            which = f"tokens {first:,} to {last:,} ({len(always):,}) are"
        elif len(always) <= _NAMED:
            which = f"tokens {joined(listed)} are"
        parameters = {"tokens": always[:64].tolist(), "count": len(always), "positions": count}
        return Cause("masking", f"On '{name}' {which} masked {where}{value}.", parameters)
    tops = [
        (len(kept), mass)
        for place, (ids, kept, _) in masks.items()
        if (mass := _mass_of_top(pair, side, place, ids, kept)) is not None
    ]
    if len(tops) >= EXPLAINED * count:
        low, high, mass = min(tops)[0], max(tops)[0], min(mass for _, mass in tops)
        if low == high:
            says = f"'{name}' keeps the {low} top tokens of each row and masks the rest{value}, as top-k {low} does."
            return Cause("masking", says, {"top_k": low})
        says = (
            f"'{name}' keeps {low:,} to {high:,} top tokens of a row, with at least {mass:.3g} of its probability, and"
            f" masks the rest{value}, as top-p or min-p does."
        )
        return Cause("masking", says, {"top_p": mass})
    least, most = min(sizes), max(sizes)
    which = plural(most, "token") if least == most else f"{least:,} to {most:,} tokens"
    says = (
        f"'{name}' masks {which} of a row {where}{value}, other ones from row to row and not the least likely: as a"
        " grammar, a list of allowed tokens or a ban of repeated n-grams does."
    )
    return Cause("masking", says, {"least": least, "most": most, "positions": count})


def _mass_of_top(pair: PairRows, side: int, place: Place, masked: Ids, kept: Ids) -> float | None:
    """Probability on the other side of the tokens that a row keeps, None if they are not the top ones there."""
    own, other = (row.values for each in (side, 1 - side) if (row := pair.at(each, *place)) is not None)
    both = kept[np.isfinite(other[kept]) & ~pair.left_out[1 - side, *place][kept]]
    if not len(both):
        return None
    # Rounding changes ranks within the largest distance from the least-squares line, which a temperature makes.
    x, y = (centered(values[both].astype(np.float64)) for values in (other, own))
    slope = float(x @ y) / max(float(x @ x), 1e-300)
    slack = 2 * (float(np.abs(y / slope - x).max()) if slope > 0 else float(np.ptp(x)))
    if other[both].min() + slack < other[masked].max():
        return None
    top = float(other[np.isfinite(other)].max())
    weights = np.where(np.isfinite(other), np.exp(np.minimum(other - top, 0.0, dtype=np.float64)), 0.0)
    return float(weights[kept].sum() / weights.sum())


def padded(pair: PairRows) -> Iterator[Cause]:
    """The last tokens hold one value on one side only: rows that pad the head, not tokens."""
    for side in (1, 0):
        start, other = pair.padded_from[side], pair.padded_from[1 - side]
        row = pair.at(side, *pair.places[0])
        if start is None or row is None or (other is not None and other <= start):
            continue
        count = pair.vocab - start
        yield Cause(
            "padded vocabulary",
            f"'{pair.names[side]}' holds one value in each row for the last {count:,} tokens, from id {start:,} on"
            f" ({number(float(row.values[-1]))} at first), and '{pair.names[1 - side]}' does not: padding of the"
            " vocabulary.",
            {"first": start, "tokens": count},
        )


def renormalized(pair: PairRows) -> Iterator[Cause]:
    """Log-probabilities of one side sum to 1 over the tokens that were sent, as if no other could come."""
    if pair.is_full or pair.values != "logprob":
        return
    sums = []  # of each side, of lists whose least probability says something: (sum, least, tokens)
    for side in (0, 1):
        listed = [pair.at(side, row.prompt, row.position) for row in pair.rows]
        shares = [np.exp(np.minimum(row.values, 0.0)) for row in listed if row is not None and len(row.values) > 1]
        sums.append([(float(row.sum()), float(row.min()), len(row)) for row in shares if row.min() >= _LEAST_SHARE])
    for side in (1, 0):
        own, other = sums[side], sums[1 - side]
        if min(len(own), len(other)) < LEAST_ROWS:
            continue
        is_one = sum(abs(1 - total) <= max(_SURE * least, _SUM_ERROR) for total, least, _ in own)
        middle = float(np.median([total for total, _, _ in other]))
        if is_one < EXPLAINED * len(own) or middle > 1 - _MISSING:
            continue
        low, high = (of(count for _, _, count in own) for of in (min, max))
        tokens = f"the top {low}" if low == high else f"the {low} to {high} tokens sent"
        yield Cause(
            "renormalized",
            f"The probabilities of '{pair.names[side]}' sum to 1 over {tokens} of a row at {is_one:,} of"
            f" {plural(len(own), 'position')}, and those of '{pair.names[1 - side]}' to {middle:.3g} (median): they are"
            " renormalized over the tokens that top-k or top-p left.",
            {"positions": is_one, "sum_of_other": middle},
        )
