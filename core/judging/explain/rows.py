"""Rows of a pair as hypotheses see them, alike for complete rows and for lists of some tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...numerics.formats import format_named, spacings, values_of
from ...numerics.topk import ListedRow
from ...runs.figures import Figures
from ...runs.topk.alignment import prompt_tokens
from ...runs.topk.pairing import ListPair
from ...runs.topk.records import UNKNOWN_TOKEN, ListSide
from ..constant_rows import is_left_out

Ids = NDArray[np.int64]
Values = NDArray[np.floating]
Flags = NDArray[np.bool_]
Place = tuple[int, int]  # prompt, position
FARTHEST = 1e4  # logits: a mask by a number is no further
_MOST_PLACES, _BLOCK = 48, 8  # in blocks of consecutive ones
_MOST_LOGITS = 1 << 22  # of a side that are read, but two blocks at least
_MOST_LISTED = 512  # rows of lists that causes are fitted to
# Tokens of a complete row: evenly spread ones, the top ones of either side, and those that are furthest moved.
_SPREAD, _LARGEST, _MOVED = 2048, 64, 16
_TOP = 256  # tokens by which a row is compared with those of other places
_LEAST_PADDING = 8  # tokens at the end of a row with one value


class TooFewError(Exception):
    """What a hypothesis needs and a pair lacks."""


class TopTokens(NamedTuple):
    """Largest finite values of one side's row. [tokens] each"""

    ids: Ids
    values: Values


@dataclass(frozen=True, eq=False)
class RowPair:
    """Tokens that are finite and not masked on both sides of a position. x, y: values of the reference and the variant;
    times: how often each stands in the text up to here, 0 if unknown. [tokens] each
    """

    prompt: int
    position: int
    token_ids: Ids
    x: Values
    y: Values
    times: Ids

    @property
    def in_text(self) -> Flags:
        return self.times > 0

    def part(self, which: Flags | slice) -> RowPair:
        return RowPair(
            self.prompt, self.position, self.token_ids[which], self.x[which], self.y[which], self.times[which]
        )


@dataclass(frozen=True, eq=False)
class PairRows:
    """A pair as rows.

    names: of reference and variant. values: 'logit', or 'logprob' with a constant of its own at every position. dtype:
    of complete rows, '' for lists. compared: positions that both sides have. places: blocks of consecutive ones. tops:
    of each side at each place. whole, masked: complete rows and their masked tokens, [sides, places, vocab]. listed,
    tokens: of lists, and their prompts' tokens by side if known. factor: what the reference was multiplied by since.
    """

    names: tuple[str, str]
    values: str
    dtype: str
    rows: Sequence[RowPair]
    compared: int
    places: Sequence[Place]
    tops: Sequence[Sequence[TopTokens]]
    whole: Values | None = None
    masked: Flags | None = None
    listed: ListPair | None = None
    tokens: Sequence[Sequence[tuple[int, ...]]] = ()
    factor: float = 1.0

    @property
    def has_constants(self) -> bool:
        return self.values == "logprob"

    def complete(self) -> tuple[Values, Flags]:
        """Return `whole` and `masked`; TooFewError for lists."""
        if self.whole is None or self.masked is None:
            raise TooFewError("the whole vocabulary")
        return self.whole, self.masked

    def rounding_rms(self, row: RowPair) -> float:
        """Return the rms that rounding both sides leaves: uniform within half a step of the row's largest value."""
        largest = np.array([np.abs(side).max(initial=0.0) for side in (row.x, row.y)])
        fmt = format_named(self.dtype or "float32")  # of lists, the log-sum is in float32
        return float(np.sqrt((spacings(largest, fmt) ** 2).sum() / 12))


def place_name(place: Place) -> str:
    return f"prompt {place[0]} position {place[1]}"


