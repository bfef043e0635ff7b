"""Arrays that lie in files: checked by their headers first, then read as streams of bounded size.

Whatever comes from a file is hostile until checked. Exceptions of zipfile, zlib and numpy's header parser stop here:
each becomes a `DumpError` of one sentence.
"""

from __future__ import annotations

import io
import math
import shutil
import struct
import tempfile
import threading
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from ...errors import DumpError
from ...text import shown

READ_BYTES = 1 << 20  # one read; a deflate stream then never holds more than this unpacked
HEADER_BYTES = 10_000  # numpy's own limit on an npy header
SPOOL_BYTES = 32 << 20  # columns of a Fortran-order array turned around at a time
SPOOL_ROWS = 1 << 16  # beyond it the runs written while turning become too short to be quick

# What zipfile, zlib, struct, ast, json and numpy raise on damaged input (found by fuzzing; RuntimeError covers
# RecursionError and zipfile's NotImplementedError; ValueError covers UnicodeError and json's).
FOREIGN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    tokenize.TokenError,  # numpy's filter for headers written by Python 2
)


@contextmanager
def foreign_errors(where: str, expected: str) -> Iterator[None]:
    """Turns an exception of a parser below into one sentence about `where`."""
    try:
        yield
    except FOREIGN as error:
        reason = shown(error, 120).rstrip(". ") or type(error).__name__
        raise DumpError(f"{where} cannot be read ({reason}); expected {expected}.") from error


class ByteStream(Protocol):
    """Stream that elements are read from: a window of a file, or a member of an archive."""

    def readinto(self, buffer: Any, /) -> int | None: ...

    def close(self) -> None: ...


class Window(io.RawIOBase):
    """A span of bytes of an open file as a stream of its own; several windows share the file."""

    def __init__(self, file: io.RawIOBase, start: int, length: int, lock: threading.Lock) -> None:
        self._file, self._place, self._left, self._lock = file, start, length, lock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self._left]
        with self._lock:
            self._file.seek(self._place)
            count = self._file.readinto(view)
        if not count:
            return 0
        self._place += count
        self._left -= count
        return count


class Chain(io.RawIOBase):
    """Several streams one after another."""

    def __init__(self, streams: Iterator[ByteStream]) -> None:
        self._streams = streams
        self._current = next(streams, None)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._current is not None:
            count = self._current.readinto(buffer)
            if count:
                return count
            self._current = next(self._streams, None)
        return 0


