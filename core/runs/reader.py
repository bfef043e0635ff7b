"""Read a run file: provenance, figures of positions and pairs, and the logits themselves, a position or a range at a
time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from ..numerics import pyramid
from ..numerics.elementary import exp
from ..numerics.formats import format_named
from ..numerics.totals import COUNTS, Summary
from .file.blob_tiles import joined
from .file.database import Database, check_size
from .file.figures import DECODING, Figures, nullable, read_rows, read_window
from .file.records import RUNGS, Evidence, Generation, Prompt, Provenance, RunHeader, SideHeader, rung_of
from .tables.kernels import KernelList, read_kernels
from .tables.remedies import PriceRow, RemedyRow, read_prices, read_remedies

if TYPE_CHECKING:
    import pandas as pd

_KV = (
    "prompt, layer, kind, head, elements, neq, finite, max_abs, rms, max_ulps, mean_ulps, nonfinite_mismatch,"
    " first_position"
)
_LAYER = (
    "prompt, ordinal, module, kind, block, dtype, positions, elements, neq, finite, max_abs, rms, max_ulps, mean_ulps, "
    "nonfinite_mismatch, first_position, floor_rms"
)
_SUMMARY = ", ".join(f.name for f in fields(Summary) if f.name not in COUNTS)
_COUNTS = """
SELECT pair, count(kl), count(*) FILTER (kl IS NULL AND isfinite(a.logsumexp) AND isfinite(b.logsumexp)),
       count(*) FILTER (reference_margin IS NOT NULL OR variant_margin IS NOT NULL),
       (SELECT CAST(sum(elements) AS BIGINT) FROM ulp_histogram WHERE ulp_histogram.pair = position.pair)
