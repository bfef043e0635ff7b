"""Parts of a payload, checked, and the rows of a response made records: by token id, or by text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ....errors import DumpError
from ....text import plural, shown
from ..records import MAX_POSITIONS, UNKNOWN_TOKEN, ListRow, Response, Values, list_rows
from .rows import Entry, Row, emitted_by_text, missing_at_start

_LOWEST = -745.0  # below, a probability is 0 in float64: vLLM sends -9999.0, llama.cpp -3.4e38, SGLang -Infinity
_INFINITIES = ("-inf", "-infinity")
_LONGEST_SHOWN = 60
_MOST_TOKEN = 1 << 31


def is_object(value: object, what: str, where: str) -> Mapping[str, Any]:
    """The value, if it is a JSON object."""
    if not isinstance(value, dict):
        raise DumpError(f"{where}: {what} is {_kind(value)}; expected an object.")
    return value


def is_list(value: object, what: str, where: str) -> Sequence[Any]:
    """The value, if it is a JSON array."""
    if not isinstance(value, list):
        raise DumpError(f"{where}: {what} is {_kind(value)}; expected an array.")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def value_of(value: object, where: str) -> float | None:
    """A value as sent, None for a placeholder: null, -inf, also as a text, and -9999.0, -3.4e38 and the like."""
    if value is None or (isinstance(value, str) and value.lower() in _INFINITIES):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DumpError(f"{where}: a value is {_kind(value)}; expected a number or null.")
    if value != value:
        raise DumpError(f"{where}: a value is NaN; the server failed to compute it.")
    number = float(value) if abs(value) < 1e300 else (math.inf if value > 0 else -math.inf)
    if number <= _LOWEST:
        return None
    if not math.isfinite(number):
        raise DumpError(f"{where}: a value is {shown(value, _LONGEST_SHOWN)}; expected a finite number.")
    return number


def token_of(value: object, where: str) -> int:
    """A token id."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_TOKEN:
        raise DumpError(f"{where}: a token id is {shown(repr(value), _LONGEST_SHOWN)}; expected a whole number from 0.")
    return value


def tokens_of(value: object, what: str, where: str) -> tuple[int, ...]:
    """A list of token ids."""
    listed = is_list(value, what, where)
    if len(listed) > MAX_POSITIONS:
        raise DumpError(f"{where}: {what} has {len(listed):,} tokens; expected at most {MAX_POSITIONS:,}.")
    return tuple(token_of(token, where) for token in listed)


def text_key(key: str) -> tuple[int | None, str | None]:
    """Id and text of a key: `token_id:123` is an id that the engine was asked to send in place of a text."""
    head, _, digits = key.partition("token_id:")
    if not head and digits.isascii() and digits.isdigit() and len(digits) < 11:
        return int(digits), None
    return None, key


