"""Causes that are seen, not fitted: masks, a BOS, a sampler, renormalized or upcast values, a few far positions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...numerics.formats import FORMATS
from ...runs.topk.alignment import extra_first_token
from ...runs.topk.records import UNKNOWN_TOKEN
from ...text import number, plural
from .rows import Flags, Ids, PairRows, TooFewError, Values, place_name
from .scoring import EXPLAINED, LEAST_ROWS, Cause, centered
from .values import rounded_to

_SWAPPED = 0.25  # of the kept tokens, and of the masked ones
# By what the sum of a row's probabilities may miss 1: of the least one, of which the next one would be a part; and for
# float32. A row whose least probability is smaller says nothing.
_SURE, _SUM_ERROR, _LEAST_SHARE = 0.01, 2e-6, 1e-4
_MISSING = 0.01  # what the other side's probabilities lack of 1, at least
_FEWEST_ROWS = 20  # among which jumps are looked for
_JUMP_SHARE, _JUMP_ROWS = 0.9, 0.1
_JUMP_FACTOR, _JUMP_FACTOR_OF_LISTS = 10.0, 20.0  # times the middle position


def masked(pair: PairRows) -> Iterator[Cause]:
    """One side leaves out all but its top tokens (top-k, top-p), the same tokens everywhere, or other ones by row."""
    whole, left_out = pair.complete()
    usable = np.isfinite(whole) & ~left_out
    for side in (1, 0):
        is_masked = left_out[side] & usable[1 - side]
        places = np.flatnonzero(is_masked.any(axis=1) & usable[side].any(axis=1))
        if len(places) >= min(2, len(pair.places)):
            yield _mask(pair, side, places, whole[:, places], is_masked[places], usable[:, places])


def _mask(pair: PairRows, side: int, places: Ids, whole: Values, is_masked: Flags, usable: Flags) -> Cause:
    """Return the cause of a mask. whole, usable: [sides, places, vocab]; is_masked: [places, vocab]"""
    name, filler, vocab = pair.names[side], number(float(whole[side][is_masked][0])), whole.shape[2]
    count, total = len(places), len(pair.places)
    where = f"at {count} of {total} positions, {place_name(pair.places[places[0]])} first"
    sizes, kept = is_masked.sum(axis=1), usable[side].sum(axis=1)
    always = np.flatnonzero(is_masked.all(axis=0))
    likely = np.where(usable[1 - side], whole[1 - side], -np.inf).astype(np.float64)
    if len(always) and 2 * (sizes > len(always)).sum() < count:
        first, last, tokens = int(always[0]), int(always[-1]), plural(len(always), "token")
        if first + len(always) == vocab and count == total:
            kind = "cut" if whole[side, 0, -1] < likely[usable[1 - side]].min() else "padded"
            says = (
                f"'{name}' holds {filler} from id {first:,} on ({tokens}), unlike the other side: a {kind} vocabulary."
            )
            return Cause(f"{kind} vocabulary", says, {"first": first, "tokens": len(always)})
        says = f"'{name}' masks {tokens} (id {first:,}{f' to {last:,}' if first < last else ''}; {filler}) {where}."
        return Cause("masking", says, {"tokens": always[:64].tolist(), "count": len(always), "positions": count})
    # Of top tokens, rounding puts only a few below the largest masked one on the other side.
    largest = np.where(is_masked, likely, -np.inf).max(axis=1, keepdims=True)
    below = (usable.all(axis=0) & (likely < largest)).sum(axis=1)
    are_top = below <= _SWAPPED * np.minimum(kept, sizes)
    if are_top.mean() < EXPLAINED:
        masks = f"masks up to {plural(int(sizes.max()), 'token')} per row ({filler})"
        says = f"'{name}' {masks} {where}, like a grammar or n-gram ban."
        return Cause("masking", says, {"least": int(sizes.min()), "most": int(sizes.max()), "positions": count})
    fewest, most = int(kept[are_top].min()), int(kept[are_top].max())
    weights = np.exp(likely - likely.max(axis=1, keepdims=True))
    mass = float(((weights * usable[side]).sum(axis=1) / weights.sum(axis=1))[are_top].min())
    by = f"top-k {most:,}" if fewest == most else f"top-p {mass:.3g} or min-p ({fewest:,} to {most:,} tokens)"
    says = f"'{name}' keeps the top tokens of each row, as {by} does; the others hold {filler}."
    return Cause("masking", says, {"top_k": most} if fewest == most else {"top_p": mass})


def renormalized(pair: PairRows) -> Iterator[Cause]:
    """Log-probabilities of one side sum to 1 over the tokens that were sent, as if no other could come."""
    if not pair.has_constants:
        raise TooFewError("log-probabilities")
    sums = []  # of each side, of lists whose least probability says something: (sum, least, tokens)
    for tops in pair.tops:
        shares = [np.exp(np.minimum(top.values, 0.0)) for top in tops if len(top.values) > 1]
        rows = [(row.sum(), row.min(), len(row)) for row in shares if row.min() >= _LEAST_SHARE]
        sums.append(np.array(rows).reshape(-1, 3).T)
    for side in (1, 0):
        (total, least, tokens), others = sums[side], sums[1 - side][0]
        if min(len(total), len(others)) < LEAST_ROWS:
            continue
        is_one = np.abs(1 - total) <= np.maximum(_SURE * least, _SUM_ERROR)
        middle = float(np.median(others))
        if is_one.mean() >= EXPLAINED and middle <= 1 - _MISSING:
            says = (
                f"Probabilities of the {tokens.max():.0f} tokens that '{pair.names[side]}' sent sum to 1, those of"
                f" '{pair.names[1 - side]}' to {middle:.3g}: renormalized after top-k or top-p."
            )
            yield Cause("renormalized", says, {"positions": int(is_one.sum()), "sum_of_other": middle})


def upcast(pair: PairRows) -> Iterator[Cause]:
    """Observation: the values of one side lie on a 16-bit grid, and the other's do not."""
    pair.complete()
    if pair.dtype != "float32" or not pair.rows:
        return
    sides = [np.concatenate([row.x for row in pair.rows]), np.concatenate([row.y for row in pair.rows])]
    for name in ("bfloat16", "float16"):
        on_grid = [bool((rounded_to(FORMATS[name], values) == values).all()) for values in sides]
        side = int(on_grid[1])
        if on_grid[0] != on_grid[1] and np.ptp(sides[side]) > 0:  # a constant is of every dtype
            says = (
                f"Every value of '{pair.names[side]}' is a {name} value: computed in or saved as {name}, then widened."
            )
            yield Cause("upcast", says, {"dtype": name})
            return