def rows_of_run(run: Figures, pair: int) -> PairRows:
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
    read: Callable[[int, int, int], NDArray[Any]],
) -> PairRows:
    """Return some of a pair's complete rows, each with some tokens.

    tokens: of each prompt, () if unknown; lengths: its positions. read(side, prompt, position): all values. [vocab]
    """
    every = [(prompt, at) for prompt, length in enumerate(lengths) for at in range(length)]
    places = _in_blocks(every, _MOST_LOGITS // vocab)
    whole = np.array([[read(side, *place) for place in places] for side in (0, 1)])
    masked = np.array([[is_left_out(row) for row in rows] | _is_padding(rows) for rows in whole])
    usable = np.isfinite(whole).all(axis=0) & ~masked.any(axis=0)
    spread = np.unique(np.linspace(0, vocab - 1, min(vocab, _SPREAD)).astype(np.int64))
    rows = []
    for (prompt, position), is_usable, *sides in zip(places, usable, *whole, strict=True):
        x, y = (np.where(is_usable, side, 0.0).astype(np.float64) for side in sides)
        moved = np.abs(y - x - (np.median((y - x)[is_usable]) if is_usable.any() else 0.0))
        keys = np.where(is_usable, (x, y, moved), -np.inf)
        x_top, y_top, moved_top = np.argpartition(keys, (-min(vocab, _LARGEST), -min(vocab, _MOVED)))
        text = [token for token in tokens[prompt][: position + 1] if 0 <= token < vocab]
        ids = np.unique([*spread, *x_top[-_LARGEST:], *y_top[-_LARGEST:], *moved_top[-_MOVED:], *text])
        ids = ids[is_usable[ids]]
        if len(ids) and np.ptp(x[ids]) > 0 and np.ptp(y[ids]) > 0:
            times = np.bincount(np.array(text, np.int64), minlength=vocab)[ids]
            rows.append(RowPair(prompt, position, ids, x[ids], y[ids], times))
    tops = [[_top_tokens(np.arange(vocab), row) for row in side] for side in whole]
    return PairRows(names, "logit", dtype, rows, len(every), places, tops, whole, masked)


def _in_blocks(places: list[Place], most: int) -> list[Place]:
    """Return blocks of consecutive places, spread over all."""
    blocks = min(max(2, most // _BLOCK), _MOST_PLACES // _BLOCK)
    if len(places) <= blocks * _BLOCK:
        return places
    starts = np.linspace(0, len(places) - _BLOCK, blocks).astype(int)
    return [places[start + step] for start in starts for step in range(_BLOCK)]


def _top_tokens(ids: Ids, values: Values) -> TopTokens:
    ids, values = ids[np.isfinite(values)], values[np.isfinite(values)]
    top = np.argpartition(-values, _TOP)[:_TOP] if len(values) > _TOP else slice(None)
    return TopTokens(ids[top], np.clip(values[top].astype(np.float64), -FARTHEST, FARTHEST))


def _is_padding(rows: Values) -> Flags:
    """Return whether each token is of a tail that holds one value in each row of a side."""
    vocab = rows.shape[1]
    start = int(np.flatnonzero(np.append(True, (rows != rows[:, -1:]).any(axis=0)))[-1])
    return (np.arange(vocab) >= start) & (0 < start <= vocab - _LEAST_PADDING)


def rows_of_lists(pair: ListPair, reference: ListSide, variant: ListSide, most: int = _MOST_LISTED) -> PairRows:
    """Return about `most` compared positions of a pair of lists; probabilities become log-probabilities."""

    def logs(row: ListedRow) -> TopTokens:
        if pair.values != "prob":
            return TopTokens(row.token_ids, row.values)
        return TopTokens(row.token_ids[row.values > 0], np.log(row.values[row.values > 0]))

    sent = {
        (place.prompt, place.position): (logs(place.figures.reference), logs(place.figures.variant))
        for place in pair.positions
    }
    rows = []
    for prompt, position in list(sent)[:: max(1, len(sent) // most)]:
        x, y = sent[prompt, position]
        ids, here, there = np.intersect1d(x.ids, y.ids, return_indices=True)
        text = np.array(reference.responses[prompt].tokens[: position + 1], np.int64)
        is_known = pair.keys == "token_id" and UNKNOWN_TOKEN not in text
        times = np.array([(text == token).sum() * is_known for token in ids], np.int64)
        rows.append(RowPair(prompt, position, ids.astype(np.int64), x.values[here], y.values[there], times))
    places = _in_blocks(list(sent), _MOST_PLACES)
    tokens = [tuple(prompt_tokens(each) or () for each in side.responses) for side in (reference, variant)]
    return PairRows(
        names=(pair.reference, pair.variant),
        values="logit" if pair.values == "logit" else "logprob",
        dtype="",
        rows=rows,
        compared=len(pair.positions),
        places=places,
        tops=[[_top_tokens(*sent[place][side]) for place in places] for side in (0, 1)],
        listed=pair,
        tokens=tokens if pair.keys == "token_id" else (),
    )
