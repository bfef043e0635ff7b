"""Rows of a pair as hypotheses see them, alike for complete rows and for lists of some tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...numerics.formats import values_of
from ...runs.reader import RunReader
from ...runs.sparse.pairing import SparsePair, prompt_tokens
from ...runs.sparse.placeholders import without_placeholders
from ...runs.sparse.records import UNKNOWN_TOKEN, SparseResponse, SparseSide

Ids = NDArray[np.int64]
Values = NDArray[np.float64]
_MOST_ROWS = 48  # of complete rows, evenly spread
_MOST_LISTED = 512  # rows of lists
_SPREAD, _BEST = 2048, 64  # tokens of a complete row: evenly spread ones, and the best of either side


class Listed(NamedTuple):
    """Tokens of one side's row with their values, by id. [tokens] each"""

    token_ids: Ids
    values: Values


@dataclass(frozen=True, eq=False)
class RowPair:
    """Tokens that are finite on both sides at one position. x, y: values of the reference and the variant. [tokens]

    before: how often each token stands in the text up to here, empty where the text is not known.
    """

    prompt: int
    position: int
    token_ids: Ids
    x: Values
    y: Values
    before: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class Mask:
    """Tokens that a side's complete row leaves out: they are -inf there and finite on the other side.

    kept: tokens that are finite; are_best: these are the best of the other side; mass: their probability there.
    """

    kept: int
    are_best: bool
    mass: float
    masked_ids: Ids


@dataclass(frozen=True, eq=False)
class PairRows:
    """A pair as rows. at(side, prompt, position): a row of side 0 or 1, None where there is none. `values`: 'logit' or
    'logprob', which come with a constant of their own at every position; dtype: of complete rows, '' for lists.

    tokens: of each side and prompt, as far as they are known; of lists those that were read. emitted: (side, prompt,
    position, best, chosen) of generated rows of lists. masks: of complete rows, for each side.
    """

    reference: str
    variant: str
    values: str
    is_full: bool
    dtype: str
    rows: tuple[RowPair, ...]
    places: tuple[tuple[int, int], ...]
    at: Callable[[int, int, int], Listed | None]
    tokens: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    emitted: tuple[tuple[int, int, int, int, int], ...] = ()
    masks: tuple[tuple[Mask, ...], tuple[Mask, ...]] = ((), ())

    @property
    def has_constants(self) -> bool:
        return self.values == "logprob"

    @property
    def names(self) -> tuple[str, str]:
        return self.reference, self.variant


def rows_of_run(run: RunReader, pair: int) -> PairRows:
    """Evenly spread rows of a stored pair."""
    header = run.header
    sides = (0, pair + 1)

    def at(side: int, prompt: int, position: int) -> Values:
        return values_of(run.at(sides[side], prompt, position), header.format).astype(np.float64)

    names = (run.sides[0].name, run.sides[pair + 1].name)
    tokens = tuple(tuple(prompt.token_ids or ()) for prompt in header.prompts)
    lengths = [prompt.positions for prompt in header.prompts]
    return complete_rows(names, header.compute_dtype, tokens, lengths, header.vocab, at)


def complete_rows(
    names: tuple[str, str],
    dtype: str,
    tokens: tuple[tuple[int, ...], ...],
    lengths: Sequence[int],
    vocab: int,
    read: Callable[[int, int, int], Values],
) -> PairRows:
    """Evenly spread rows of complete ones, of tokens spread over the vocabulary and the best of either side.

    tokens: of each prompt, () where unknown; lengths: its positions. read(side, prompt, position): all values. [vocab]
    """
    places = [(prompt, at) for prompt, length in enumerate(lengths) for at in range(length)]
    chosen = [places[i] for i in np.unique(np.linspace(0, len(places) - 1, min(len(places), _MOST_ROWS)).astype(int))]

    def at(side: int, prompt: int, position: int) -> Listed | None:
        if not 0 <= prompt < len(lengths) or not 0 <= position < lengths[prompt]:
            return None
        values = read(side, prompt, position)
        return Listed(np.arange(len(values)), values)

    spread = np.unique(np.linspace(0, vocab - 1, min(vocab, _SPREAD)).astype(np.int64))
    rows: list[RowPair] = []
    masks: tuple[list[Mask], list[Mask]] = ([], [])
    for prompt, position in chosen:
        x, y = (read(side, prompt, position) for side in (0, 1))
        best = [np.argsort(-np.where(np.isnan(side), -np.inf, side), kind="stable")[:_BEST] for side in (x, y)]
        ids = np.unique(np.concatenate([spread, *best]))
        ids = ids[np.isfinite(x[ids]) & np.isfinite(y[ids])]
        rows.append(RowPair(prompt, position, ids, x[ids], y[ids], _counts(tokens[prompt][: position + 1])))
        for side, (own, other) in enumerate(((x, y), (y, x))):
            masks[side].append(_mask(own, other))
    both = (tuple(masks[0]), tuple(masks[1]))
    return PairRows(*names, "logit", True, dtype, tuple(rows), tuple(chosen), at, (tokens, tokens), (), both)