FROM position JOIN side_position a USING (prompt, position) JOIN side_position b USING (prompt, position)
WHERE a.side = 0 AND b.side = pair + 1 GROUP BY pair
"""  # in the order of COUNTS


@dataclass(frozen=True)
class StoredSide:
    """A side as it lies in the file; `bit_class` is shared by bit-identical sides.

    sha256: of its values as bits of `sha256_dtype`, the dtype they are of, so that equal values have it in any run; of
    a file that is older than that, of the bits as they are stored. stored_sha256: of these.
    """

    index: int
    name: str
    path: str
    source_dtype: str
    sha256: str
    sha256_dtype: str
    stored_sha256: str
    bit_class: int


@dataclass(frozen=True)
class StoredPair:
    """A pair of the run: index, the two sides' names, its summary, and its verdict, the sentence for it and the noise
    ratio if judged.
    """

    index: int
    reference: str
    variant: str
    summary: Summary
    verdict: str | None
    because: str | None = None
    noise_ratio: float | None = None


class RunReader:
    """One run, open for reading; safe to use from several threads. Close it, or use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.stem
        if not path.exists():
            raise StoreError(f"run '{self.run_id}' is not there any more.")
        self._database = Database.to_read(path)
        try:
            self.schema_version = self._database.check_schema()
            with self._decoding("provenance"):
                self.created, self.header = self._read_header()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RunReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._database.abandon()

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except DECODING as error:
            raise StoreError(f"{self.path.name}: its {what} makes no sense ({error}); the file is damaged.") from error

    @cached_property
    def figures(self) -> Figures:
        """What was measured by position, whoever asks."""
        return Figures(self._database, self.header)

    def _read_header(self) -> tuple[datetime, RunHeader]:
        row = self._database.rows(
            """SELECT name, created, kind, model, revision, compute_dtype, vocab, device, device_name,
              seed, command, note,
                      versions, (SELECT sum(positions) FROM prompt)
               FROM run"""
        )[0]
        (
            name,
            created,
            kind,
            model,
            revision,
            compute_dtype,
            vocab,
            device,
            device_name,
            seed,
            command,
            note,
            versions,
            rows,
        ) = row
        if kind == "ops":  # core.runs.ops_run reads those
            shown_by = f"`{COMMAND} ops --show {self.run_id}` and the Ops page show it"
            raise StoreError(f"run '{self.run_id}' holds probes of operations, so no sides and no logits; {shown_by}.")
        tokens: dict[int, list[tuple]] = {}
        for prompt, *token in self._database.rows("SELECT prompt, token_id, text FROM token ORDER BY prompt, position"):
            tokens.setdefault(prompt, []).append(tuple(token))
        check_size(self.path, len(self.sides) * vocab * rows * format_named(compute_dtype).itemsize)
        prompts = []
        for index, positions in self._database.rows("SELECT prompt, positions FROM prompt ORDER BY prompt"):
            ids = tuple(t[0] for t in tokens.get(index, []) if t[0] is not None)
            texts = tuple(t[1] for t in tokens.get(index, []) if t[1] is not None)
            prompts.append(Prompt(positions, ids, texts))
        provenance = Provenance(
            kind=kind,
            model=model,
            revision=revision,
            device=device,
            device_name=device_name,
            seed=seed,
            command=command,
            note=note,
            versions=json.loads(versions),
        )
        sides = tuple(SideHeader(side.name, side.path, side.source_dtype) for side in self.sides)
        return created, RunHeader(name, compute_dtype, vocab, tuple(prompts), sides, provenance)

    @cached_property
    def sides(self) -> list[StoredSide]:
        rows = self._database.rows(
            "SELECT side, name, path, source_dtype, sha256, compute_dtype, sha256, bit_class FROM side ORDER BY side"
            if not self._database.has_table("digest")
            else """SELECT side, name, path, source_dtype, digest.sha256, digest.dtype, side.sha256, bit_class
                    FROM side JOIN digest USING (side) ORDER BY side"""
        )
        with self._decoding("list of sides"):
            return [StoredSide(*row) for row in rows]

    @cached_property
    def pairs(self) -> list[StoredPair]:
        judged = "because, noise_ratio" if self.schema_version >= 2 else "NULL, NULL"
        rows = self._database.rows(
            f"SELECT pair, reference, variant, verdict, {judged}, {_SUMMARY} FROM pair ORDER BY pair"
        )
        names = [side.name for side in self.sides]
        counts = {pair: [count or 0 for count in found] for pair, *found in self._database.rows(_COUNTS)}
        with self._decoding("list of pairs"):
            return [
                StoredPair(
                    row[0],
                    names[row[1]],
                    names[row[2]],
                    Summary(*row[6:], *counts.get(row[0], (0,) * len(COUNTS))),
                    *row[3:6],
                )
                for row in rows
            ]

    def evidence(self, pair: int) -> list[Evidence]:
        """What a pair's verdict rests on, in the order of the ladder; empty where it was not judged."""
        if self.schema_version < 2:
            return []
        rows = self._database.rows("SELECT rung, control, figures, outcome, says FROM evidence WHERE pair = ?", [pair])
        with self._decoding("evidence"):
            found = [
                Evidence(rung_of(rung, control), control, json.loads(figures), outcome, says)
                for rung, control, figures, outcome, says in rows
            ]
            return sorted(found, key=lambda row: RUNGS.index(row.rung))

    def floor_positions(self, pair: int) -> pd.DataFrame:
        """A judged pair beside its rounding floor: compute_dtype, prompt, position, pair_rms, floor_rms (logits)."""
        columns = "compute_dtype, prompt, position, pair_rms, floor_rms"
        return self._later_table("floor_position", columns, "pair = ? ORDER BY compute_dtype, prompt, position", [pair])

    @property
    def classes(self) -> list[list[str]]:
        """Names of the sides, grouped by equal bits, in order of first appearance."""
        groups: dict[int, list[str]] = {}
        for side in self.sides:
            groups.setdefault(side.bit_class, []).append(side.name)
        return list(groups.values())

    @cached_property
    def vocabulary(self) -> dict[int, str]:
        """Token id to text, as far as known."""
        return dict(self._database.rows("SELECT token_id, text FROM vocabulary"))

    def histogram(self, pair: int) -> dict[int, int]:
        """ULP distance to number of elements of a pair."""
        return dict(
            self._database.rows("SELECT distance, elements FROM ulp_histogram WHERE pair = ? ORDER BY distance", [pair])
        )

    def positions(self, pair: int) -> pd.DataFrame:
        """Figures of a pair, one row a position of every prompt, columns of the table `position` (null where
        undefined).
        """
        return self.figures.positions(pair)

    def top_tokens(self, side: int, prompt: int, position: int) -> pd.DataFrame:
        """The largest logits of a side at a position: rank (1 is the argmax), token_id, logit, probability."""
        found = self._database.table(
            """SELECT rank + 1 AS rank, token_id, logit, logit::DOUBLE - logsumexp AS probability
               FROM top_token JOIN side_position USING (side, prompt, position)
               WHERE side = ? AND prompt = ? AND position = ? ORDER BY rank""",
            [side, prompt, position],
        ).to_pandas()
        found["probability"] = exp(found["probability"].to_numpy(float))  # not DuckDB's, which hangs on the machine
        return found

    def kv(self, pair: int) -> pd.DataFrame:
        """Key/value caches of a pair: one row a prompt, layer, kind ('key', 'value') and head, columns of the table
        `kv`.

        No rows where a side kept no cache, or the run is older than such figures.
        """
        return self._later_table("kv", _KV, "pair = ? ORDER BY prompt, layer, kind, head", [pair])

    def kv_positions(self, pair: int, prompt: int) -> pd.DataFrame:
        """The same of one prompt by position, all heads together: layer, kind, position, neq, rms, max_ulps."""
        where = "pair = ? AND prompt = ? ORDER BY layer, kind, position"
        return self._later_table("kv_position", "layer, kind, position, neq, rms, max_ulps", where, [pair, prompt])

    def layers(self, pair: int) -> pd.DataFrame:
        """Module outputs of a pair: one row a prompt and module, in the order in which they run, columns of the table
        `layer`.

        No rows where the capture did not compare them, or the run is older than such figures.
        """
        found = self._later_table("layer", _LAYER, "pair = ? ORDER BY prompt, ordinal", [pair], since=3)
        floor = np.nan_to_num(
            found["floor_rms"].to_numpy(float), posinf=np.inf
        )  # null, which pandas makes NaN, where none was run
        sizes = np.stack([*(found[name].to_numpy(float) for name in ("max_abs", "rms", "mean_ulps")), floor])
        counts = found[["elements", "positions", "neq", "finite", "max_ulps", "nonfinite_mismatch"]].to_numpy(np.int64)
        is_counted = (
            (counts >= 0).all() and (counts[:, :2] >= 1).all() and (counts[:, [2, 3, 5]] <= counts[:, :1]).all()
        )
        if not (is_counted and np.isfinite(sizes).all() and (sizes >= 0).all()):
            raise StoreError(
                f"{self.path.name}: its modules have figures that cannot have been measured; the file is damaged."
            )
        return found

    def layer_positions(self, pair: int, prompt: int, ordinal: int | None = None) -> pd.DataFrame:
        """The same of one prompt by position, of one module or all: ordinal, position, neq, rms, max_ulps,
        floor_rms.
        """
        where = (
            "pair = ? AND prompt = ?" + ("" if ordinal is None else " AND ordinal = ?") + " ORDER BY ordinal, position"
        )
        values = [pair, prompt] if ordinal is None else [pair, prompt, ordinal]
        return self._later_table(
            "layer_position", "ordinal, position, neq, rms, max_ulps, floor_rms", where, values, since=3
        )

    def _later_table(self, table: str, columns: str, where: str, values: list[int], *, since: int = 2) -> pd.DataFrame:
        """Rows of a table that the schema has only from version `since` on."""
        import pandas as pd

        if self.schema_version < since:
            return pd.DataFrame(columns=columns.split(", "))
        found = self._database.table(f"SELECT {columns} FROM {table} WHERE {where}", values)
        with self._decoding(f"table {table}"):
            return found.to_pandas(types_mapper=nullable)

    @cached_property
    def kernels(self) -> dict[int, KernelList]:
        """What each side launched, by side; empty where the capture did not watch that."""
        if self.schema_version < 3:
            return {}
        with self._decoding("list of kernels"):
            return read_kernels(self._database)

    @cached_property
    def remedies(self) -> dict[int, list[RemedyRow]]:
        """What was tried on each pair, by pair; empty where nothing was."""
        if self.schema_version < 3:
            return {}
        with self._decoding("list of remedies"):
            return read_remedies(self._database, self.schema_version)

    @cached_property
    def prices(self) -> list[PriceRow]:
        """What sums of one order cost on the run's machine; empty where that was not measured."""
        if self.schema_version < 3:
            return []
        with self._decoding("prices"):
            return read_prices(self._database, self.schema_version)

    @cached_property
    def generations(self) -> dict[int, Generation]:
        """What the sides generated, by prompt; empty for a run that only scored given tokens."""
        if self.schema_version < 2:
            return {}
        tokens: dict[tuple[int, int], list[int]] = {}
        for prompt, side, token in self._database.rows(
            "SELECT prompt, side, token_id FROM generated_token ORDER BY prompt, side, step"
        ):
            tokens.setdefault((prompt, side), []).append(token)
        about: dict[int, list[tuple]] = {}
        for prompt, *row in self._database.rows(
            "SELECT prompt, given_positions, asked, text FROM generation ORDER BY prompt, side"
        ):
            about.setdefault(prompt, []).append(tuple(row))
        with self._decoding("generations"):
            return {
                prompt: Generation(
                    prompt,
                    rows[0][0],
                    rows[0][1],
                    tuple(tuple(tokens.get((prompt, side), ())) for side in range(len(rows))),
                    tuple(row[2] for row in rows),
                )
                for prompt, rows in about.items()
            }

    def logsumexp(self, side: int) -> NDArray[np.float64]:
        """Of every row of a side, in nats, NaN where undefined. [rows]"""
        return self.figures.logsumexp(side)

    def at(self, side: int, prompt: int, position: int) -> NDArray[np.unsignedinteger]:
        """All logits of a side at one position, as bits. [vocab]"""
        found = self._database.table(
            "SELECT tile, bits FROM logits WHERE side = ? AND prompt = ? AND position = ? ORDER BY tile",
            [side, prompt, position],
        )
        with self._decoding("logits"):
            bits = joined(found.column("bits"), self.header.format.carrier)
        if bits.size != self.header.vocab:
            raise StoreError(f"{self.path.name}: no logits at prompt {prompt}, position {position}, side {side}.")
        return bits

    def read_rows(self, side: int, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Bits of rows [start, stop) of a side. [rows, vocab]"""
        return read_rows(self._database, self.header, side, start, stop)

    def read_window(self, side: int, rows: tuple[int, int], tokens: tuple[int, int]) -> NDArray[np.unsignedinteger]:
        """Bits of a rectangle, reading only the tiles it touches. [rows, tokens]; both ranges half open."""
        return read_window(self._database, self.header, side, rows, tokens)

    def ulp_cells(self, pair: int, level: int, rows: tuple[int, int]) -> NDArray[np.unsignedinteger]:
        """Heatmap cells of a level that cover rows [start, stop). [cells of positions, cells of tokens]; see
        numerics.pyramid.
        """
        pairs = len(self.header.sides) - 1
        if not (0 <= rows[0] < rows[1] <= self.header.rows and 0 <= level < self.levels() and 0 <= pair < pairs):
            there = f"the run has {pairs} pairs, {self.levels()} levels and {self.header.rows} rows"
            raise UsageError(f"pair {pair}, level {level}, rows {rows[0]} to {rows[1]} asked for; {there}.")
        span, tokens = pyramid.cell_shape(level)
        found = self._database.table(
            "SELECT cells FROM ulp_tile WHERE pair = ? AND level = ? AND first_row >= ? AND first_row < ? ORDER BY"
            " first_row",
            [pair, level, rows[0] // span * span, rows[1]],
        )
        shape = (-(-rows[1] // span) - rows[0] // span, -(-self.header.vocab // tokens))
        with self._decoding("heatmap"):
            return joined(found.column("cells"), self.header.format.carrier).reshape(shape)

    def levels(self) -> int:
        """How many levels of the heatmap pyramid the file holds."""
        return pyramid.levels_for(self.header.rows, self.header.vocab)
