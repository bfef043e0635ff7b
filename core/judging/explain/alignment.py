"""Hypotheses that rows, tokens or token ids of the two sides do not stand at the same places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ...runs.sparse.pairing import extra_first_token
from ...text import plural
from .rows import Listed, PairRows, RowPair, Values
from .scoring import EXPLAINED, LEAST_ROWS, Cause, Score, halves

_MOST_SHIFT = 3  # rows
_COLUMNS = 96  # tokens whose ids are looked for


def shifted_rows(pair: PairRows) -> Iterator[Cause]:
    """The variant's rows are the reference's, read some rows early or late."""
    scored: dict[int, list[tuple[float, float]]] = {}
    places = pair.places[:: max(1, len(pair.places) // 96)]
    for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1):
        if shift == 0:
            continue
        found = []
        for prompt, position in places:
            own, other = pair.at(1, prompt, position), pair.at(0, prompt, position)
            there = pair.at(0, prompt, position + shift)
            if own is not None and other is not None and there is not None:
                found.append((_distance(own, other), _distance(own, there)))
        scored[shift] = found

    def left(found: Sequence[tuple[float, float]]) -> float:
        return sum(after for _, after in found) / max(sum(before for before, _ in found), 1e-300)

    usable = {shift: found for shift, found in scored.items() if len(found) >= 2 * LEAST_ROWS}
    if not usable:
        return
    shift = min(usable, key=lambda one: left(usable[one][::2]))
    rows = [(before, after) for before, after in usable[shift][1::2] if before > 0]
    explained = sum(after <= (1 - EXPLAINED) * before for before, after in rows)
    if not rows or 2 * explained <= len(rows) or left(rows) > 1 - EXPLAINED:
        return
    rest = math.sqrt(sum(after for _, after in rows) / len(rows))
    when = "late" if shift > 0 else "early"
    says = (
        f"'{pair.variant}' holds at each position what '{pair.reference}' holds {plural(abs(shift), 'position')}"
        f" {'further on' if shift > 0 else 'before'}: its rows are {plural(abs(shift), 'row')} {when}"
    )
    yield Score(1 - left(rows), explained, len(rows), rest).cause("shifted rows", says, rows=shift)


def _distance(one: Listed, other: Listed) -> float:
    """Mean squared difference of two rows over their best tokens, up to a constant; 64 where they share too few."""
    lists = [_best(listed) for listed in (one, other)]
    ids, here, there = np.intersect1d(lists[0].token_ids, lists[1].token_ids, return_indices=True)
    if not len(ids) or 2 * len(ids) < min(len(listed.token_ids) for listed in lists):
        return 64.0
    apart = lists[0].values[here] - lists[1].values[there]
    return float(np.minimum((apart - np.median(apart)) ** 2, 64.0).mean())


def _best(listed: Listed, count: int = 256) -> Listed:
    values = np.where(np.isnan(listed.values), -np.inf, listed.values)
    if len(values) <= count:
        kept = np.flatnonzero(np.isfinite(values))
    else:
        kept = np.argpartition(-values, count)[:count]
        kept = kept[np.isfinite(values[kept])]
    return Listed(listed.token_ids[kept], values[kept])


def other_tokens(pair: PairRows) -> Iterator[Cause]:
    """A token in front of one side's prompt that the other side's lacks: a BOS, or two."""
    for prompt, (one, other) in enumerate(zip(*pair.tokens, strict=False)):
        found = extra_first_token(one, other)
        if found is None:
            continue
        side, is_doubled = found
        token = (one, other)[side][0]
        again, is_so = ("once more ", "doubled") if is_doubled else ("", "missing")
        yield Cause(
            "other tokens",
            f"Prompt {prompt} has token {token} {again}in front on '{pair.names[side]}' and not on"
            f" '{pair.names[1 - side]}': a BOS that is {is_so} on one side.",
            {"token": token, "prompt": prompt},
        )
        return


def moved_ids(pair: PairRows) -> Iterator[Cause]:
    """Tokens stand at other ids: shifted by some, or permuted."""
    if not pair.is_full or (split := halves(pair.rows)) is None:
        return
    x, y = (_whole(pair, side, split[0]) for side in (0, 1))
    vocab = x.shape[1]
    columns = np.unique(np.linspace(0, vocab - 1, min(vocab, _COLUMNS)).astype(int))
    columns = columns[np.ptp(x[:, columns], axis=0) > 0]
    if not len(columns):
        return
    distances = (x[:, columns] ** 2).sum(0)[:, None] + (y**2).sum(0)[None, :] - 2 * x[:, columns].T @ y
    there = distances.argmin(axis=1)
    own = distances[np.arange(len(columns)), columns]
    moved = (there != columns) & (distances.min(axis=1) <= (1 - EXPLAINED) * own)
    if moved.mean() < 0.5:
        return
    x, y = (_whole(pair, side, split[1]) for side in (0, 1))
    before = ((y[:, columns] - x[:, columns]) ** 2)[:, moved].sum(axis=1)
    after = ((y[:, there] - x[:, columns]) ** 2)[:, moved].sum(axis=1)
    if not before.sum():
        return
    left, explained = float(after.sum() / before.sum()), int((after <= (1 - EXPLAINED) * before).sum())
    if left > 1 - EXPLAINED or 2 * explained <= len(before):
        return
    steps, counts = np.unique(there[moved] - columns[moved], return_counts=True)
    shift = int(steps[counts.argmax()])
    is_shift = counts.max() >= 0.9 * moved.sum()
    rest = math.sqrt(float(after.sum()) / (len(after) * int(moved.sum())))
    says = (
        f"Tokens of '{pair.variant}' stand at ids {abs(shift)} {'higher' if shift > 0 else 'lower'} than on"
        f" '{pair.reference}'"
        if is_shift
        else f"Tokens of '{pair.variant}' stand at other ids than on '{pair.reference}': the vocabulary is permuted, as"
        f" token {columns[moved][0]} there is {there[moved][0]}"
    )
    yield Score(1 - left, explained, len(before), rest).cause("moved ids", says, **({"ids": shift} if is_shift else {}))


def _whole(pair: PairRows, side: int, rows: Sequence[RowPair]) -> Values:
    """Complete rows of a side, what is not finite as 0. [rows, vocab]"""
    found = [pair.at(side, row.prompt, row.position) for row in rows]
    values = np.array([listed.values for listed in found if listed is not None])
    return np.where(np.isfinite(values), values, 0.0)
