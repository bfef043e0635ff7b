"""What was measured of a run, out of its file: of a finished one, or of one whose last logit has been written and that
is not placed yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...errors import StoreError, UsageError
from .blob_tiles import TILE_BYTES, joined
from .database import Database
from .records import RunHeader

if TYPE_CHECKING:
    import pandas as pd

# What a file of odd contents makes numpy, pandas and pyarrow raise while its rows become records and arrays.
DECODING = (
    UsageError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
    pa.ArrowException,
)


def nullable(kind: pa.DataType) -> Any:
    """The dtype in pandas of a whole number that may be null; None for anything else, which is quicker to compute with
    as it is.
    """
    import pandas as pd

    return {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}.get(kind)


# What every row must hold, by numpy's kinds: a file in which it is text or null is not read as one that is all equal.
_KINDS = {"bit_identical": "b", "is_flip": "b", "neq": "iu", "nonfinite_mismatch": "iu", "rms": "f", "max_abs": "f"}


def read_rows(database: Database, header: RunHeader, side: int, start: int, stop: int) -> NDArray[np.unsignedinteger]:
    """Bits of rows [start, stop) of a side. [rows, vocab], the compute dtype's carrier."""
    return read_window(database, header, side, (start, stop), (0, header.vocab))


def read_window(
    database: Database, header: RunHeader, side: int, rows: tuple[int, int], tokens: tuple[int, int]
) -> NDArray[np.unsignedinteger]:
    """Bits of a rectangle, reading only the tiles it touches. [rows, tokens]; both ranges half open."""
    for what, (start, stop), size in (("rows", rows, header.rows), ("tokens", tokens, header.vocab)):
        if not 0 <= start < stop <= size:
            raise UsageError(f"{what} {start} to {stop} asked for; expected a range within 0 to {size}.")
    per_tile = TILE_BYTES // header.format.itemsize
    first_tile, last_tile = tokens[0] // per_tile, (tokens[1] - 1) // per_tile
    places = header.places()[rows[0] : rows[1]]
    (first_prompt, first), (last_prompt, last) = places[0], places[-1]
    found = database.table(
        """SELECT prompt, position, tile, bits FROM logits
           WHERE side = ? AND prompt BETWEEN ? AND ? AND (prompt > ? OR position >= ?) AND (prompt < ? OR position <= ?)
             AND tile BETWEEN ? AND ?""",
        [side, first_prompt, last_prompt, first_prompt, first, last_prompt, last, first_tile, last_tile],
    )
    try:
        keys = np.stack([found.column(name).to_numpy().astype(np.int64) for name in ("prompt", "position", "tile")])
        order = np.lexsort(keys[::-1])
        if not np.array_equal(order, np.arange(len(order))):  # rows lie in insertion order, which is this one
            found = found.take(order)
        _check_places(keys[:, order], np.array(places, np.int64), range(first_tile, last_tile + 1))
        bits = joined(found.column("bits"), header.format.carrier).reshape(len(places), -1)
    except DECODING as error:
        what = f"the logits of side {side} make no sense ({error})"
        raise StoreError(f"{database.path.name}: {what}; the file is damaged.") from error
    first_token = first_tile * per_tile
    if bits.shape[1] != min((last_tile + 1) * per_tile, header.vocab) - first_token:
        raise StoreError(
            f"{database.path.name}: side {side} lacks logits of rows {rows[0]} to {rows[1]}; the file is damaged."
        )
    return bits[:, tokens[0] - first_token : tokens[1] - first_token]


def _check_places(keys: NDArray[np.int64], places: NDArray[np.int64], tiles: range) -> None:
    """Every tile of every place once. keys: prompt, position and tile of each tile, in order, [3, tiles]; places:
    [rows, 2]
    """
    expected = np.stack([*np.repeat(places, len(tiles), axis=0).T, np.tile(np.array(tiles), len(places))])
    if not np.array_equal(keys, expected):
        raise ValueError("a tile is missing, or there twice")


class Figures:
    """Figures and logits of a run by position, with the header they belong to."""

    def __init__(self, database: Database, header: RunHeader) -> None:
        self.header = header
        self._database = database

    @contextmanager
    def decoding(self, what: str) -> Iterator[None]:
        """StoreError where rows of the file make no sense."""
        try:
            yield
        except DECODING as error:
            raise StoreError(
                f"{self._database.path.name}: its {what} makes no sense ({error}); the file is damaged."
            ) from error

    def positions(self, pair: int) -> pd.DataFrame:
        """Figures of a pair, one row a position of every prompt, columns of the table `position` (null where
        undefined).
        """
        found = self._database.table(
            """SELECT prompt, position, neq, bit_identical, max_abs, rms, max_ulps, max_ulps_token,
              mean_ulps, nonfinite_mismatch,
                      reference_token, variant_token, is_flip, reference_margin, variant_margin, reference_margin_ulps,
                      variant_margin_ulps, near_tie, is_tie, kl
               FROM position WHERE pair = ? ORDER BY prompt, position""",
            [pair],
        )
        with self.decoding("table of positions"):
            table = found.to_pandas(types_mapper=nullable)
            if len(table) != self.header.rows:
                raise ValueError(f"{len(table)} rows for {self.header.rows} positions of pair {pair}")
            for column, kinds in _KINDS.items():
                if table[column].dtype.kind not in kinds or table[column].isna().any():
                    raise TypeError(f"column {column} holds {table[column].dtype}")
            return table

    def logsumexp(self, side: int) -> NDArray[np.float64]:
        """Of every row of a side, in nats, NaN where undefined. [rows]"""
        found = self._database.table(
            "SELECT logsumexp FROM side_position WHERE side = ? ORDER BY prompt, position", [side]
        )
        with self.decoding("table of sides by position"):
            return found.column("logsumexp").to_numpy().astype(np.float64)

    def is_only_masked(self, pair: int) -> bool:
        """Is what one side of a pair has no number for -inf everywhere, and neither NaN nor +inf, which show in a row's
        logsumexp?
        """
        rows = self.positions(pair)["nonfinite_mismatch"].to_numpy(np.int64) > 0
        of_rows = np.concatenate([self.logsumexp(side)[rows] for side in (0, pair + 1)])
        return not (np.isnan(of_rows) | np.isposinf(of_rows)).any()

    def best_tokens(self, side: int, ranks: int) -> pd.DataFrame:
        """The first `ranks` tokens of every row of a side: prompt, position, rank (as in the file, 0 is the argmax),
        token_id, logit.
        """
        found = self._database.table(
            """SELECT prompt, position, rank, token_id, logit FROM top_token
               WHERE side = ? AND rank < ? ORDER BY prompt, position, rank""",
            [side, ranks],
        )
        with self.decoding("table of top tokens"):
            return found.to_pandas()

    def ulp_cells(self, pair: int, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """The finest heatmap cells of rows [start, stop) of a pair. [rows, cells]"""
        found = self._database.table(
            "SELECT cells FROM ulp_tile WHERE pair = ? AND level = 0 AND first_row >= ? AND first_row < ? ORDER BY"
            " first_row",
            [pair, start, stop],
        )
        with self.decoding("heatmap"):
            return joined(found.column("cells"), self.header.format.carrier).reshape(stop - start, -1)

    def read_rows(self, side: int, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Bits of rows [start, stop) of a side. [rows, vocab]"""
        return read_rows(self._database, self.header, side, start, stop)