def _mask(own: Values, other: Values) -> Mask:
    masked = np.flatnonzero(np.isneginf(own) & np.isfinite(other))
    finite = np.flatnonzero(np.isfinite(own))
    if not len(masked) or not len(finite):
        return Mask(len(finite), False, 1.0, masked)
    top = float(np.nanmax(other[np.isfinite(other)]))
    weights = np.where(np.isfinite(other), np.exp(other - top), 0.0)
    both = finite[np.isfinite(other[finite])]
    slack = 2 * float(np.abs(own[both] - other[both]).max(initial=0.0))  # within which rounding changes ranks
    are_best = bool(other[finite].min() + slack >= other[masked].max())
    return Mask(len(finite), are_best, float(weights[finite].sum() / weights.sum()), masked)


def _counts(tokens: Sequence[int]) -> Mapping[int, int]:
    found: dict[int, int] = {}
    for token in tokens:
        if token != UNKNOWN_TOKEN:
            found[token] = found.get(token, 0) + 1
    return found


def rows_of_lists(pair: SparsePair, reference: SparseSide, variant: SparseSide) -> PairRows:
    """Compared positions of a sparse pair; probabilities become log-probabilities."""
    sides = without_placeholders(reference)[0], without_placeholders(variant)[0]
    held = [_by_place(side, pair.values) for side in sides]

    def at(side: int, prompt: int, position: int) -> Listed | None:
        return held[side].get((prompt, position))

    rows = []
    step = max(1, len(pair.positions) // _MOST_LISTED)
    for place in pair.positions[::step]:
        found = [_logs(row.token_ids, row.values, pair.values) for row in (place.reference, place.variant)]
        ids, here, there = np.intersect1d(found[0].token_ids, found[1].token_ids, return_indices=True)
        tokens = reference.responses[place.prompt].tokens if pair.keys == "token_id" else ()
        read = tokens[: place.position + 1]
        before = {} if UNKNOWN_TOKEN in read else _counts(read)
        x, y = found[0].values[here], found[1].values[there]
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
    return PairRows(
        pair.reference,
        pair.variant,
        "logit" if pair.values == "logit" else "logprob",
        False,
        "",
        tuple(rows),
        tuple((place.prompt, place.position) for place in pair.positions),
        at,
        (_tokens(reference), _tokens(variant)) if pair.keys == "token_id" else ((), ()),
        tuple(emitted),
    )


def _tokens(side: SparseSide) -> tuple[tuple[int, ...], ...]:
    return tuple(prompt_tokens(response) or () for response in side.responses)


def _by_place(side: SparseSide, values: str) -> dict[tuple[int, int], Listed]:
    found = {}
    for prompt, response in enumerate(side.responses):
        for place, listed in _rows_of(response, values):
            found[prompt, place] = listed
    return found


def _rows_of(response: SparseResponse, values: str) -> list[tuple[int, Listed]]:
    return [
        (int(position), _logs(*response.rows.row(index), values))
        for index, position in enumerate(response.rows.positions.tolist())
    ]


def _logs(token_ids: Ids, values: Values, holds: str) -> Listed:
    finite = np.isfinite(values) & ((values > 0) | (holds != "prob"))
    ids, kept = token_ids[finite], values[finite]
    return Listed(ids, np.log(kept) if holds == "prob" else kept)
