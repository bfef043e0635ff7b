"""Parts of a payload, checked, and the rows of a response made records: by token id, or by text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....errors import DumpError
from ....text import BYTE_LEVEL, clean, plural
from ..records import MAX_POSITIONS, UNKNOWN_TOKEN, ListRow, Response, Values, list_rows

_LOWEST = -745.0  # below, a probability is 0 in float64: vLLM sends -9999.0, llama.cpp -3.4e38, SGLang -Infinity
_INFINITIES = ("-inf", "-infinity")
_LONGEST_SHOWN = 60
_MOST_TOKEN = 1 << 31


@dataclass(frozen=True)
class Entry:
    """A token with its value. token: its id, None if only its text was sent. value: None if it is a placeholder.
    rank: its place in the whole row from 1, if sent.
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
    """One position as a payload has it. top: the list of best tokens; target: the token that is given or was emitted.

    best: how many of `top` are the best of the whole row, None if the reader cannot tell.
    """

    position: int
    top: tuple[Entry, ...]
    target: Entry | None
    best: int | None

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.top if self.target is None else (*self.top, self.target)


def is_object(value: object, what: str, source: str) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else raise DumpError."""
    if not isinstance(value, dict):
        raise DumpError(f"{source}: {what} is {_kind(value)}; expected an object.")
    return value


def is_list(value: object, what: str, source: str) -> Sequence[Any]:
    """Return the value if it is a JSON array, else raise DumpError."""
    if not isinstance(value, list):
        raise DumpError(f"{source}: {what} is {_kind(value)}; expected an array.")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def value_of(value: object, source: str) -> float | None:
    """Return a value as sent, None for a placeholder: null, -inf, also as a text, and -9999.0, -3.4e38 and the like."""
    if value is None or (isinstance(value, str) and value.lower() in _INFINITIES):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DumpError(f"{source}: a value is {_kind(value)}; expected a number or null.")
    if value != value:
        raise DumpError(f"{source}: a value is NaN; the server failed to compute it.")
    number = float(value) if abs(value) < 1e300 else (math.inf if value > 0 else -math.inf)
    if number <= _LOWEST:
        return None
    if not math.isfinite(number):
        raise DumpError(f"{source}: a value is {clean(value, _LONGEST_SHOWN)}; expected a finite number.")
    return number


def token_of(value: object, source: str) -> int:
    """Return the value if it is a token id, else raise DumpError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_TOKEN:
        raise DumpError(
            f"{source}: a token id is {clean(repr(value), _LONGEST_SHOWN)}; expected a whole number from 0."
        )
    return value


def tokens_of(value: object, what: str, source: str) -> tuple[int, ...]:
    """Return the value if it is a list of token ids, else raise DumpError."""
    tokens = is_list(value, what, source)
    if len(tokens) > MAX_POSITIONS:
        raise DumpError(f"{source}: {what} has {len(tokens):,} tokens; expected at most {MAX_POSITIONS:,}.")
    return tuple(token_of(token, source) for token in tokens)


def count_of(value: object) -> int | None:
    """Return a count that a payload gives, None if it is none."""
    return value if type(value) is int and 0 <= value < _MOST_TOKEN else None


def text_of(value: object) -> str:
    """Return the value if it is a text, else ''."""
    return value if isinstance(value, str) else ""


def entry_of(fields: Mapping[str, Any], source: str) -> Entry:
    """Read one token with its value, by id if there is one; a text that is a cut character is read by its bytes.

    `token_id:123` is an id that the engine was asked to send in place of a text.
    """
    token, text = fields.get("id", fields.get("token_id")), fields.get("token", fields.get("text"))
    if token is None and isinstance(text, str):
        head, _, digits = text.partition("token_id:")
        data = fields.get("bytes")
        if not head and digits.isascii() and digits.isdigit() and len(digits) < 11:
            token, text = int(digits), None
        elif isinstance(data, list) and data and "\ufffd" in text:
            text = "".join(f"<0x{byte:02X}>" for byte in data if type(byte) is int and 0 <= byte < 256)
    if token is None and not isinstance(text, str):
        raise DumpError(f"{source}: a token has neither id nor text.")
    value = value_of(fields.get("logprob", fields.get("prob")), source)
    rank = count_of(fields.get("rank"))
    return Entry(
        None if token is None else token_of(token, source), text if isinstance(text, str) else None, value, rank
    )


