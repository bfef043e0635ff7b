"""Rows of a pair as causes see them, alike for complete rows and for lists of some tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import UsageError
from ...numerics.arrays import Array, Flags, Ints, Values
from ...numerics.constant_rows import is_left_out
from ...numerics.formats import format_named, spacings, values_of
from ...numerics.recorded_choices import Choices, read_choices
from ...numerics.top_tokens import largest
from ...responses.alignment import prompt_tokens
from ...responses.pairing import ResponsePair
from ...responses.records import UNKNOWN_TOKEN, ResponseSide
from ...runs.measured import Measured
from .moves import MOST_ROWS, Moves, moves_of_run

if TYPE_CHECKING:
    from ...runs.figures import Figures

FARTHEST = 1e4  # logits: a mask by a number is no further
# of a row that is fitted with a constant of its own, or most of whose tokens are not moved
LEAST_TOKENS = 3
_MOST_PLACES, _BLOCK = 48, 8  # in blocks of consecutive ones
_MOST_LOGITS = 1 << 22  # of a side that are read, but two blocks at least
_MOST_LISTED = 512  # rows of lists that causes are fitted to
_MOST_SCORED = 4096  # tokens of rollouts
# Tokens of a complete row: evenly spread ones, the top ones of either side, and those that are
# furthest moved.
_SPREAD, _LARGEST, _MOVED = 2048, 64, 16
_LEAST_PADDING = 8  # tokens at the end of a row with one value
_EXPERTS = "SELECT routed_experts FROM sequence WHERE routed_experts IS NOT NULL"


class TooFewError(Exception):
    """What a cause needs and a pair lacks."""


class RowPair(NamedTuple):
    """Tokens that are finite and not masked on both sides of a position. x, y: values of the
    reference and the variant; times: how often each stands in the text up to here, 0 if unknown.
    [tokens] each
    """

    prompt: int
    position: int
    token_ids: Ints
    x: Values
    y: Values
    times: Ints

    @property
    def in_text(self) -> Flags:
        return self.times > 0

    def side(self, side: int) -> Values:
        return self.y if side else self.x

    def part(self, selection: Flags | slice) -> RowPair:
        columns: list[Array] = [each[selection] for each in self[2:]]
        return RowPair(self.prompt, self.position, *columns)

    def outside_text(self) -> RowPair:
        """Leave out the tokens of the text if enough others are there."""
        others = ~self.in_text
        are_enough = others.sum() >= max(LEAST_TOKENS, len(others) // 2)
        return self.part(others) if are_enough else self


@dataclass(frozen=True, eq=False)
class PairRows:
    """A pair as rows.

    names: of reference and variant. dtype: of complete rows of logits, '' for lists of
    log-probabilities, which have a constant of their own at every position. every_place: (prompt,
    position) that both sides have; places: some of them, in blocks of consecutive ones; whole: all
    values there, NaN if a list lacks them, and is_masked: those that a mask left out, [sides,
    places, tokens]. lists, tokens: of lists, and their prompts' tokens by side if known. factor:
    what the reference was multiplied by since. find_moves: looks among all places, if `places` are
    only some of them. experts: that a rollout recorded, by prompt, [tokens, layers, k].
    """

    names: tuple[str, str]
    dtype: str
    rows: Sequence[RowPair]
    every_place: Sequence[tuple[int, int]]
    places: Sequence[tuple[int, int]]
    whole: Values
    is_masked: Flags | None = None
    lists: ResponsePair | None = None
    tokens: Sequence[Sequence[tuple[int, ...]]] = ()
    factor: float = 1.0
    find_moves: Callable[[], Moves] | None = None
    experts: Mapping[int, Choices] = field(default_factory=dict)

    @property
    def has_constants(self) -> bool:
        return not self.dtype

    def masks(self) -> Flags:
        """Return `is_masked`; TooFewError for lists."""
        if self.is_masked is None:
            raise TooFewError("the whole vocabulary")
        return self.is_masked

    def rounding_rms(self, row: RowPair) -> float:
        """Return the rms that rounding both sides leaves: uniform within half a step of the row's
        largest value.
        """
        ends = [np.abs(side).max(initial=0.0) for side in (row.x, row.y)]
        fmt = format_named(self.dtype or "float32")  # of lists, the log-sum is in float32
        steps = spacings(np.array(ends), fmt)
        return float(np.sqrt((steps**2).sum() / 12))


def rows_of_run(run: Measured, pair: int) -> PairRows:
    """Return some rows of a stored pair of complete rows."""
    header = run.header
    sides = (0, pair + 1)

    def read(side: int, start: int, stop: int) -> Values:
        return values_of(run.read_rows(sides[side], start, stop), header.format)

    rows = complete_rows(
        (header.sides[0].name, header.sides[pair + 1].name),
        header.compute_dtype,
        tuple(tuple(prompt.token_ids or ()) for prompt in header.prompts),
        header.places(),
        header.vocab,
        read,
    )
    if len(rows.places) == header.rows or header.rows > MOST_ROWS:
        return rows
    return replace(rows, find_moves=partial(moves_of_run, run, pair))


def complete_rows(
    names: tuple[str, str],
    dtype: str,
    tokens: tuple[tuple[int, ...], ...],
    every_place: Sequence[tuple[int, int]],
    vocab: int,
    read: Callable[[int, int, int], Array],
) -> PairRows:
    """Return some of a pair's complete rows, each with some tokens.

    tokens: of each prompt, () if unknown; every_place: (prompt, position) of all rows. read(side,
    start, stop): all values of rows of all prompts. [stop - start, vocab]
    """
    blocks = _blocks(len(every_place), _MOST_LOGITS // vocab)
    places = [every_place[at] for block in blocks for at in block]
    sides = []
    masks = []
    for side in (0, 1):
        values = np.concatenate([read(side, block.start, block.stop) for block in blocks])
        left_out = np.array([is_left_out(row) for row in values])
        sides.append(values)
        masks.append(left_out | _is_padding(values))
    whole = np.array(sides)
    is_masked = np.array(masks)
    is_finite = np.isfinite(whole).all(axis=0)
    usable = is_finite & ~is_masked.any(axis=0)
    spread = np.linspace(0, vocab - 1, min(vocab, _SPREAD)).astype(np.int64)
    rows = []
    for at in np.flatnonzero(usable.any(axis=1)):
        prompt, position = places[at]
        is_usable = usable[at]
        x, y = np.where(is_usable, whole[:, at], 0.0).astype(np.float64)
        shifts = y - x
        shifts = np.abs(shifts - np.median(shifts[is_usable]))
        text = np.array(tokens[prompt][: position + 1], np.int64)
        text = text[(text >= 0) & (text < vocab)]
        keys = np.where(is_usable, (x, y, shifts), -np.inf)
        tops = map(largest, keys, (_LARGEST, _LARGEST, _MOVED))
        ids = np.unique(np.concatenate([spread, text, *tops]))
        ids = ids[is_usable[ids]]
        if np.ptp(x[ids]) > 0 and np.ptp(y[ids]) > 0:
            times = np.bincount(text, minlength=vocab)[ids]
            rows.append(RowPair(prompt, position, ids, x[ids], y[ids], times))
    return PairRows(
        names,
        dtype,
        rows,
        every_place,
        places,
        whole,
        is_masked,
    )


def _blocks(count: int, most: int) -> list[range]:
    """Return blocks of consecutive places out of `count`, spread over all."""
    blocks = min(max(2, most // _BLOCK), _MOST_PLACES // _BLOCK)
    if count <= blocks * _BLOCK:
        return [range(count)]
    starts = np.linspace(0, count - _BLOCK, blocks).astype(int)
    return [range(start, start + _BLOCK) for start in starts.tolist()]


def _is_padding(rows: Values) -> Flags:
    """Return whether each token is of a tail that holds one value in each row of a side."""
    vocab = rows.shape[1]
    differs_from_last = (rows != rows[:, -1:]).any(axis=0)
    start = int(np.flatnonzero(np.append(True, differs_from_last))[-1])
    is_long = 0 < start <= vocab - _LEAST_PADDING
    return (np.arange(vocab) >= start) & is_long


def rows_of_lists(
    pair: ResponsePair,
    reference: ResponseSide,
    variant: ResponseSide,
    most: int = _MOST_LISTED,
) -> PairRows:
    """Return about `most` compared positions of a pair of lists."""
    places = list(zip(pair.prompts.tolist(), pair.positions.tolist(), strict=True))
    rows = []
    for at in range(0, len(places), max(1, len(places) // most)):
        prompt, position = places[at]
        (x_ids, x), (y_ids, y) = (side.row(at) for side in pair.rows)
        ids, in_x, in_y = np.intersect1d(x_ids, y_ids, return_indices=True)
        text = np.array(reference.responses[prompt].tokens[: position + 1], np.int64)
        times = (text == ids[:, None]).sum(axis=1)
        if pair.keys != "token_id" or UNKNOWN_TOKEN in text:
            times *= 0
        rows.append(
            RowPair(
                prompt,
                position,
                ids.astype(np.int64),
                x[in_x],
                y[in_y],
                times,
            )
        )
    blocks = [at for block in _blocks(len(places), _MOST_PLACES) for at in block]
    whole = align_lists([side.row(at) for side in pair.rows for at in blocks])
    prompts = [
        tuple(prompt_tokens(each) or () for each in side.responses) for side in (reference, variant)
    ]
    return PairRows(
        names=(pair.reference, pair.variant),
        dtype="",
        rows=rows,
        every_place=places,
        places=[places[at] for at in blocks],
        whole=whole.reshape(2, len(blocks), whole.shape[1]),
        lists=pair,
        tokens=prompts if pair.keys == "token_id" else (),
    )


def align_lists(lists: Sequence[tuple[Ints, Values]]) -> Values:
    """Return the values of lists of (tokens, values) at the tokens of all, NaN where a list lacks
    one. [lists, tokens]
    """
    ids = np.unique(np.concatenate([np.zeros(0, np.int64), *(tokens for tokens, _ in lists)]))
    aligned = np.full((len(lists), len(ids)), np.nan)
    for row, (tokens, values) in zip(aligned, lists, strict=True):
        row[np.searchsorted(ids, tokens)] = values
    return aligned


def rows_of_rollouts(run: Figures) -> tuple[dict[int, tuple[int, ...]], PairRows]:
    """Return sequences of a run of chosen tokens by number, about `_MOST_SCORED` tokens in all, and
    the rows that score the tokens of the loss; places are their indices in the response. UsageError
    if the prompts' tokens are not known.
    """
    table = run.query(
        "SELECT prompt, position, token_id, is_trained, reference, variant, prompt_token_ids FROM"
        " chosen_token JOIN sequence USING (prompt) WHERE prompt % (SELECT 1 +"
        " sum(positions)::BIGINT // ? FROM prompt) = 0 ORDER BY prompt, position",
        _MOST_SCORED,
    )
    if table["prompt_token_ids"].isna().any():
        raise UsageError(
            "--trainer needs the prompts: mark them by a mask of 0, or add `prompt_token_ids`.",
        )
    sequences = {}
    rows = []
    places = []
    for prompt, tokens in table.groupby("prompt"):
        first = json.loads(tokens["prompt_token_ids"].iloc[0])
        ids = tokens["token_id"].to_numpy(np.int64)
        sequences[prompt] = (*first, *ids.tolist())
        x, y = tokens[["reference", "variant"]].to_numpy(np.float64).T
        usable = tokens["is_trained"].to_numpy(bool) & np.isfinite(x) & np.isfinite(y)
        whole = RowPair(
            prompt,
            len(first) - 1,
            ids,
            x,
            y,
            np.zeros_like(ids),
        )
        for at in np.flatnonzero(usable).tolist():
            places.append((prompt, at))
            row = whole.part(slice(at, at + 1))
            rows.append(row._replace(position=whole.position + at))
    pair = run.header.sides[0].name, run.header.sides[1].name
    return sequences, PairRows(
        pair,
        "",
        rows,
        places,
        places,
        np.empty((2, 0, 0)),
        experts={
            prompt: read_choices(text)
            for prompt in {row.prompt for row in rows}
            for text in run.query(f"{_EXPERTS} AND prompt = ?", prompt)["routed_experts"]
        },
    )
