"""File formats of dumps: npz, npy, safetensors, torch.save's, and two of llama.cpp's. A format is recognized by the
first bytes, never by the file's name.

Every declared size is checked against the file, and the total against a limit, before anything is unpacked or
allocated.
"""

from __future__ import annotations

import mmap
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ..file.bounds import MAX_SIDES
from . import torch_files
from .arrays import HEADER_BYTES, StoredArray, check_elements, clean, foreign_errors, map_file, read_npy_header, rows_of
from .llamacpp_files import READERS

MOST_ARRAYS = 3 * MAX_SIDES + 8  # every side, its emitted tokens, its dtype, and the shared keys
MAX_KEY_LENGTH = 200
# of a zip directory or safetensors header; of MOST_ARRAYS one takes 0.5 MB; parsed it takes some 20 times as much
DIRECTORY_BYTES = 4 << 20
DEFLATE_RATIO = 1032  # the most deflate can do (zlib's technical notes)
SUSPECT_RATIO = 200  # real logits shrink 1-10 times; beyond this and SUSPECT_BYTES an archive is taken for a bomb
SUSPECT_BYTES = 256 << 20
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_SAFETENSORS = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"},
    **{f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E4M3FNUZ": "float8_e4m3fnuz"},
    **{"F8_E5M2": "float8_e5m2", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F8_E8M0": "float8_e8m0fnu"},
}
_EXPECTED = "an npz, npy, safetensors or torch.save file"


@dataclass(frozen=True)
class Container:
    """One opened file: its arrays by key in file order, and its texts (safetensors' `__metadata__`)."""

    path: Path
    kind: str
    arrays: dict[str, StoredArray]
    texts: dict[str, str] = field(default_factory=dict)
    warning: str = ""  # a sentence that belongs to all figures of it

    @property
    def name(self) -> str:
        return clean(self.path.name)


def open_container(path: Path, max_bytes: int) -> Container:
    """Check one file and map it. Reads headers only, and of no more arrays than a dump has."""
    name = clean(path.name or path)
    with foreign_errors(name, f"a readable file: {_EXPECTED}"):
        try:
            status = path.stat()
        except FileNotFoundError:
            raise DumpError(f"{name}: there is no such file; expected {_EXPECTED}.") from None
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise DumpError(f"{name}: is {kind}; expected {_EXPECTED}.")
        if status.st_size > max_bytes:
            raise DumpError(f"{name}: has {status.st_size} bytes; expected at most {max_bytes}.")
        if not status.st_size:
            raise DumpError(f"{name}: is empty; expected {_EXPECTED}.")
        with path.open("rb") as file:
            data = map_file(file)
    start = data[:9]
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        container = _zip(path, name, data, max_bytes)
    elif start[:6] == b"\x93NUMPY":
        key = path.stem
        shape, is_fortran, dtype, header = read_npy_header(data[: HEADER_BYTES + 12], f"{name}: '{clean(key)}'")
        array = _array(name, key, dtype, shape, is_fortran, lambda: (data, header))
        check_elements(array, len(data) - header)
        container = Container(path, "npy", {key: array})
    elif reader := next((each for magic, each in READERS.items() if start.startswith(magic)), None):
        kind, read = reader
        arrays, meta, warning = read(name, path.stem, data)
        container = Container(path, kind, arrays, {"compute_dtype": "float32", "meta": meta}, warning)
    elif len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 40:
        container = Container(path, "safetensors", *_safetensors(name, data))
    elif start == torch_files.OLD_MAGIC:
        raise DumpError(f"{name}: is a file of torch.save before PyTorch 1.6; {torch_files.INSTEAD}.")
    elif packed := next((kind for magic, kind in _PACKED.items() if start.startswith(magic)), None):
        raise DumpError(f"{name}: is compressed with {packed}; expected {_EXPECTED}: unpack it first.")
    else:
        hint = ", and nothing is ever unpickled" if start[:1] == b"\x80" else ""
        raise DumpError(f"{name}: begins with {start[:8]!r}; expected {_EXPECTED}{hint}.")
    if len(container.arrays) > MOST_ARRAYS:
        raise DumpError(f"{name}: holds {len(container.arrays)} arrays; expected at most {MAX_SIDES} sides.")
    return container


def _array(
    name: str,
    key: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    is_fortran: bool,
    place: Callable[[], tuple[mmap.mmap, int]],
    checksum: tuple[int, int] | None = None,
) -> StoredArray:
    """place: the mapped file and the offset of the elements in it, found when they are first read."""

    def view() -> NDArray[Any]:
        data, start = place()
        return np.ndarray(shape, dtype, data, start, order="F" if is_fortran else "C")

    return StoredArray(name, key, dtype, shape, rows_of(view), checksum)


def check_key(name: str, key: str) -> None:
    """DumpError for a key that could not be shown, or that plays a path trick."""
    if len(key) > MAX_KEY_LENGTH:
        problem = f"'{clean(key)}' is a name of {len(key)} characters"
        raise DumpError(f"{name}: {problem}; expected at most {MAX_KEY_LENGTH}.")
    is_path = "\\" in key or ":/" in key or any(part.strip() in ("", ".", "..") for part in key.split("/"))
    if is_path or not key.isprintable():
        need = "a printable one without '..', an empty part or a leading '/'"
        raise DumpError(f"{name}: '{clean(key)}' is an unsafe name; expected {need}.")


def _zip(path: Path, name: str, data: mmap.mmap, max_bytes: int) -> Container:
    """Read an archive of np.savez or of torch.save."""
    with foreign_errors(name, "an undamaged, complete npz archive"):
        end = data.rfind(b"PK\x05\x06")
        if int.from_bytes(data[end + 12 : end + 16], "little") > DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a directory of more than {DIRECTORY_BYTES} bytes")
        archive = zipfile.ZipFile(path)
    with archive:
        members = archive.infolist()
        pickle = next((one for one in members if one.filename.rpartition("/")[2] == torch_files.PICKLE), None)
        if pickle is None and len(members) > MOST_ARRAYS:
            raise DumpError(f"{name}: holds {len(members)} members; expected at most {MAX_SIDES} sides.")
        _check_sizes(name, members, max_bytes)
        place, starts = 0, {}
        for member in sorted(members, key=lambda m: m.header_offset):  # overlapping ones unpack to any size
            with foreign_errors(name, "an undamaged, complete archive"):
                local = data[member.header_offset : member.header_offset + 30]
                start = member.header_offset + 30 + sum(np.frombuffer(local, "<u2", 2, 26).tolist())
            if member.header_offset < place or start + member.compress_size > archive.start_dir:
                problem = f"'{clean(member.filename)}' overlaps another part of the archive"
                raise DumpError(f"{name}: {problem}; expected members one after another.")
            place, starts[member.filename] = start + member.compress_size, start
        if pickle is None:
            return Container(path, "npz", _npz_arrays(path, name, data, archive, starts))
        arrays, texts, is_bare = torch_files.read(name, path.stem, data, archive, pickle, starts)
    for key in arrays:
        check_key(name, key)
    if (total := sum(array.nbytes for array in arrays.values())) > max_bytes:
        raise DumpError(f"{name}: unpacks to {total} bytes; expected at most {max_bytes}.")
    return Container(path, "npy" if is_bare else "torch", arrays, texts)


def _check_sizes(name: str, members: list[zipfile.ZipInfo], max_bytes: int) -> None:
    """Check declared sizes against the packed ones and the limit."""
    total, packed = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    if total > max_bytes:
        raise DumpError(f"{name}: unpacks to {total} bytes; expected at most {max_bytes}.")
    for member in members:
        is_stored = member.compress_type == zipfile.ZIP_STORED
        most = member.compress_size if is_stored else member.compress_size * DEFLATE_RATIO + HEADER_BYTES
        if member.file_size > most or (is_stored and member.file_size < most):
            problem = f"declares {member.file_size} bytes out of {member.compress_size} packed ones"
            raise DumpError(f"{name}: '{clean(member.filename)}' {problem}; expected sizes that agree.")
    if total > SUSPECT_BYTES and total > packed * SUSPECT_RATIO:
        raise DumpError(
            f"{name}: unpacks {packed} bytes to {total}, more than {SUSPECT_RATIO} times as many; expected logits,"
            " which pack far worse: save without compression (np.savez)."
        )


def _npz_arrays(
    path: Path, name: str, data: mmap.mmap, archive: zipfile.ZipFile, starts: dict[str, int]
) -> dict[str, StoredArray]:
    arrays: dict[str, StoredArray] = {}
    for member in archive.infolist():
        key = member.orig_filename.removesuffix(".npy")
        label = f"{name}: '{clean(key)}'"
        if not member.filename.endswith(".npy"):
            problem = f"'{clean(member.filename)}', which is no npy array"
            raise DumpError(f"{name}: holds {problem}; expected an npz archive as np.savez writes it.")
        check_key(name, key)
        if key in arrays:
            raise DumpError(f"{label} is there twice; expected one member of each name.")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DumpError(f"{label} is packed by method {member.compress_type}; expected stored or deflated.")
        with foreign_errors(label, "an undamaged member of an npz archive"), archive.open(member) as stream:
            begin = stream.read(min(member.file_size, HEADER_BYTES + 12))
        shape, is_fortran, dtype, header = read_npy_header(begin, label)
        checksum = None
        if member.compress_type == zipfile.ZIP_STORED and not is_fortran:
            checksum = zlib.crc32(begin[:header]), member.CRC
            place = _place_at(data, starts[member.filename] + header)
        else:
            place = _unpack_at(path, member, header)
        arrays[key] = _array(name, key, dtype, shape, is_fortran, place, checksum)
        check_elements(arrays[key], member.file_size - header)
    return arrays


def _place_at(data: mmap.mmap, start: int) -> Callable[[], tuple[mmap.mmap, int]]:
    return lambda: (data, start)


def _unpack_at(path: Path, member: zipfile.ZipInfo, header: int) -> Callable[[], tuple[mmap.mmap, int]]:
    """Place of a member in a temporary file, which it is unpacked to, its checksum checked, when it is first read."""

    @cache
    def place() -> tuple[mmap.mmap, int]:
        if shutil.disk_usage(tempfile.gettempdir()).free < member.file_size:
            raise OSError(f"unpacking it needs {member.file_size} bytes of temporary disk")
        with zipfile.ZipFile(path) as archive, archive.open(member) as stream, tempfile.TemporaryFile() as file:
            shutil.copyfileobj(stream, file, 1 << 20)
            file.flush()
            return map_file(file), header

    return place


class _Tensor(msgspec.Struct):
    dtype: str
    shape: Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]], msgspec.Meta(max_length=64)]
    data_offsets: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(lt=1 << 62)]]


