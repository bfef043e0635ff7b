"""Sides of lists as JSON lines and back: a line for what a side's engine sent for one prompt, every digit of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec

from ...disk import write_atomic
from ...errors import DumpError, StoreError
from ...text import clean
from .records import Count, ListRow, ListSide, Response, Token, list_rows

FORM = "ulpscope"  # the key by which a line is known; its value is the form's version
_VERSION = 1
_LEAST = "-inf"  # JSON has no infinity


class _Row(msgspec.Struct):
    position: Count
    best: Count
    target: Token = msgspec.field(name="chosen")
    missing: Count
    full: bool
    token_ids: list[Count]
    values: list[float | Literal["-inf"]]


_ABOUT = {name: kind for name, kind in get_type_hints(Response, include_extras=True).items() if name != "prompt_key"}
_KEYS = {name: "asked" if name == "top_logprobs" else name for name in _ABOUT}  # in JSON
# A response with its side and prompt.
_Line = msgspec.defstruct(
    "_Line",
    [
        (FORM, Literal[1]),
        ("side", str),
        ("prompt", Count),
        *((_KEYS[name], kind) for name, kind in (_ABOUT | {"rows": list[_Row]}).items()),
    ],
)


def write_lines(sides: Sequence[ListSide], path: Path, *, overwrite: bool = False) -> None:
    """Write every side into one file. StoreError if it is there already, or cannot be written."""
    if path.exists() and not overwrite:
        raise StoreError(f"{path} exists; give --overwrite to replace it.")
    text = "".join(json.dumps(line) + "\n" for line in lines_of(sides))
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}).") from error


def lines_of(sides: Sequence[ListSide]) -> Iterator[dict[str, Any]]:
    """Return one object a response, the reference's first."""
    for side in sides:
        for prompt, response in enumerate(side.responses):
            lists, rows = response.rows, []
            columns = (lists.positions, lists.best, lists.targets, lists.missing, lists.full)
            for index, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
                ids, row_values = (each.tolist() for each in lists.row(index))
                row_values = [_LEAST if value == -math.inf else value for value in row_values]
                rows.append(dict(zip(_Row.__struct_encode_fields__, (*values, ids, row_values), strict=True)))
            about = {key: getattr(response, name) for name, key in _KEYS.items()}
            yield {FORM: _VERSION, "side": side.name, "prompt": prompt, **about, "rows": rows}


def is_line(document: object) -> bool:
    """Return whether a JSON document is a line of ours."""
    return isinstance(document, dict) and document.get(FORM) == _VERSION and "side" in document


def sides_of_lines(documents: Iterator[tuple[str, Any]]) -> tuple[ListSide, ...]:
    """Return the sides that lines hold. DumpError for a line that is none, or prompts not numbered from 0 on."""
    by_side: dict[str, list[Response]] = {}
    for source, document in documents:
        if not is_line(document):
            raise DumpError(f"{source}: is not a line of an exported run like those before it.")
        try:
            line: Any = msgspec.convert(document, _Line, str_keys=True)
            rows = []
            for row in line.rows:
                values = [-math.inf if value == _LEAST else float(value) for value in row.values]
                entries = tuple(zip(row.token_ids, values, strict=True))
                rows.append(ListRow(row.position, entries, row.best, row.target, row.missing, row.full))
            about = {name: getattr(line, key) for name, key in _KEYS.items()}
            response = Response(**about | {"rows": list_rows(rows, source)})
        except (msgspec.ValidationError, ValueError) as error:
            raise DumpError(f"{source}: is not a valid line of an exported run ({clean(error, 80)}).") from None
        if line.prompt != len(by_side.setdefault(line.side, [])):
            raise DumpError(f"{source}: expected prompt {len(by_side[line.side])} of side '{clean(line.side, 60)}'.")
        by_side[line.side].append(response)
    return tuple(ListSide(name, tuple(responses)) for name, responses in by_side.items())