def content_rows(entries: Any, prompt: Sequence[int] | int | None, source: str) -> list[Row]:
    """Read generated tokens, each with its list of the best. prompt: its token ids, or how many."""
    rows: list[Row] = []
    for position, one in enumerate(entries, first_row(prompt)):
        at = f"{source}, generated token {len(rows)}"
        token = is_object(one, "a token", at)
        best = is_list(token.get("top_logprobs") or token.get("top_probs") or [], "top_logprobs", at)
        top = tuple(entry_of(is_object(entry, "an entry", at), at) for entry in best)
        # vLLM puts the chosen token first and cuts the list at k, also if it is none of the best.
        first, second = ([entry.value for entry in top] + [None, None])[:2]
        is_displaced = first is not None and second is not None and first < second
        rows.append(Row(position, top, entry_of(token, at), len(top) - is_displaced))
    return rows


def first_row(prompt: Sequence[int] | int | None) -> int:
    """Return the position of the row that scores the first generated token."""
    return max(0, (prompt if isinstance(prompt, int) else len(prompt or ())) - 1)


def response_of(
    rows: Iterable[Row],
    source: str,
    *,
    format: str,
    prompt: Sequence[int] | int | None,
    generated: Sequence[int] = (),
    has_prompt_rows: bool = False,
    top_logprobs: int | None = None,
    values: Values = "logprob",
    **about: Any,
) -> Response:
    """Return the record of a response.

    prompt: its token ids, or how many, or None if unknown; rows of generated tokens follow its
    end, and without it position 0 is the row of the first generated token. generated: ids of what was generated, if
    the payload has them. about: the other fields of Response.
    """
    read = list(rows)
    if not read:
        raise DumpError(f"{source}: {format} response without log-probabilities; ask the server for them.")
    length = prompt if isinstance(prompt, int) else None if prompt is None else len(prompt)
    if (length or 0) > MAX_POSITIONS:  # before there is a token for each
        raise DumpError(f"{source}: declares a prompt of {length:,} tokens; expected at most {MAX_POSITIONS:,}.")
    warnings = list(about.pop("warnings", ()))
    rows = [_by_its_list(row) for row in read]
    if drafted := sum(row is not one for row, one in zip(rows, read, strict=True)):
        emitted = plural(drafted, "emitted token")
        warnings.append(f"0.0, a placeholder, was sent for {emitted}; the value in the row's list is read.")
    if not has_prompt_rows:
        rows, warning = emitted_by_text(rows, about.get("text", ""))
        warnings += [warning] if warning else []
        if not rows:
            raise DumpError(f"{source}: {warning}")
        if shift := missing_at_start(rows, generated):
            rows = [replace(row, position=row.position + shift) for row in rows]
            warnings.append(f"Rows of its first {plural(shift, 'generated token')} are missing.")
    is_by_id = all(entry.token is not None for row in rows for entry in row.entries)
    ids: dict[str, int] = {}
    texts: dict[int, str] = {}

    def id_of(entry: Entry) -> int:
        if not is_by_id and entry.text is None:
            if entry.value is None:
                return UNKNOWN_TOKEN
            raise DumpError(f"{source}: token {entry.token} has no text, and others have no id; expected one of both.")
        token = entry.token if is_by_id else ids.setdefault(entry.text or "", len(ids))
        if entry.text is not None:
            texts.setdefault(token or 0, entry.text)
        return token or 0

    usable: list[ListRow] = []
    targets: dict[int, int] = {}
    left_out: list[str] = []
    for row, most in zip(rows, _best(rows, top_logprobs), strict=True):
        target = UNKNOWN_TOKEN if row.target is None else id_of(row.target)
        entries = [(id_of(entry), entry.value) for entry in row.entries]
        targets[row.position + 1] = target
        if conflict := _conflict(row, is_by_id):
            left_out.append(f"at position {row.position} {conflict}")
            continue
        sent_values = tuple((token, value) for token, value in entries if value is not None)
        missing = {token for token, value in entries if value is None} - {token for token, _ in sent_values}
        usable.append(ListRow(row.position, sent_values, most, target, len(missing)))
    if left_out and not usable:
        lack = "" if is_by_id else ", and its lists have no token ids"
        raise DumpError(f"{source}: no row can be used; {left_out[0]}{lack}.")
    if left_out:
        warnings.append(f"{len(left_out)} of {len(rows)} rows are left out: {left_out[0]}.")
    first = None if length is None and has_prompt_rows else first_row(length)
    has_generated = not has_prompt_rows or any(row.position >= (first or 0) for row in rows)
    is_known = is_by_id and prompt and not isinstance(prompt, int)
    tokens = [*prompt] if is_known else [UNKNOWN_TOKEN] * (length or 1)  # type: ignore[misc]
    start = 0 if has_prompt_rows else len(tokens)
    tokens += generated if is_by_id else [UNKNOWN_TOKEN] * len(generated)
    tokens += [UNKNOWN_TOKEN] * (max(targets) + 1 - len(tokens))
    for place, token in targets.items():
        if place >= start and tokens[place] == UNKNOWN_TOKEN:
            tokens[place] = token
    return Response(
        format=format,
        values=values,
        keys="token_id" if is_by_id else "text",
        tokens=tuple(tokens),
        rows=list_rows(usable, source),
        start_known=length is not None or has_prompt_rows,
        generated_from=first if has_generated else None,
        texts=texts,
        top_logprobs=top_logprobs,
        warnings=tuple(warnings),
        **about,
    )