def count_of(value: object) -> int | None:
    """A count that a payload says of itself, None where it is none."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKEN
    return value if is_count else None  # type: ignore[return-value]


def response_of(
    rows: Iterable[Row],
    where: str,
    *,
    format: str,
    prompt: Sequence[int] | int | None,
    generated: Sequence[int] = (),
    has_prompt_rows: bool = False,
    asked: int | None = None,
    values: Values = "logprob",
    **about: Any,
) -> Response:
    """The record of a response.

    prompt: its token ids; only how many, or None, where that is all that is known; rows of generated tokens follow its
    end, and without it position 0 is the row of the first generated token. generated: ids of what was generated, where
    the payload has them beside its rows. about: the other fields of Response.
    """
    found = list(rows)
    contradicted = [_is_contradicted(row) for row in found]
    if any(contradicted):
        # SGLang's drafted tokens: 0.0 beside a list with the model's own value
        found = [
            replace(row, chosen=_in_list(row)) if is_so else row for row, is_so in zip(found, contradicted, strict=True)
        ]
        about["warnings"] = (
            *about.get("warnings", ()),
            f"0.0 was sent for {plural(sum(contradicted), 'emitted token')} to which its list gives another value: a"
            " placeholder; the list is read.",
        )
    if not found:
        raise DumpError(f"{where}: {format} response without log-probabilities; ask the server for them.")
    length = prompt if isinstance(prompt, int) else None if prompt is None else len(prompt)
    if (length or 0) > MAX_POSITIONS:  # before there is a token for each
        raise DumpError(f"{where}: declares a prompt of {length:,} tokens; expected at most {MAX_POSITIONS:,}.")
    warnings = list(about.pop("warnings", ()))
    if not has_prompt_rows:
        found, warning = emitted_by_text(found, about.get("text", ""))
        warnings += [warning] if warning else []
        if not found:
            raise DumpError(f"{where}: {warning}")
        if shift := missing_at_start(found, generated):
            found = [replace(row, position=row.position + shift) for row in found]
            warnings.append(f"Rows of its first {plural(shift, 'generated token')} are missing.")
    best = _best(found, asked)
    is_by_id = all(entry.token is not None for row in found for entry in _entries(row))
    named: dict[str, int] = {}
    texts: dict[int, str] = {}

    def id_of(entry: Entry) -> int:
        if is_by_id:
            token = entry.token if entry.token is not None else UNKNOWN_TOKEN
        elif entry.text is None and entry.value is None:
            return UNKNOWN_TOKEN
        elif entry.text is None:
            raise DumpError(f"{where}: token {entry.token} has no text, and others have no id; expected one of both.")
        else:
            token = named.setdefault(entry.text, len(named))
        if entry.text is not None:
            texts.setdefault(token, entry.text)
        return token

    kept: list[ListRow] = []
    after: dict[int, int] = {}
    left_out: list[str] = []
    for row, most in zip(found, best, strict=True):
        chosen = UNKNOWN_TOKEN if row.chosen is None else id_of(row.chosen)
        entries = tuple((id_of(entry), entry.value) for entry in _entries(row))
        after[row.position + 1] = chosen
        if conflict := _conflict(row, is_by_id):
            left_out.append(f"at position {row.position} {conflict}")
            continue
        missing = {token for token, value in entries if value is None}
        sent = tuple((token, value) for token, value in entries if value is not None)
        kept.append(ListRow(row.position, sent, most, chosen, len(missing - {token for token, _ in sent})))
    if left_out and not kept:
        lack = "" if is_by_id else ", and its lists have no token ids"
        raise DumpError(f"{where}: no row can be used; {left_out[0]}{lack}.")
    if left_out:
        warnings.append(f"{len(left_out)} of {len(found)} rows are left out: {left_out[0]}.")
    known = () if prompt is None or isinstance(prompt, int) else tuple(prompt)
    first = None if length is None and has_prompt_rows else max(0, (length or 1) - 1)
    has_generated = not has_prompt_rows or any(row.position >= (first or 0) for row in found)
    tokens = known if is_by_id and known else (UNKNOWN_TOKEN,) * (length or 1)
    end = max([len(tokens) + len(generated) - 1, *after], default=0)
    beside = dict(enumerate(generated, len(tokens))) if is_by_id else {}
    sequence = [*tokens] + [beside.get(at, after.get(at, UNKNOWN_TOKEN)) for at in range(len(tokens), end + 1)]
    if has_prompt_rows:
        sequence = [after.get(at, token) if token == UNKNOWN_TOKEN else token for at, token in enumerate(sequence)]
    return Response(
        format=format,
        values=values,
        keys="token_id" if is_by_id else "text",
        tokens=tuple(sequence),
        rows=list_rows(kept, where),
        start_known=length is not None or has_prompt_rows,
        generated_from=first if has_generated else None,
        texts=texts,
        asked=asked,
        warnings=tuple(warnings),
        **about,
    )


def _entries(row: Row) -> tuple[Entry, ...]:
    return row.top if row.chosen is None else (*row.top, row.chosen)


def _in_list(row: Row) -> Entry | None:
    """The emitted token as the list of its row has it."""
    return next((e for e in row.top if row.chosen and (e.token, e.text) == (row.chosen.token, row.chosen.text)), None)


def _is_contradicted(row: Row) -> bool:
    """Return whether the emitted token has the value 0.0 and another one in its list."""
    listed = _in_list(row)
    return bool(row.chosen and row.chosen.value == 0.0 and listed and listed.value not in (None, 0.0))


def _conflict(row: Row, is_by_id: bool) -> str:
    """Return a clause on a token that stands in a row twice, '' if none does; two tokens may print alike."""
    values: dict[object, float | None] = {}
    for entry in _entries(row):
        if entry.value is None:  # a placeholder
            continue
        name = entry.token if is_by_id else entry.text
        before = values.setdefault(name, entry.value)
        if before != entry.value:
            shown_name = f"token {name}" if is_by_id else shown(repr(name), _LONGEST_SHOWN)
            return f"{shown_name} has two values, {before} and {entry.value}"
    texts = [] if is_by_id else [entry.text for entry in row.top]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    return "" if twice is None else f"{shown(repr(twice), _LONGEST_SHOWN)} is listed twice"


def _best(rows: Sequence[Row], asked: int | None) -> list[int]:
    """Number of each row's listed tokens that are the best of the whole row.

    Where the payload does not tell, lists of k tokens may hold the chosen one from further down besides, and may lack
    tokens that print alike: k is what was asked for, else the shortest length that accounts for the chosen tokens; a
    shorter list has no best that could be relied on.
    """
    unknown = [row for row in rows if row.best is None and row.top]
    lengths = {len(row.top) for row in unknown}
    k = asked
    if k is None and lengths:
        longest = [row for row in unknown if len(row.top) == max(lengths)]
        k = max(lengths) - 1 if all(_is_chosen_last(row) for row in longest) else max(lengths)
    return [
        row.best if row.best is not None else (min(k or 0, len(row.top)) if len(row.top) >= (k or 0) else 0)
        for row in rows
    ]


def _is_chosen_last(row: Row) -> bool:
    """Return whether the chosen token may be in the list only because it was chosen: no other has a smaller value."""
    if row.chosen is None:
        return False
    same = [e for e in row.top if (e.token, e.text) == (row.chosen.token, row.chosen.text)]
    values = [entry.value for entry in row.top if entry.value is not None]
    return bool(same) and (same[0].value is None or not values or same[0].value <= min(values))
