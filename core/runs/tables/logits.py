"""The complete logits, bit for bit, in tiles, and rows of bits as Arrow buffers.

8 KB tiles in an uncompressed column reach disk speed
(docs/contributing/decisions/0003-run-file.md).
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import StoreError, UsageError
from ...numerics.arrays import Bits, Places, Span
from ...places import place_of
from ..file.database import Database
from ..file.records import ALL, MAX_LISTED_ROWS, MAX_ROWS, MAX_VOCAB, RunHeader
from ..file.table import Table

TILE_BYTES = 8192
# Arrow's binary offsets are 32 bits: a gigabyte-wide chunk must not wrap them
_INSERT_BYTES = 1 << 28
LOGITS = Table(
    "logits",
    """
    -- the complete logits, bit for bit, in tiles of 8192 bytes
    side USMALLINT -- index of the side
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index in its prompt
    tile USMALLINT -- 0-based tile; tile t starts at byte 8192 t of the row
    bits BLOB USING COMPRESSION uncompressed -- raw little-endian bits in the compute dtype; the
    -- last tile of a row is shorter
    """,
)


def insert_logits(
    database: Database,
    side: int,
    places: Places,
    rows: Bits,
) -> None:
    """Insert some rows of one side; `places` [rows, 2] holds prompt and position of each."""
    at_once = max(1, _INSERT_BYTES // (rows.shape[1] * rows.itemsize))
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        bits, tiles = binary_rows(rows[part], TILE_BYTES)
        prompts, positions = np.repeat(places[part], tiles, axis=0).T
        LOGITS.insert(
            database,
            side=side,
            prompt=prompts,
            position=positions,
            tile=np.arange(len(prompts)) % tiles,
            bits=bits,
        )


def check_whole(database: Database, header: RunHeader) -> None:
    """StoreError for a run that is larger than any, or lacks logits."""
    rows = len(header.sides) * header.rows if header.keep == ALL else 0
    tiles = rows * -(-header.vocab * header.format.itemsize // TILE_BYTES)
    count = database.rows("SELECT count(*) FROM logits")[0][0]
    most = MAX_ROWS if not header.is_list else MAX_LISTED_ROWS
    if header.rows > most or header.vocab > MAX_VOCAB or count != tiles:
        raise StoreError(
            f"{database.file}: has {count:,} tiles of logits for {rows:,} rows of"
            f" {header.vocab:,}; the file is damaged.",
        )


def read_position(
    database: Database,
    header: RunHeader,
    sides: Sequence[int],
    prompt: int,
    position: int,
) -> Bits:
    """All logits of some sides, in ascending order, at one position, as bits. [sides, vocab]"""
    which = f"side IN ({', '.join('?' * len(sides))}) AND prompt = ? AND position = ?"
    table = database.table(
        f"SELECT bits FROM logits WHERE {which} ORDER BY side, tile",
        [*sides, prompt, position],
    )
    with database.decoding("logits"):
        bits = join_tiles(table.column("bits"), header.format.carrier)
    if bits.size != len(sides) * header.vocab:
        raise StoreError(
            f"{database.file}: no logits at prompt {prompt}, position {position}, sides"
            f" {[*sides]}.",
        )
    return bits.reshape(len(sides), -1)


def read_window(
    database: Database,
    header: RunHeader,
    side: int,
    rows: Span,
    tokens: Span,
) -> Bits:
    """Bits of a rectangle, reading only the tiles it touches. [rows, tokens]; both ranges half
    open.
    """
    ranges = ("rows", rows, header.rows), ("tokens", tokens, header.vocab)
    for what, (start, stop), size in ranges:
        if not 0 <= start < stop <= size:
            raise UsageError(f"{what} {start} to {stop}: expected a range within 0 to {size}.")
    per_tile = TILE_BYTES // header.format.itemsize
    first_tile, last_tile = tokens[0] // per_tile, (tokens[1] - 1) // per_tile
    first, last = place_of(rows[0], header.lengths), place_of(rows[1] - 1, header.lengths)
    table = database.table(
        """SELECT bits FROM logits
           WHERE side = $1 AND prompt BETWEEN $2 AND $4 AND (prompt > $2 OR position >= $3)
             AND (prompt < $4 OR position <= $5) AND tile BETWEEN $6 AND $7""",
        [side, *first, *last, first_tile, last_tile],
    )
    first_token = first_tile * per_tile
    width = min((last_tile + 1) * per_tile, header.vocab) - first_token
    # rows lie in insertion order, which is this one
    with database.decoding(f"table of logits of side {side}"):
        bits = join_tiles(table.column("bits"), header.format.carrier).reshape(
            rows[1] - rows[0], width
        )
    return bits[:, tokens[0] - first_token : tokens[1] - first_token]


def binary_rows(rows: Bits, tile_bytes: int) -> tuple[pa.Array, int]:
    """[rows, columns] as (binary array of rows x tiles values sharing the rows' memory, tiles a
    row).
    """
    # the buffers share the rows' memory, which must have no gaps
    rows = np.ascontiguousarray(rows)
    row_bytes = rows.shape[1] * rows.itemsize
    tiles = -(-row_bytes // tile_bytes)
    starts = np.add.outer(np.arange(len(rows)) * row_bytes, np.arange(tiles) * tile_bytes)
    offsets = np.append(starts, rows.nbytes).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.binary(), starts.size, buffers), tiles


def join_tiles(column: pa.ChunkedArray, dtype: np.dtype) -> NDArray:
    """Return all values of a binary column, one after another, as one array. [elements]"""
    parts = [np.empty(0, np.uint8)]
    for chunk in column.chunks:
        if len(chunk):
            _, starts, values = chunk.buffers()
            offsets = np.frombuffer(starts, np.int32)
            first, last = offsets[[chunk.offset, chunk.offset + len(chunk)]]
            parts.append(np.frombuffer(values, np.uint8)[first:last])
    return np.concatenate(parts).view(dtype)
