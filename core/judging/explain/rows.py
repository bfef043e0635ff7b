"""Rows of a pair as hypotheses see them, alike for complete rows and for lists of some tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...numerics.formats import FloatFormat, format_named, spacings, values_of
from ...numerics.topk import ListedRow
from ...runs.figures import Figures
from ...runs.topk.alignment import prompt_tokens
from ...runs.topk.pairing import ListPair
from ...runs.topk.records import UNKNOWN_TOKEN, ListSide
from ..constant_rows import is_left_out

Ids = NDArray[np.int64]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Place = tuple[int, int]  # prompt, position
Read = Callable[[int, int, int], NDArray[Any]]
_MOST_ROWS, _LEAST_ROWS = 48, 16  # of complete rows, evenly spread
_MOST_LOGITS = 1 << 22  # of a side that are read for them
_MOST_LISTED = 512  # rows of lists
# Tokens of a complete row: evenly spread ones, the top ones of either side, and those that are furthest moved.
_SPREAD, _TOP, _MOVED = 2048, 64, 16
_LEAST_PADDING = 8  # tokens at the end of a row with one value


class Listed(NamedTuple):
    """Tokens of one side's row with their values, by id. [tokens] each"""

    token_ids: Ids
    values: NDArray[Any]  # any float dtype


@dataclass(frozen=True, eq=False)
class RowPair:
    """Tokens that are finite and not masked on both sides at one position. [tokens] each

    x, y: values of the reference and the variant. times: how often each token stands in the text up to here, None if
    the text is unknown.
    """

    prompt: int
    position: int
    token_ids: Ids
    x: Values
    y: Values
    times: Ids | None = None

    @cached_property
    def in_text(self) -> Flags:
        return np.zeros(len(self.x), bool) if self.times is None else self.times > 0

    def part(self, which: Flags | slice) -> RowPair:
        times = None if self.times is None else self.times[which]
        return replace(self, token_ids=self.token_ids[which], x=self.x[which], y=self.y[which], times=times)


@dataclass(frozen=True, eq=False)
class PairRows:
    """A pair as rows. at(side, prompt, position): a row of side 0 or 1, None if there is none.

    names: of reference and variant. values: 'logit', or 'logprob' with a constant of its own at every position. dtype:
    of complete rows, '' for lists. compared: positions that both sides have. lengths: positions of each prompt.
    tokens: of each side and prompt, as far as known. emitted: (side, prompt, position, top token, chosen token) of
    generated rows of lists. left_out: masked tokens of complete rows by (side, prompt, position). padded_from: of each
    side the token id from which on it holds one value a row. factor: what the reference was multiplied by since, as a
    temperature does.
    """

    names: tuple[str, str]
    values: str
    dtype: str
    rows: tuple[RowPair, ...]
    compared: int
    places: tuple[Place, ...]
    lengths: tuple[int, ...]
    at: Callable[[int, int, int], Listed | None]
    tokens: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    emitted: tuple[tuple[int, int, int, int, int], ...] = ()
    left_out: Mapping[tuple[int, int, int], Flags] = field(default_factory=dict)
    padded_from: tuple[int | None, int | None] = (None, None)
    vocab: int = 0
    factor: float = 1.0

    @property
    def is_full(self) -> bool:
        return bool(self.dtype)

    @property
    def has_constants(self) -> bool:
        return self.values == "logprob"

    @cached_property
    def are_steps(self) -> bool:
        """Prompts of one position each are steps of one sequence."""
        return max(self.lengths) == 1

    @cached_property
    def format(self) -> FloatFormat:
        """Format that values are rounded to: of lists, whose log-sums are float32, that."""
        return format_named(self.dtype or "float32")

    def rounding_rms(self, row: RowPair) -> float:
        """rms that rounding both sides leaves: an error uniform within half a step of the row's largest value."""
        largest = np.array([np.abs(side).max(initial=0.0) for side in (row.x, row.y)])
        return float(np.sqrt((spacings(largest, self.format) ** 2).sum() / 12))


def rows_of_run(run: Figures, pair: int) -> PairRows:
    """Evenly spread rows of a stored pair."""
    header = run.header
    sides = (0, pair + 1)
    return complete_rows(
        (header.sides[0].name, header.sides[pair + 1].name),
        header.compute_dtype,
        tuple(tuple(prompt.token_ids or ()) for prompt in header.prompts),
        [prompt.positions for prompt in header.prompts],
        header.vocab,
        lambda side, prompt, position: values_of(run.at(sides[side], prompt, position), header.format),
    )


