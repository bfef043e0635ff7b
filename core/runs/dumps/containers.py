"""The kinds of file a dump comes in: npz, npy, safetensors, torch.save's, and two of llama.cpp's. Each is told by its
first bytes, never by its name, so a renamed file opens as what it is.

Every declared size is checked against the file, and the total against a limit, before anything is unpacked or
allocated.
"""

from __future__ import annotations

import io
import json
import math
import stat
import threading
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeGuard, cast

import ml_dtypes
import numpy as np

from ...errors import DumpError
from ..file.bounds import MAX_SIDES
from . import torch_files
from .arrays import (
    HEADER_BYTES,
    ByteStream,
    StoredArray,
    Window,
    check_elements,
    foreign_errors,
    read_npy_header,
    shown,
)
from .llamacpp_files import READERS

MOST_ARRAYS = 3 * MAX_SIDES + 8  # every side, what it emitted, its dtype, and what is of all
MAX_KEY_LENGTH = 200
DIRECTORY_BYTES = (
    4 << 20
)  # a zip directory or safetensors header of MOST_ARRAYS takes 0.5 MB; parsed it takes some 20 times as much
DEFLATE_RATIO = 1032  # the most deflate can do (zlib's technical notes)
SUSPECT_RATIO = 200  # real logits shrink 1-10 times; beyond this and SUSPECT_BYTES an archive is taken for a bomb
SUSPECT_BYTES = 256 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
GAP_BYTES = 32  # between two zip members there may be a data descriptor (24 bytes), never a whole member

_SAFETENSORS: dict[str, Any] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "V2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}
_EXPECTED = "an npz, npy, safetensors or torch.save file"


@dataclass(frozen=True)
class Container:
    """One opened file: its arrays by key in file order, and its texts (safetensors' `__metadata__`)."""

    path: Path
    kind: str
    arrays: dict[str, StoredArray]
    texts: dict[str, str] = field(default_factory=dict)
    warning: str = ""  # a sentence that whoever reads figures of it has to know

    @property
    def name(self) -> str:
        return shown(self.path.name)


class _Bounded:
    """A file that refuses to be read in one huge piece: zipfile reads a directory as long as the archive says it is."""

    def __init__(self, file: io.FileIO, limit: int) -> None:
        self._file, self._limit = file, limit
        self.seek, self.tell, self.close = file.seek, file.tell, file.close

    def seekable(self) -> bool:
        return True

    def read(self, count: int = -1) -> bytes:
        data = b"" if count > self._limit else self._file.read(self._limit + 1 if count < 0 else count)
        if count > self._limit or len(data) > self._limit:
            raise zipfile.BadZipFile(f"a directory of more than {self._limit} bytes")
        return data


def open_container(path: Path, stack: ExitStack, max_bytes: int) -> Container:
    """Opens and checks one file; `stack` closes it. Reads headers only, and of no more arrays than a dump has."""
    name = shown(path.name or path)
    with foreign_errors(name, "a readable npz, npy, safetensors or torch.save file"):
        try:
            status = path.stat()
        except FileNotFoundError:
            raise DumpError(f"{name}: there is no such file; expected {_EXPECTED}.") from None
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise DumpError(f"{name}: is {kind}; expected {_EXPECTED}.")
        if status.st_size > max_bytes:
            raise DumpError(f"{name}: has {status.st_size} bytes; expected at most {max_bytes}.")
        file = stack.enter_context(path.open("rb", buffering=0))
        start = file.read(9)
    if not start:
        raise DumpError(f"{name}: is empty; expected {_EXPECTED}.")
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _zip(path, name, file, stack, max_bytes)
    if start[:6] == b"\x93NUMPY":
        return Container(path, "npy", {path.stem: _npy_array(name, path.stem, file, status.st_size)})
    for magic, (kind, read) in READERS.items():
        if start.startswith(magic):
            rows = read(name, path.stem, file, status.st_size)
            texts = {"compute_dtype": "float32", "meta": rows.meta}
            return Container(path, kind, rows.arrays(path.stem), texts, rows.warning)
    if len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 40:
        arrays, texts = _safetensors_arrays(name, file, status.st_size)
        return Container(path, "safetensors", arrays, texts)
    if start == torch_files.OLD_MAGIC:
        raise DumpError(f"{name}: is a file of torch.save before PyTorch 1.6; {torch_files.INSTEAD}.")
    hint = ", and nothing is ever unpickled" if start[:1] == b"\x80" else ""
    if packed := next((kind for magic, kind in _PACKED.items() if start.startswith(magic)), None):
        raise DumpError(f"{name}: is compressed with {packed}; unpack it first, dumps are read as they are.")
    raise DumpError(f"{name}: begins with {start[:8]!r}; expected {_EXPECTED}{hint}.")


