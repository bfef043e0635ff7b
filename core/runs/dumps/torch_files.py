"""Files of torch.save: tensors, dicts and lists of them, read by torch.load with `weights_only`,
which runs no code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DumpError, ExtraError
from ...numerics.arrays import Array, Ints
from ...text import clean
from ..file.records import MAX_ROWS, TOKENS_TOGETHER
from .arrays import Contents, StoredArray, check_elements, foreign_errors

if TYPE_CHECKING:
    import torch

PICKLE = "data.pkl"
_INSTEAD = (
    "tensors alone, as torch.save({'reference': a, 'variant': b}, ...) or"
    " safetensors.torch.save_file write"
)
# tensors, lists and texts; a pickle can name one dict a million times
_MOST_ITEMS = 1 << 16
_DEEPEST = 3  # dicts within dicts


def read(name: str, path: Path) -> Contents:
    """Arrays and texts of an archive of torch.save."""
    try:
        import torch
    except ImportError:
        raise ExtraError(
            f"{name}: reading a file of torch.save needs torch; pip install 'ulpscope[capture]', or"
            " save safetensors.",
        ) from None
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    # on damaged input it raises nearly every kind
    except Exception as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        what = f" ({clean(match[1], 100)})" if match else ", or is damaged"
        raise DumpError(
            f"{name}: is a file of torch.save that holds more than tensors{what}, and no code is"
            f" run; expected {_INSTEAD}.",
        ) from error
    items = list(islice(_items(path.stem, value), _MOST_ITEMS + 1))
    if len(items) > _MOST_ITEMS:
        raise DumpError(
            f"{name}: names more than {_MOST_ITEMS:,} tensors and texts; expected {_INSTEAD}.",
        )
    arrays = {}
    texts = {}
    for key, item in items:
        values = item if isinstance(item, list | tuple) else [item]
        if isinstance(item, str):
            texts[key] = item
        elif values and all(isinstance(one, torch.Tensor) for one in values):
            arrays[key] = _array(name, key, values)
        elif (
            item
            and all(isinstance(one, str) for one in values)
            and sum(map(len, values)) <= TOKENS_TOGETHER
        ):
            texts[key] = json.dumps(values)
        elif isinstance(item, list | tuple) and (numbers := _whole_numbers(item)) is not None:
            arrays[key] = StoredArray.in_memory(name, key, numbers)
    return arrays, texts


def as_array(tensor: torch.Tensor) -> Array:
    """Return the values of a tensor on the CPU, bfloat16 as V2."""
    import torch

    plain = tensor.detach()
    # numpy has no bfloat16
    is_bfloat16 = plain.dtype is torch.bfloat16
    return plain.view(torch.int16).numpy().view("V2") if is_bfloat16 else plain.numpy()


def _whole_numbers(values: Sequence[Any]) -> Ints | None:
    """Return a list of integers, or of lists of them, as an array; None if it is neither, or of
    uneven lengths.
    """
    rows = [one if isinstance(one, list | tuple) else [one] for one in values]
    # counted before they are looked at: a pickle can name one list a million times
    is_short = 0 < sum(map(len, rows)) <= MAX_ROWS
    if is_short and all(type(number) is int for row in rows for number in row):
        with suppress(ValueError, OverflowError):
            return np.array(values, np.int64)
    return None


def _items(key: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the tensors, lists and texts of a value by name; a list of tensors that are no rows is
    opened.
    """
    items: Any
    if isinstance(value, dict) and depth < _DEEPEST:
        items = value.items()
    elif isinstance(value, list | tuple) and value and not _are_rows(value, depth):
        items = enumerate(value)
    else:
        yield key, value
        return
    for name, item in items:
        yield from _items(f"{key}/{name}" if depth else str(name), item, depth + 1)


def _are_rows(values: Sequence[Any], depth: int) -> bool:
    """Return whether tensors are the rows of one array, as the scores of generate are; true of
    other values.
    """
    if not all(hasattr(one, "untyped_storage") for one in values):
        return True
    if depth == 0 and len(values) == 2:
        return False
    are_alike = len({(one.dtype, one.shape[-1:]) for one in values}) == 1
    return are_alike and all(one.numel() == one.shape[-1] for one in values if one.ndim)


def _array(name: str, key: str, tensors: Sequence[torch.Tensor]) -> StoredArray:
    """Return an array of one tensor, or of several that are its rows, in the mapped file."""
    label = f"{name}: '{clean(key)}'"
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    if dtype.startswith("float8"):
        raise DumpError(
            f"{label} is {dtype}; expected float32, float16 or bfloat16: upcast it,"
            " x.to(torch.bfloat16).",
        )
    storages = {}
    views = []
    with foreign_errors(label, "float32, float16 or bfloat16"):
        for one in tensors:
            # tensors may share a storage: each counts once
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
            views.append(as_array(one))
    if sum(view.nbytes for view in views) > sum(storages.values()):
        raise DumpError(f"{label} repeats what its storage holds; expected whole tensors.")
    first = views[0]
    array = StoredArray.in_memory(name, key, first)
    if len(views) > 1:

        def rows(start: int, stop: int) -> Array:
            return np.stack([view.reshape(-1) for view in views[start:stop]])

        array = StoredArray(name, key, first.dtype, (len(views), first.shape[-1]), rows)
    check_elements(array, array.nbytes)
    return array
