"""File formats of dumps: npz, npy, safetensors, torch.save's and llama.cpp's. A format is
recognized by the first bytes, never by the file's name.

Every declared size is checked against the file, and the total against a limit, before anything is
unpacked or allocated.
"""

import mmap
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ...errors import DumpError
from ...numerics.arrays import Array
from ...text import clean
from ..file.records import MAX_SIDES
from . import llamacpp_files, torch_files
from .arrays import (
    HEADER_BYTES,
    Arrays,
    Contents,
    Shape,
    StoredArray,
    check_elements,
    foreign_errors,
    map_file,
    read_npy_header,
    rows_of,
)

# every side, its emitted tokens, and the shared keys
MOST_ARRAYS = 2 * MAX_SIDES + 8
MOST_BYTES = 64 << 30
MAX_KEY_LENGTH = 200
# of a zip directory or safetensors header; of MOST_ARRAYS one takes 0.5 MB; parsed it takes some 20
# times as much
DIRECTORY_BYTES = 4 << 20
# real logits shrink 1-10 times; beyond this and SUSPECT_BYTES an archive is taken for a bomb
SUSPECT_RATIO = 200
SUSPECT_BYTES = 256 << 20
_SAFETENSORS = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "V2", "BOOL": "?"},
    **{f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
}
_EXPECTED = "an npz, npy, safetensors or torch.save file"
# other formats by how they begin: what to do about one; the last is a line of a table
_OTHERS = {
    rb"\x80": "is a pickle; expected {} of PyTorch 1.6 or later; no code in a file is run",
    rb"[\s\S]{8}DUCK": (
        "is a run file; expected {}: ingest it, and export its logits as npz to compare them with"
        " others"
    ),
    rb"PAR1": (
        "is a Parquet file; expected {}: np.save('a.npy', pd.read_parquet(...).to_numpy('float32'))"
    ),
    rb"ARROW1|FEA1": (
        "is a Feather file; expected {}: np.save('a.npy', pd.read_feather(...).to_numpy('float32'))"
    ),
    rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd": "is compressed; expected {}: unpack it",
    rb"(\xef\xbb\xbf)?([\x20-\x7e\t\r]*[,;\t ][\x20-\x7e\t\r]*|[-+.\deE\r]+)(\n|\Z)": (
        "is text; expected {}. If it is CSV: np.save('a.npy', np.loadtxt(..., 'float32',"
        " delimiter=','))"
    ),
}
_Map = Callable[[], mmap.mmap]  # the mapped file, when elements are first read


@dataclass(frozen=True)
class Container:
    """One opened file: its arrays by key in file order, and its texts (safetensors'
    `__metadata__`). is_sorted: the order of its arrays is that of their names.
    """

    path: Path
    arrays: Arrays
    texts: dict[str, str]
    is_sorted: bool

    @property
    def name(self) -> str:
        return clean(self.path.name)

    @property
    def named(self) -> Arrays:
        """Arrays that were given a name; a bare one has its file's, which may be any."""
        return {} if list(self.arrays) == [self.path.stem] else self.arrays


