"""Frozen records of lists: per position the (token, value) entries that an engine sent of a row.

A *response* is what an engine sent for one prompt. A *side* is one response a prompt. Position i scores token
i + 1, as in runs of whole rows. Nothing here is invented: what a payload does not say is None, -1 or ''.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError

Values = Literal["logit", "logprob", "prob"]
Keys = Literal["token_id", "text"]
UNKNOWN_TOKEN = -1
MAX_ENTRIES = 1 << 26  # of a response: (token, value) pairs
MAX_POSITIONS = 1 << 20  # of a response
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Token = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]


@dataclass(frozen=True)
class ListRow:
    """One position as a reader hands it over; it scores token position + 1.

    entries: (token, value) in any order, without placeholders. best: how many of them are the best of the whole row:
    not a target from further down. target: the token that was emitted or is given next, -1 if unknown. missing:
    entries that were placeholders (-9999.0, -3.4e38, null). full: every token of the vocabulary has its entry.
    """

    position: int
    entries: tuple[tuple[int, float], ...]
    best: int
    target: int = UNKNOWN_TOKEN
    missing: int = 0
    full: bool = False


@dataclass(frozen=True, eq=False)
class ListRows:
    """Rows of one response, compressed: row r has the entries offsets[r] to offsets[r + 1].

    positions [rows] increase; token_ids and values [entries] are best first within a row, the lower token first if
    values are equal; best, targets, missing and full [rows] as in ListRow.
    """

    positions: NDArray[np.int64]
    offsets: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    values: NDArray[np.float64]
    best: NDArray[np.int64]
    targets: NDArray[np.int64]
    missing: NDArray[np.int64]
    full: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.positions)

    def row(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return tokens and values of one row, best first. [entries] each"""
        first, last = int(self.offsets[index]), int(self.offsets[index + 1])
        return self.token_ids[first:last], self.values[first:last]

    def part(self, rows: NDArray[np.bool_], entries: NDArray[np.bool_]) -> ListRows:
        """Return some rows with some of their entries. rows [rows], entries [entries]: which stay."""
        counts = np.bincount(np.repeat(np.arange(len(self)), np.diff(self.offsets))[entries], minlength=len(self))
        columns = {name: getattr(self, name)[rows] for name in ("positions", "best", "targets", "missing", "full")}
        offsets = np.concatenate([[0], np.cumsum(counts[rows])]).astype(np.int64)
        return ListRows(offsets=offsets, token_ids=self.token_ids[entries], values=self.values[entries], **columns)


def list_rows(rows: Iterable[ListRow], source: str) -> ListRows:
    """Compress rows. source: name of the file and response in errors. DumpError for what is no list of rows.

    A token twice with one value (a target listed again) is one entry.
    """
    items = list(rows)
    entries: list[list[tuple[int, float]]] = []
    last = -1
    for row in items:
        if row.position <= last:
            raise DumpError(f"{source}: position {row.position} comes after position {last}; expected increasing ones.")
        last, values = row.position, dict(row.entries)
        for token, value in row.entries:
            if math.isnan(value) or value == math.inf:
                raise DumpError(f"{source}: the value of token {token} at position {row.position} is {value}.")
            if values[token] != value:
                both = f"{value!r} and {values[token]!r}"
                raise DumpError(f"{source}: token {token} occurs twice at position {row.position}, with {both}.")
        entries.append(sorted(values.items(), key=lambda entry: (-entry[1], entry[0])))
    sizes = [len(row) for row in entries]
    if len(items) > MAX_POSITIONS or sum(sizes) > MAX_ENTRIES:
        raise DumpError(f"{source}: expected at most {MAX_POSITIONS:,} positions with {MAX_ENTRIES:,} values in all.")
    best = [size if row.full else min(row.best, size) for row, size in zip(items, sizes, strict=True)]
    return ListRows(
        np.array([row.position for row in items], np.int64),
        np.cumsum([0, *sizes]).astype(np.int64),
        np.array([token for row in entries for token, _ in row], np.int64),
        np.array([value for row in entries for _, value in row], np.float64),
        np.array(best, np.int64),
        np.array([row.target for row in items], np.int64),
        np.array([row.missing for row in items], np.int64),
        np.array([row.full for row in items], np.bool_),
    )


@dataclass(frozen=True, eq=False)
class Response:
    """Response of an engine to one prompt.

    keys: 'text' if the engine sent texts only: token ids are then places in `texts`, of this response alone. tokens: of
    the prompt and what was generated, -1 if unknown; a row's position counts into it. start_known: False if the
    prompt's length is unknown, and position 0 scored the first generated token. generated_from: the first position
    whose row was computed while generating, None if all are of the prompt. processed: whether temperature, penalties or
    a mask are in the values, None if unknown. top_logprobs: of the request. cached: prompt tokens read from a cache.
    settings: temperature and the like. prompt_key: names the prompt by the request's text or a batch's custom_id;
    responses of two files are joined by it, and it is not stored.
    """

    format: str
    values: Values
    keys: Keys
    tokens: Annotated[tuple[Token, ...], msgspec.Meta(max_length=MAX_POSITIONS)]
    rows: ListRows
    start_known: bool = True
    generated_from: Count | None = None
    texts: Mapping[Count, str] = field(default_factory=dict)
    processed: bool | None = None
    top_logprobs: Count | None = None
    vocab: Count | None = None
    model: str = ""
    text: str = ""
    cached: Count | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    prompt_key: str = ""


@dataclass(frozen=True, eq=False)
class ListSide:
    """One response a prompt, of one engine. All of one kind of value and keys."""

    name: str
    responses: tuple[Response, ...]

    def __post_init__(self) -> None:
        if not self.responses:
            raise DumpError(f"side '{self.name}' holds no response.")
        kinds = {(response.values, response.keys) for response in self.responses}
        if len(kinds) > 1:
            raise DumpError(f"side '{self.name}' mixes values of several kinds; expected one kind a side.")

    @property
    def values(self) -> Values:
        return self.responses[0].values

    @property
    def keys(self) -> Keys:
        return self.responses[0].keys