def other_tokens(pair: PairRows) -> Iterator[Cause]:
    """A token in front of one side's prompt that the other side's lacks: a BOS, or two."""
    for prompt, sides in enumerate(zip(*pair.tokens, strict=False)):
        if (extra := extra_first_token(*sides)) is not None:
            side, is_doubled = extra
            token, kind = sides[side][0], "doubled" if is_doubled else "missing"
            says = f"Only '{pair.names[side]}' has token {token} in front of prompt {prompt}: a {kind} BOS on one side."
            yield Cause("other tokens", says, {"token": token, "prompt": prompt})
            return


def sampler(pair: PairRows) -> Iterator[Cause]:
    """Tokens that were emitted are not the top ones, which greedy decoding would have emitted."""
    if pair.listed is None:
        raise TooFewError("generated tokens")
    for side in (0, 1):
        places = [
            place for place in pair.listed.positions if place.is_generated and place.chosen[side] != UNKNOWN_TOKEN
        ]
        tops = [(place.figures.variant if side else place.figures.reference).token for place in places]
        seen = [(top, place.chosen[side], place) for top, place in zip(tops, places, strict=True) if top is not None]
        other = [one for one in seen if one[0] != one[1]]
        if len(other) >= 2 or (other and len(seen) < 8):
            top, chosen, place = other[0]
            says = (
                f"'{pair.names[side]}' emitted other tokens than its top ones at {len(other):,} of {len(seen):,}"
                f" positions ({chosen} for {top} at position {place.position}): sampled, penalized or masked."
            )
            yield Cause("sampler", says, {"positions": len(other), "position": place.position, "prompt": place.prompt})


def jumps(pair: PairRows) -> Iterator[Cause]:
    """Nearly all of the difference lies at a few positions, and the others are close."""
    rows = [row for row in pair.rows if len(row.x)]
    if len(rows) < _FEWEST_ROWS:
        raise TooFewError(f"{_FEWEST_ROWS} rows")
    sizes = np.array([np.sqrt((centered(row.y - row.x, pair.has_constants) ** 2).mean()) for row in rows])
    order = np.argsort(-sizes)
    squares = sizes[order] ** 2
    few = int(np.searchsorted(np.cumsum(squares), _JUMP_SHARE * squares.sum()) + 1)
    middle = float(np.median(sizes))
    factor = _JUMP_FACTOR if pair.dtype else _JUMP_FACTOR_OF_LISTS
    if few <= _JUMP_ROWS * len(sizes) and middle > 0 and sizes[order[few - 1]] >= factor * middle:
        positions = [rows[i].position for i in order[:few]]
        says = (
            f"{few} of {len(sizes)} rows looked at hold {_JUMP_SHARE:.0%} of the squared difference (position"
            f" {positions[0]}: {number(sizes[order[0]] / middle, 2)}x the median): another MoE route, or a bug."
        )
        yield Cause("jumps", says, {"positions": positions})
