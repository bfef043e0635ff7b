"""Rows of the reference while a run is written that does not store them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError


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
