"""Causes that put rows, tokens or token ids of the two sides at other places."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from ...runs.topk.alignment import extra_first_token
from ...text import plural
from .rows import Listed, PairRows, Place, RowPair, Values
from .scoring import EXPLAINED, LEAST_ROWS, Cause, Score, halves

_SHIFTS = (-3, -2, -1, 1, 2, 3)  # rows
_BLOCKS, _BLOCK = 3, 8  # of places in a row, whose rows are looked for at other places
_LISTED_PLACES = 96
_COLUMNS = 48  # tokens whose ids are looked for
_ID_ROWS = 16  # in which they are
_SAME_ID = 0.05  # of a token's variance over rows: closer ones are the same
_FARTHEST = 1e4  # logits: a mask by a number is no further
_UNRELATED = 64.0  # squared logits: rows that share too few tokens
_TOP = 256  # tokens of a row that are compared
_LEAST_VALUES = 16  # of a sequence of single values
_SAME_ROW = 0.01  # of a row's squared difference, that one at another place leaves
_ROWS_TO_MATCH, _TOKENS_TO_MATCH = 48, 512  # of lists 24 rows, each pair of which costs as much


def other_tokens(pair: PairRows) -> Iterator[Cause]:
    """A token in front of one side's prompt that the other side's lacks: a BOS, or two."""
    for prompt, sides in enumerate(zip(*pair.tokens, strict=False)):
        if (found := extra_first_token(*sides)) is not None:
            side, is_doubled = found
            token = sides[side][0]
            again, is_so = ("once more ", "doubled") if is_doubled else ("", "missing")
            yield Cause(
                "other tokens",
                f"Prompt {prompt} has token {token} {again}in front on '{pair.names[side]}' and not on"
                f" '{pair.names[1 - side]}': a BOS that is {is_so} on one side.",
                {"token": token, "prompt": prompt},
            )
            return


def _moved_by(pair: PairRows, place: Place, shift: int) -> Place:
    """The place some rows further on."""
    prompt, position = place
    return (prompt + shift, position) if pair.are_steps else (prompt, position + shift)


def shifted_rows(pair: PairRows) -> Iterator[Cause]:
    """The variant's rows are the reference's, read some rows early or late."""
    if pair.is_full:  # blocks, for reading a row costs something
        places = [(prompt, at) for prompt, length in enumerate(pair.lengths) for at in range(length)]
        starts = np.linspace(0, max(0, len(places) - _BLOCK), _BLOCKS).astype(int)
        if len(places) > _BLOCKS * _BLOCK:
            places = sorted({places[start + step] for start in starts for step in range(_BLOCK)})
    else:
        places = list(pair.places)[:: max(1, len(pair.places) // _LISTED_PLACES)]
    top = cache(lambda side, place: _top(pair.at(side, *place)))
    squares: dict[int, list[tuple[float, float]]] = {shift: [] for shift in _SHIFTS}
    for place in places:
        own, other = top(1, place), top(0, place)
        if own is None or other is None:
            continue
        before = _distance(own, other)
        for shift in _SHIFTS:
            if (there := top(0, _moved_by(pair, place, shift))) is not None:
                squares[shift].append((before, _distance(own, there)))

    def left(rows: Values) -> float:
        return float(rows[:, 1].sum() / max(rows[:, 0].sum(), 1e-300))

    yield from _shifted(pair, squares, 2 * LEAST_ROWS, left, "position")


def shifted_values(pair: PairRows) -> Iterator[Cause]:
    """Of lists of one value a row, as chosen tokens have: the values in their order are the other side's, some rows
    early or late. Which tokens they are of does not matter.
    """
    sides = [[(place, pair.at(side, *place)) for place in pair.places] for side in (0, 1)]
    x, y = (
        {place: float(row.values[0]) for place, row in rows if row is not None and len(row.values) == 1}
        for rows in sides
    )
    own = [place for place in y if place in x]
    if len(own) < _LEAST_VALUES or 2 * len(own) <= len(pair.places):
        return
    squares = {
        shift: [
            ((y[place] - x[place]) ** 2, (y[place] - x[other]) ** 2)
            for place in own
            if (other := _moved_by(pair, place, shift)) in x
        ]
        for shift in _SHIFTS
    }
    yield from _shifted(pair, squares, _LEAST_VALUES, lambda rows: float(np.median(rows[:, 1])), "token")


def _shifted(
    pair: PairRows,
    squares: Mapping[int, Sequence[tuple[float, float]]],
    least: int,
    left: Callable[[Values], float],
    unit: str,
) -> Iterator[Cause]:
    """The shift that leaves least of half of the squared differences, if it leaves a tenth of the other half.

    squares: for each shift those (before, after) it, of which `least` are needed.
    """
    usable = {shift: np.array(rows) for shift, rows in squares.items() if len(rows) >= least}
    if not usable:
        return
    shift = min(usable, key=lambda one: left(usable[one][::2]))
    rows = usable[shift][1::2]
    rows = rows[rows[:, 0] > 0] if unit == "position" else rows
    before, after = rows.T
    scored, explained = int((before > 0).sum()), int((after <= (1 - EXPLAINED) * before)[before > 0].sum())
    is_enough = 2 * explained > scored if unit == "position" else explained >= EXPLAINED * scored
    if not scored or not is_enough or after.sum() > (1 - EXPLAINED) * before.sum():
        return
    score = Score(1 - float(after.sum() / before.sum()), explained, scored, math.sqrt(float(after.mean())))
    yield score.cause(
        "shifted rows",
        f"'{pair.names[1]}' holds at each {unit} what '{pair.names[0]}' holds {plural(abs(shift), unit)}"
        f" {'further on' if shift > 0 else 'before'}: its {'rows' if unit == 'position' else 'values'} are"
        f" {plural(abs(shift), 'row')} {'late' if shift > 0 else 'early'}",
        rows=shift,
    )


def other_rows(pair: PairRows) -> Iterator[Cause]:
    """The variant holds at some places the reference's row of another place: one row everywhere, rows of a batch in
    another order, a row that was not written anew.
    """
    most = _ROWS_TO_MATCH if pair.is_full else _ROWS_TO_MATCH // 2
    places = list(pair.places)[:: -(-len(pair.places) // most)]
    distances = _distances_of_rows(pair, places)
    there, least, own = distances.argmin(axis=1), distances.min(axis=1), distances.diagonal()
    moved = (there != np.arange(len(places))) & (own > 0) & (least <= _SAME_ROW * own)
    count = int(moved.sum())
    if not count or (not pair.is_full and 2 * count < len(places)):
        return
    after = float(np.where(moved, least, own).sum())
    score = Score(1 - after / float(own.sum()), count, int((own > 0).sum()), math.sqrt(after / len(places)))
    of_all = plural(len(places), "position")
    named = [
        f"position {position}" + (f" of prompt {prompt}" if len(pair.lengths) > 1 else "")
        for prompt, position in places
    ]
    targets, counts = np.unique(there[moved], return_counts=True)
    if count > 2 and counts.max() >= EXPLAINED * count and 2 * count > len(places):
        at = targets[counts.argmax()]
        says = f"'{pair.names[1]}' holds one row at {count + 1:,} of {of_all}: that of '{pair.names[0]}' at {named[at]}"
        prompt, position = places[at]
        yield score.cause("repeated rows", says, prompt=prompt, position=position, positions=count + 1)
        return
    shown = ", ".join(f"{named[i]} that of {named[there[i]]}" for i in np.flatnonzero(moved)[:3])
    says = (
        f"'{pair.names[1]}' holds at {count:,} of {of_all} the row of '{pair.names[0]}' at another one: at"
        f" {shown}{', ...' if count > 3 else ''}"
    )
    yield score.cause("other rows", says, positions=count)


def _distances_of_rows(pair: PairRows, places: Sequence[Place]) -> Values:
    """Mean squared differences of the variant's rows from the reference's, up to a constant. [places, places]"""
    sides = [[pair.at(side, *place) for place in places] for side in (0, 1)]
    if not pair.is_full:
        references, variants = ([_top(row) for row in rows] for rows in sides)
        return np.array([[_distance(own, other) for other in references] for own in variants])
    ids = np.unique(np.linspace(0, pair.vocab - 1, min(pair.vocab, _TOKENS_TO_MATCH)).astype(int))
    x, y = (np.array([row.values[ids] for row in rows if row is not None], np.float64) for rows in sides)
    usable = np.isfinite(x).all(axis=0) & np.isfinite(y).all(axis=0)
    x, y = (np.clip(values[:, usable], -_FARTHEST, _FARTHEST) for values in (x, y))
    squares = (y**2).sum(axis=1)[:, None] + (x**2).sum(axis=1)[None, :] - 2 * y @ x.T
    return np.maximum(squares / max(1, int(usable.sum())), 0.0)


def _distance(one: Listed | None, other: Listed | None) -> float:
    """Mean squared difference of two rows' top tokens, up to a constant; unrelated if they share too few."""
    if one is None or other is None:
        return _UNRELATED
    ids, here, there = np.intersect1d(one.token_ids, other.token_ids, return_indices=True)
    if not len(ids) or 2 * len(ids) < min(len(one.token_ids), len(other.token_ids)):
        return _UNRELATED
    apart = one.values[here] - other.values[there]
    return float(np.minimum((apart - np.median(apart)) ** 2, _UNRELATED).mean())


