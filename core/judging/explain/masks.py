"""Hypotheses that one side leaves out tokens: top-k, top-p, a vocabulary that is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...text import plural
from .rows import Mask, PairRows
from .scoring import EXPLAINED, Cause


def masked(pair: PairRows) -> Iterator[Cause]:
    """One side leaves out all but its best tokens (top-k, top-p), or the end of the vocabulary."""
    for side in (1, 0):
        masks = [mask for mask in pair.masks[side] if len(mask.masked_ids) and mask.kept]
        if not masks or 2 * len(masks) <= len(pair.masks[side]):
            continue
        name = pair.names[side]
        yield from _cut(masks, name) or _sampled(masks, name)


def _cut(masks: Sequence[Mask], name: str) -> list[Cause]:
    """Ids that are missing in every row, from one on to the last: a vocabulary that ends earlier."""
    always = masks[0].masked_ids
    for mask in masks[1:]:
        always = np.intersect1d(always, mask.masked_ids)
    if not len(always) or any(len(mask.masked_ids) != len(always) for mask in masks):
        return []
    first, last = int(always[0]), int(always[-1])
    if len(always) != last - first + 1:
        return []
    says = (
        f"'{name}' has no token from id {first:,} on ({plural(len(always), 'token')}): its vocabulary is cut or padded."
    )
    return [Cause("cut vocabulary", says, {"first": first, "tokens": len(always)})]


def _sampled(masks: Sequence[Mask], name: str) -> list[Cause]:
    best = [mask for mask in masks if mask.are_best]
    if len(best) < EXPLAINED * len(masks):
        return []
    kept = [mask.kept for mask in best]
    if len(set(kept)) == 1:
        says = f"'{name}' keeps the {kept[0]} best tokens of each row and masks the rest, as top-k {kept[0]} does."
        return [Cause("masking", says, {"top_k": kept[0]})]
    mass = min(mask.mass for mask in best)
    says = (
        f"'{name}' keeps {min(kept):,} to {max(kept):,} best tokens of a row, with at least {mass:.3g} of its"
        " probability, and masks the rest, as top-p or min-p does."
    )
    return [Cause("masking", says, {"top_p": mass})]
