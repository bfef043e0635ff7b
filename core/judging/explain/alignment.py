"""Hypotheses that rows, tokens or token ids of the two sides do not stand at the same places."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from ...runs.topk.pairing import extra_first_token
from ...text import plural
from .rows import Listed, PairRows, RowPair, Values
from .scoring import EXPLAINED, LEAST_ROWS, Cause, Score, halves

_MOST_SHIFT = 3  # rows
_BLOCKS, _BLOCK = 3, 8  # of places in a row, whose rows are looked for at other places
_LISTED_PLACES = 96
_COLUMNS = 48  # tokens whose ids are looked for
_ID_ROWS = 16  # in which they are
_SAME_ID = 0.05  # of a token's variance over rows: closer ones are the same
_SHIFTS = tuple(shift for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1) if shift)
_FARTHEST = 1e4  # logits: a mask by a number is no further
_LEAST_VALUES = 16  # of a sequence of single values
_SAME_ROW = 0.01  # of a row's squared difference, that one at another place leaves
_ROWS_TO_MATCH, _TOKENS_TO_MATCH = 48, 512  # of lists 24 rows, each pair of which costs as much

Place = tuple[int, int]  # prompt, position


def _moved_by(pair: PairRows, place: Place, shift: int) -> Place:
    """The place some rows further on; prompts of one position each are steps of one sequence."""
    prompt, position = place
    return (prompt + shift, position) if max(pair.lengths) == 1 else (prompt, position + shift)


def _places(pair: PairRows) -> list[Place]:
    """Places that are looked at, in blocks where reading a row costs something."""
    places = list(pair.places)
    if not pair.is_full:
        return places[:: max(1, len(places) // _LISTED_PLACES)]
    every = [(prompt, at) for prompt, length in enumerate(pair.lengths) for at in range(length)]
    if len(every) <= _BLOCKS * _BLOCK:
        return every
    starts = np.linspace(0, len(every) - _BLOCK, _BLOCKS).astype(int)
    return sorted({every[start + step] for start in starts for step in range(_BLOCK)})


def shifted_rows(pair: PairRows) -> Iterator[Cause]:
    """The variant's rows are the reference's, read some rows early or late."""
    best = cache(lambda side, place: None if (listed := pair.at(side, *place)) is None else _best(listed))
    scored: dict[int, list[tuple[float, float]]] = {shift: [] for shift in _SHIFTS}
    for place in _places(pair):
        own, other = best(1, place), best(0, place)
        if own is None or other is None:
            continue
        before = _distance(own, other)
        for shift in _SHIFTS:
            if (there := best(0, _moved_by(pair, place, shift))) is not None:
                scored[shift].append((before, _distance(own, there)))

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
    yield _shifted(pair, Score(1 - left(rows), explained, len(rows), rest), shift, "position", "its rows are")


def _shifted(pair: PairRows, found: Score, shift: int, unit: str, what: str) -> Cause:
    when = "late" if shift > 0 else "early"
    says = (
        f"'{pair.variant}' holds at each {unit} what '{pair.reference}' holds {plural(abs(shift), unit)}"
        f" {'further on' if shift > 0 else 'before'}: {what} {plural(abs(shift), 'row')} {when}"
    )
    return found.cause("shifted rows", says, rows=shift)


def shifted_values(pair: PairRows) -> Iterator[Cause]:
    """Of lists of one value a row, as chosen tokens have: the values in their order are the other side's, some rows
    early or late. Which tokens they are of does not matter.
    """
    values: list[dict[Place, float]] = [{}, {}]
    for side in (0, 1):
        for place in pair.places:
            listed = pair.at(side, *place)
            if listed is not None and len(listed.values) == 1:
                values[side][place] = float(listed.values[0])
    own = [place for place in values[1] if place in values[0]]
    if len(own) < _LEAST_VALUES or 2 * len(own) <= len(pair.places):
        return

    def apart(shift: int) -> Values:
        there = [(place, _moved_by(pair, place, shift)) for place in own]
        return np.array(
            [
                (values[1][place] - values[0][place], values[1][place] - values[0][other])
                for place, other in there
                if other in values[0]
            ]
        ).reshape(-1, 2)

    found = {shift: pairs for shift in _SHIFTS if len(pairs := apart(shift)) >= _LEAST_VALUES}
    if not found:
        return
    shift = min(found, key=lambda one: float(np.median(np.abs(found[one][::2, 1]))))
    before, after = (found[shift][1::2] ** 2).T
    explained = int((after <= (1 - EXPLAINED) * before)[before > 0].sum())
    scored = int((before > 0).sum())
    if not scored or explained < EXPLAINED * scored or after.sum() > (1 - EXPLAINED) * before.sum():
        return
    score = Score(1 - float(after.sum() / before.sum()), explained, scored, math.sqrt(float(after.mean())))
    yield _shifted(pair, score, shift, "token", "its values are")


def other_rows(pair: PairRows) -> Iterator[Cause]:
    """The variant holds at some places the reference's row of another place: one row everywhere, rows of a batch in
    another order, a row that was not written anew.
    """
    most = _ROWS_TO_MATCH if pair.is_full else _ROWS_TO_MATCH // 2
    places = list(pair.places)[:: -(-len(pair.places) // most)]
    distances = _distances_of_rows(pair, places)
    there = distances.argmin(axis=1)
    own = distances.diagonal()
    moved = (there != np.arange(len(places))) & (own > 0) & (distances.min(axis=1) <= _SAME_ROW * own)
    count = int(moved.sum())
    if not count or (not pair.is_full and 2 * count < len(places)):
        return
    before, after = float(own.sum()), float(np.where(moved, distances.min(axis=1), own).sum())
    score = Score(1 - after / before, count, int((own > 0).sum()), math.sqrt(after / len(places)))
    targets, counts = np.unique(there[moved], return_counts=True)
    if count > 2 and counts.max() >= EXPLAINED * count and 2 * count > len(places):
        at = places[targets[counts.argmax()]]
        says = (
            f"'{pair.variant}' holds one row at {count + 1:,} of {plural(len(places), 'position')}: that of"
            f" '{pair.reference}' at {_named(pair, at)}"
        )
        yield score.cause("repeated rows", says, prompt=at[0], position=at[1], positions=count + 1)
        return
    shown = ", ".join(
        f"{_named(pair, places[i])} that of {_named(pair, places[there[i]])}" for i in np.flatnonzero(moved)[:3]
    )
    says = (
        f"'{pair.variant}' holds at {count:,} of {plural(len(places), 'position')} the row of '{pair.reference}' at"
        f" another one: at {shown}{', ...' if count > 3 else ''}"
    )
    yield score.cause("other rows", says, positions=count)


def _named(pair: PairRows, place: Place) -> str:
    return f"position {place[1]}" + (f" of prompt {place[0]}" if len(pair.lengths) > 1 else "")


def _distances_of_rows(pair: PairRows, places: Sequence[Place]) -> Values:
    """Mean squared differences of the variant's rows from the reference's, up to a constant. [places, places]"""
    sides = [[pair.at(side, *place) for place in places] for side in (0, 1)]
    if not pair.is_full:
        lists = [[None if row is None else _best(row) for row in rows] for rows in sides]
        return np.array(
            [
                [64.0 if own is None or other is None else _distance(own, other) for other in lists[0]]
                for own in lists[1]
            ]
        )
    ids = np.unique(np.linspace(0, pair.vocab - 1, min(pair.vocab, _TOKENS_TO_MATCH)).astype(int))
    held = [np.array([row.values[ids] for row in rows if row is not None], np.float64) for rows in sides]
    usable = np.isfinite(held[0]).all(axis=0) & np.isfinite(held[1]).all(axis=0)
    x, y = (np.clip(side[:, usable], -_FARTHEST, _FARTHEST) for side in held)
    squares = (y**2).sum(axis=1)[:, None] + (x**2).sum(axis=1)[None, :] - 2 * y @ x.T
    return np.maximum(squares / max(1, int(usable.sum())), 0.0)


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
    return Listed(listed.token_ids[kept], np.clip(values[kept].astype(np.float64), -_FARTHEST, _FARTHEST))


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
    rows = pair.rows[:: max(1, len(pair.rows) // _ID_ROWS)]
    if not pair.is_full or (split := halves(rows, in_parts=False)) is None:
        return
    x, y = (_whole(pair, side, split[0]) for side in (0, 1))
    vocab = x.shape[1]
    columns = np.unique(np.linspace(0, vocab - 1, min(vocab, _COLUMNS)).astype(int))
    columns = columns[np.ptp(x[:, columns], axis=0) > 0]
    if not len(columns):
        return
    own = ((x[:, columns] - y[:, columns]) ** 2).sum(0)
    if np.median(own) < _SAME_ID * np.median(_spread(x[:, columns])):
        return
    distances = (x[:, columns] ** 2).sum(0)[:, None] + (y**2).sum(0)[None, :] - 2 * x[:, columns].T @ y
    there = distances.argmin(axis=1)
    moved = (there != columns) & (distances.min(axis=1) <= (1 - EXPLAINED) * np.minimum(own, _spread(x[:, columns])))
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


def _spread(values: Values) -> Values:
    """Squared distances of each column from its mean, together. [columns]"""
    return np.asarray(values.var(axis=0) * len(values), np.float64)


def _whole(pair: PairRows, side: int, rows: Sequence[RowPair]) -> Values:
    """Complete rows of a side, what is not finite as 0. [rows, vocab]"""
    found = [pair.at(side, row.prompt, row.position) for row in rows]
    values = np.array([listed.values for listed in found if listed is not None])
    return np.where(np.isfinite(values), np.clip(values, -_FARTHEST, _FARTHEST), 0.0)
