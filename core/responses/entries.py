"""Tokens of a payload, checked, and the rows of a response made records: by token id, or by
text.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import msgspec

from ..errors import DumpError
from ..text import BYTE_LEVEL, clean, plural
from .alignment import sequence
from .records import MAX_POSITIONS, UNKNOWN_TOKEN, UNSENT, Response, TopTokenRow, compress_rows

# below, a probability is 0 in float64: vLLM sends -9999.0, llama.cpp -3.4e38, SGLang -Infinity
_LOWEST = -745.0
_MOST_TOKEN = 1 << 31
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # of a SentencePiece vocabulary
Id = Annotated[int, msgspec.Meta(ge=0, lt=_MOST_TOKEN)]


class Sent(msgspec.Struct):
    """A token with its value, under the names that engines give them."""

    logprob: float | str | None = None
    id: Id | None = None
    text: str | None = None
    token: str | None = None
    bytes: list[int] | None = None


class SentRow(Sent):
    """A chosen token with its list of the best."""

    top_logprobs: list[Sent] | None = None


class Entry(NamedTuple):
    """A token with its value. token: its id, None if only its text was sent. value: None if it is a
    placeholder.
    """

    token: int | None
    text: str | None
    value: float | None


class Row(NamedTuple):
    """One position as a payload has it. top: the list of best tokens; target: the token that is
    given or was emitted.

    best: how many of `top` are the best of the whole row, None if the reader cannot tell.
    """

    position: int
    top: Sequence[Entry]
    target: Entry
    best: int | None

    @property
    def values(self) -> list[float]:
        return [entry.value for entry in self.top if entry.value is not None]


def convert(value: object, kind: Any, source: str) -> Any:
    """Return the value as a declared type. DumpError if it is none."""
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise DumpError(f"{source}: {clean(error, 160)}.") from None


def tokens_of(value: object, what: str, source: str) -> tuple[int, ...]:
    """Return a list of token ids, () for none."""
    tokens = convert(value or (), tuple[Id, ...], f"{source}, {what}")
    if len(tokens) > MAX_POSITIONS:
        raise DumpError(
            f"{source}: {what} has {len(tokens):,} tokens; expected at most {MAX_POSITIONS:,}.",
        )
    return tokens


def count_of(value: object) -> int | None:
    """Return a count that a payload gives, None if it is none."""
    return value if type(value) is int and 0 <= value < _MOST_TOKEN else None


def entry_of(entry: Sent, source: str) -> Entry:
    """Read one token with its value, by id if there is one; a text that is a cut character is read
    by its bytes.

    `token_id:123` is an id that the engine was asked to send in place of a text.
    """
    token = entry.id
    text = entry.text if entry.token is None else entry.token
    if token is None and text is not None:
        head, _, digits = text.partition("token_id:")
        if not head and digits.isascii() and digits.isdecimal():
            token = convert(int(digits[:11]), Id, source)
            text = None
        elif entry.bytes and "\ufffd" in text:
            text = byte_names(entry.bytes)
    if token is None and text is None:
        raise DumpError(f"{source}: a token has neither id nor text.")
    value = entry.logprob
    try:
        number = -math.inf if value is None else float(value)
    except ValueError:
        number = math.nan
    if not number < math.inf:
        raise DumpError(
            f"{source}: a value is {clean(value, 60)}; expected a finite number or null.",
        )
    # placeholders are null, -inf, also as a text, and -9999.0, -3.4e38 and the like
    return Entry(token, text, number if number > _LOWEST else None)


def byte_names(values: Iterable[int]) -> str:
    """`<0xF0><0x9F>`: how a part of a character is spelled."""
    return "".join(f"<0x{byte:02X}>" for byte in values)


def rows_of(tokens: object, start: int, source: str) -> list[Row]:
    """Read tokens, each with its list of the best. start: position of the row that scores the first
    of them.
    """
    rows = []
    for position, sent in enumerate(convert(tokens or [], list[SentRow], source), start):
        at = f"{source}, token {position - start}"
        top = [entry_of(one, at) for one in sent.top_logprobs or ()]
        best = len(top)
        # vLLM puts the chosen token first and cuts the list at k, also if it is none of the best.
        if best > 1:
            first = top[0].value
            second = top[1].value
            best -= first is not None and second is not None and first < second
        rows.append(Row(position, top, entry_of(sent, at), best))
    return rows


def first_row(prompt: Sequence[int] | int | None) -> int:
    """Return the position of the row that scores the first generated token. prompt: its token ids,
    or how many.
    """
    return max(0, (prompt if isinstance(prompt, int) else len(prompt or ())) - 1)


def response_of(
    rows: Sequence[Row],
    source: str,
    *,
    format: str,
    prompt: Sequence[int] | int | None,
    generated: Sequence[int],
    top_logprobs: int | None,
    counted: int | None,
    has_prompt_rows: bool = False,
    warnings: Sequence[str] = (),
    **about: Any,
) -> Response:
    """Return the record of a response.

    prompt: its token ids, or how many, or None if unknown; rows of generated tokens follow its end,
    and without it position 0 is the row of the first generated token. generated: ids of what was
    generated, if the payload has them. counted: how many these are, as the payload says. about: the
    other fields of Response.
    """
    if not rows:
        raise DumpError(
            f"{source}: {format} response without log-probabilities; ask the server for them.",
        )
    known = prompt if isinstance(prompt, Sequence) else ()
    length = prompt if isinstance(prompt, int) else len(known) or None
    # before there is a token for each
    if (length or 0) > MAX_POSITIONS:
        raise DumpError(
            f"{source}: declares a prompt of {length:,} tokens; expected at most"
            f" {MAX_POSITIONS:,}.",
        )
    says = list(warnings)
    if not has_prompt_rows and _is_unordered(rows):
        rows = _greedy(rows, about["text"], source)
        says.append(
            "Its lists are in no order; their top tokens, which spell its text, are the emitted"
            " ones.",
        )
    rows = _plain_texts(rows)
    is_by_id = all(entry.token is not None for row in rows for entry in (*row.top, row.target))
    ids: dict[str, int] = {}
    texts: dict[int, str] = {}

    def id_of(entry: Entry) -> int:
        if is_by_id:
            token = entry.token or 0
        elif entry.text is not None:
            token = ids.setdefault(entry.text, len(ids))
        elif entry.value is None:
            return UNKNOWN_TOKEN
        else:
            raise DumpError(
                f"{source}: token {entry.token} has no text, and others have no id; expected one of"
                " both.",
            )
        if entry.text is not None:
            texts.setdefault(token, entry.text)
        return token

    listed: list[TopTokenRow] = []
    drafted = 0
    for row, best in zip(rows, _best(rows, top_logprobs), strict=True):
        target = id_of(row.target)
        value = row.target.value
        sent = [(id_of(entry), entry.value) for entry in row.top]
        listed_values = [each for token, each in sent if token == target and each is not None]
        chosen = math.nan
        if value == 0 and any(listed_values):
            # SGLang's drafted tokens: their list has the value
            drafted += 1
        elif value is not None and listed_values and value not in listed_values:
            chosen = value
        else:
            sent.append((target, value))
        entries = [(token, each) for token, each in dict.fromkeys(sent) if each is not None]
        # each token once
        missing = len(dict(sent)) - len(dict(entries))
        listed.append(
            TopTokenRow(
                row.position,
                tuple(entries),
                best,
                target,
                missing,
                chosen,
            )
        )
    listed_rows = compress_rows(listed, source)
    if (has_repeats := listed_rows.has_repeats).any():
        position = listed_rows.positions[has_repeats.argmax()]
        or_alike = "" if is_by_id else ", or two print alike"
        at = f"at position {position} a token has two values{or_alike}"
        if has_repeats.all():
            raise DumpError(f"{source}: no row can be used; {at}.")
        says.append(f"{has_repeats.sum()} of {len(rows)} rows are left out: {at}.")
        listed_rows = replace(listed_rows.without_values(has_repeats), missing=listed_rows.missing)
    if drafted:
        says.append(
            f"0.0, a placeholder, was sent for {plural(drafted, 'emitted token')}; the value in the"
            " row's list is read.",
        )
    first = None if length is None and has_prompt_rows else first_row(length)
    with_rows = sum(row.position >= (first or 0) for row in rows)
    has_generated = not has_prompt_rows or with_rows > 0
    # the last may end the text, and have no row
    if has_generated and counted is not None and counted > with_rows + 1:
        says.append(
            f"It counts {counted:,} generated tokens, and sends log-probabilities of"
            f" {with_rows:,}.",
        )
        about["settings"] = about["settings"] | {UNSENT: f"{counted - with_rows}"}
    # ids of the payload mean nothing in a response by text
    tokens = [*known] if is_by_id and known else [UNKNOWN_TOKEN] * (length or 1)
    tokens += generated if is_by_id else [UNKNOWN_TOKEN] * len(generated)
    response = Response(
        format=format,
        keys="token_id" if is_by_id else "text",
        tokens=tuple(tokens),
        rows=listed_rows,
        start_known=length is not None or has_prompt_rows,
        generated_from=first if has_generated else None,
        texts=texts,
        top_logprobs=top_logprobs,
        warnings=tuple(says),
        **about,
    )
    return replace(response, tokens=sequence(response))


def _best(rows: Sequence[Row], top_logprobs: int | None) -> list[int]:
    """Return the number of each row's listed tokens that are the best of the whole row.

    If the payload does not tell, lists of k tokens may hold the chosen one from further down
    besides, and may lack tokens that print alike: k is the requested number, else the shortest
    length that accounts for the chosen tokens; a shorter list has no best that could be relied on.
    """
    k = top_logprobs or 0
    if top_logprobs is None:
        unknown = [row for row in rows if row.best is None]
        k = max((len(row.top) for row in unknown), default=0)
        k -= all(_is_chosen_last(row) for row in unknown if len(row.top) == k)
    complete = [k if len(row.top) >= k else 0 for row in rows]
    return [
        best if row.best is None else row.best for row, best in zip(rows, complete, strict=True)
    ]


def _is_chosen_last(row: Row) -> bool:
    """Return whether the chosen token may be in the list only because it was chosen: no other has a
    smaller value.
    """
    own = next((entry for entry in row.top if entry[:2] == row.target[:2]), None)
    return own is not None and (own.value is None or own.value <= min(row.values, default=math.inf))


def _is_unordered(rows: Sequence[Row]) -> bool:
    """Return whether lists are in no order, and the first of each is named as emitted: mlx-lm
    (0.32, server.py).

    If the first is always the largest, it was emitted: a value may be wrong, but no token is.
    """
    is_unordered = False
    is_first_less = False
    for row in rows:
        if not row.top or row.target != row.top[0]:
            return False
        others = row.values[1:]
        is_unordered |= others != sorted(others, reverse=True)
        is_first_less |= row.values[:1] != sorted(row.values)[-1:]
    return is_unordered and is_first_less


def _greedy(rows: Sequence[Row], text: str, source: str) -> list[Row]:
    """Return the rows with their top tokens as emitted ones.

    DumpError unless these spell the text.
    """
    spelled = bytearray()
    greedy = []
    for row in rows:
        top = max(row.top, key=lambda entry: -math.inf if entry.value is None else entry.value)
        spelled += _bytes_of(top.text or "")
        greedy.append(row._replace(target=top, best=len(row.top)))
    if not text or text.strip().encode() not in spelled:
        raise DumpError(
            f"{source}: its lists are in no order, and do not spell its text; request"
            " temperature 0.",
        )
    return greedy


def _bytes_of(text: str) -> bytes:
    """Return the bytes that a token stands for: its text, or that of a byte-level or SentencePiece
    vocabulary.
    """
    if _BYTE.fullmatch(text):
        return bytes([int(text[3:5], 16)])
    if all(char in BYTE_LEVEL for char in text):
        return bytes(BYTE_LEVEL[char] for char in text)
    return text.replace("▁", " ").encode()


def _plain_texts(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with texts in place of the spellings of a vocabulary; a server may spell its
    lists so, and not the emitted tokens.
    """
    is_listed_spelled = _are_spelled(entry.text for row in rows for entry in row.top)
    is_target_spelled = _are_spelled(row.target.text for row in rows)
    plain = []
    for row in rows:
        top = row.top
        target = row.target
        is_in_list = any(entry.text == target.text for entry in top)
        if is_target_spelled or (is_listed_spelled and is_in_list):
            target = _decoded(target)
        if is_listed_spelled:
            top = [_decoded(entry) for entry in top]
        plain.append(row._replace(top=top, target=target))
    return plain


def _are_spelled(texts: Iterable[str | None]) -> bool:
    """Return whether tokens are spelled as in a byte-level or SentencePiece vocabulary: no text has
    a blank.
    """
    # each once: lists of a long answer repeat them
    known = {text for text in texts if text}
    has_blank = any(" " in text for text in known)
    return not has_blank and any(text.startswith(("Ġ", "Ċ", "▁")) for text in known)


def _decoded(entry: Entry) -> Entry:
    if entry.text is None:
        return entry
    spelled = _bytes_of(entry.text)
    try:
        return entry._replace(text=spelled.decode())
    except UnicodeDecodeError:  # a part of a character
        return entry._replace(text=byte_names(spelled))