def _by_its_list(row: Row) -> Row:
    """Return the row with its list's value of the emitted token if 0.0 was sent for it: SGLang's drafted tokens."""
    own = next((entry for entry in row.top if row.target and entry.name == row.target.name), None)
    is_drafted = row.target and row.target.value == 0.0 and own and own.value not in (None, 0.0)
    return replace(row, target=own) if is_drafted else row


def _conflict(row: Row, is_by_id: bool) -> str:
    """Return a clause on a token that is in a row twice, '' if none does; two tokens may print alike."""
    values: dict[object, float | None] = {}
    for entry in (one for one in row.entries if one.value is not None):
        name = entry.token if is_by_id else entry.text
        other = values.setdefault(name, entry.value)
        if other != entry.value:
            shown_name = f"token {name}" if is_by_id else clean(repr(name), _LONGEST_SHOWN)
            return f"{shown_name} has two values, {other} and {entry.value}"
    texts = [] if is_by_id else [entry.text for entry in row.top]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    return "" if twice is None else f"{clean(repr(twice), _LONGEST_SHOWN)} is listed twice"


def _best(rows: Sequence[Row], top_logprobs: int | None) -> list[int]:
    """Return the number of each row's listed tokens that are the best of the whole row.

    If the payload does not tell, lists of k tokens may hold the chosen one from further down besides, and may lack
    tokens that print alike: k is the requested number, else the shortest length that accounts for the chosen tokens; a
    shorter list has no best that could be relied on.
    """
    unknown = [row for row in rows if row.best is None and row.top]
    lengths = {len(row.top) for row in unknown}
    k = top_logprobs
    if k is None and lengths:
        longest = [row for row in unknown if len(row.top) == max(lengths)]
        k = max(lengths) - 1 if all(_is_chosen_last(row) for row in longest) else max(lengths)
    return [
        row.best if row.best is not None else (min(k or 0, len(row.top)) if len(row.top) >= (k or 0) else 0)
        for row in rows
    ]


