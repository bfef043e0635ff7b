"""Arrays that lie in files: their headers are checked first, then rows are read a few at a time
from the mapped file.

Exceptions of zipfile, zlib, numpy's header parser and the like become a `DumpError` of one sentence
here.
"""

from __future__ import annotations

import io
import math
import mmap
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from ...errors import DumpError, UlpscopeError
from ...numerics.arrays import Array
from ...text import clean

HEADER_BYTES = 10_000  # numpy's own limit on an npy header
BLOCK_BYTES = 1 << 20  # of a look at all rows
Rows = Callable[[int, int], Array]
Shape = tuple[int, ...]


@contextmanager
def foreign_errors(label: str, need: str) -> Iterator[None]:
    """Turn an exception of a parser into one sentence about `label`."""
    try:
        yield
    except UlpscopeError:
        raise
    # on damaged input they raise nearly every kind
    except Exception as error:
        reason = clean(error, 120).rstrip(". ") or type(error).__name__
        raise DumpError(f"{label} cannot be read ({reason}); expected {need}.") from error


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, its size checked but its elements unread.

    file, key: as shown to the user; dtype: as saved, byte order included; rows: its rows [start,
    stop) in the order of the leading axes, as saved [n, columns]; checksum: CRC-32 of the bytes
    before the rows, and of all; columns: those that count of a longer last axis.
    """

    file: str
    key: str
    dtype: np.dtype
    shape: Shape
    rows: Rows
    checksum: tuple[int, int] | None = None
    columns: int | None = None

    @classmethod
    def in_memory(cls, file: str, key: str, values: Array) -> StoredArray:
        """Return an array whose elements are in memory, or look so in a mapped file."""
        return cls(file, key, values.dtype, values.shape, rows_of(lambda: values))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def label(self) -> str:
        return f"{self.file}: '{clean(self.key)}'"

    def checked_rows(self, step: int) -> Iterator[Array]:
        """All rows, `step` at a time; DumpError after the last if the checksum does not fit."""
        checksum, full_checksum = self.checksum or (0, 0)
        for start in range(0, self.size // self.shape[-1] if self.shape else 1, step):
            with foreign_errors(self.label, "an undamaged, complete file"):
                raw = self.rows(start, start + step)
                if self.checksum:
                    checksum = zlib.crc32(raw.reshape(-1).view(np.uint8).data, checksum)
            yield raw[:, : self.columns]
        if checksum != full_checksum:
            raise self.refusal("cannot be read (Bad CRC-32)", "an undamaged, complete file")

    def blocks(self) -> Iterator[Array]:
        """All rows, about 1 MiB at a time; maybe views of the file. [n, columns] each"""
        return self.checked_rows(max(1, BLOCK_BYTES // (self.shape[-1] * self.dtype.itemsize)))

    def load(self) -> Array:
        """Return the whole of a small array, flat. The caller has checked its size."""
        return np.concatenate([part.reshape(-1) for part in self.checked_rows(1 << 62)])

    def refusal(self, problem: str, need: str) -> DumpError:
        """Error about this array, in one sentence."""
        return DumpError(f"{self.label} {problem}; expected {need}.")


Arrays = dict[str, StoredArray]  # by key or side, in file order
Contents = tuple[Arrays, dict[str, str]]  # arrays and texts of a file, by key


def map_file(file: Any) -> mmap.mmap:
    """Return the bytes of an open file, which may be closed."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def rows_of(view: Callable[[], Array]) -> Rows:
    """Reader of rows of an array of any strides that copies no others. view: called at every
    read.
    """

    def read(start: int, stop: int) -> Array:
        values = view()
        forget(values)
        values = np.atleast_1d(values)
        if values.ndim <= 2 or values.flags.c_contiguous:
            return values.reshape(-1, values.shape[-1])[start:stop]
        # a reshape would copy the whole array
        places = range(start, min(stop, math.prod(values.shape[:-1])))
        return np.stack([values[np.unravel_index(place, values.shape[:-1])] for place in places])

    return read


def forget(values: Array) -> None:
    """Let go of the pages of a mapped file, which would count as memory of this process."""
    if isinstance(values.base, mmap.mmap):
        values.base.madvise(mmap.MADV_DONTNEED)


def read_npy_header(start: bytes | mmap.mmap, label: str) -> tuple[Shape, bool, np.dtype, int]:
    """(shape, is in Fortran order, dtype, bytes of the header) of an npy file that begins so, by
    numpy's parser.

    Version 3 differs from 2 only in the encoding of field names, and arrays with fields are refused
    anyway.
    """
    with foreign_errors(label, "an npy array as np.save writes it"), warnings.catch_warnings():
        # numpy and ast remark on odd headers, which are refused or harmless
        warnings.simplefilter("ignore")
        stream = io.BytesIO(start[: HEADER_BYTES + 12])
        version = npy_format.read_magic(stream)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"format version {version}")
        parse = npy_format.read_array_header_2_0
        if version == (1, 0):
            parse = npy_format.read_array_header_1_0
        shape, is_fortran, dtype = parse(stream, max_header_size=HEADER_BYTES)
        if any(type(n) is not int or not 0 <= n < 1 << 62 for n in shape):
            raise ValueError(f"declares the shape {shape}")
    return shape, is_fortran, dtype, stream.tell()


def check_elements(array: StoredArray, available: int) -> None:
    """DumpError for what is not plain numbers or text, and for a shape that the file does not back
    with bytes.
    """
    if array.dtype.hasobject or array.dtype.names is not None or array.dtype.subdtype is not None:
        raise array.refusal(
            f"has the dtype {clean(array.dtype)}",
            "one plain number an element; nothing is ever unpickled",
        )
    declared = f"shape {clean(array.shape)} of {clean(array.dtype)}"
    if array.nbytes == 0:
        raise array.refusal(f"is empty ({declared})", "at least one element")
    if array.nbytes != available:
        raise array.refusal(
            f"declares {declared}, {array.nbytes} bytes, but {available} are there",
            "a complete array and nothing after it",
        )