def _top(listed: Listed | None) -> Listed | None:
    """The finite ones of a row's top tokens."""
    if listed is None:
        return None
    values = np.where(np.isnan(listed.values), -np.inf, listed.values)
    top = np.arange(len(values)) if len(values) <= _TOP else np.argpartition(-values, _TOP)[:_TOP]
    top = top[np.isfinite(values[top])]
    return Listed(listed.token_ids[top], np.clip(values[top].astype(np.float64), -_FARTHEST, _FARTHEST))


def moved_ids(pair: PairRows) -> Iterator[Cause]:
    """Tokens stand at other ids: shifted by some, or permuted."""
    rows = pair.rows[:: max(1, len(pair.rows) // _ID_ROWS)]
    if not pair.is_full or (split := halves(rows, in_parts=False)) is None:
        return
    x, y = (_whole(pair, side, split[0]) for side in (0, 1))
    columns = np.unique(np.linspace(0, pair.vocab - 1, min(pair.vocab, _COLUMNS)).astype(int))
    columns = columns[np.ptp(x[:, columns], axis=0) > 0]
    if not len(columns):
        return
    looked_for = x[:, columns]
    own = ((looked_for - y[:, columns]) ** 2).sum(0)
    spread = looked_for.var(axis=0) * len(looked_for)
    if np.median(own) < _SAME_ID * np.median(spread):
        return
    distances = (looked_for**2).sum(0)[:, None] + (y**2).sum(0)[None, :] - 2 * looked_for.T @ y
    there = distances.argmin(axis=1)
    moved = (there != columns) & (distances.min(axis=1) <= (1 - EXPLAINED) * np.minimum(own, spread))
    if moved.mean() < 0.5:
        return
    x, y = (_whole(pair, side, split[1]) for side in (0, 1))
    before, after = (((y[:, ids] - x[:, columns]) ** 2)[:, moved].sum(axis=1) for ids in (columns, there))
    explained = int((after <= (1 - EXPLAINED) * before).sum())
    if not before.sum() or after.sum() > (1 - EXPLAINED) * before.sum() or 2 * explained <= len(before):
        return
    steps, counts = np.unique(there[moved] - columns[moved], return_counts=True)
    shift = int(steps[counts.argmax()])
    is_shift = counts.max() >= 0.9 * moved.sum()
    how = (
        f"ids {abs(shift)} {'higher' if shift > 0 else 'lower'} than on '{pair.names[0]}'"
        if is_shift
        else f"other ids than on '{pair.names[0]}': the vocabulary is permuted, as token {columns[moved][0]} there is"
        f" {there[moved][0]}"
    )
    rest = math.sqrt(float(after.sum()) / (len(after) * int(moved.sum())))
    score = Score(1 - float(after.sum() / before.sum()), explained, len(before), rest)
    says = f"Tokens of '{pair.names[1]}' stand at {how}"
    yield score.cause("moved ids", says, **({"ids": shift} if is_shift else {}))


def _whole(pair: PairRows, side: int, rows: Sequence[RowPair]) -> Values:
    """Complete rows of a side, what is not finite as 0. [rows, vocab]"""
    found = [pair.at(side, row.prompt, row.position) for row in rows]
    values = np.array([listed.values for listed in found if listed is not None])
    return np.where(np.isfinite(values), np.clip(values, -_FARTHEST, _FARTHEST), 0.0)
