"""Read a run file: provenance, figures of positions and pairs, and the logits themselves, a
position or a range at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from ..command_name import COMMAND
from ..errors import StoreError
from ..evidence import Evidence
from ..numerics.arrays import DataFrame, Record
from ..responses.records import ResponseSide
from .figures import Figures
from .file.database import Database
from .file.records import Generation, Provenance, RunHeader, SideHeader, StoredPair
from .tables import heatmap, logits, mitigations, pairs, positions, responses, run
from .tables.mitigations import MitigationRow
from .tables.run import StoredSide
from .tables.schema import check_tables


class RunReader(Figures):
    """One run, open for reading; safe to use from several threads. Close it, or use it as a context
    manager.

    header: shape, prompts and provenance; sides, pairs: in the order of their indices, side 0 is
    the reference and pair i compares it with side i + 1.
    """

    def __init__(self, path: Path) -> None:
        """Open a run file.

        Raises:
            StoreError: it is missing, damaged or not a run file of this version.
        """
        self.path = path
        self.run_id = path.stem
        if not path.exists():
            raise StoreError(f"run '{self.run_id}' does not exist any more.")
        database = self._database = Database.to_read(path)
        try:
            about = check_tables(database)
            with database.decoding("provenance"):
                header = self._read_header(about)
        except BaseException:
            self.close()
            raise
        self.created: datetime = about["created"]
        super().__init__(database, header)

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the run file."""
        self._database.abandon()

    def _read_header(self, about: Record) -> RunHeader:
        # core.runs.ops_run reads those
        if about["kind"] == "ops":
            raise StoreError(
                f"run '{self.run_id}' holds probes of operations, so no sides and no logits;"
                f" `{COMMAND} ops --show {self.run_id}` and the Machine page show it.",
            )
        provenance = {field.name: about[field.name] for field in fields(Provenance)}
        # 1.0.0 spelled it with an s, and equal weights are compared as texts
        versions = json.loads(about["versions"].replace("dequantised", "dequantized"))
        header = RunHeader(
            about["name"],
            about["compute_dtype"],
            about["vocab"],
            run.read_prompts(self._database),
            tuple(SideHeader(side.name, side.path, side.source_dtype) for side in self.sides),
            Provenance(**provenance | {"versions": versions}),
            keep=about["kept"],
            k=max((side.k for side in self.sides if side.k is not None), default=None),
            holds=self.sides[0].holds if self.sides else "logit",
        )
        logits.check_whole(self._database, header)
        return header

    @cached_property
    def sides(self) -> list[StoredSide]:
        """Sides of the run with their names, dtypes and digests; the first is the reference."""
        return run.read_sides(self._database)

    @cached_property
    def pairs(self) -> list[StoredPair]:
        """Pairs of the reference and each variant, with summary and verdict."""
        return pairs.read_pairs(self._database, [side.name for side in self.sides])

    def evidence(self, pair: int) -> list[Evidence]:
        """Evidence that a pair's verdict rests on, in the order of the checks; empty if it was not
        judged.
        """
        return self._evidence.get(pair, [])

    @cached_property
    def _evidence(self) -> dict[int, list[Evidence]]:
        return pairs.read_evidence(self._database)

    @cached_property
    def classes(self) -> list[list[str]]:
        """Names of the sides, grouped by equal bits, in order of first appearance."""
        sql = "SELECT list(name ORDER BY side) FROM side GROUP BY bit_class ORDER BY min(side)"
        return [names for (names,) in self._database.rows(sql)]

    @cached_property
    def vocabulary(self) -> dict[int, str]:
        """Map from token id to text, for known texts."""
        return dict(self._database.rows("SELECT token_id, text FROM vocabulary"))

    def histogram(self, pair: int) -> dict[int, int]:
        """Return a map from ULP distance to number of elements of a pair."""
        sql = "SELECT distance, elements FROM ulp_histogram WHERE pair = ? ORDER BY distance"
        return dict(self._database.rows(sql, [pair]))

    def top_tokens(self, sides: Sequence[int], prompt: int, position: int) -> list[DataFrame]:
        """Return the largest logits of each side at a position by token id: rank (1: argmax),
        logit, probability.
        """
        sql = (
            "SELECT side, token_id, rank + 1 AS rank, logit, logsumexp, logit::DOUBLE - logsumexp"
            " AS probability FROM top_token JOIN side_position USING (side, prompt, position)"
            f" WHERE side IN ({', '.join('?' * len(sides))}) AND prompt = ? AND position = ? ORDER"
            " BY side, rank"
        )
        table = self._database.table(sql, [*sides, prompt, position]).to_pandas()
        table = table.set_index("token_id")
        table["probability"] = np.exp(table["probability"].to_numpy(float))
        return [table[table["side"] == side] for side in sides]

    @property
    def pairs_with_kv(self) -> frozenset[int]:
        """Indices of the pairs whose key/value caches were compared."""
        return self._in_table("pair", "kv")

    @property
    def pairs_with_layers(self) -> frozenset[int]:
        """Indices of the pairs whose module outputs were compared."""
        return self._in_table("pair", "layer")

    @property
    def pairs_with_choices(self) -> frozenset[int]:
        """Indices of the pairs of which both sides' choices were recorded."""
        sides = self._in_table("side", "choice")
        return frozenset(side - 1 for side in sides if side and 0 in sides)

    @property
    def sides_with_kernels(self) -> frozenset[int]:
        """Indices of the sides whose kernels were watched."""
        return self._in_table("side", "kernel_side")

    def _in_table(self, column: str, table: str) -> frozenset[int]:
        return frozenset(
            row[0] for row in self._database.rows(f"SELECT DISTINCT {column} FROM {table}")
        )

    def records(self, pair: int) -> list[Record]:
        """Return the figures of a pair, one dict per position, None if undefined; of a long run
        only its flips and the largest difference.
        """
        condition = "true"
        if self.header.is_long:
            prompt, position = self.largest(pair)[["prompt", "position"]].iloc[0]
            condition = f"(is_flip OR prompt = {prompt} AND position = {position})"
        return positions.read(self._database, condition, [pair]).to_pylist()

    def compared_positions(self, pair: int) -> int:
        """Return the number of positions of a pair that were compared."""
        return self._database.rows("SELECT count(*) FROM position WHERE pair = ?", [pair])[0][0]

    def check_digests(self) -> None:
        """Raise StoreError unless the sides of a run of responses have their digests."""
        responses.check_digests(self._database)

    def responses(self) -> tuple[ResponseSide, ...]:
        """Return what servers sent, of a run of responses."""
        self.header.check_short()
        return responses.read_sides(self._database)

    @cached_property
    def mitigations(self) -> dict[int, list[MitigationRow]]:
        """Mitigations tried on each pair, by pair; empty if nothing was tried."""
        return mitigations.read_mitigations(self._database)

    @cached_property
    def generations(self) -> dict[int, Generation]:
        """Tokens that the sides generated, by prompt; empty for a run that only scored given
        tokens.
        """
        return run.read_generations(self._database)

    def levels(self) -> range:
        """Levels of the heatmap pyramid that the file holds."""
        return heatmap.levels_of(self.header)
