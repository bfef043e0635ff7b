"""Rows of the reference that are still in memory while a run is written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RecentRows:
    """The newest chunks of the reference that some variant has not had yet, up to `limit` bytes, and always the
    latest.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[tuple[int, NDArray[np.unsignedinteger]]] = []

    def add(self, row: int, bits: NDArray[np.unsignedinteger]) -> None:
        kept = sum(chunk.nbytes for _, chunk in self._chunks)
        if self._chunks and kept + bits.nbytes > self._limit:
            # a side as long as this is read back: the variants begin at its beginning, which is gone
            self._chunks.clear()
        self._chunks.append((row, bits))

    def rows(self, row: int, count: int) -> NDArray[np.unsignedinteger] | None:
        """[count, vocab], or None where not all of them are here."""
        parts = []
        for first, bits in self._chunks:
            start, stop = max(row, first), min(row + count, first + len(bits))
            if start < stop:
                parts.append(bits[start - first : stop - first])
        if sum(map(len, parts)) < count:
            return None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def forget(self, row: int) -> None:
        """Drop what every side has passed: the chunks before `row`."""
        self._chunks = [(first, bits) for first, bits in self._chunks if first + len(bits) > row]
