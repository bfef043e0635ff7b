"""Arrays of the reference that wait on disk while a run is written."""

from pathlib import Path

import numpy as np

from ..errors import StoreError
from ..numerics.arrays import Array


class Spool:
    """Arrays in one file, which goes with the directory that it is in."""

    def __init__(self, path: Path) -> None:
        self._path, self.end = path, 0

    def add(self, array: Array, offset: int | None = None) -> int:
        """Write an array at the end, or over what is at `offset`; return where it is."""
        offset = self.end if offset is None else offset
        try:
            with self._path.open("r+b" if self.end else "wb") as file:
                file.seek(offset)
                file.write(np.ascontiguousarray(array).data)
        except OSError as error:
            raise StoreError(
                f"{self._path.name}: cannot be written ({error.strerror or error}).",
            ) from error
        self.end = max(self.end, offset + array.nbytes)
        return offset

    def read(self, offset: int, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        """Return an array that was written before."""
        try:
            return np.fromfile(self._path, dtype, int(np.prod(shape)), offset=offset).reshape(shape)
        except OSError as error:
            raise StoreError(
                f"{self._path.name}: cannot be read ({error.strerror or error}).",
            ) from error
