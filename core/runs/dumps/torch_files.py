"""Files of torch.save, read without torch: a zip archive of one pickle, which says what the tensors are, and one member
a storage.

Nothing in a file is executed. The pickle is refused unless its operations are those of dicts, lists, numbers and texts,
and each name that it calls stands in `_NAMES`, whose functions are this module's own.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ...errors import DumpError
from ...text import shown
from .arrays import ByteStream, Chain, RowCut, StoredArray, Window, foreign_errors

PICKLE = "data.pkl"
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"  # torch.save before PyTorch 1.6: one pickle after another
INSTEAD = (
    "expected tensors alone, as torch.save({'reference': a, 'variant': b}, ...) or safetensors.torch.save_file write"
)
_MOST_PICKLE = 4 << 20  # bytes: some 40,000 tensors
_DEEPEST = 4  # dicts within dicts
_MOST_COPIED = 16 << 20  # entries of lists, characters of texts

_DTYPES = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("V2"),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint64": np.dtype("<u8"),
    "uint32": np.dtype("<u4"),
    "uint16": np.dtype("<u2"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
}
_STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}


class _Storage(NamedTuple):
    """A member of the archive; dtype: '' of an untyped one."""

    key: str
    dtype: str


class _Tensor(NamedTuple):
    """A tensor as the pickle says it, unchecked. offset, strides: in elements."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """A dtype or a kind of storage, which nothing can call."""

    dtype: str


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> _Tensor:
    """Stand in for torch._utils._rebuild_tensor_v2 and its kin; of version 3 the dtype comes as the third of `more`."""
    said = [one.dtype for one in more if isinstance(one, _Name)]
    counts = (offset, *shape, *strides)
    if not isinstance(storage, _Storage) or any(type(n) is not int or not 0 <= n < 1 << 62 for n in counts):
        raise ValueError("a tensor of no sound shape")
    if len(shape) != len(strides) or len(shape) > 64:
        raise ValueError("a tensor of no sound strides")
    return _Tensor(storage, said[0] if said else storage.dtype, offset, tuple(shape), tuple(strides))


def _parameter(tensor: Any, *_: Any) -> Any:
    """Stand in for torch._utils._rebuild_parameter."""
    return tensor


_NAMES: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "Size"): tuple,
    ("torch.storage", "UntypedStorage"): _Name(""),
    ("collections", "OrderedDict"): OrderedDict,
    **{("torch", f"{kind}Storage"): _Name(dtype) for kind, dtype in _STORAGES.items()},
    **{("torch", dtype): _Name(dtype) for dtype in _DTYPES},
}
# Not among them: BUILD, which sets attributes, and NEWOBJ, INST, OBJ and EXT, which call what they name. torch.save
# writes protocol 2.
_OPERATIONS = frozenset(
    {"PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BINPERSID", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"}
    | {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"}
    | {"EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"}
    | {"EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
)


class _MoreThanTensorsError(ValueError):
    pass


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise _MoreThanTensorsError(f"{module}.{name}")
        return _NAMES[module, name]

    def persistent_load(self, said: Any) -> _Storage:
        kind, storage, key = said[:3]
        if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str):
            raise ValueError("a storage of no known form")
        return _Storage(key, storage.dtype)


def _unpickled(data: bytes) -> Any:
    """The value of a pickle, once its operations were found harmless: of the others some run code, and the unpickler
    allocates a memo as long as the largest number put into it.
    """
    strange = ""
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        if operation.name == "GLOBAL" and tuple(str(argument).split(" ")) not in _NAMES:
            raise _MoreThanTensorsError(str(argument).replace(" ", "."))
        if operation.name not in _OPERATIONS:
            strange = strange or f"the operation {operation.name}"
        if operation.name == "LONG_BINPUT" and (argument or 0) > count:
            raise ValueError("a memo of no sound number")
    if strange:
        raise _MoreThanTensorsError(strange)
    return _Unpickler(io.BytesIO(data)).load()


@dataclass
class _Collected:
    """Tensors, whole numbers and texts of a value, by name. tensors: several in a list are rows of one array.

    A pickle can name one list a million times, so whatever is copied out of it is counted first.
    """

    tensors: dict[str, list[_Tensor]] = field(default_factory=dict)
    numbers: dict[str, np.ndarray] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    copied: int = 0

    def add(self, key: str, value: Any, depth: int = 0) -> None:
        """Sort a value in; what is neither tensors, whole numbers nor text is left out."""
        self._count(1)
        if isinstance(value, _Tensor):
            self.tensors[key] = [value]
        elif isinstance(value, str):
            self.texts[key] = value
        elif isinstance(value, dict) and depth < _DEEPEST:
            for name, item in value.items():
                self.add(f"{key}/{name}" if depth else str(name), item, depth + 1)
        elif isinstance(value, list | tuple) and value:
            self._add_list(key, value, depth)

    def _count(self, items: int) -> None:
        self.copied += items
        if self.copied > _MOST_COPIED:
            raise ValueError(f"more than {_MOST_COPIED:,} entries")

    def _add_list(self, key: str, values: Sequence[Any], depth: int) -> None:
        self._count(len(values) + sum(len(one) for one in values if isinstance(one, str | list | tuple)))
        if all(isinstance(one, _Tensor) for one in values):
            are_rows = all(math.prod(one.shape[:-1]) == 1 for one in values) and len(set(map(_kind, values))) == 1
            if are_rows and (depth or len(values) != 2):  # the scores of generate: a tensor a step
                self.tensors[key] = list(values)
                return
            for number, one in enumerate(values):
                self.add(f"{key}/{number}" if depth else str(number), one, depth + 1)
        elif all(isinstance(one, str) for one in values):
            self.texts[key] = json.dumps(values)
        elif rows := _rows_of_numbers(values):
            numbers = np.array(rows)
            if numbers.dtype.kind == "i":
                self.numbers[key] = numbers


def _rows_of_numbers(values: Sequence[Any]) -> list[Sequence[int]]:
    """A list of whole numbers, or of equally long lists of them, as the latter; empty for anything else."""
    rows: list[Sequence[Any]] = [one for one in values if isinstance(one, list | tuple)]
    if type(values[0]) is int:
        rows = [values]
    are_even = len({len(row) for row in rows}) == 1 and (rows[0] is values or len(rows) == len(values))
    return rows if are_even and all(type(n) is int for row in rows for n in row) else []


def _kind(tensor: _Tensor) -> tuple[str, int]:
    return tensor.dtype, tensor.shape[-1] if tensor.shape else 0


def pickle_of(members: Sequence[zipfile.ZipInfo]) -> zipfile.ZipInfo | None:
    """The pickle of an archive of torch.save, None where it is something else."""
    return next((one for one in members if one.filename.rpartition("/")[2] == PICKLE), None)


def read(
    name: str, stem: str, file: io.FileIO, archive: zipfile.ZipFile, said: zipfile.ZipInfo
) -> tuple[dict[str, StoredArray], dict[str, str], bool]:
    """(arrays by key, texts by key, whether the file is one bare tensor) of an archive whose members were found to lie
    one after another. said: its pickle.
    """
    folder = said.filename.removesuffix(PICKLE)
    members = {one.filename.removeprefix(folder): one for one in archive.infolist()}
    if len(members) < len(archive.infolist()) or any(
        one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in members.values()
    ):
        raise DumpError(f"{name}: is compressed or has a member twice, which torch.save does not do; {INSTEAD}.")
    if said.file_size > _MOST_PICKLE:
        raise DumpError(f"{name}: names its tensors in {said.file_size} bytes; expected at most {_MOST_PICKLE}.")
    with foreign_errors(name, "an undamaged file of torch.save"):
        if "byteorder" in members and archive.read(members["byteorder"]) != b"little":
            raise DumpError(f"{name}: was saved on a big-endian machine; expected a little-endian file of torch.save.")
        data = archive.read(said)
        try:
            value = _unpickled(data)
        except (_MoreThanTensorsError, pickle.UnpicklingError, AttributeError) as error:
            raise _refused(name, error) from error
        collected = _Collected()
        collected.add(stem, value)
    lock = threading.Lock()
    arrays = {key: _array(name, key, tensors, members, file, lock) for key, tensors in collected.tensors.items()} | {
        key: _in_memory(name, key, numbers) for key, numbers in collected.numbers.items()
    }
    return arrays, collected.texts, isinstance(value, _Tensor) or list(arrays) == [stem]


def _refused(name: str, error: Exception) -> DumpError:
    what = f" ({shown(error, 100)})" if isinstance(error, _MoreThanTensorsError) else ", or is damaged"
    return DumpError(
        f"{name}: is a file of torch.save that holds more than tensors{what}, and nothing is unpickled; {INSTEAD}."
    )


def _in_memory(name: str, key: str, numbers: np.ndarray) -> StoredArray:
    data = numbers.astype("<i8").tobytes()
    return StoredArray(name, key, np.dtype("<i8"), numbers.shape, False, lambda: io.BytesIO(data))


def _array(
    name: str,
    key: str,
    tensors: Sequence[_Tensor],
    members: dict[str, zipfile.ZipInfo],
    file: io.FileIO,
    lock: threading.Lock,
) -> StoredArray:
    dtype = _DTYPES.get(tensors[0].dtype)
    where = f"{name}: '{shown(key)}'"
    if dtype is None:
        raise DumpError(
            f"{where} has the dtype '{shown(tensors[0].dtype, 40)}'; expected float32, float16 or bfloat16."
        )
    spans = []
    for tensor in tensors:
        member = members.get(f"data/{tensor.storage.key}")
        if member is None:
            raise DumpError(f"{where} has no storage in the file; expected a complete file of torch.save.")
        spans.append(_span(where, tensor, member, dtype.itemsize))
    together = {tensor.storage.key: members[f"data/{tensor.storage.key}"].file_size for tensor in tensors}
    if sum(math.prod(tensor.shape) for tensor in tensors) * dtype.itemsize > sum(together.values()):
        raise DumpError(f"{where} repeats its tensors; expected a list of one tensor a position.")
    starts = [_data_start(file, members[f"data/{tensor.storage.key}"], lock) for tensor in tensors]
    is_fortran = spans[0].is_fortran
    first = tensors[0]
    shape = first.shape if len(tensors) == 1 else (len(tensors), first.shape[-1])

    def streams() -> Iterator[ByteStream]:
        for span, start in zip(spans, starts, strict=True):
            window = Window(file, start + span.offset, span.length, lock)
            yield window if span.step == span.row else RowCut(window, span.step, span.row)

    return StoredArray(name, key, dtype, shape, is_fortran, lambda: Chain(streams()))


class _Span(NamedTuple):
    """Bytes of a tensor within its storage: rows of `row` bytes, one every `step` of them."""

    offset: int
    length: int
    row: int
    step: int
    is_fortran: bool


def _span(where: str, tensor: _Tensor, member: zipfile.ZipInfo, item: int) -> _Span:
    """Bytes of a tensor; DumpError where they are not in the storage, or are no rows of it."""
    size = math.prod(tensor.shape)
    axes = [(n, stride) for n, stride in zip(tensor.shape, tensor.strides, strict=True) if n != 1]
    if not size:
        raise DumpError(f"{where} is empty (shape {shown(tensor.shape)}); expected at least one element.")
    last = tensor.offset + sum((n - 1) * stride for n, stride in axes)
    if (last + 1) * item > member.file_size or size * item > member.file_size:
        raise DumpError(
            f"{where} declares shape {shown(tensor.shape)}, more than the {member.file_size} bytes of its storage;"
            " expected a whole tensor, no expanded one."
        )
    offset, row = tensor.offset * item, (axes[-1][0] if axes else 1) * item
    if _is_contiguous(axes[::-1], 1):
        return _Span(offset, size * item, size * item, size * item, False)
    if _is_contiguous(axes, 1):
        return _Span(offset, size * item, size * item, size * item, True)
    if axes[-1][1] == 1 and _is_contiguous(axes[-2::-1], axes[-2][1]) and axes[-2][1] * item > row:
        return _Span(offset, (last + 1 - tensor.offset) * item, row, axes[-2][1] * item, False)
    raise DumpError(f"{where} is a view with strides {shown(tensor.strides)}; expected tensor.contiguous() saved.")


def _is_contiguous(axes: Sequence[tuple[int, int]], stride: int) -> bool:
    """Return whether (length, stride) axes, the innermost first, lie one in another from this stride on."""
    for n, own in axes:
        if own != stride:
            return False
        stride *= n
    return True


def _data_start(file: io.FileIO, member: zipfile.ZipInfo, lock: threading.Lock) -> int:
    """Offset of a stored member's bytes, behind its local header."""
    with lock:
        file.seek(member.header_offset)
        local = file.read(30)
    return member.header_offset + 30 + int.from_bytes(local[26:28], "little") + int.from_bytes(local[28:30], "little")
