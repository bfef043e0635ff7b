"""Rows of a pair as hypotheses see them, alike for complete rows and for lists of some tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...numerics.formats import FloatFormat, format_named, spacings, values_of
from ...runs.figures import Figures
from ...runs.topk.pairing import ListPair, prompt_tokens
from ...runs.topk.records import UNKNOWN_TOKEN, ListSide
from ..constant_rows import is_left_out

Ids = NDArray[np.int64]
Values = NDArray[np.float64]
_MOST_ROWS, _LEAST_ROWS = 48, 16  # of complete rows, evenly spread
_MOST_LOGITS = 1 << 22  # of a side that are read for them
_MOST_LISTED = 512  # rows of lists
# Tokens of a complete row: evenly spread ones, the top ones of either side, and those that are furthest moved.
_SPREAD, _BEST, _MOVED = 2048, 64, 16
_LEAST_PADDING = 8  # tokens at the end of a row with one value


class Listed(NamedTuple):
    """Tokens of one side's row with their values, by id. [tokens] each"""

    token_ids: Ids
    values: NDArray[np.floating]


@dataclass(frozen=True, eq=False)
class RowPair:
    """Tokens that are finite and not masked on both sides at one position. x, y: values of the reference and the
    variant. [tokens]

    before: how often each token stands in the text up to here, empty where the text is not known.
    """

    prompt: int
    position: int
    token_ids: Ids
    x: Values
    y: Values
    before: Mapping[int, int]

    @cached_property
    def times_before(self) -> Ids:
        """Count of each of its tokens in the text up to here. [tokens]"""
        if not self.before:
            return np.zeros(len(self.token_ids), np.int64)
        return np.array([self.before.get(token, 0) for token in self.token_ids.tolist()], np.int64)

    def part(self, which: NDArray[np.bool_] | slice) -> RowPair:
        """Some of its tokens."""
        return replace(self, token_ids=self.token_ids[which], x=self.x[which], y=self.y[which])


@dataclass(frozen=True, eq=False)
class Mask:
    """Tokens that a side's complete row leaves out: they are -inf or `filler` there and not on the other side.

    kept: tokens that are not left out; are_best: these are the best of the other side; mass: their probability there.
    """

    prompt: int
    position: int
    kept: int
    are_best: bool
    mass: float
    filler: float
    masked_ids: Ids


@dataclass(frozen=True, eq=False)
class PairRows:
    """A pair as rows. at(side, prompt, position): a row of side 0 or 1, None where there is none. `values`: 'logit' or
    'logprob', which come with a constant of their own at every position; dtype: of complete rows, '' for lists.

    rows: those of more than one value on either side; compared: positions that both sides have. lengths: positions of
    each prompt.
    tokens: of each side and prompt, as far as they are known; of lists those that were read. emitted: (side, prompt,
    position, best, chosen) of generated rows of lists. masks: of complete rows, for each side. padded_from: for
    each side the token id from which on it holds one value a row, None where there is none. factor: by which the
    reference was multiplied since, as a temperature does.
    """

    reference: str
    variant: str
    values: str
    is_full: bool
    dtype: str
    rows: tuple[RowPair, ...]
    compared: int
    places: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]
    at: Callable[[int, int, int], Listed | None]
    tokens: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    emitted: tuple[tuple[int, int, int, int, int], ...] = ()
    masks: tuple[tuple[Mask, ...], tuple[Mask, ...]] = ((), ())
    padded_from: tuple[int | None, int | None] = (None, None)
    vocab: int = 0
    factor: float = 1.0

    @property
    def has_constants(self) -> bool:
        return self.values == "logprob"

    @property
    def names(self) -> tuple[str, str]:
        return self.reference, self.variant

    @property
    def format(self) -> FloatFormat:
        """Format that values are rounded to: of lists, whose log-sums are float32, that."""
        return format_named(self.dtype or "float32")

    def grid_of(self, row: RowPair) -> float:
        """rms that rounding both sides leaves: an error uniform within half a step of the row's largest value."""
        largest = np.array([np.abs(side).max(initial=0.0) for side in (row.x, row.y)])
        return float(np.sqrt((spacings(largest, self.format) ** 2).sum() / 12))


