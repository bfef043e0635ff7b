"""Cache by bytes of memory: what was read of runs is kept for all viewers until it takes more than a budget, and then
what was used least recently goes first.

A count would not do: one run holds 7 MB when it is open, another half a gigabyte.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


@dataclass
class _CacheEntry:
    value: Any
    measure: Callable[[Any], int]
    bytes: int


class MemoryBudget:
    """Values by key, `most_bytes` of them together, and what is in use besides. Safe to use from several threads."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._kept: OrderedDict[Hashable, _CacheEntry] = OrderedDict()  # the least recently used first
        self._lock = threading.Lock()
        self._turns: dict[Hashable, threading.Lock] = {}

    @property
    def bytes(self) -> int:
        """Bytes of all that is kept, as they were last measured."""
        with self._lock:
            return self._total()

    def get(self, key: Hashable, make: Callable[[], Value], measure: Callable[[Value], int]) -> Value:
        """The value of a key, made if it is not kept. measure: bytes that it holds now, asked at every use, for it may
        have grown since.
        """
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:  # two who want the same at once read it once
            try:
                kept = self._found_or_made(key, make, measure)
                value = cast(Value, kept.value)
            finally:
                with self._lock:
                    self._turns.pop(key, None)
            with self._lock:
                self._kept[key] = kept
                self._kept.move_to_end(key)
                self._let_go(key)
        return value

    def _found_or_made(self, key: Hashable, make: Callable[[], Value], measure: Callable[[Value], int]) -> _CacheEntry:
        with self._lock:
            kept = self._kept.get(key)
        if kept is None:
            value = make()
            self._measure_all_if_many()
            return _CacheEntry(value, measure, measure(value))
        kept.bytes = kept.measure(kept.value)
        return kept

    def take(self, key: Hashable) -> Any:
        """Take a value out and return it; None where it is not kept."""
        with self._lock:
            kept = self._kept.pop(key, None)
        return None if kept is None else kept.value

    def _total(self) -> int:
        return sum(kept.bytes for kept in self._kept.values())

    def _measure_all_if_many(self) -> None:
        """Measure everything again once half of the budget is used: what is kept grows with use. A reader takes a
        millisecond.
        """
        with self._lock:
            found = list(self._kept.values()) if 2 * self._total() > self.most_bytes else []
        for kept in found:
            kept.bytes = kept.measure(kept.value)

    def _let_go(self, newest: Hashable) -> None:
        """Let go of what was used least recently until the budget holds. What somebody else holds stays: its memory
        would too, and nobody would count it.
        """
        total, in_use = self._total(), []
        for key in [key for key in self._kept if key != newest]:
            if total <= self.most_bytes:
                break
            kept = self._kept.pop(key)
            total -= kept.bytes
            if _is_used_elsewhere(kept):
                in_use.append((key, kept))
                total += kept.bytes
        for key, kept in reversed(in_use):
            self._kept[key] = kept
            self._kept.move_to_end(key, last=False)


def _is_used_elsewhere(kept: _CacheEntry) -> bool:
    """Return whether anybody holds the value after it was let go of; it is put back then."""
    try:
        reference = weakref.ref(kept.value)
    except TypeError:  # a dict or text is gone with the last who holds it, and holds nothing open
        return False
    kept.value = None
    kept.value = reference()
    return kept.value is not None
