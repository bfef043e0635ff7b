"""Rows or token ids of one side that stand at other places of the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...text import plural
from .rows import FARTHEST, PairRows, TooFewError, TopTokens, Values, place_name
from .scoring import EXPLAINED, LEAST_ROWS, Cause, claim

_SHIFTS = (-3, -2, -1, 1, 2, 3)  # rows
_LEAST_VALUES = 16  # of a sequence of single values
_LEAST_SHARED = 32  # tokens of complete rows, or a mask's few match by chance
_UNRELATED = 64.0  # squared logits: rows that share too few tokens
_SAME_ROW = 0.01  # of a row's squared difference, that one at another place leaves
_COLUMNS = 48  # tokens whose ids are looked for
_ID_ROWS = 16  # in which they are
_SAME_ID = 0.05  # of a token's variance over rows: closer ones are the same


def misplaced_rows(pair: PairRows) -> Iterator[Cause]:
    """The variant's rows are the reference's of other places: shifted by some, one row everywhere, another order."""
    if len(pair.places) < 2:
        raise TooFewError("2 rows")
    # Of lists of one value a row, as chosen tokens have, the values in their order are compared, whatever the tokens.
    if sum(len(top.ids) == 1 for side in pair.tops for top in side) > len(pair.places):
        x, y = (np.array([top.values[0] if len(top.ids) == 1 else np.nan for top in side]) for side in pair.tops)
        yield from _shifted(pair, (y[:, None] - x) ** 2, _LEAST_VALUES, EXPLAINED)
        return
    least = _LEAST_SHARED if pair.dtype else 1
    distances = np.array([[_distance(own, other, least) for other in pair.tops[0]] for own in pair.tops[1]])
    yield from _shifted(pair, distances, 2 * LEAST_ROWS, 0.5)
    yield from _other_rows(pair, distances)


def _distance(one: TopTokens, other: TopTokens, least: int) -> float:
    """Mean squared difference of two rows' top tokens, up to a constant; unrelated if they share too few."""
    ids, here, there = np.intersect1d(one.ids, other.ids, assume_unique=True, return_indices=True)
    if len(ids) < least or 2 * len(ids) < min(len(one.ids), len(other.ids)):
        return _UNRELATED
    apart = one.values[here] - other.values[there]
    return float(np.minimum((apart - np.median(apart)) ** 2, _UNRELATED).mean())


def _shifted(pair: PairRows, distances: Values, least: int, share: float) -> Iterator[Cause]:
    """The shift that leaves least at half of the rows, if it leaves a tenth at the other half."""
    index = {place: at for at, place in enumerate(pair.places)}
    are_steps = not any(position for _, position in pair.places)  # of one sequence, each a prompt of its own
    squares = {}  # by shift: [rows, (before, after)]
    for shift in _SHIFTS:
        step = (shift, 0) if are_steps else (0, shift)
        moved = [(at, index.get((place[0] + step[0], place[1] + step[1]))) for place, at in index.items()]
        rows = np.array([(distances[at, at], distances[at, to]) for at, to in moved if to is not None]).reshape(-1, 2)
        rows = rows[np.isfinite(rows).all(axis=1) & (rows[:, 0] > 0)]
        if len(rows) >= least:
            squares[shift] = rows
    if not squares:
        return
    shift = min(squares, key=lambda one: float(np.median(squares[one][::2, 1])))
    before, after = squares[shift][1::2].T
    scored = _scored(before, after, share)
    if scored is not None:
        by = plural(abs(shift), "row")
        late, later = ("late", "after") if shift > 0 else ("early", "before")
        says = f"'{pair.names[1]}' is {by} {late}: each row holds what '{pair.names[0]}' holds {by} {later} it."
        yield replace(scored, name="shifted rows", says=says, parameters={"rows": shift})


