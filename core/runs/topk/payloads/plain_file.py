"""A payload's file as UTF-8 text: unpacked and decoded, as its first bytes say."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa

from ....errors import DumpError
from ....text import shown

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


def starts_as_payload(head: bytes) -> bool:
    """Return whether a file that begins so may hold responses; one that is compressed may hold anything."""
    is_run_file = head[8:12] == b"DUCK"  # its first bytes are a checksum
    is_coded = _opener(head) is not None or _encoding(head) is not None
    return not is_run_file and (is_coded or _START.match(head) is not None)


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
    return starts_as_payload(head)


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
        name = shown(path.name)
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
            raise DumpError(f"{name}: cannot be unpacked or decoded ({shown(error, 80)}).") from None
        plain.seek(0)
        yield cast(BinaryIO, plain)


def _opener(head: bytes) -> Callable[[Path], Any] | None:
    return next((unpack for magic, unpack in _OPENERS.items() if head.startswith(magic)), None)


def _encoding(head: bytes) -> str | None:
    return next((encoding for start, encoding in _ENCODINGS.items() if head.startswith(start)), None)
