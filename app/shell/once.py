"""Objects that a server makes once for all viewers: jobs, looks and pools, in no cache that a browser could clear."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Once(Generic[Made]):
    """Function that is called once in the life of the process, by whoever asks first; a decorator."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make, self._made, self._lock = make, list[Made](), threading.RLock()

    def __call__(self) -> Made:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    def clear(self) -> None:
        """Forget what was made; the next call makes another."""
        with self._lock:
            self._made.clear()
