"""The keys and values of a path: the positions of the prompt that its cache holds, and their bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import Cache

from ...runs.tables.kv_cache import KvPart
from ..models.bits import own_bits

if TYPE_CHECKING:
    from .batch import PromptBatch


@dataclass
class CacheWatch:
    """Holds the cache of the last forward of an open path, and its batch."""

    cache: Cache | None = None
    batch: PromptBatch | None = None


def kv_parts(watch: CacheWatch, prompt: int, dtype: torch.dtype) -> Iterator[KvPart]:
    """Yield the prompt's row of all keys and values by layer, in `dtype` if exact, without padding."""
    if watch.cache is None or watch.batch is None:
        return
    for index, layer in enumerate(watch.cache.layers):
        for kind, tensor in (("key", getattr(layer, "keys", None)), ("value", getattr(layer, "values", None))):
            if (
                not isinstance(tensor, torch.Tensor)
                or tensor.ndim != 4
                or torch.promote_types(tensor.dtype, dtype) != dtype
            ):
                continue
            first, slots = _slots(layer, tensor.shape[2], watch.batch)
            if slots.start < slots.stop:
                own = tensor[watch.batch.row, :, slots].to(dtype)
                yield KvPart(prompt, index, kind, first, own_bits(own))


def _slots(layer: Any, size: int, batch: PromptBatch) -> tuple[int, slice]:
    """Return (first position of the prompt in the layer, the slots from it on).

    A layer holds its columns from slot 0 on, or, once it has dropped some, the last ones. Columns are
    the prompt's positions shifted by the left padding.
    """
    length = int(layer.get_seq_length())
    first_column, filled = (0, length) if size >= length else (length - size, size)
    first = max(0, first_column - batch.left_padding)
    last = first_column + filled - batch.left_padding
    if batch.right_padding:
        last = min(last, batch.positions)
    shift = batch.left_padding - first_column
    return first, slice(first + shift, last + shift)