class RowCut(io.RawIOBase):
    """The first `kept` bytes of every `row` bytes of a stream, of whose last row the rest may be missing."""

    def __init__(self, stream: ByteStream, row: int, kept: int) -> None:
        self._stream, self._row, self._kept = stream, row, kept
        self._place = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = self._stream.readinto(view[: self._kept - self._place]) or 0
        self._place += count
        if self._place == self._kept:  # read to the end, where an archive checks its sum
            self._place = 0
            rest = bytearray(self._row - self._kept)
            done = 0
            while done < len(rest) and (more := self._stream.readinto(memoryview(rest)[done:])):
                done += more
        return count


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, its size checked but its elements unread.

    file, key: as shown to the user; dtype: as saved, byte order included; shape: as saved; open_stream: a fresh stream
    of its elements.
    """

    file: str
    key: str
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran: bool
    open_stream: Callable[[], ByteStream]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def where(self) -> str:
        return f"{self.file}: '{shown(self.key)}'"

    def first_columns(self, count: int) -> StoredArray:
        """The array cut to the first entries of its last axis."""
        shape, item = (*self.shape[:-1], count), self.dtype.itemsize
        if self.fortran:  # they come first in the file
            return replace(self, shape=shape)
        row, kept = self.shape[-1] * item, count * item
        return replace(self, shape=shape, open_stream=lambda: cast(ByteStream, RowCut(self.open_stream(), row, kept)))

    def refusal(self, found: str, expected: str) -> DumpError:
        """Error about this array, in one sentence."""
        return DumpError(f"{self.where} {found}; expected {expected}.")


class Elements:
    """The elements of an array in file order, a few at a time. At the last one the archive's checksum is checked."""

    def __init__(self, array: StoredArray) -> None:
        self.array = array
        with self._errors():
            self._stream = array.open_stream()

    def _errors(self) -> Any:
        return foreign_errors(self.array.where, "an undamaged, complete file")

    def take(self, count: int) -> NDArray[Any]:
        """The next `count` elements. [count], in the array's own dtype."""
        out = np.empty(count, self.array.dtype)
        self.fill(out)
        return out

    def fill(self, out: NDArray[Any]) -> None:
        """Fills the contiguous `out` with the next elements' bytes."""
        view = out.reshape(-1).view(np.uint8).data
        done = 0
        with self._errors():
            while done < len(view):
                count = self._stream.readinto(view[done : done + READ_BYTES])
                if not count:
                    raise EOFError(f"{len(view) - done} bytes are missing")
                done += count

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield all elements, at most 1 MiB at a time. [n] each."""
        step = max(1, READ_BYTES // self.array.dtype.itemsize)
        for start in range(0, self.array.size, step):
            yield self.take(min(step, self.array.size - start))

    def close(self) -> None:
        self._stream.close()


def load(array: StoredArray) -> NDArray[Any]:
    """The whole of a small array, in its own shape and dtype. The caller has checked its size."""
    elements = Elements(array)
    try:
        flat = elements.take(array.size)
    finally:
        elements.close()
    return flat.reshape(array.shape, order="F" if array.fortran else "C")


def read_npy_header(stream: Any, file: str, key: str) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """(shape, fortran, dtype, bytes of the header) of an npy stream, by numpy's parser, after its length was checked.

    Format: numpy.lib.format. Version 3 differs from 2 only in the encoding of field names, and arrays with fields are
    refused anyway.
    """
    where = f"{file}: '{shown(key)}'"
    with foreign_errors(where, "an npy array as np.save writes it"):
        start = _read_up_to(stream, 12)
        if start[:6] != npy_format.MAGIC_PREFIX:
            raise DumpError(
                f"{where} begins with {start[:6]!r}; expected an npy array, which begins with"
                f" {npy_format.MAGIC_PREFIX!r}."
            )
        version = tuple(start[6:8])
        if version not in ((1, 0), (2, 0), (3, 0)) or len(start) < 12:
            raise DumpError(f"{where} is an npy array of format version {version}; expected version 1, 2 or 3.")
        prefix = 10 if version == (1, 0) else 12
        length = int.from_bytes(start[8:prefix], "little")
        if length > HEADER_BYTES:
            raise DumpError(f"{where} has a header of {length} bytes; expected at most {HEADER_BYTES}.")
        text = start + _read_up_to(stream, prefix + length - len(start))
        parse = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # numpy and ast remark on odd headers; odd ones are refused below or harmless
            shape, fortran, dtype = parse(io.BytesIO(text[8 : prefix + length]), max_header_size=HEADER_BYTES)
        if any(not 0 <= n < 1 << 62 for n in shape) or any(isinstance(n, bool) for n in shape):
            raise DumpError(f"{where} declares the shape {shown(shape)}; expected whole numbers from 1 up.")
    return shape, fortran, dtype, prefix + length


def _read_up_to(stream: Any, count: int) -> bytes:
    """`count` bytes, or fewer at the end of the stream: one read may return less."""
    data = b""
    while len(data) < count:
        more = stream.read(count - len(data))
        if not more:
            break
        data += more
    return data


def check_elements(array: StoredArray, available: int) -> None:
    """Refuses what is not plain numbers or text, and a shape that the file does not back with bytes."""
    if array.dtype.hasobject:
        raise array.refusal("holds pickled Python objects", "plain numbers (nothing is ever unpickled)")
    if array.dtype.names is not None or array.dtype.subdtype is not None:
        raise array.refusal(f"has the structured dtype {shown(array.dtype)}", "one plain number an element")
    if array.nbytes == 0:
        raise array.refusal(f"is empty (shape {shown(array.shape)} of {shown(array.dtype)})", "at least one element")
    if array.nbytes != available:
        raise array.refusal(
            f"declares shape {shown(array.shape)} of {shown(array.dtype)}, {array.nbytes} bytes, but {available} are"
            " there",
            "a complete array and nothing after it",
        )


def in_c_order(array: StoredArray, stack: ExitStack) -> StoredArray:
    """Return the array with its last axis contiguous: itself, or turned around in a temporary file that `stack` closes.

    Memory stays at one block of columns: the file-order stream is read once, each block's rows are written to their
    places.
    """
    if not array.fortran:
        return array
    vocab = array.shape[-1]
    leading = array.shape[:-1]
    rows = math.prod(leading)
    if rows > SPOOL_ROWS:
        raise array.refusal(
            f"has {rows} positions in Fortran order",
            f"at most {SPOOL_ROWS} so, or the array saved through np.ascontiguousarray",
        )
    item = array.dtype.itemsize
    elements = Elements(array)
    try:
        with foreign_errors(array.where, "room for a temporary copy, or the array saved through np.ascontiguousarray"):
            if shutil.disk_usage(tempfile.gettempdir()).free < array.nbytes:
                raise OSError(f"turning its Fortran order needs {array.nbytes} bytes of temporary disk")
            spool = stack.enter_context(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115
            step = max(1, SPOOL_BYTES // (rows * item))
            for first in range(0, vocab, step):
                columns = min(step, vocab - first)
                block = elements.take(rows * columns).reshape((*leading, columns), order="F")
                lines = np.ascontiguousarray(block).reshape(rows, columns)
                if columns == vocab:
                    spool.write(lines.reshape(-1).view(np.uint8).data)
                    continue
                raw = lines.view(np.uint8).reshape(rows, columns * item)
                for row in range(rows):
                    spool.seek((row * vocab + first) * item)
                    spool.write(raw[row].data)
    finally:
        elements.close()
    lock, raw_spool = threading.Lock(), cast(io.RawIOBase, spool)
    return replace(array, fortran=False, open_stream=lambda: Window(raw_spool, 0, array.nbytes, lock))