def _safetensors(name: str, data: mmap.mmap) -> tuple[dict[str, StoredArray], dict[str, str]]:
    """Format: 8 bytes of length, JSON header, bytes of the tensors without holes or overlaps
    (huggingface.co/docs/safetensors).

    Read here and not by the safetensors library, which has no bfloat16 for numpy.
    """
    length = int.from_bytes(data[:8], "little")
    if length > min(DIRECTORY_BYTES, len(data) - 8):
        problem = f"declares a safetensors header of {length} bytes"
        raise DumpError(f"{name}: {problem}; expected at most {DIRECTORY_BYTES} and a complete file.")
    with foreign_errors(name, "an undamaged safetensors header"):
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
    with foreign_errors(f"{name}: '__metadata__'", "one text for each key"):
        texts = msgspec.json.decode(header.pop("__metadata__", b"{}"), type=dict[str, str])
    arrays, spans = {}, []
    for key, entry in header.items():
        check_key(name, key)
        with foreign_errors(f"{name}: the entry of '{clean(key)}'", "dtype, shape and data_offsets of whole numbers"):
            tensor = msgspec.json.decode(entry, type=_Tensor)
        dtype = torch_files.DTYPES.get(_SAFETENSORS.get(tensor.dtype, ""))
        if dtype is None:
            raise DumpError(f"{name}: '{clean(key)}' has the dtype {clean(tensor.dtype)}; expected F32, F16 or BF16.")
        begin, end = tensor.data_offsets
        arrays[key] = _array(name, key, dtype, tuple(tensor.shape), False, _place_at(data, 8 + length + begin))
        check_elements(arrays[key], end - begin)
        spans.append((begin, end, key))
    place = 0
    for begin, end, key in sorted(spans):
        if begin != place or 8 + length + end > len(data):
            problem, need = f"lies at bytes {begin} to {end}", f"it to begin at {place} and to end within the file"
            raise DumpError(f"{name}: '{clean(key)}' {problem}; expected {need}.")
        place = end
    if rest := len(data) - 8 - length - place:
        raise DumpError(f"{name}: has {rest} bytes after its last tensor; expected none.")
    return arrays, texts
