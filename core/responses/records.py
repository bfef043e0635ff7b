"""Records of responses: per position the top tokens that an engine sent, with their values.

A *response* is what an engine sent for one prompt. A *side* is one response a prompt. Position i
scores token i + 1, as in runs of whole rows. Nothing here is invented: what a payload does not say
is None, -1 or ''.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from ..errors import DumpError
from ..numerics.arrays import Ints
from ..numerics.top_tokens import TopTokenRows, concatenate

Keys = Literal["token_id", "text"]
UNKNOWN_TOKEN = -1
# of settings: generated tokens that the answer counts and has no row of
UNSENT = "tokens_without_row"
MAX_ENTRIES = 1 << 26  # of a response: (token, value) pairs
MAX_POSITIONS = 1 << 20  # of a response


class TopTokenRow(NamedTuple):
    """One position as a reader hands it over; entries: (token, value) in any order, the rest as in
    TopTokenRows.
    """

    position: int
    entries: tuple[tuple[int, float], ...]
    best: int
    target: int = UNKNOWN_TOKEN
    missing: int = 0
    chosen: float = math.nan


def compress_rows(rows: Sequence[TopTokenRow], source: str) -> TopTokenRows:
    """Compress rows. source: name in errors."""
    entries = [entry for row in rows for entry in row.entries]
    if len(rows) > MAX_POSITIONS or len(entries) > MAX_ENTRIES:
        raise DumpError(
            f"{source}: expected at most {MAX_POSITIONS:,} positions with {MAX_ENTRIES:,} values in"
            " all.",
        )
    positions, best, targets, missing = (
        np.array([getattr(row, name) for row in rows], np.int64)
        for name in ("position", "best", "target", "missing")
    )
    if (np.diff(positions) <= 0).any():
        raise DumpError(
            f"{source}: two rows have one position, or are in no order; expected increasing"
            " positions.",
        )
    counts = np.array([len(row.entries) for row in rows], np.int64)
    tokens, values = np.array(entries, np.float64).reshape(-1, 2).T
    order = np.lexsort((tokens, -values, np.repeat(np.arange(len(rows)), counts)))
    return TopTokenRows(
        positions,
        np.append(0, np.cumsum(counts)),
        tokens[order].astype(np.int64),
        values[order],
        np.minimum(best, counts),
        targets,
        missing,
        np.array([row.chosen for row in rows], np.float64),
    )


@dataclass(frozen=True, eq=False)
class Response:
    """Response of an engine to one prompt.

    keys: 'text' if the engine sent texts only: token ids are then places in `texts`, of this
    response alone. tokens: of the prompt and what was generated, -1 if unknown; a row's position
    counts into it. start_known: False if the prompt's length is unknown, and position 0 scored the
    first generated token. generated_from: the first position whose row was computed while
    generating, None if all are of the prompt. top_logprobs: of the request. cached: prompt tokens
    read from a cache. settings: accepted drafts, or the name of a sequence. prompt_key: names the
    prompt by the request's text or a batch's custom_id; responses of two files are joined by it,
    and it is not stored.
    """

    format: str
    keys: Keys
    tokens: tuple[int, ...]
    rows: TopTokenRows
    start_known: bool = True
    generated_from: int | None = None
    texts: Mapping[int, str] = field(default_factory=dict)
    top_logprobs: int | None = None
    vocab: int | None = None
    model: str = ""
    text: str = ""
    cached: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    prompt_key: str = ""


@dataclass(frozen=True, eq=False)
class ResponseSide:
    """One response a prompt, of one engine, all with one kind of keys."""

    name: str
    responses: tuple[Response, ...]

    def __post_init__(self) -> None:
        if not self.responses:
            raise DumpError(f"side '{self.name}' holds no response.")
        if len({response.keys for response in self.responses}) > 1:
            raise DumpError(
                f"side '{self.name}' mixes token ids and texts; expected one kind a side.",
            )

    @property
    def keys(self) -> Keys:
        return self.responses[0].keys

    @cached_property
    def rows(self) -> TopTokenRows:
        """Rows of all responses, one after another."""
        return concatenate([response.rows for response in self.responses])

    @cached_property
    def prompts(self) -> Ints:
        """Prompt of each row. [rows]"""
        return np.repeat(
            np.arange(len(self.responses)),
            [len(response.rows) for response in self.responses],
        )
