"""Files of torch.save, read without torch: a zip archive of one pickle, which says what the tensors are, and one member
a storage.

Nothing in a file is executed. The pickle is refused unless its operations are those of dicts, lists, numbers and texts,
and each name that it calls is in `_NAMES`, whose functions are this module's own.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ...errors import DumpError
from ...text import clean
from .arrays import StoredArray, foreign_errors, forget, rows_of

PICKLE = "data.pkl"
OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9"  # torch.save before PyTorch 1.6: one pickle after another
INSTEAD = (
    "expected tensors alone, as torch.save({'reference': a, 'variant': b}, ...) or safetensors.torch.save_file write"
)
_MOST_PICKLE = 4 << 20  # bytes: some 40,000 tensors
_DEEPEST = 4  # dicts within dicts
_MOST_COPIED = 16 << 20  # entries of lists, characters of texts

_PLAIN = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
_FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
DTYPES = {
    **{name: np.dtype(name).newbyteorder("<") for name in (*_PLAIN, "bool")},
    **{name: np.dtype(getattr(ml_dtypes, name)) for name in _FLOAT8},
    "bfloat16": np.dtype("V2"),
}
_STORAGES = {
    **{"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64"},
    **{"Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"},
}


class _Name(NamedTuple):
    """A dtype or a kind of storage ('' of an untyped one), which nothing can call."""

    dtype: str


class _Storage(NamedTuple):
    """A member of the archive."""

    key: str
    dtype: str


class _Tensor(NamedTuple):
    """A tensor as the pickle says it, unchecked. offset, strides: in elements."""

    storage: _Storage
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> _Tensor:
    """Stand in for torch._utils._rebuild_tensor_v2 and its kin; of version 3 the dtype comes as the third of `more`."""
    counts = (offset, *shape, *strides)
    is_sound = isinstance(storage, _Storage) and all(type(n) is int and 0 <= n < 1 << 62 for n in counts)
    if not is_sound or len(shape) != len(strides):
        raise ValueError("a tensor of no sound shape")
    dtypes = [one.dtype for one in more if isinstance(one, _Name)]
    return _Tensor(storage, dtypes[0] if dtypes else storage.dtype, offset, tuple(shape), tuple(strides))


_NAMES: dict[tuple[str, str], Any] = {
    **{("torch._utils", f"_rebuild_tensor{version}"): _tensor for version in ("", "_v2", "_v3")},
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("torch", "Size"): tuple,
    ("torch.storage", "UntypedStorage"): _Name(""),
    ("collections", "OrderedDict"): OrderedDict,
    **{("torch", f"{kind}Storage"): _Name(dtype) for kind, dtype in _STORAGES.items()},
    **{("torch", dtype): _Name(dtype) for dtype in DTYPES},
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
        return _NAMES[module, name]  # `_unpickle` refuses others

    def persistent_load(self, pid: Any) -> _Storage:
        kind, storage, key = pid[:3]
        if kind != "storage" or not isinstance(storage, _Name) or not isinstance(key, str):
            raise ValueError("a storage of no known form")
        return _Storage(key, storage.dtype)


def _unpickle(data: bytes) -> Any:
    """Return the value of a pickle if its operations are harmless: others run code, and the unpickler allocates as much
    memory as the largest number in it.
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

    A pickle can name one list a million times, so copies out of it are counted first.
    """

    tensors: dict[str, list[_Tensor]] = field(default_factory=dict)
    numbers: dict[str, NDArray[Any]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    copied: int = 0

    def add(self, key: str, value: Any, depth: int = 0) -> None:
        """Sort a value in; what is neither tensors, whole numbers nor text is left out."""
        items = [value] if not isinstance(value, list | tuple) or isinstance(value, _Tensor) else value
        self.copied += 1 + sum(len(one) if isinstance(one, str | list | tuple) else 1 for one in items)
        if self.copied > _MOST_COPIED:
            raise ValueError(f"more than {_MOST_COPIED:,} entries")
        if isinstance(value, _Tensor):
            self.tensors[key] = [value]
        elif isinstance(value, str):
            self.texts[key] = value
        elif isinstance(value, dict) and depth < _DEEPEST:
            for name, item in value.items():
                self.add(f"{key}/{name}" if depth else str(name), item, depth + 1)
        elif isinstance(value, list | tuple) and value:
            self._add_list(key, value, depth)

    def _add_list(self, key: str, values: Sequence[Any], depth: int) -> None:
        if all(isinstance(one, _Tensor) for one in values):
            kinds = {(one.dtype, one.shape[-1] if one.shape else 0) for one in values}
            are_rows = len(kinds) == 1 and all(math.prod(one.shape[:-1]) == 1 for one in values)
            if are_rows and (depth or len(values) != 2):  # the scores of generate: a tensor a step
                self.tensors[key] = list(values)
                return
            for number, one in enumerate(values):
                self.add(f"{key}/{number}" if depth else str(number), one, depth + 1)
        elif all(isinstance(one, str) for one in values):
            self.texts[key] = json.dumps(values)
        elif all(type(n) is int for one in values for n in (one if isinstance(one, list | tuple) else [one])):
            with suppress(ValueError, OverflowError):  # lists of different lengths are left out
                self.numbers[key] = np.array(values, np.int64)


def read(
    name: str, stem: str, data: mmap.mmap, archive: zipfile.ZipFile, member: zipfile.ZipInfo, starts: Mapping[str, int]
) -> tuple[dict[str, StoredArray], dict[str, str], bool]:
    """(arrays by key, texts by key, whether the file is one bare tensor) of a mapped archive. member: its pickle;
    starts: offset of the bytes of each member.
    """
    folder = member.filename.removesuffix(PICKLE)
    members = archive.infolist()
    is_packed = any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in members)
    if is_packed or len(starts) < len(members):
        raise DumpError(f"{name}: is compressed or has a member twice, which torch.save does not do; {INSTEAD}.")
    if member.file_size > _MOST_PICKLE:
        raise DumpError(f"{name}: names its tensors in {member.file_size} bytes; expected at most {_MOST_PICKLE}.")
    with foreign_errors(name, "an undamaged file of torch.save"):
        if f"{folder}byteorder" in starts and archive.read(f"{folder}byteorder") != b"little":
            raise DumpError(f"{name}: was saved on a big-endian machine; expected a little-endian file of torch.save.")
        try:
            value = _unpickle(archive.read(member))
        except (_MoreThanTensorsError, pickle.UnpicklingError, AttributeError) as error:
            what = f" ({clean(error, 100)})" if isinstance(error, _MoreThanTensorsError) else ", or is damaged"
            problem = f"is a file of torch.save that holds more than tensors{what}, and nothing is unpickled"
            raise DumpError(f"{name}: {problem}; {INSTEAD}.") from error
        collected = _Collected()
        collected.add(stem, value)
    storages = {
        one.filename.removeprefix(f"{folder}data/"): (starts[one.filename], one.file_size)
        for one in members
        if one.filename.startswith(f"{folder}data/")
    }
    arrays = {key: _array(name, key, tensors, storages, data) for key, tensors in collected.tensors.items()}
    arrays |= {key: StoredArray.of_numbers(name, key, numbers) for key, numbers in collected.numbers.items()}
    return arrays, collected.texts, isinstance(value, _Tensor) or list(arrays) == [stem]


def _array(
    name: str, key: str, tensors: Sequence[_Tensor], storages: Mapping[str, tuple[int, int]], data: mmap.mmap
) -> StoredArray:
    """Return an array of one tensor, or of several that are its rows. storages: offset and length of each."""
    label, dtype = f"{name}: '{clean(key)}'", DTYPES.get(tensors[0].dtype)
    if dtype is None:
        problem = f"has the dtype '{clean(tensors[0].dtype, 40)}'"
        raise DumpError(f"{label} {problem}; expected float32, float16 or bfloat16.")
    views = []
    for tensor in tensors:
        shape, item = tensor.shape, dtype.itemsize
        if tensor.storage.key not in storages:
            raise DumpError(f"{label} has no storage in the file; expected a complete file of torch.save.")
        start, length = storages[tensor.storage.key]
        if not (size := math.prod(shape)):
            raise DumpError(f"{label} is empty (shape {clean(shape)}); expected at least one element.")
        last = tensor.offset + sum((n - 1) * stride for n, stride in zip(shape, tensor.strides, strict=True))
        if max(last + 1, size) * item > length:
            problem = f"declares shape {clean(shape)}, more than the {length} bytes of its storage"
            raise DumpError(f"{label} {problem}; expected a whole tensor, no expanded one.")
        with foreign_errors(label, "a tensor of few axes"):
            strides = [stride * item for stride in tensor.strides]
            views.append(np.ndarray(shape, dtype, data, start + tensor.offset * item, strides))
    used = {tensor.storage.key: storages[tensor.storage.key][1] for tensor in tensors}
    if sum(view.nbytes for view in views) > sum(used.values()):
        raise DumpError(f"{label} repeats its tensors; expected a list of one tensor a position.")
    if len(views) == 1:
        return StoredArray(name, key, dtype, views[0].shape, rows_of(lambda: views[0]))

    def rows(start: int, stop: int) -> NDArray[Any]:
        forget(views[0])
        return np.stack([view.reshape(-1) for view in views[start:stop]])

    return StoredArray(name, key, dtype, (len(views), views[0].shape[-1]), rows)