def rows_of_run(run: Figures, pair: int) -> PairRows:
    """Evenly spread rows of a stored pair."""
    header = run.header
    sides = (0, pair + 1)

    def at(side: int, prompt: int, position: int) -> NDArray[np.floating]:
        return values_of(run.at(sides[side], prompt, position), header.format)

    names = (header.sides[0].name, header.sides[pair + 1].name)
    tokens = tuple(tuple(prompt.token_ids or ()) for prompt in header.prompts)
    lengths = [prompt.positions for prompt in header.prompts]
    return complete_rows(names, header.compute_dtype, tokens, lengths, header.vocab, at)


def complete_rows(
    names: tuple[str, str],
    dtype: str,
    tokens: tuple[tuple[int, ...], ...],
    lengths: Sequence[int],
    vocab: int,
    read: Callable[[int, int, int], NDArray[np.floating]],
) -> PairRows:
    """Evenly spread rows of complete ones, of tokens spread over the vocabulary, those of the text, and the best of
    either side.

    tokens: of each prompt, () where unknown; lengths: its positions. read(side, prompt, position): all values. [vocab]
    """
    places = [(prompt, at) for prompt, length in enumerate(lengths) for at in range(length)]
    most = min(max(_LEAST_ROWS, _MOST_LOGITS // vocab), _MOST_ROWS, len(places))
    chosen = [places[i] for i in np.unique(np.linspace(0, len(places) - 1, most).astype(int))]
    read = cache(read)

    def at(side: int, prompt: int, position: int) -> Listed | None:
        if not 0 <= prompt < len(lengths) or not 0 <= position < lengths[prompt]:
            return None
        values = read(side, prompt, position)
        return Listed(np.arange(len(values)), values)

    padded_from = _padded_from(read, chosen, vocab)
    end = min((start for start in padded_from if start is not None), default=vocab)
    spread = np.unique(np.linspace(0, vocab - 1, min(vocab, _SPREAD)).astype(np.int64))
    rows: list[RowPair] = []
    masks: tuple[list[Mask], list[Mask]] = ([], [])
    for prompt, position in chosen:
        sides = [read(side, prompt, position) for side in (0, 1)]
        left_out = [is_left_out(side) for side in sides]
        usable = np.isfinite(sides[0]) & np.isfinite(sides[1]) & ~left_out[0] & ~left_out[1]
        usable[end:] = False
        before = _counts(tokens[prompt][: position + 1])
        best = [_largest(np.where(usable, side, -np.inf), _BEST) for side in sides]
        best.append(_largest(_from_middle(sides[0], sides[1], usable), _MOVED))
        ids = np.unique(np.concatenate([spread, *best, np.array(list(before), np.int64)]))
        ids = ids[ids < vocab]
        ids = ids[usable[ids]]
        x, y = (side[ids].astype(np.float64) for side in sides)
        if len(ids) and np.ptp(x) > 0 and np.ptp(y) > 0:
            rows.append(RowPair(prompt, position, ids, x, y, before))
        for side in (0, 1):
            masked = np.flatnonzero(left_out[side] & ~left_out[1 - side] & np.isfinite(sides[1 - side]))
            if len(masked):
                mask = _mask(prompt, position, sides[side], sides[1 - side], left_out[side], left_out[1 - side], masked)
                masks[side].append(mask)
    return PairRows(
        *names,
        "logit",
        True,
        dtype,
        tuple(rows),
        len(places),
        tuple(chosen),
        tuple(lengths),
        at,
        (tokens, tokens),
        (),
        (tuple(masks[0]), tuple(masks[1])),
        padded_from,
        vocab,
    )


def _largest(values: NDArray[np.floating], count: int) -> Ids:
    """The ids of the largest values, in no order."""
    return np.arange(len(values)) if len(values) <= count else np.argpartition(-values, count)[:count]


def _from_middle(x: NDArray[np.floating], y: NDArray[np.floating], usable: NDArray[np.bool_]) -> NDArray[np.floating]:
    """Distance of each token's difference from the middle one; -inf where it is not usable. [vocab]"""
    apart = np.subtract(y, x, out=np.zeros(len(x)), where=usable, dtype=np.float64)
    middle = np.median(apart[usable]) if usable.any() else 0.0
    return np.where(usable, np.abs(apart - middle), -np.inf)


def _padded_from(
    read: Callable[[int, int, int], NDArray[np.floating]], places: Sequence[tuple[int, int]], vocab: int
) -> tuple[int | None, int | None]:
    """For each side the first id of a tail that holds one finite value in every row."""
    starts: list[int | None] = []
    for side in (0, 1):
        start = 0
        for place in places:
            values = read(side, *place)
            other = np.flatnonzero(values != values[-1])
            start = max(start, int(other[-1]) + 1 if len(other) else 0)
            if vocab - start < _LEAST_PADDING or not np.isfinite(values[-1]):
                break
        is_padded = 0 < start <= vocab - _LEAST_PADDING and np.isfinite(values[-1]) and not is_left_out(values)[-1]
        starts.append(start if is_padded else None)
    return starts[0], starts[1]


def _mask(
    prompt: int,
    position: int,
    own: NDArray[np.floating],
    other: NDArray[np.floating],
    left_out: NDArray[np.bool_],
    left_out_of_other: NDArray[np.bool_],
    masked: Ids,
) -> Mask:
    kept = np.flatnonzero(np.isfinite(own) & ~left_out)
    filler = float(np.median(own[masked].astype(np.float64)))
    both = kept[np.isfinite(other[kept]) & ~left_out_of_other[kept]]
    if not len(both):
        return Mask(prompt, position, len(kept), False, 1.0, filler, masked)
    top = float(other[np.isfinite(other)].max())
    weights = np.where(np.isfinite(other), np.exp(np.minimum(other - top, 0.0, dtype=np.float64)), 0.0)
    slack = 2 * _largest_from_line(other[both], own[both])  # within which rounding changes ranks
    are_best = bool(other[both].min() + slack >= other[masked].max())
    return Mask(prompt, position, len(kept), are_best, float(weights[kept].sum() / weights.sum()), filler, masked)


def _largest_from_line(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Largest distance in x of points from their least-squares line, which a temperature makes; of one point 0."""
    x, y = x.astype(np.float64) - np.median(x), y.astype(np.float64) - np.median(y)
    slope = float(x @ y) / max(float(x @ x), 1e-300)
    return float(np.abs(y / slope - x).max(initial=0.0)) if slope > 0 else float(np.ptp(x))


def _counts(tokens: Sequence[int]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for token in tokens:
        if token != UNKNOWN_TOKEN:
            found[token] = found.get(token, 0) + 1
    return found


def rows_of_lists(pair: ListPair, reference: ListSide, variant: ListSide) -> PairRows:
    """Compared positions of a sparse pair; probabilities become log-probabilities."""
    sent = {(place.prompt, place.position): (place.reference, place.variant) for place in pair.positions}

    def at(side: int, prompt: int, position: int) -> Listed | None:
        listed = sent.get((prompt, position))
        return None if listed is None else Listed(*_logs(listed[side].token_ids, listed[side].values, pair.values))

    rows = []
    step = max(1, len(pair.positions) // _MOST_LISTED)
    for place in pair.positions[::step]:
        found = [_logs(row.token_ids, row.values, pair.values) for row in (place.reference, place.variant)]
        ids, here, there = np.intersect1d(found[0][0], found[1][0], return_indices=True)
        tokens = reference.responses[place.prompt].tokens if pair.keys == "token_id" else ()
        read = tokens[: place.position + 1]
        before = {} if UNKNOWN_TOKEN in read else _counts(read)
        x, y = found[0][1][here], found[1][1][there]
        rows.append(RowPair(place.prompt, place.position, ids.astype(np.int64), x, y, before))
    emitted = [
        (side, place.prompt, place.position, int(row.token_ids[0]), chosen)
        for place in pair.positions
        for side, row, chosen in (
            (0, place.reference, place.reference_chosen),
            (1, place.variant, place.variant_chosen),
        )
        if place.is_generated and chosen != UNKNOWN_TOKEN and row.best
    ]
    lengths = [0] * len(reference.responses)
    for prompt, position in sent:
        lengths[prompt] = max(lengths[prompt], position + 1)
    return PairRows(
        pair.reference,
        pair.variant,
        "logit" if pair.values == "logit" else "logprob",
        False,
        "",
        tuple(rows),
        len(pair.positions),
        tuple(sent),
        tuple(lengths),
        at,
        (_tokens(reference), _tokens(variant)) if pair.keys == "token_id" else ((), ()),
        tuple(emitted),
    )


def _tokens(side: ListSide) -> tuple[tuple[int, ...], ...]:
    return tuple(prompt_tokens(response) or () for response in side.responses)


def _logs(token_ids: Ids, values: Values, holds: str) -> tuple[Ids, Values]:
    finite = np.isfinite(values) & ((values > 0) | (holds != "prob"))
    ids, kept = token_ids[finite], values[finite]
    return ids, np.log(kept) if holds == "prob" else kept