def _npy_array(name: str, key: str, file: io.FileIO, file_bytes: int) -> StoredArray:
    file.seek(0)
    shape, fortran, dtype, header = read_npy_header(file, name, key)
    array = _windowed(name, key, dtype, shape, fortran, file, header, threading.Lock())
    check_elements(array, file_bytes - header)
    return array


def _windowed(
    name: str,
    key: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    fortran: bool,
    file: io.FileIO,
    start: int,
    lock: threading.Lock,
) -> StoredArray:
    length = math.prod(shape) * dtype.itemsize

    def open_stream() -> ByteStream:
        return Window(file, start, length, lock)

    return StoredArray(name, key, dtype, shape, fortran, open_stream)


def check_key(name: str, key: str) -> None:
    """Refuses a key that could not be shown, or that plays a path trick."""
    parts = key.split("/")
    if len(key) > MAX_KEY_LENGTH:
        raise DumpError(
            f"{name}: '{shown(key)}' is a name of {len(key)} characters; expected at most {MAX_KEY_LENGTH}."
        )
    if (
        not key.strip()
        or not key.isprintable()
        or "\\" in key
        or ":/" in key
        or any(part.strip() in ("", ".", "..") for part in parts)
    ):
        raise DumpError(
            f"{name}: '{shown(key)}' is an unsafe name; expected a printable one without '..', an empty part or a"
            " leading '/'."
        )


def _zip(path: Path, name: str, file: io.FileIO, stack: ExitStack, max_bytes: int) -> Container:
    """An archive of np.savez or of torch.save."""
    with foreign_errors(name, "an undamaged, complete npz archive"):
        archive = stack.enter_context(zipfile.ZipFile(_Bounded(file, DIRECTORY_BYTES)))
        members = archive.infolist()
        directory = archive.start_dir
    if (said := torch_files.pickle_of(members)) is not None:
        _check_sizes(name, members, max_bytes)
        _check_places(name, members, file, directory)
        arrays, texts, is_bare = torch_files.read(name, path.stem, file, archive, said)
        for key in arrays:
            check_key(name, key)
        _check_count(name, len(arrays), "tensors")
        if (total := sum(array.nbytes for array in arrays.values())) > max_bytes:
            raise DumpError(f"{name}: unpacks to {total} bytes; expected at most {max_bytes}.")
        return Container(path, "npy" if is_bare else "torch", arrays, texts)
    return Container(path, "npz", _npz_arrays(name, file, archive, members, directory, max_bytes))


def _check_count(name: str, count: int, what: str) -> None:
    if count > MOST_ARRAYS:
        raise DumpError(f"{name}: holds {count} {what}; expected at most {MAX_SIDES} sides.")


