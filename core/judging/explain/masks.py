"""Hypotheses that one side leaves out tokens: top-k, top-p, some tokens, the end of the vocabulary. Masks and padding
are seen as they are: nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...text import joined, number, plural
from .rows import Ids, Mask, PairRows
from .scoring import EXPLAINED, LEAST_ROWS, Cause

_NAMED = 5  # tokens
# By what the sum of a row's probabilities may miss 1: of the least one, of which the next one would be a part; and for
# float32. A row whose least probability is smaller says nothing.
_SURE, _SUM_ERROR, _LEAST_SHARE = 0.01, 2e-6, 1e-4
_MISSING = 0.01  # what the other side's probabilities lack of 1, at least


def masked(pair: PairRows) -> Iterator[Cause]:
    """One side leaves out all but its top tokens (top-k, top-p), the same tokens everywhere, or a few."""
    for side in (1, 0):
        masks = [mask for mask in pair.masks[side] if mask.kept]
        if not masks or (len(masks) == 1 and len(pair.places) > 1):
            continue
        name = pair.names[side]
        always = np.flatnonzero(np.bincount(np.concatenate([mask.masked_ids for mask in masks])) == len(masks))
        rest = [len(mask.masked_ids) - len(always) for mask in masks]
        if len(always) and 2 * sum(count > 0 for count in rest) < len(masks):
            yield _fixed(pair, name, masks, always)
        else:
            yield _varied(pair, name, masks)


def _fixed(pair: PairRows, name: str, masks: Sequence[Mask], ids: Ids) -> Cause:
    """Cause for tokens that are masked in every row."""
    first, last = int(ids[0]), int(ids[-1])
    is_range = len(ids) == last - first + 1
    if is_range and last == pair.vocab - 1 and _are_all(pair, masks):
        count = plural(len(ids), "token")
        says = f"'{name}' has no token from id {first:,} on ({count}): its vocabulary is cut or padded."
        return Cause("cut vocabulary", says, {"first": first, "tokens": len(ids)})
    if len(ids) == 1:
        which = f"token {first:,} is"
    elif is_range:
        which = f"tokens {first:,} to {last:,} ({len(ids):,}) are"
    elif len(ids) <= _NAMED:
        which = f"tokens {joined([f'{token:,}' for token in ids.tolist()])} are"
    else:
        which = f"{len(ids):,} tokens ({', '.join(f'{token:,}' for token in ids[:_NAMED].tolist())}, ...) are"
    says = f"On '{name}' {which} masked {_where(pair, masks)}{_with(masks)}."
    return Cause("masking", says, {"tokens": ids[:64].tolist(), "count": len(ids), "positions": len(masks)})


def _varied(pair: PairRows, name: str, masks: Sequence[Mask]) -> Cause:
    """Cause for tokens that are masked in some rows and not in others."""
    best = [mask for mask in masks if mask.are_best]
    where, value = _where(pair, masks), _with(masks)
    if len(best) >= EXPLAINED * len(masks):
        kept = [mask.kept for mask in best]
        if len(set(kept)) == 1:
            says = (
                f"'{name}' keeps the {kept[0]} top tokens of each row and masks the rest{value}, as top-k"
                f" {kept[0]} does."
            )
            return Cause("masking", says, {"top_k": kept[0]})
        mass = min(mask.mass for mask in best)
        says = (
            f"'{name}' keeps {min(kept):,} to {max(kept):,} top tokens of a row, with at least {mass:.3g} of its"
            f" probability, and masks the rest{value}, as top-p or min-p does."
        )
        return Cause("masking", says, {"top_p": mass})
    counts = [len(mask.masked_ids) for mask in masks]
    least, most = min(counts), max(counts)
    which = plural(most, "token") if least == most else f"{least:,} to {most:,} tokens"
    says = (
        f"'{name}' masks {which} of a row {where}{value}, other ones from row to row and not the least likely: as a"
        " grammar, a list of allowed tokens or a ban of repeated n-grams does."
    )
    return Cause("masking", says, {"least": least, "most": most, "positions": len(masks)})


def _are_all(pair: PairRows, masks: Sequence[Mask]) -> bool:
    return len(masks) == len(pair.places)


def _where(pair: PairRows, masks: Sequence[Mask]) -> str:
    if _are_all(pair, masks):
        return "at every position"
    first = masks[0]
    prompt = f" of prompt {first.prompt}" if len(pair.lengths) > 1 else ""
    return f"at {len(masks)} of {len(pair.places)} positions (first at {first.position}{prompt})"


def _with(masks: Sequence[Mask]) -> str:
    fillers = {mask.filler for mask in masks}
    filler = float(np.median(list(fillers)))
    return "" if np.isneginf(filler) else f" with {number(filler)}"


def padded(pair: PairRows) -> Iterator[Cause]:
    """The last tokens hold one value on one side only: rows that pad the head, not tokens."""
    for side in (1, 0):
        start, other = pair.padded_from[side], pair.padded_from[1 - side]
        if start is None or (other is not None and other <= start):
            continue
        listed = pair.at(side, *pair.places[0])
        value = number(float(listed.values[-1])) if listed is not None else ""
        count = pair.vocab - start
        yield Cause(
            "padded vocabulary",
            f"'{pair.names[side]}' holds one value in each row for the last {count:,} tokens, from id {start:,} on"
            f" ({value} at first), and '{pair.names[1 - side]}' does not: padding of the vocabulary.",
            {"first": start, "tokens": count},
        )


def renormalized(pair: PairRows) -> Iterator[Cause]:
    """Log-probabilities of one side sum to 1 over the tokens that were sent, as if no other could come."""
    if pair.is_full or pair.values != "logprob":
        return
    sums = [_sums(pair, side) for side in (0, 1)]
    for side in (1, 0):
        own, other = sums[side], sums[1 - side]
        if min(len(own), len(other)) < LEAST_ROWS:
            continue
        is_one = sum(abs(1 - total) <= max(_SURE * least, _SUM_ERROR) for total, least, _ in own)
        middle = float(np.median([total for total, _, _ in other]))
        if is_one < EXPLAINED * len(own) or middle > 1 - _MISSING:
            continue
        counts = {count for _, _, count in own}
        over = f"the top {counts.pop()}" if len(counts) == 1 else f"the {min(counts)} to {max(counts)} tokens sent"
        yield Cause(
            "renormalized",
            f"The probabilities of '{pair.names[side]}' sum to 1 over {over} of a row at {is_one:,} of"
            f" {plural(len(own), 'position')}, and those of '{pair.names[1 - side]}' to {middle:.3g} (median): they are"
            " renormalized over the tokens that top-k or top-p left.",
            {"positions": is_one, "sum_of_other": middle},
        )


def _sums(pair: PairRows, side: int) -> list[tuple[float, float, int]]:
    """(sum of probabilities, the least one, their number) of a side's lists, where the least says something."""
    found = []
    for row in pair.rows:
        listed = pair.at(side, row.prompt, row.position)
        if listed is not None and len(listed.values) > 1:
            shares = np.exp(np.minimum(listed.values, 0.0))
            if shares.min() >= _LEAST_SHARE:
                found.append((float(shares.sum()), float(shares.min()), len(shares)))
    return found