def _scored(before: Values, after: Values, share: float) -> Cause | None:
    """Score squared differences before and after a move; None if too few rows, or too little of all, are explained."""
    is_explained = after <= (1 - EXPLAINED) * before
    is_claimed = is_explained.mean() > share and after.sum() <= (1 - EXPLAINED) * before.sum()
    return claim(before, after, len(before), is_explained) if is_claimed else None


def _other_rows(pair: PairRows, distances: Values) -> Iterator[Cause]:
    """One row everywhere, rows of a batch in another order, a row that was not written anew."""
    total = len(pair.places)
    there, least, own = distances.argmin(axis=1), distances.min(axis=1), distances.diagonal()
    is_moved = (there != np.arange(total)) & (own > 0) & (least <= _SAME_ROW * own)
    count = int(is_moved.sum())
    if not count or (not pair.dtype and 2 * count < total):
        return
    scored = claim(own, np.where(is_moved, least, own), total, is_moved)
    reference, variant = pair.names
    targets, counts = np.unique(there[is_moved], return_counts=True)
    if count > 2 and counts.max() >= EXPLAINED * count and 2 * count > total:
        prompt, position = pair.places[targets[counts.argmax()]]
        where = place_name((prompt, position))
        says = f"'{variant}' holds one row at {count + 1} of {total} positions: that of '{reference}' at {where}."
        parameters = {"prompt": prompt, "position": position, "positions": count + 1}
        yield replace(scored, name="repeated rows", says=says, parameters=parameters)
        return
    first = int(is_moved.argmax())
    here, where = place_name(pair.places[first]), place_name(pair.places[there[first]])
    says = f"'{variant}' holds other rows of '{reference}' at {count} of {total} positions: at {here} that of {where}."
    yield replace(scored, name="other rows", says=says, parameters={"positions": count})


def moved_ids(pair: PairRows) -> Iterator[Cause]:
    """Tokens stand at other ids: shifted by some, or permuted."""
    whole, _ = pair.complete()
    whole = whole[:, :: max(1, whole.shape[1] // _ID_ROWS)].astype(np.float64)
    if whole.shape[1] < 2 * LEAST_ROWS:
        raise TooFewError(f"{2 * LEAST_ROWS} rows")
    whole = np.where(np.isfinite(whole), whole.clip(-FARTHEST, FARTHEST), 0.0)
    x, y = whole[:, ::2]
    columns = np.unique(np.linspace(0, x.shape[1] - 1, _COLUMNS).astype(int))
    columns = columns[np.ptp(x[:, columns], axis=0) > 0]
    looked_for = x[:, columns]
    own = ((looked_for - y[:, columns]) ** 2).sum(axis=0)
    spread = looked_for.var(axis=0) * len(looked_for)
    if not len(columns) or np.median(own) < _SAME_ID * np.median(spread):
        return
    distances = (looked_for**2).sum(axis=0)[:, None] + (y**2).sum(axis=0) - 2 * looked_for.T @ y
    there = distances.argmin(axis=1)
    moved = (there != columns) & (distances.min(axis=1) <= (1 - EXPLAINED) * np.minimum(own, spread))
    if moved.mean() < 0.5:
        return
    columns, there = columns[moved], there[moved]
    x, y = whole[:, 1::2]
    before, after = (((y[:, ids] - x[:, columns]) ** 2).mean(axis=1) for ids in (columns, there))
    scored = _scored(before, after, 0.5)
    if scored is None:
        return
    reference, variant = pair.names
    steps, counts = np.unique(there - columns, return_counts=True)
    shift = int(steps[counts.argmax()])
    says = f"'{variant}' permutes the vocabulary: token {columns[0]} of '{reference}' has the id {there[0]} there."
    is_shift = counts.max() >= EXPLAINED * len(columns)
    if is_shift:
        says = f"Token ids of '{variant}' are {abs(shift)} {'higher' if shift > 0 else 'lower'} than on '{reference}'."
    yield replace(scored, name="moved ids", says=says, parameters={"ids": shift} if is_shift else {})
