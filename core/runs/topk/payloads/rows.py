"""Rows of a response as readers of payloads find them; their emitted tokens, if they misname or lack some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ....text import BYTE_LEVEL


@dataclass(frozen=True)
class Entry:
    """A token with its value. token: its id, None where only its text was sent. value: None where it is a placeholder.
    rank: its place in the whole row from 1, where sent.
    """

    token: int | None
    text: str | None
    value: float | None
    rank: int | None = None

    @property
    def name(self) -> tuple[int | None, str | None]:
        return self.token, self.text


@dataclass(frozen=True)
class Row:
    """One position as a payload has it. top: the list of best tokens; chosen: the token that is given or was emitted.

    best: how many of `top` are the best of the whole row, None where the reader cannot tell.
    """

    position: int
    top: tuple[Entry, ...]
    chosen: Entry | None
    best: int | None

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.top if self.chosen is None else (*self.top, self.chosen)


def emitted_by_text(rows: Sequence[Row], text: str) -> tuple[list[Row], str]:
    """Return the rows with the tokens that spell the text, and a warning, '' if they did already.

    mlx-lm (0.32, server.py) sends its lists in the order of argpartition and names the first of each list as the
    emitted token.
    """
    lists = [_values(row) for row in rows]
    is_first = all(row.chosen and row.top and row.chosen == replace(row.top[0], rank=row.chosen.rank) for row in rows)
    if not text or not is_first or all(values[:1] == sorted(values)[-1:] for values in lists):
        return list(rows), ""
    firsts = [_spellings(row.top[0], is_start=False) for row in rows]
    if any(text.strip().encode() in b"".join(spellings) for spellings in zip(*firsts, strict=True)):
        return list(rows), ""
    path, is_whole = _path(rows, text.encode())
    if not is_whole and all(values[1:] == sorted(values[1:], reverse=True) for values in lists):
        return list(rows), ""
    mended = [replace(row, chosen=entry, best=len(row.top)) for row, entry in zip(rows, path, strict=False)]
    warning = "Its lists are in no order; the emitted tokens are those that spell its text."
    if len(path) < len(rows):
        warning += f" The text has tokens that are not listed, so that only the first {len(path)} rows are used."
    return mended, warning


def _values(row: Row) -> list[float]:
    return [entry.value for entry in row.top if entry.value is not None]


class _Path(NamedTuple):
    """A token after a path of others. total: of their log-probabilities."""

    total: float
    entry: Entry | None = None
    before: _Path | None = None


def _path(rows: Sequence[Row], text: bytes) -> tuple[list[Entry], bool]:
    """The most probable entries, one of each row, that spell the text, and whether they spell all of it."""
    paths = {0: _Path(0.0)}  # by bytes spelled
    for row in rows:
        longer: dict[int, _Path] = {}
        for start, before in paths.items():
            for entry in row.top:
                total = before.total + (entry.value if entry.value is not None else -1e9)
                for end in _ends(entry, text, start):
                    if end not in longer or total > longer[end].total:
                        longer[end] = _Path(total, entry, before)
        if not longer:
            break
        paths = longer
    whole = paths.get(len(text))
    last: _Path | None = whole or max(paths.values(), key=lambda path: path.total)
    entries: list[Entry] = []
    while last is not None and last.entry is not None:
        entries.append(last.entry)
        last = last.before
    return entries[::-1], whole is not None and len(entries) == len(rows)


def _ends(entry: Entry, text: bytes, start: int) -> Iterator[int]:
    """Find where the text goes on after a token; what follows its end (a stop token) is any token."""
    if start == len(text):
        yield start
    for spelling in _spellings(entry, is_start=start == 0):
        if spelling and start < len(text):
            if text.startswith(spelling, start):
                yield start + len(spelling)
            elif spelling.startswith(text[start:]):  # cut by a stop text
                yield len(text)


def _spellings(entry: Entry, *, is_start: bool) -> list[bytes]:
    """The bytes that a token may stand for: its text, or that of a byte-level or SentencePiece vocabulary."""
    text = entry.text or ""
    plain = text.replace("▁", " ").encode()
    of_bytes = bytes(BYTE_LEVEL[char] for char in text) if all(char in BYTE_LEVEL for char in text) else plain
    return [of_bytes, plain, *([of_bytes.lstrip(b" ")] if is_start else [])]


def missing_at_start(rows: Sequence[Row], generated: Sequence[int]) -> int:
    """Count the generated tokens that come before the first of these rows and have none."""
    chosen = [row.chosen.token if row.chosen else None for row in rows]
    if not chosen or None in chosen or chosen == list(generated[: len(chosen)]):
        return 0
    places = range(1, len(generated) - len(chosen) + 1)
    return next((place for place in places if list(generated[place : place + len(chosen)]) == chosen), 0)
