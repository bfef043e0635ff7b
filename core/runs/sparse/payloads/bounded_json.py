"""JSON from anybody, within bounds: one document, or one a line. What is wrong with it is told in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ....errors import DumpError
from ....text import shown

MAX_BYTES = 128 << 20  # of one document; parsed, it takes up to twenty times that
MAX_FILE_BYTES = 4 << 30  # of a file with a document a line
_LONGEST_SHOWN = 60


def documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Each document of a file with the name of its place: the whole file, or line by line where it holds several.

    DumpError for what is no JSON, holds NaN or a key twice, is nested too deeply, or is larger than MAX_BYTES.
    """
    name = shown(path.name)
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise DumpError(f"{name}: has {size:,} bytes; expected at most {MAX_FILE_BYTES:,}.")
    with path.open("rb") as file:
        first = file.readline(MAX_BYTES + 1)
        has_more = any(line.strip() for line in iter(lambda: file.readline(MAX_BYTES + 1), b""))
        if not has_more or not _is_whole(first):
            file.seek(0)
            yield name, parsed(file.read(MAX_BYTES + 1), name)
            return
        file.seek(0)
        for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), 1):
            if line.strip():
                yield f"{name}, line {number}", parsed(line, f"{name}, line {number}")


def _is_whole(line: bytes) -> bool:
    """Return whether a line is a document by itself, and not the first one of a document over several lines."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def parsed(text: bytes, where: str) -> Any:
    """The document. `where` names it in errors."""
    if len(text) > MAX_BYTES:
        raise DumpError(f"{where}: a JSON document of more than {MAX_BYTES:,} bytes; expected at most that many.")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise DumpError(f"{where}: its JSON is nested too deeply.") from None
    except _RefusedError as refused:
        raise DumpError(f"{where}: {refused}") from None
    except ValueError as error:  # no JSON, or no UTF-8
        raise DumpError(f"{where}: no JSON ({shown(error, _LONGEST_SHOWN)}).") from None


class _RefusedError(Exception):
    """A sentence on something that is JSON and not taken."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _RefusedError(f"the key {shown(repr(twice), _LONGEST_SHOWN)} stands twice in one object.")
    return made


def _no_number(name: str) -> NoReturn:
    raise _RefusedError(f"holds {name}, which is no value.")
