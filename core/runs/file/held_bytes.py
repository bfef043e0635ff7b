"""Bytes of memory that values hold."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from typing import Any

_PLAIN = {int, float, str, bytes, bool, type(None)}


def size_of(value: Any) -> int:
    """Bytes of a value and all that it is made of, for tables, arrays, containers of plain values, and records."""
    if (table := getattr(value, "memory_usage", None)) is not None:
        return int(table(deep=True).sum())
    if (size := getattr(value, "nbytes", None)) is not None:
        return int(size)
    own = sys.getsizeof(value)
    if isinstance(value, type | Enum):
        return own
    if isinstance(value, dict):
        return own + _sizes(value.keys()) + _sizes(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return own + _sizes(value)
    fields = getattr(value, "__dict__", None)
    return own + (_sizes(fields.values()) if fields else 0)


def _sizes(values: Iterable[Any]) -> int:
    kept = list(values)
    return sum(map(sys.getsizeof if set(map(type, kept)) <= _PLAIN else size_of, kept))
