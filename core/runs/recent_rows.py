"""Rows of the reference while a run is written: the newest in memory, and all of them in a file if the run does not
store them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError


class RecentRows:
    """The newest chunks of the reference that some variant still needs, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._chunks: list[tuple[int, NDArray[np.unsignedinteger]]] = []

    def add(self, row: int, bits: NDArray[np.unsignedinteger]) -> None:
        held_bytes = sum(chunk.nbytes for _, chunk in self._chunks)
        if self._chunks and held_bytes + bits.nbytes > self._limit:
            # a side as long as this is read back: the variants begin at its beginning, which is gone
            self._chunks.clear()
        self._chunks.append((row, bits))

    def rows(self, row: int, count: int) -> NDArray[np.unsignedinteger] | None:
        """[count, vocab], or None if not all of them are here."""
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


class SpooledRows:
    """All rows of the reference in a file of raw bits, which goes with the directory that it is in."""

    def __init__(self, path: Path, vocab: int, carrier: np.dtype) -> None:
        self._path, self._vocab, self._carrier = path, vocab, carrier

    def add(self, bits: NDArray[np.unsignedinteger]) -> None:
        """Append the next rows. [rows, vocab]"""
        try:
            with self._path.open("ab") as file:
                file.write(bits.data)
        except OSError as error:
            raise StoreError(f"{self._path.name}: cannot be written ({error.strerror or error}).") from error

    def rows(self, row: int, count: int) -> NDArray[np.unsignedinteger]:
        """Rows that were added before. [count, vocab]"""
        offset = row * self._vocab * self._carrier.itemsize
        try:
            bits = np.fromfile(self._path, self._carrier, count * self._vocab, offset=offset)
        except OSError as error:
            raise StoreError(f"{self._path.name}: cannot be read ({error.strerror or error}).") from error
        return bits.reshape(count, self._vocab)
