"""JSON from anybody, within bounds: one document, several, or a stream. Errors are one sentence."""

from __future__ import annotations

import ast
import codecs
import json
import re
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from ....errors import DumpError
from ....text import shown
from .plain_file import plain_file

MAX_BYTES = 128 << 20  # of one document; parsed, it takes up to twenty times that
MAX_FILE_BYTES = 4 << 30  # of a file with a document a line
MAX_LITERAL_BYTES = 4 << 20  # of a Python literal, which takes a hundred times its size to parse
_LONGEST_SHOWN = 60
_BLANKS = re.compile(r"\s*")
_EVENT = re.compile(rb"(data|event|id|retry)?:")
_INFINITY = re.compile(r"\binf\b(?=[,\])}])")  # as Python prints it
_REPR = re.compile(rb"\s*\[?[A-Z]\w*\(\w+=")


def documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Each document of a file with the name of its place: one, several, one a line, or the events of a stream.

    DumpError for what is no JSON, is nested too deeply, or has more than MAX_BYTES.
    """
    name = shown(path.name)
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise DumpError(f"{name}: has {size:,} bytes; expected at most {MAX_FILE_BYTES:,}.")
    with plain_file(path) as file:
        yield from documents_of(file, name)


def documents_of(file: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Each document of an open file, as `documents` has them. `name` is the file's in errors."""
    lines = _numbered(file)
    start, at, first = 0, 1, b""
    for at, first in lines:  # noqa: B007
        if first.startswith(b"HTTP/"):  # `curl -i`: lines up to a blank one, then the body or another head
            next((line for _, line in lines if not line.strip()), None)
        elif first.strip():
            break
        start = file.tell()
    if _EVENT.match(first):
        yield from _events(chain([(at, first)], lines), name)
    elif _is_whole(first) and any(line.strip() for _, line in lines):
        file.seek(start)
        for number, line in _numbered(file, at):
            if line.strip():
                yield f"{name}, line {number}", parsed(line, f"{name}, line {number}")
    else:
        file.seek(start)
        yield from _consecutive(file.read(MAX_BYTES + 1).removeprefix(codecs.BOM_UTF8), name)


def _numbered(file: BinaryIO, first: int = 1) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), first):
        yield number, line.removeprefix(codecs.BOM_UTF8)


def _events(lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[tuple[str, Any]]:
    """The documents of server-sent events; one may go over several `data:` lines (WHATWG HTML, section 9.2)."""
    data, where = b"", name
    for number, line in lines:
        text = line.strip()
        if not data:
            where = f"{name}, line {number}"
        if text.startswith(b"data:") and text[5:].strip() != b"[DONE]":
            data += text[5:]
        elif text[:1] == b"{":  # an error that a server writes into its stream
            data += text
        if data.strip() and (_is_whole(data) or not text):
            yield where, _event(data, where)
            data = b""
    if data.strip():
        yield where, _event(data, where)


def _event(data: bytes, where: str) -> Any:
    document = parsed(data, where)
    return StreamEvent(document) if isinstance(document, dict) else document


def _consecutive(text: bytes, name: str) -> Iterator[tuple[str, Any]]:
    """Read the documents of a text in which they follow each other without a line of their own."""
    try:
        yield name, parsed(text, name)
    except DumpError:
        decoder, characters = json.JSONDecoder(), text.decode("utf-8", "replace").strip()
        end, documents = 0, []
        while end < len(characters):
            try:
                document, end = decoder.raw_decode(characters, end)
            except (ValueError, RecursionError):
                break
            documents.append(document)
            end = _BLANKS.match(characters, end).end()  # type: ignore[union-attr]
        if len(documents) < 2 or end < len(characters):
            raise
        yield from ((f"{name}, document {number}", one) for number, one in enumerate(documents, 1))


def _is_whole(line: bytes) -> bool:
    """Return whether a line is a document by itself, and not the first one of a document over several lines."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return _python_literal(line) is not None
    return True


def parsed(text: bytes, where: str) -> Any:
    """The document. `where` names it in errors."""
    if len(text) > MAX_BYTES:
        raise DumpError(f"{where}: a JSON document of more than {MAX_BYTES:,} bytes; expected at most that many.")
    try:
        return json.loads(text)
    except RecursionError:
        raise DumpError(f"{where}: its JSON is nested too deeply.") from None
    except ValueError as error:  # no JSON, or no UTF-8
        if (literal := _python_literal(text)) is not None:
            return literal
        if _REPR.match(text):
            raise DumpError(
                f"{where}: is the repr of a Python object; expected JSON, as `response.model_dump_json()` writes it."
            ) from None
        raise DumpError(f"{where}: no JSON ({shown(error, _LONGEST_SHOWN)}).") from None


def _python_literal(text: bytes) -> Any:
    """The dict or list that Python printed, None if it is none."""
    if b"'" not in text or len(text) > MAX_LITERAL_BYTES or not text.lstrip().startswith((b"{", b"[")):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes that Python deprecates
        try:
            literal = ast.literal_eval(_INFINITY.sub("1e999", text.decode().strip()))
            return json.loads(json.dumps(literal))  # as JSON has it: no tuples or bytes
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return None


class StreamEvent(dict[str, Any]):
    """A document that came as a server-sent event."""
