"""Figures measured of a run, out of its file: of a finished one, or of one whose last logit has
been written and that is not placed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..errors import StoreError
from ..numerics.arrays import Bits, DataFrame, Floats, Span
from ..numerics.formats import values_of
from ..numerics.sizes import TOP_K
from .file.database import Database
from .file.keep import refusal
from .file.records import ALL, RunHeader
from .file.table import nullable
from .tables import heatmap, logits, positions

STORED_CELLS = ("ulps", "row_ulps")  # of the heatmap: what each pyramid holds


class Figures:
    """Figures and logits of a run by position, with the header they belong to."""

    def __init__(self, database: Database, header: RunHeader) -> None:
        self.header = header
        self._database = database
        self.decoding = database.decoding
        # of the latest pair, which a page asks for several times
        self._read_positions = lru_cache(1)(partial(positions.read_positions, database, header))

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

    def has_rollouts(self) -> bool:
        """Return whether a run is of sampled tokens, some with both sides' values."""
        return bool(len(self.query("SELECT 1 FROM mismatch LIMIT 1")))

    def rows(self, table: str, **keys: int) -> DataFrame:
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

    def positions_of(self, pair: int, prompt: int) -> DataFrame:
        """Return the rows of `positions` of one prompt, also of a long run."""
        return positions.read_positions(self._database, self.header, pair, prompt)

    def largest(self, pair: int) -> DataFrame:
        """Return the row of `positions` with the largest difference, the first of equal ones."""
        # with the pair's stored maximum DuckDB skips row groups that do not reach it
        largest = "SELECT max_abs FROM pair WHERE pair = $1"
        sql = (
            "SELECT coalesce(min(prompt), 0) FROM position WHERE pair = $1 AND max_abs ="
            f" ({largest})"
        )
        table = self.positions_of(pair, self._database.rows(sql, [pair])[0][0])
        return table.iloc[[int(table["max_abs"].fillna(0.0).to_numpy(float).argmax())]]

    def spacing(self, pair: int, rows: Span) -> Floats:
        """Spacing by which the differences of some rows become row ULPs; 1 if there is no
        difference. [rows]
        """
        table = self.positions(pair)
        max_abs, in_row_ulps = (
            table[name].to_numpy(float)[slice(*rows)] for name in ("max_abs", "max_row_ulps")
        )
        # then the reference has a finite element, and the quotient of the two is exact
        is_known = max_abs > 0
        with np.errstate(divide="ignore"):
            return np.where(is_known, max_abs / np.where(is_known, in_row_ulps, 1.0), 1.0)

    def logsumexp(self, side: int) -> Floats:
        """Logsumexp of every row of a side, in nats, NaN if undefined or not sent. [rows]"""
        sql = "SELECT prompt, position, logsumexp FROM side_position WHERE side = ?"
        with self.decoding("table of sides by position"):
            prompts, places, values = (
                column.to_numpy() for column in self._database.table(sql, [side]).columns
            )
            rows = np.full(self.header.rows, np.nan)
            rows[self.header.row_of(prompts, places)] = values
            return rows

    def is_only_masked(self, pair: int) -> bool:
        """Return whether the only non-finite logits of one side alone are -inf: others show in a
        row's logsumexp.
        """
        rows = self.positions(pair)["nonfinite_mismatch"].to_numpy(np.int64) > 0
        of_rows = np.concatenate([self.logsumexp(side)[rows] for side in (0, pair + 1)])
        return not (np.isnan(of_rows) | np.isposinf(of_rows)).any()

    def best_tokens(self, side: int, ranks: int) -> DataFrame:
        """Return the first `ranks` tokens of every row of a side: prompt, position, rank (from 0),
        token_id, logit.
        """
        sql = (
            "SELECT * EXCLUDE (side) FROM top_token WHERE side = ? AND rank < ? ORDER BY prompt,"
            " position, rank"
        )
        with self.decoding("table of top tokens"):
            return self._database.table(sql, [side, ranks]).to_pandas()

    def argmaxes(self, side: int, rows: Iterable[int]) -> dict[int, set[int]]:
        """Return the tokens with the largest logit of some rows of a side; logits are read if all
        stored ones tie.
        """
        best = self.best_tokens(side, TOP_K)
        best["row"] = self.header.row_of(best["prompt"].to_numpy(), best["position"].to_numpy())
        ties = best[best["logit"] == best.groupby("row")["logit"].transform("max")]
        argmaxes = ties.groupby("row")["token_id"].agg(set).to_dict()
        for row in rows:
            if len(argmaxes.setdefault(row, set())) == TOP_K:
                values = values_of(self.read_rows(side, row, row + 1)[0], self.header.format)
                argmaxes[row] = set(np.flatnonzero(values == np.nanmax(values)).tolist())
        return argmaxes

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

    @property
    def has_all_logits(self) -> bool:
        """Whether the run has the logits of all positions, so that `at` and `read_rows` can return
        them.
        """
        return self.header.keep == ALL

    def _check_kept(self) -> None:
        if not self.has_all_logits:
            raise StoreError(refusal(self.header))

    def read_rows(self, side: int, start: int, stop: int) -> Bits:
        """Return the bits of rows [start, stop) of a side; rows are the positions of all prompts,
        one after another.

        Returns:
            [stop - start, vocab], unsigned integers of the width of `header.compute_dtype`; see
            `numerics.formats.values_of`.

        Raises:
            StoreError: the run has no logits.
        """
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
