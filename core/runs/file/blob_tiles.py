"""Rows of bits to BLOB tiles and back, as Arrow buffers.

8 KB tiles in an uncompressed column reach disk speed (docs/contributing/decisions/0003-run-file.md).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

TILE_BYTES = 8192


def binary_rows(rows: NDArray[np.unsignedinteger], tile_bytes: int) -> tuple[pa.Array, int]:
    """[rows, columns] as (binary array of rows x tiles values sharing the rows' memory, tiles a row)."""
    rows = np.ascontiguousarray(rows)
    row_bytes = rows.shape[1] * rows.itemsize
    tiles = -(-row_bytes // tile_bytes)
    starts = np.arange(rows.shape[0])[:, None] * row_bytes + np.arange(tiles)[None, :] * tile_bytes
    offsets = np.append(starts.ravel(), rows.nbytes).astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(), rows.shape[0] * tiles, [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    ), tiles


def join_tiles(column: pa.ChunkedArray, dtype: np.dtype) -> NDArray:
    """Return all values of a binary column, one after another, as one array. [elements]"""
    parts = []
    for chunk in column.chunks:
        if len(chunk):
            offsets = np.frombuffer(chunk.buffers()[1], np.int64 if pa.types.is_large_binary(chunk.type) else np.int32)
            first, last = offsets[chunk.offset], offsets[chunk.offset + len(chunk)]
            parts.append(np.frombuffer(chunk.buffers()[2], np.uint8)[first:last])
    return np.concatenate(parts).view(dtype) if parts else np.empty(0, dtype)
