"""Arrays of the reference that wait on disk while a run is written."""

from pathlib import Path

import numpy as np

from ..errors import StoreError, os_errors
from ..numerics.arrays import Array


class Spool:
    """Arrays in one file, which goes with the directory that it is in."""

    def __init__(self, path: Path) -> None:
        self._path, self.end = path, 0

    def add(self, array: Array, offset: int | None = None) -> int:
        """Write an array at the end, or over what is at `offset`; return where it is."""
        offset = self.end if offset is None else offset
        mode = "r+b" if self.end else "wb"
        what = f"{self._path.name}: cannot be written"
        with os_errors(StoreError, what), self._path.open(mode) as file:
            file.seek(offset)
            file.write(np.ascontiguousarray(array).data)
        self.end = max(self.end, offset + array.nbytes)
        return offset

    def read(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        """Return an array that was written before."""
        with os_errors(StoreError, f"{self._path.name}: cannot be read"):
            return np.fromfile(self._path, dtype, int(np.prod(shape)), offset=offset).reshape(shape)