def open_container(path: Path, max_bytes: int = MOST_BYTES) -> Container:
    """Check one file and map it. Reads headers only, and of no more arrays than a dump has.

    max_bytes: of the file, and of its arrays together.
    """
    name = clean(path.name or path)
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "there is no such file"
        raise DumpError(f"{name}: {what}; expected {_EXPECTED}.")
    if not 0 < (size := path.stat().st_size) <= max_bytes:
        raise DumpError(f"{name}: has {size} bytes; expected 1 to {max_bytes}.")
    with foreign_errors(name, f"a readable file: {_EXPECTED}"), path.open("rb") as file:
        data = map_file(file)
    start = data[:9]
    is_sorted = False
    contents: Contents
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        contents = _zip(path, name, data)
    elif start[:6] == b"\x93NUMPY":
        key = path.stem
        shape, is_fortran, dtype, header = read_npy_header(data, f"{name}: '{clean(key)}'")
        array = _array(name, key, dtype, shape, is_fortran, lambda: data, header)
        check_elements(array, len(data) - header)
        contents = {key: array}, {}
    elif start.startswith(llamacpp_files.MAGIC):
        contents = llamacpp_files.read(name, path.stem, data)
    elif start.startswith(llamacpp_files.KLD_MAGIC):
        contents = llamacpp_files.read_kld(name, path.stem, data)
    # safetensors has no magic number: the header's length, then its brace
    elif len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") < 1 << 40:
        contents = read_safetensors(name, data, {})
        is_sorted = True
    else:
        # loads pyarrow, which no array needs
        from ...responses.values import are_values, read_values

        if not are_values(path):
            raise DumpError(f"{name}: {_other_format(data[:256])}.")
        array = StoredArray.in_memory(name, "values", read_values(path))
        contents = {"values": array}, {"holds": "values"}
    arrays, texts = contents
    if len(arrays) > MOST_ARRAYS:
        raise DumpError(
            f"{name}: holds {len(arrays)} arrays; expected at most {MAX_SIDES} sides.",
        )
    for key in arrays:
        check_key(name, key)
    if (total := sum(array.nbytes for array in arrays.values())) > max_bytes:
        raise DumpError(f"{name}: unpacks to {total} bytes; expected at most {max_bytes}.")
    return Container(path, arrays, texts, is_sorted)


def _other_format(start: bytes) -> str:
    """Say what a file that begins so is, and what to do."""
    for pattern, words in _OTHERS.items():
        if re.match(pattern, start):
            return words.format(_EXPECTED)
    return f"begins with {start[:8]!r}; expected {_EXPECTED}"


def _array(
    name: str,
    key: str,
    dtype: np.dtype,
    shape: Shape,
    is_fortran: bool,
    mapped: _Map,
    start: int,
    checksum: tuple[int, int] | None = None,
) -> StoredArray:
    def view() -> Array:
        return np.ndarray(shape, dtype, mapped(), start, order="F" if is_fortran else "C")

    return StoredArray(name, key, dtype, shape, rows_of(view), checksum)


def check_key(name: str, key: str) -> None:
    """DumpError for a key that could not be shown, or that an unpacker could take for another
    folder.
    """
    is_path = any(part.strip() in ("", "..") for part in key.split("/"))
    if is_path or len(key) > MAX_KEY_LENGTH or not key.isprintable():
        raise DumpError(
            f"{name}: '{clean(key)}' is an unsafe name; expected at most {MAX_KEY_LENGTH} printable"
            " characters without an empty part, '..' or a leading '/'.",
        )


def _zip(path: Path, name: str, data: mmap.mmap) -> Contents:
    """Read an archive of np.savez or of torch.save."""
    with foreign_errors(name, "an undamaged, complete archive"):
        # the directory's size, before zipfile reads all of it
        end = data.rfind(b"PK\x05\x06")
        # of a file that was cut short there is none
        if end >= 0 and int.from_bytes(data[end + 12 : end + 16], "little") > DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a directory of more than {DIRECTORY_BYTES} bytes")
        archive = zipfile.ZipFile(path)
    with archive:
        # folders and what macOS adds are no arrays
        members = [
            member
            for member in archive.infolist()
            if not member.filename.startswith("__MACOSX/")
            and not member.filename.endswith(("/", ".DS_Store"))
        ]
        if any(member.filename.rpartition("/")[2] == torch_files.PICKLE for member in members):
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise DumpError(
                    f"{name}: is compressed, which torch.save does not do; expected {_EXPECTED}.",
                )
            return torch_files.read(name, path)
        if len(members) > MOST_ARRAYS:
            raise DumpError(
                f"{name}: holds {len(members)} members; expected at most {MAX_SIDES} sides.",
            )
        total = sum(member.file_size for member in members)
        packed = sum(member.compress_size for member in members)
        if total > max(SUSPECT_BYTES, packed * SUSPECT_RATIO):
            raise DumpError(
                f"{name}: unpacks {packed} bytes to {total}, more than {SUSPECT_RATIO} times as"
                " many; expected logits, which pack far worse: save them by np.savez.",
            )
        arrays = {}
        for member in members:
            key = member.orig_filename.removesuffix(".npy")
            label = f"{name}: '{clean(key)}'"
            if not member.filename.endswith(".npy") or key in arrays:
                raise DumpError(
                    f"{label} is no npy array, or is there twice; expected an archive as np.savez"
                    " writes it, or its files unpacked.",
                )
            with (
                foreign_errors(label, "an undamaged member of an npz archive"),
                archive.open(member) as stream,
            ):
                begin = stream.read(min(member.file_size, HEADER_BYTES + 12))
                local = data[member.header_offset : member.header_offset + 30]
                lengths = np.frombuffer(local, "<u2", 2, 26).tolist()
                start = member.header_offset + 30 + sum(lengths)
            shape, is_fortran, dtype, header = read_npy_header(begin, label)
            about = name, key, dtype, shape, is_fortran
            if member.compress_type == zipfile.ZIP_STORED and not is_fortran:
                checksum = zlib.crc32(begin[:header]), member.CRC
                arrays[key] = _array(*about, lambda: data, start + header, checksum)
            else:
                arrays[key] = _array(*about, _unpacked(path, member), header)
            check_elements(arrays[key], member.file_size - header)
        return arrays, {}


