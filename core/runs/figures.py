"""Figures measured of a run, out of its file: of a finished one, or of one whose last logit has
been written and that is not placed yet.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from ..errors import StoreError
from ..numerics.arrays import Array, Bits, DataFrame, Floats, Ints, Span
from ..numerics.metrics import OF_TOKENS
from ..numerics.sizes import TOP_K
from .file.database import Database
from .file.records import RunHeader
from .file.table import nullable
from .measured import Measured
from .tables import heatmap, logits, positions

STORED_CELLS = ("ulps", "row_ulps")  # of the heatmap: what each pyramid holds


class Figures(Measured):
    """Figures and logits of a run by position, with the header they belong to."""

    def __init__(self, database: Database, header: RunHeader) -> None:
        self.header = header
        self._database = database
        self.decoding = database.decoding
        # of the latest pair, which a page asks for several times
        self._read_positions = lru_cache(1)(partial(positions.read_positions, database, header))
        self._read_columns = lru_cache(1)(self._columns_of)

    def query(self, sql: str, *values: Any) -> DataFrame:
        """Run a query on the tables of docs/reference/run_file.md.

        Args:
            sql: with `?` for each of `values`.

        Returns:
            The rows; integers that may be null have a nullable dtype.
        """
        table = self._database.table(sql, values)
        with self.decoding("figures"):
            return table.to_pandas(types_mapper=nullable)

    @cached_property
    def has_rollouts(self) -> bool:
        """Whether there are figures of trainer vs. rollout."""
        return bool(self._database.rows("SELECT 1 FROM mismatch LIMIT 1"))

    def has_prompts_of_rollouts(self) -> bool:
        """Return whether every sequence has its prompt's tokens."""
        return not self._database.rows(
            "SELECT 1 FROM sequence WHERE prompt_token_ids IS NULL LIMIT 1",
        )

    def rows(self, table: str, **keys: int | str) -> DataFrame:
        """Return the rows of a table with these values, in the order of its other columns, which
        are returned.
        """
        conditions = " AND ".join(f"{column} = ?" for column in keys)
        sql = f"SELECT * EXCLUDE ({', '.join(keys)}) FROM {table} WHERE {conditions} ORDER BY ALL"
        return self.query(sql, *keys.values())

    def positions(self, pair: int) -> DataFrame:
        """Return the figures of a pair by position (docs/reference/metrics.md).

        Args:
            pair: index of the pair.

        Returns:
            One row per position of every prompt, columns of the table `position`, null if
            undefined: differences in `header.unit`, ULPs of `header.compute_dtype`, KL in nats. Do
            not change it: the latest is cached.

        Raises:
            StoreError: the run is too long to be read at once; see `positions_of`.
        """
        self.header.check_short()
        return self._read_positions(pair)

    def columns(self, pair: int) -> Mapping[str, Array]:
        """Return the columns of `positions` of a run of whole rows; the latest are cached."""
        return self._read_columns(pair)

    def _columns_of(self, pair: int) -> Mapping[str, Array]:
        columns = {}
        for name, values in self.positions(pair).items():
            if name in OF_TOKENS and not self.header.has_tokens:
                columns[name] = np.full(len(values), np.nan)
            elif values.hasnans:
                columns[name] = values.to_numpy(np.float64, na_value=np.nan)
            else:
                columns[name] = values.to_numpy()
        return columns

    def positions_of(self, pair: int, prompt: int) -> DataFrame:
        """Return the rows of `positions` of one prompt, also of a long run."""
        return positions.read_positions(self._database, self.header, pair, prompt)

    def largest(self, pair: int) -> DataFrame:
        """Return the row of `positions` with the largest difference, the first of equal ones."""
        # with the pair's stored maximum DuckDB skips row groups that do not reach it
        sql = (
            "SELECT coalesce(min(prompt), 0) FROM position WHERE pair = $1 AND max_abs ="
            " (SELECT max_abs FROM pair WHERE pair = $1)"
        )
        table = self.positions_of(pair, self._database.rows(sql, [pair])[0][0])
        return table.iloc[[int(table["max_abs"].fillna(0.0).to_numpy(float).argmax())]]

    def logsumexp(self, side: int) -> Floats:
        """Read the column of that name."""
        sql = "SELECT prompt, position, logsumexp FROM side_position WHERE side = ?"
        with self.decoding("table of sides by position"):
            columns = self._database.table(sql, [side]).columns
            prompts, places, values = (column.to_numpy() for column in columns)
            rows = np.full(self.header.rows, np.nan)
            rows[self.header.row_of(prompts, places)] = values
            return rows

    def best_tokens(self, side: int) -> tuple[Ints, Floats]:
        """Read the first TOP_K ranks of every row."""
        sql = (
            "SELECT prompt, position, rank, token_id, logit FROM top_token WHERE side = ? AND"
            " rank < ?"
        )
        tokens = np.full((self.header.rows, TOP_K), -1)
        logits = np.full(tokens.shape, np.nan)
        with self.decoding("table of top tokens"):
            columns = self._database.table(sql, [side, TOP_K]).columns
            prompts, places, ranks, *best = (column.to_numpy() for column in columns)
            rows = self.header.row_of(prompts, places)
            tokens[rows, ranks], logits[rows, ranks] = best
        return tokens, logits

    def stored_cells(
        self,
        measure: str,
        pair: int,
        level: int,
        rows: Span,
    ) -> Bits:
        """Heatmap cells over rows [start, stop) of a measure of STORED_CELLS. [cells of positions,
        cells of tokens]
        """
        table = heatmap.PYRAMIDS[STORED_CELLS.index(measure)]
        return heatmap.read_cells(self._database, table, self.header, pair, level, rows)

    def _check_kept(self) -> None:
        if not self.has_all_logits:
            raise StoreError(self.header.without_logits)

    def read_rows(self, side: int, start: int, stop: int) -> Bits:
        """Read whole rows of tiles."""
        return self.read_window(side, (start, stop), (0, self.header.vocab))

    def read_window(
        self,
        side: int,
        rows: Span,
        tokens: Span,
    ) -> Bits:
        """Return the bits of a rectangle; reads only the tiles it touches. [rows, tokens]; both
        ranges half open.
        """
        self._check_kept()
        return logits.read_window(self._database, self.header, side, rows, tokens)

    def at(self, side: int, prompt: int, position: int) -> Bits:
        """Return all logits of a side at one position, as bits like `read_rows`. [vocab]"""
        return self.at_sides([side], prompt, position)[0]

    def at_sides(
        self,
        sides: Sequence[int],
        prompt: int,
        position: int,
    ) -> Bits:
        """Return `at` of several sides, in ascending order, by one query. [sides, vocab]"""
        self._check_kept()
        return logits.read_position(self._database, self.header, sides, prompt, position)
