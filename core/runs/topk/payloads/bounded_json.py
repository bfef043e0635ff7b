"""Untrusted JSON, within bounds: one document, several, or a stream, unpacked and decoded as its bytes say."""

from __future__ import annotations

import ast
import bz2
import codecs
import gzip
import json
import lzma
import re
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from ....errors import DumpError
from ....text import clean

MAX_BYTES = 128 << 20  # of one document; parsed, it takes up to twenty times that
MAX_FILE_BYTES = 4 << 30  # of a file with a document a line
MAX_LITERAL_BYTES = 4 << 20  # of a Python literal, which takes a hundred times its size to parse
_LONGEST_SHOWN = 60
_BLANKS = re.compile(r"\s*")
_EVENT = re.compile(rb"(data|event|id|retry)?:")
_INFINITY = re.compile(r"\binf\b(?=[,\])}])")  # as Python prints it
_REPR = re.compile(rb"\s*\[?[A-Z]\w*\(\w+=")
MAX_UNPACKED_BYTES = 1 << 30  # of a compressed file, or one in UTF-16
_HEAD_BYTES = 4096  # that decide what a file is
_PIECE_BYTES = 1 << 20

_OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": lambda path: pa.input_stream(str(path), compression="zstd"),
}
_DAMAGED = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)
_ENCODINGS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", b"{\0": "utf-16-le", b"\0{": "utf-16-be"}
# JSON or a Python literal, server-sent events, the head of an HTTP answer, the repr of a client's object
_START = re.compile(rb"(\xef\xbb\xbf)?\s*([{\[]|data:|event:|id:|retry:|:|HTTP/\d|[A-Z]\w+(\(|$))")


def documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Each document of a file with the name of its place: one, several, one a line, or the events of a stream.

    DumpError for what is no JSON, is nested too deeply, or has more than MAX_BYTES.
    """
    name = clean(path.name)
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise DumpError(f"{name}: has {size:,} bytes; expected at most {MAX_FILE_BYTES:,}.")
    with plain_file(path) as file:
        yield from documents_of(file, name)


def documents_of(file: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Each document of an open file, as `documents` has them. `name` is the file's in errors."""
    lines = _number_lines(file)
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
        for number, line in _number_lines(file, at):
            if line.strip():
                yield f"{name}, line {number}", parse(line, f"{name}, line {number}")
    else:
        file.seek(start)
        yield from _consecutive(file.read(MAX_BYTES + 1).removeprefix(codecs.BOM_UTF8), name)


def _number_lines(file: BinaryIO, first: int = 1) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_BYTES + 1), b""), first):
        yield number, line.removeprefix(codecs.BOM_UTF8)


def _events(lines: Iterator[tuple[int, bytes]], name: str) -> Iterator[tuple[str, Any]]:
    """Return the documents of server-sent events; one may go over several `data:` lines (WHATWG HTML, section 9.2)."""
    data, source = b"", name
    for number, line in chain(lines, [(0, b"")]):  # a blank line ends an event
        text = line.strip()
        if not data:
            source = f"{name}, line {number}"
        if text.startswith(b"data:") and text[5:].strip() != b"[DONE]":
            data += text[5:]
        elif text[:1] == b"{":  # an error that a server writes into its stream
            data += text
        if data.strip() and (_is_whole(data) or not text):
            document = parse(data, source)
            yield source, StreamEvent(document) if isinstance(document, dict) else document
            data = b""


def _consecutive(text: bytes, name: str) -> Iterator[tuple[str, Any]]:
    """Read the documents of a text in which they follow each other without a line of their own."""
    try:
        yield name, parse(text, name)
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


def parse(text: bytes, source: str) -> Any:
    """Parse a document. source: its name in errors."""
    if len(text) > MAX_BYTES:
        raise DumpError(f"{source}: a JSON document of more than {MAX_BYTES:,} bytes; expected at most that many.")
    try:
        return json.loads(text)
    except RecursionError:
        raise DumpError(f"{source}: its JSON is nested too deeply.") from None
    except ValueError as error:  # no JSON, or no UTF-8
        if (literal := _python_literal(text)) is not None:
            return literal
        if _REPR.match(text):
            raise DumpError(
                f"{source}: is the repr of a Python object; expected JSON, as `response.model_dump_json()` writes it."
            ) from None
        raise DumpError(f"{source}: no JSON ({clean(error, _LONGEST_SHOWN)}).") from None


def _python_literal(text: bytes) -> Any:
    """Return the dict or list that Python printed, None if it is none."""
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


def is_payload(path: Path) -> bool:
    """Return whether a file, unpacked, begins as JSON, a stream or a saved HTTP answer does."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if (unpack := _opener(head)) is not None:
        try:
            with unpack(path) as packed:
                head = packed.read(_HEAD_BYTES)
        except _DAMAGED:
            return True  # its reader says that it is damaged
    is_coded = _opener(head) is not None or _encoding(head) is not None
    return head[8:12] != b"DUCK" and (is_coded or _START.match(head) is not None)  # a run file begins with a checksum


@contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file as UTF-8. DumpError if it cannot be unpacked or decoded."""
    with path.open("rb") as file, tempfile.TemporaryFile() as plain:
        head = file.read(_HEAD_BYTES)
        unpack = _opener(head)
        if unpack is None and _encoding(head) is None:
            file.seek(0)
            yield file
            return
        name = clean(path.name)
        try:
            with unpack(path) if unpack is not None else path.open("rb") as source:
                head = source.read(_HEAD_BYTES)
                decoder = codecs.getincrementaldecoder(_encoding(head) or "latin-1")()
                for piece in chain([head], iter(lambda: source.read(_PIECE_BYTES), b"")):
                    plain.write(piece if _encoding(head) is None else decoder.decode(piece).encode())
                    if plain.tell() > MAX_UNPACKED_BYTES:
                        raise DumpError(f"{name}: unpacks to more than {MAX_UNPACKED_BYTES:,} bytes; split it.")
                decoder.decode(b"", final=True)
        except _DAMAGED as error:
            raise DumpError(f"{name}: cannot be unpacked or decoded ({clean(error, 80)}).") from None
        plain.seek(0)
        yield cast(BinaryIO, plain)


def _opener(head: bytes) -> Callable[[Path], Any] | None:
    return next((unpack for magic, unpack in _OPENERS.items() if head.startswith(magic)), None)


def _encoding(head: bytes) -> str | None:
    return next((encoding for start, encoding in _ENCODINGS.items() if head.startswith(start)), None)
