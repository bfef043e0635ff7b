"""Untrusted JSON, within bounds: one document, several, or a stream, unpacked and decoded as its
bytes say.
"""

import codecs
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from ..errors import DumpError
from ..text import clean

# of one document; parsed, it takes up to twenty times that
MAX_BYTES = 128 << 20
MAX_FILE_BYTES = 4 << 30  # of a file with a document a line, unpacked
_HEAD_BYTES = 4096  # that decide what a file is
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_BLANKS = re.compile(r"\s*")
_EVENT = re.compile(rb"(data|event|id|retry)?:")
# An escaped backslash or a whole pair, which stay, or half a pair.
_SURROGATES = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>\\u[dD][89a-fA-F]..)")
_REPR = re.compile(rb"\s*\[?\s*(\{'|[A-Z]\w*\()")  # of Python's objects
# JSON, events, or a repr
_START = re.compile(rb"(\xef\xbb\xbf)?\s*([{\[]|data:|event:|id:|retry:|:|[A-Z]\w+\()")
_Lines = Iterator[tuple[int, bytes]]


def documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Each document of a file with the name of its place: one, several, one a line, or the events
    of a stream.

    DumpError for what is no JSON, is nested too deeply, or has more than MAX_BYTES.
    """
    with open_plain(path) as file:
        yield from documents_of(file, clean(path.name))


def documents_of(file: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Each document of an open file, as `documents` has them. `name` is the file's in errors."""
    lines = _number_lines(file, name)
    texts = (each for each in lines if each[1].strip())
    first = next(texts, (1, b""))
    if _EVENT.match(first[1]):
        yield from _events(chain([first], lines), name)
    elif _is_whole(first[1]) and (second := next(texts, None)) is not None:
        for number, line in chain([first, second], texts):
            source = f"{name}, line {number}"
            yield source, parse(line, source)
    else:
        text = bytearray(first[1])
        for _, line in lines:
            # else `parse` refuses it
            if len(text) <= MAX_BYTES:
                text += line
        yield from _consecutive(bytes(text), name)


def _number_lines(file: BinaryIO, name: str) -> _Lines:
    size = 0
    for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), 1):
        size += len(line)
        if size > MAX_FILE_BYTES:
            raise DumpError(f"{name}: has more than {MAX_FILE_BYTES:,} bytes; split it.")
        yield number, line.removeprefix(codecs.BOM_UTF8)


def _events(lines: Iterable[tuple[int, bytes]], name: str) -> Iterator[tuple[str, Any]]:
    """Return the documents of server-sent events; one may go over several `data:` lines (WHATWG
    HTML, section 9.2).
    """
    data = b""
    source = name
    # a blank line ends an event
    for number, line in chain(lines, [(0, b"")]):
        text = line.strip()
        if not data:
            source = f"{name}, line {number}"
        if text.startswith(b"data:") and text[5:].strip() != b"[DONE]":
            data += text[5:]
        elif text[:1] == b"{":  # an error that a server writes into its stream
            data += text
        if data.strip() and (_is_whole(data) or not text):
            yield source, parse(data, source)
            data = b""


def _consecutive(text: bytes, name: str) -> Iterator[tuple[str, Any]]:
    """Read the documents of a text in which they follow each other without a line of their own."""
    try:
        yield name, parse(text, name)
    except DumpError:
        # documents one after another, as a log has them
        decoder = json.JSONDecoder()
        characters = escape_lone_surrogates(text).decode("utf-8", "replace").strip()
        documents = []
        end = 0
        with suppress(ValueError, RecursionError):
            while end < len(characters):
                document, end = decoder.raw_decode(characters, end)
                documents.append(document)
                end += len(_BLANKS.match(characters, end)[0])  # type: ignore[index]
        if len(documents) < 2 or end < len(characters):
            raise
        for number, document in enumerate(documents, 1):
            yield f"{name}, document {number}", document


def _is_whole(line: bytes) -> bool:
    """Return whether a line is a document by itself, and not the first one of a document over
    several lines.
    """
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def parse(text: bytes, source: str) -> Any:
    """Parse a document. source: its name in errors."""
    if len(text) > MAX_BYTES:
        raise DumpError(
            f"{source}: a JSON document of more than {MAX_BYTES:,} bytes; expected at most that"
            " many.",
        )
    try:
        return json.loads(escape_lone_surrogates(text))
    except RecursionError:
        raise DumpError(f"{source}: its JSON is nested too deeply.") from None
    except ValueError as error:  # no JSON, or no UTF-8
        if _REPR.match(text):
            raise DumpError(
                f"{source}: is a Python object as printed; expected JSON, as"
                " `response.model_dump_json()` writes it.",
            ) from None
        raise DumpError(f"{source}: no JSON ({clean(error, 60)}).") from None


def error_in(value: Any) -> Any:
    """Return what a server's error says, which may lie in another one."""
    for _ in range(3):
        if isinstance(value, dict):
            value = value.get("error") or value.get("message") or value.get("detail") or str(value)
    return value


def escape_lone_surrogates(text: bytes) -> bytes:
    r"""Return a document in which half a character, which no text can hold, is spelled: \ud800 as
    six characters.
    """
    return _SURROGATES.sub(lambda match: b"\\" + match[0] if match["half"] else match[0], text)


def is_payload(path: Path) -> bool:
    """Return whether a file, unpacked, begins as JSON or a stream does."""
    try:
        with open_plain(path) as file:
            head = file.read(_HEAD_BYTES)
    except DumpError:
        # its reader says that it is damaged
        return True
    # a run file begins with a checksum
    return head[8:12] != b"DUCK" and _START.match(head) is not None


def begins(path: Path, start: bytes) -> bool:
    """Return whether a path is a file that, unpacked, begins with some bytes."""
    # a pipe would be empty afterwards
    if not path.is_file():
        return False
    try:
        with open_plain(path) as file:
            return file.read(len(start)) == start
    except DumpError:
        return False


@contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a file as UTF-8, unpacked. DumpError if it cannot be unpacked or decoded."""
    with path.open("rb") as file:
        head = file.read(4)
    packed = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    try:
        # opened here: pyarrow takes no name that is not UTF-8
        with path.open("rb") as file, pa.input_stream(file, compression=packed) as stream:
            plain = io.BufferedReader(stream)
            # as PowerShell writes
            if plain.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                yield io.BytesIO(plain.read(2 * MAX_BYTES).decode("utf-16").encode())
            else:
                yield cast(BinaryIO, plain)
    except (OSError, UnicodeError) as error:
        raise DumpError(
            f"{clean(path.name)}: cannot be unpacked or decoded ({clean(error, 80)}).",
        ) from None