def _npz_arrays(
    name: str, file: io.FileIO, archive: zipfile.ZipFile, members: list[zipfile.ZipInfo], directory: int, max_bytes: int
) -> dict[str, StoredArray]:
    _check_count(name, len(members), "members")
    keys: set[str] = set()
    for member in members:
        key = _member_key(name, member)
        if key in keys:
            raise DumpError(f"{name}: '{shown(key)}' is there twice; expected one member of each name.")
        keys.add(key)
    _check_sizes(name, members, max_bytes)
    _check_places(name, members, file, directory)
    arrays: dict[str, StoredArray] = {}
    for member in members:
        key = member.filename.removesuffix(".npy")
        with (
            foreign_errors(f"{name}: '{shown(key)}'", "an undamaged member of an npz archive"),
            archive.open(member) as stream,
        ):
            shape, fortran, dtype, header = read_npy_header(stream, name, key)
        arrays[key] = _zipped(name, key, dtype, shape, fortran, archive, member, header)
        check_elements(arrays[key], member.file_size - header)
    return arrays


def _zipped(
    name: str,
    key: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    fortran: bool,
    archive: zipfile.ZipFile,
    member: Any,
    header: int,
) -> StoredArray:
    def open_stream() -> ByteStream:
        stream = archive.open(member)
        stream.read(header)
        return cast(ByteStream, stream)  # zipfile's own class has readinto

    return StoredArray(name, key, dtype, shape, fortran, open_stream)


def _member_key(name: str, member: zipfile.ZipInfo) -> str:
    """The array's key, after its member's name, method and flags were found harmless."""
    if "\0" in member.orig_filename:  # zipfile cuts the name there, so it would pass for another
        raise DumpError(
            f"{name}: '{shown(member.orig_filename)}' is a name with a NUL in it; expected a printable name."
        )
    if not member.filename.endswith(".npy"):
        raise DumpError(
            f"{name}: holds '{shown(member.filename)}', which is no npy array; expected an npz archive as np.savez"
            " writes it."
        )
    key = member.filename.removesuffix(".npy")
    check_key(name, key)
    if member.flag_bits & 0x1:
        raise DumpError(f"{name}: '{shown(key)}' is encrypted; expected an archive without a password.")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DumpError(
            f"{name}: '{shown(key)}' is packed by method {member.compress_type}; expected stored or deflated, as"
            " np.savez writes it."
        )
    return key


def _check_sizes(name: str, members: list[zipfile.ZipInfo], max_bytes: int) -> None:
    """Declared sizes against the packed ones and the limit."""
    total = sum(member.file_size for member in members)
    if total > max_bytes:
        raise DumpError(f"{name}: unpacks to {total} bytes; expected at most {max_bytes}.")
    for member in members:
        key, packed, unpacked = (shown(member.filename.removesuffix(".npy")), member.compress_size, member.file_size)
        stored = member.compress_type == zipfile.ZIP_STORED
        if (stored and packed != unpacked) or unpacked > packed * DEFLATE_RATIO + HEADER_BYTES:
            raise DumpError(
                f"{name}: '{key}' declares {unpacked} bytes out of {packed} packed ones; expected sizes that agree."
            )
        if unpacked > SUSPECT_BYTES and unpacked > packed * SUSPECT_RATIO:
            raise DumpError(
                f"{name}: '{key}' unpacks {packed} bytes to {unpacked}, more than {SUSPECT_RATIO} times as many;"
                " expected logits, which pack far worse: save without compression (np.savez)."
            )
    packed = sum(member.compress_size for member in members)
    if total > SUSPECT_BYTES and total > packed * SUSPECT_RATIO:  # several members, each small enough by itself
        raise DumpError(
            f"{name}: unpacks {packed} bytes to {total}, more than {SUSPECT_RATIO} times as many; expected logits,"
            " which pack far worse: save without compression (np.savez)."
        )