def _unpacked(path: Path, member: zipfile.ZipInfo) -> _Map:
    """Return what maps a temporary file that a member is unpacked to, its checksum checked, when it
    is first read.
    """

    @cache
    def mapped() -> mmap.mmap:
        if shutil.disk_usage(tempfile.gettempdir()).free < member.file_size:
            raise OSError(f"unpacking it needs {member.file_size} bytes of temporary disk")
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(member) as stream,
            tempfile.TemporaryFile() as file,
        ):
            shutil.copyfileobj(stream, file, 1 << 20)
            file.flush()
            return map_file(file)

    return mapped


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Count, _Count]


def read_safetensors(
    name: str,
    data: mmap.mmap,
    more_dtypes: Mapping[str, Any],
) -> Contents:
    """Format: 8 bytes of length, JSON header, bytes of the tensors without holes or overlaps
    (huggingface.co/docs/safetensors). more_dtypes: numpy's, by name, of weights.

    Read here and not by the safetensors library, which has no bfloat16 for numpy.
    """
    length = int.from_bytes(data[:8], "little")
    if length > min(DIRECTORY_BYTES, len(data) - 8):
        raise DumpError(
            f"{name}: declares a safetensors header of {length} bytes; expected at most"
            f" {DIRECTORY_BYTES} and a complete file.",
        )
    with foreign_errors(f"{name}: the header", "the header of a safetensors file"):
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
        texts = msgspec.json.decode(header.pop("__metadata__", b"{}"), type=dict[str, str])
    arrays = {}
    spans = []
    dtypes = {**_SAFETENSORS, **more_dtypes}
    for key, entry in header.items():
        with foreign_errors(
            f"{name}: the entry of '{clean(key)}'",
            "dtype, shape and data_offsets of whole numbers",
        ):
            tensor = msgspec.json.decode(entry, type=_Tensor)
        if tensor.dtype not in dtypes:
            raise DumpError(
                f"{name}: '{clean(key)}' has the dtype {clean(tensor.dtype)}; expected F32, F16 or"
                " BF16; upcast others.",
            )
        begin, end = tensor.data_offsets
        about = name, key, np.dtype(dtypes[tensor.dtype]), tuple(tensor.shape)
        arrays[key] = _array(*about, False, lambda: data, 8 + length + begin)
        check_elements(arrays[key], end - begin)
        spans.append((begin, end, key))
    place_of_next = 0
    for begin, end, key in sorted(spans):
        if begin != place_of_next:
            raise DumpError(
                f"{name}: '{clean(key)}' lies at bytes {begin} to {end}; expected it to begin at"
                f" {place_of_next}.",
            )
        place_of_next = end
    if (size := len(data) - 8 - length) != place_of_next:
        raise DumpError(
            f"{name}: has {size} bytes of tensors; expected {place_of_next}, a complete file and"
            " nothing after it.",
        )
    return arrays, texts
