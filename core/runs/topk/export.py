"""Sides of lists as JSON lines and back: a line for what a side's engine sent for one prompt, every digit of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from ...disk import write_atomic
from ...errors import DumpError, StoreError
from ...text import shown
from .records import MAX_POSITIONS, UNKNOWN_TOKEN, Keys, ListRow, ListSide, Response, Values, list_rows

FORM = "ulpscope"  # the key by which a line is known; its value is the form's version
_VERSION = 1
_LEAST = "-inf"  # JSON has no infinity
_PLAIN = ("format", "start_known", "generated_from", "processed", "asked", "vocab", "model", "text", "cached")


def write_lines(sides: Sequence[ListSide], path: Path, *, overwrite: bool = False) -> None:
    """Write every side into one file. StoreError where it is there already, or cannot be written."""
    if path.exists() and not overwrite:
        raise StoreError(f"{path} exists; give --overwrite to replace it.")
    text = "".join(json.dumps(line) + "\n" for line in lines_of(sides))
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror}).") from error


def lines_of(sides: Sequence[ListSide]) -> Iterator[dict[str, Any]]:
    """One object a response, the reference's first."""
    for side in sides:
        for prompt, response in enumerate(side.responses):
            yield {
                FORM: _VERSION,
                "side": side.name,
                "prompt": prompt,
                "values": side.values,
                "keys": side.keys,
                **{name: getattr(response, name) for name in _PLAIN},
                "tokens": list(response.tokens),
                "texts": {str(token): text for token, text in response.texts.items()},
                "settings": dict(response.settings),
                "warnings": list(response.warnings),
                "rows": [_row(response, index) for index in range(len(response.rows))],
            }


def _row(response: Response, index: int) -> dict[str, Any]:
    rows = response.rows
    token_ids, values = rows.row(index)
    return {
        "position": int(rows.positions[index]),
        "best": int(rows.best[index]),
        "chosen": int(rows.chosen[index]),
        "missing": int(rows.missing[index]),
        "full": bool(rows.full[index]),
        "token_ids": token_ids.tolist(),
        "values": [_LEAST if value == -math.inf else value for value in values.tolist()],
    }


def is_line(document: object) -> bool:
    """Return whether a JSON document is a line of ours."""
    return isinstance(document, dict) and document.get(FORM) == _VERSION and "side" in document


def sides_of_lines(documents: Iterator[tuple[str, Any]]) -> tuple[ListSide, ...]:
    """The sides that lines hold, in the order in which they first stand there. DumpError for a line that is none, or
    prompts that are not numbered from 0 on.
    """
    found: dict[str, list[Response]] = {}
    for where, document in documents:
        if not is_line(document):
            raise DumpError(f"{where}: is no line of an exported run as those before it are.")
        name = document["side"]
        if not isinstance(name, str) or document.get("prompt") != len(found.get(name, [])):
            raise DumpError(f"{where}: expected prompt {len(found.get(str(name), []))} of a side with a name.")
        found.setdefault(name, []).append(_response(document, where))
    return tuple(ListSide(name, tuple(responses)) for name, responses in found.items())


def _response(said: Mapping[str, Any], where: str) -> Response:
    try:
        if said["values"] not in get_args(Values) or said["keys"] not in get_args(Keys):
            raise ValueError(f"values {said['values']!r:.40} by {said['keys']!r:.40}")
        rows = [_list_row(row) for row in said["rows"]]
        tokens = tuple(_whole(token, UNKNOWN_TOKEN) for token in said["tokens"])
        if len(tokens) > MAX_POSITIONS:
            raise ValueError(f"{len(tokens):,} tokens")
        plain = {name: said[name] for name in _PLAIN}
        _check_plain(plain)
        return Response(
            values=said["values"],
            keys=said["keys"],
            tokens=tokens,
            rows=list_rows(rows, where),
            texts={_whole(int(token)): _text(text) for token, text in said["texts"].items()},
            settings={_text(name): _text(value) for name, value in said["settings"].items()},
            warnings=tuple(_text(warning) for warning in said["warnings"]),
            **plain,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DumpError(f"{where}: makes no sense as a line of an exported run ({shown(error, 80)}).") from None


def _check_plain(said: Mapping[str, Any]) -> None:
    for name in ("format", "model", "text"):
        _text(said[name])
    for name in ("generated_from", "asked", "vocab", "cached"):
        if said[name] is not None:
            _whole(said[name])
    if type(said["start_known"]) is not bool or said["processed"] not in (True, False, None):
        raise ValueError("a flag is none")


def _list_row(row: Mapping[str, Any]) -> ListRow:
    values = [-math.inf if value == _LEAST else float(value) for value in row["values"]]
    ids = [_whole(token) for token in row["token_ids"]]
    if len(ids) != len(values) or type(row["full"]) is not bool:
        raise ValueError(f"{len(ids)} tokens with {len(values)} values")
    whole = {name: _whole(row[name]) for name in ("position", "best", "missing")}
    chosen = _whole(row["chosen"], UNKNOWN_TOKEN)
    return ListRow(entries=tuple(zip(ids, values, strict=True)), chosen=chosen, full=row["full"], **whole)


def _whole(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 1 << 31:
        raise ValueError(f"{value!r:.40} is no number that is expected here")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value