def complete_rows(
    names: tuple[str, str],
    dtype: str,
    tokens: tuple[tuple[int, ...], ...],
    lengths: Sequence[int],
    vocab: int,
    read: Read,
) -> PairRows:
    """Evenly spread rows of complete ones: tokens spread over the vocabulary, of the text, and the top of either side.

    tokens: of each prompt, () if unknown; lengths: its positions. read(side, prompt, position): all values. [vocab]
    """
    every = [(prompt, at) for prompt, length in enumerate(lengths) for at in range(length)]
    most = min(max(_LEAST_ROWS, _MOST_LOGITS // vocab), _MOST_ROWS, len(every))
    places = [every[i] for i in np.unique(np.linspace(0, len(every) - 1, most).astype(int))]
    read = cache(read)

    def at(side: int, prompt: int, position: int) -> Listed | None:
        is_there = 0 <= prompt < len(lengths) and 0 <= position < lengths[prompt]
        return Listed(np.arange(vocab), read(side, prompt, position)) if is_there else None

    left_out = {(side, *place): is_left_out(read(side, *place)) for place in places for side in (0, 1)}
    padded_from = _padded_from(read, places, vocab, 0), _padded_from(read, places, vocab, 1)
    end = min((start for start in padded_from if start is not None), default=vocab)
    spread = np.unique(np.linspace(0, vocab - 1, min(vocab, _SPREAD)).astype(np.int64))
    rows = []
    for prompt, position in places:
        x, y = read(0, prompt, position), read(1, prompt, position)
        usable = np.isfinite(x) & np.isfinite(y) & ~(left_out[0, prompt, position] | left_out[1, prompt, position])
        usable[end:] = False
        moved = np.subtract(y, x, out=np.zeros(vocab), where=usable, dtype=np.float64)
        moved = np.abs(moved - (np.median(moved[usable]) if usable.any() else 0.0))
        top = [_largest(values, usable, count) for values, count in ((x, _TOP), (y, _TOP), (moved, _MOVED))]
        text = tokens[prompt][: position + 1]
        ids = np.unique(np.concatenate([spread, *top, np.array(text, np.int64)]))
        ids = ids[(ids >= 0) & (ids < vocab)]
        ids = ids[usable[ids]]
        x, y = x[ids].astype(np.float64), y[ids].astype(np.float64)
        if len(ids) and np.ptp(x) > 0 and np.ptp(y) > 0:
            rows.append(RowPair(prompt, position, ids, x, y, _times(text, ids)))
    return PairRows(
        names,
        "logit",
        dtype,
        tuple(rows),
        len(every),
        tuple(places),
        tuple(lengths),
        at,
        (tokens, tokens),
        left_out=left_out,
        padded_from=padded_from,
        vocab=vocab,
    )


def _largest(values: NDArray[np.floating], usable: Flags, count: int) -> Ids:
    """Ids of the largest usable values, in no order."""
    values = np.where(usable, values, -np.inf)
    return np.arange(len(values)) if len(values) <= count else np.argpartition(-values, count)[:count]


def _times(text: Sequence[int], ids: Ids) -> Ids | None:
    """How often each token stands in a text; None for no text."""
    counts = Counter(text)
    return np.array([counts[token] for token in ids.tolist()], np.int64) if text else None


def _padded_from(read: Read, places: Sequence[Place], vocab: int, side: int) -> int | None:
    """First id of a tail that holds one finite value in every row of a side."""
    rows = [read(side, *place) for place in places]
    start = max(int(np.append(-1, np.flatnonzero(row != row[-1]))[-1]) + 1 for row in rows)
    is_padding = 0 < start <= vocab - _LEAST_PADDING and all(np.isfinite(row[-1]) for row in rows)
    return start if is_padding and not is_left_out(rows[-1])[-1] else None


def rows_of_lists(pair: ListPair, reference: ListSide, variant: ListSide, most: int = _MOST_LISTED) -> PairRows:
    """Compared positions of a pair of lists, `most` of them evenly spread; probabilities become log-probabilities."""
    sent = {
        (place.prompt, place.position): (place.figures.reference, place.figures.variant) for place in pair.positions
    }
    has_ids = pair.keys == "token_id"

    def logs(row: ListedRow) -> Listed:
        finite = np.isfinite(row.values) & ((row.values > 0) | (pair.values != "prob"))
        values = row.values[finite]
        return Listed(row.token_ids[finite], np.log(values) if pair.values == "prob" else values)

    def at(side: int, prompt: int, position: int) -> Listed | None:
        return logs(sent[prompt, position][side]) if (prompt, position) in sent else None

    rows = []
    for place in pair.positions[:: max(1, len(pair.positions) // most)]:
        x, y = logs(place.figures.reference), logs(place.figures.variant)
        ids, here, there = np.intersect1d(x.token_ids, y.token_ids, return_indices=True)
        text = reference.responses[place.prompt].tokens[: place.position + 1] if has_ids else ()
        times = None if UNKNOWN_TOKEN in text else _times(text, ids)
        rows.append(RowPair(place.prompt, place.position, ids.astype(np.int64), x.values[here], y.values[there], times))
    emitted = [
        (side, place.prompt, place.position, int(row.token_ids[0]), chosen)
        for place in pair.positions
        for side, row, chosen in zip(
            (0, 1), (place.figures.reference, place.figures.variant), place.chosen, strict=True
        )
        if place.is_generated and chosen != UNKNOWN_TOKEN and row.best
    ]
    lengths = [0] * len(reference.responses)
    for prompt, position in sent:
        lengths[prompt] = max(lengths[prompt], position + 1)
    tokens = [tuple(prompt_tokens(each) or () for each in side.responses) for side in (reference, variant)]
    return PairRows(
        (pair.reference, pair.variant),
        "logit" if pair.values == "logit" else "logprob",
        "",
        tuple(rows),
        len(pair.positions),
        tuple(sent),
        tuple(lengths),
        at,
        (tokens[0], tokens[1]) if has_ids else ((), ()),
        tuple(emitted),
    )