def _check_places(name: str, members: list[zipfile.ZipInfo], file: io.FileIO, directory: int) -> None:
    """Members stand one after another from the file's start to its directory: none overlaps (a bomb) or hides (a
    damaged directory).
    """
    place = 0
    for member in sorted(members, key=lambda m: m.header_offset):
        start, key = member.header_offset, shown(member.filename.removesuffix(".npy"))
        with foreign_errors(f"{name}: '{key}'", "an undamaged member of an npz archive"):
            if start < 0:
                raise EOFError("it begins before the file")
            file.seek(start)
            local = file.read(30)
            if len(local) < 30:
                raise EOFError("the file ends before it")
        end = (
            start
            + 30
            + int.from_bytes(local[26:28], "little")
            + int.from_bytes(local[28:30], "little")
            + member.compress_size
        )
        if start < place or end > directory:
            raise DumpError(
                f"{name}: '{key}' overlaps another part of the archive; expected members one after another."
            )
        if start > place + GAP_BYTES:
            _gap(name, start - place)
        place = end
    if members and directory > place + GAP_BYTES:
        _gap(name, directory - place)


def _gap(name: str, count: int) -> NoReturn:
    raise DumpError(
        f"{name}: has {count} bytes that belong to no member of its directory; expected an undamaged npz archive."
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _safetensors_arrays(name: str, file: io.FileIO, file_bytes: int) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Format: 8 bytes of length, JSON header, bytes of the tensors without holes or overlaps
    (huggingface.co/docs/safetensors).

    Read here and not by the safetensors library, which has no bfloat16 for numpy; the raw bytes are simple to stream.
    """
    file.seek(0)
    with foreign_errors(name, "an undamaged safetensors header"):
        length = int.from_bytes(file.read(8), "little")
        if length > min(DIRECTORY_BYTES, file_bytes - 8):
            raise DumpError(
                f"{name}: declares a safetensors header of {length} bytes; expected at most {DIRECTORY_BYTES} and a"
                " complete file."
            )
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_no_duplicates)
        if not isinstance(header, dict):
            raise DumpError(f"{name}: has a safetensors header that is no JSON object; expected a table of tensors.")
    texts = header.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise DumpError(f"{name}: '__metadata__' is not a table of texts; expected one text for each key.")
    _check_count(name, len(header), "tensors")
    lock = threading.Lock()
    arrays: dict[str, StoredArray] = {}
    spans: list[tuple[int, int, str]] = []
    for key, entry in header.items():
        check_key(name, key)
        dtype, shape, begin, end = _tensor(name, key, entry)
        arrays[key] = _windowed(name, key, dtype, shape, False, file, 8 + length + begin, lock)
        check_elements(arrays[key], end - begin)
        spans.append((begin, end, key))
    place = 0
    for begin, end, key in sorted(spans):
        if begin != place or 8 + length + end > file_bytes:
            raise DumpError(
                f"{name}: '{shown(key)}' lies at bytes {begin} to {end}; expected it to begin at {place} and to end"
                " within the file."
            )
        place = end
    if 8 + length + place != file_bytes:
        raise DumpError(f"{name}: has {file_bytes - 8 - length - place} bytes after its last tensor; expected none.")
    return arrays, texts


def _tensor(name: str, key: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of one tensor of a safetensors header; BF16 is numpy's 2-byte void, as in npz."""

    def whole(numbers: Any) -> TypeGuard[list[int]]:
        return (
            isinstance(numbers, list)
            and len(numbers) <= 64
            and all(type(n) is int and 0 <= n < 1 << 62 for n in numbers)
        )

    found = entry if isinstance(entry, dict) else {}
    shape, offsets, dtype = (found.get("shape"), found.get("data_offsets"), found.get("dtype"))
    if not whole(shape) or not whole(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise DumpError(
            f"{name}: '{shown(key)}' has the entry {shown(entry)}; expected dtype, shape and data_offsets of whole"
            " numbers."
        )
    if not isinstance(dtype, str) or dtype not in _SAFETENSORS:
        raise DumpError(f"{name}: '{shown(key)}' has the dtype {shown(dtype)}; expected F32, F16 or BF16.")
    return np.dtype(_SAFETENSORS[dtype]), tuple(shape), offsets[0], offsets[1]