def _is_chosen_last(row: Row) -> bool:
    """Return whether the chosen token may be in the list only because it was chosen: no other has a smaller value."""
    if row.target is None:
        return False
    same = [entry for entry in row.top if entry.name == row.target.name]
    values = [entry.value for entry in row.top if entry.value is not None]
    return bool(same) and (same[0].value is None or not values or same[0].value <= min(values))


def emitted_by_text(rows: Sequence[Row], text: str) -> tuple[list[Row], str]:
    """Return the rows with the tokens that spell the text, and a warning, '' if they did already.

    mlx-lm (0.32, server.py) sends its lists in the order of argpartition and names the first of each list as the
    emitted token.
    """
    lists = [_values(row) for row in rows]
    is_first = all(row.target and row.top and row.target == replace(row.top[0], rank=row.target.rank) for row in rows)
    if not text or not is_first or all(values[:1] == sorted(values)[-1:] for values in lists):
        return list(rows), ""
    firsts = [_spellings(row.top[0], is_start=False) for row in rows]
    if any(text.strip().encode() in b"".join(spellings) for spellings in zip(*firsts, strict=True)):
        return list(rows), ""
    path, is_whole = _path(rows, text.encode())
    if not is_whole and all(values[1:] == sorted(values[1:], reverse=True) for values in lists):
        return list(rows), ""
    mended = [replace(row, target=entry, best=len(row.top)) for row, entry in zip(rows, path, strict=False)]
    warning = "Its lists are in no order; the emitted tokens are those that spell its text."
    if len(path) < len(rows):
        warning += f" The text has tokens that are not listed, so that only the first {len(path)} rows are used."
    return mended, warning


def _values(row: Row) -> list[float]:
    return [entry.value for entry in row.top if entry.value is not None]


def _path(rows: Sequence[Row], text: bytes) -> tuple[list[Entry], bool]:
    """Return the most probable entries, one of each row, that spell the text, and whether they spell all of it."""
    paths: dict[int, tuple] = {0: (0.0,)}  # by bytes spelled: sum of log-probabilities, last entry, path before it
    for row in rows:
        longer: dict[int, tuple] = {}
        for start, prefix in paths.items():
            for entry in row.top:
                total = prefix[0] + (entry.value if entry.value is not None else -1e9)
                for end in _ends(entry, text, start):
                    if end not in longer or total > longer[end][0]:
                        longer[end] = (total, entry, prefix)
        if not longer:
            break
        paths = longer
    whole = paths.get(len(text))
    last = whole or max(paths.values(), key=lambda path: path[0])
    entries: list[Entry] = []
    while len(last) > 1:
        _, entry, last = last
        entries.append(entry)
    return entries[::-1], whole is not None and len(entries) == len(rows)


def _ends(entry: Entry, text: bytes, start: int) -> Iterator[int]:
    """Find how far the text is spelled after a token; what follows its end (a stop token) is any token."""
    if start == len(text):
        yield start
    for spelling in _spellings(entry, is_start=start == 0):
        if spelling and start < len(text):
            if text.startswith(spelling, start):
                yield start + len(spelling)
            elif spelling.startswith(text[start:]):  # cut by a stop text
                yield len(text)


def _spellings(entry: Entry, *, is_start: bool) -> list[bytes]:
    """Return the bytes that a token may stand for: its text, or that of a byte-level or SentencePiece vocabulary."""
    text = entry.text or ""
    plain = text.replace("▁", " ").encode()
    of_bytes = bytes(BYTE_LEVEL[char] for char in text) if all(char in BYTE_LEVEL for char in text) else plain
    return [of_bytes, plain, *([of_bytes.lstrip(b" ")] if is_start else [])]


def missing_at_start(rows: Sequence[Row], generated: Sequence[int]) -> int:
    """Count the generated tokens that come before the first of these rows and have none."""
    ids = [row.target.token if row.target else None for row in rows]
    if not ids or None in ids or ids == list(generated[: len(ids)]):
        return 0
    places = range(1, len(generated) - len(ids) + 1)
    return next((place for place in places if list(generated[place : place + len(ids)]) == ids), 0)
