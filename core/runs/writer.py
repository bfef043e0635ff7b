"""Write a run: logits stream in side by side, every figure of the contract is computed on the way,
it appears when whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from ..errors import UsageError
from ..numerics.arrays import Array, Bits
from ..numerics.divergence import compare
from ..numerics.totals import PairTotal
from ..verdict import Verdict
from .background import Background
from .dumps.source_dtype import SideDigest
from .figures import Figures
from .file.records import ALL, FIGURES, Generation, RunHeader
from .new_run import new_run
from .spool import Spool
from .store.store import Store
from .tables.choices import CHOICE
from .tables.heatmap import PYRAMIDS, cell_rows, insert_levels, narrow_cells
from .tables.kv_cache import BY_POSITION, KV, KV_POSITION, KvPart, kv_rows
from .tables.layers import LayerRows
from .tables.logits import insert_logits, read_window
from .tables.pairs import insert_evidence, insert_pair
from .tables.positions import position_rows, side_position_rows, top_token_rows
from .tables.run import (
    insert_generation,
    insert_header,
    insert_prompts,
    insert_sides,
    insert_used_vocabulary,
)

# DuckDB keeps an open transaction in memory: one a run took as much as the dump is large
_COMMIT_BYTES = 64 << 20
# of logits that wait to be stored: on a GPU the next forward runs meanwhile
_WAITING_BYTES = 128 << 20
# rows of figures that are inserted at a time: an insert costs 2 ms however small it is
_FIGURE_ROWS = 512


class RunWriter:
    """`with RunWriter(store, header) as writer:` write every side, then `writer.finish()`; leaving
    without it leaves nothing.

    Rows of a side come in order; the reference may be ahead of the variants by any number of rows
    (a capture writes it whole first, an ingest writes chunk by chunk): what is no longer in memory
    is read back from the file being written.
    """

    def __init__(self, store: Store, header: RunHeader, *, run_id: str | None = None) -> None:
        self.header = header
        self._places = np.array(header.places(), np.int32)
        self._rows_done = [0] * len(header.sides)
        self._hashes = [SideDigest(header.format) for _ in header.sides]
        self._totals = [PairTotal() for _ in header.sides[1:]]
        # chunk of the reference
        self._latest: tuple[int, Bits | None] = 0, None
        self._figures: dict[str, list[pa.Table]] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._figure_rows = 0
        is_whole = header.keep == ALL
        # before hours of capture; the reference waits in a file of its own
        store.check_space(header.file_bytes + (0 if is_whole else header.side_bytes))
        self._hashing = Background("ulpscope-sha256", _WAITING_BYTES)
        # The only thread that touches the database between begin and finish; it compares too, so
        # that a forward never waits.
        self._storing = Background("ulpscope-store", _WAITING_BYTES)
        self._uncommitted = 0
        # first position, place, shape
        self._parts: dict[tuple, tuple] = {}
        # by pair and pyramid, of a run without logits
        self._cells: dict[tuple[int, str], list[Array]] = {}
        logits_bytes = header.file_bytes if is_whole else 0
        with ExitStack() as stack:
            run = new_run(store, header.name, run_id, logits_bytes, created=header.created)
            self._database, created = stack.enter_context(run)
            path = self._database.path
            self.run_id, self._directory = path.stem, path.parent
            self._spool = None if is_whole else Spool(self._directory / "reference")
            self._caches = Spool(self._directory / "reference-kv")
            stack.callback(self._storing.close)
            stack.callback(self._hashing.close)
            self._database.execute("BEGIN")
            # first, so that what cannot be stored is refused before hours of capture
            insert_header(self._database, created, header, header.rows)
            insert_prompts(self._database, header)
            self._ending = stack.pop_all()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing, if the run is not finished."""
        self._ending.__exit__(UsageError, UsageError("the run is not finished"), None)

    def write(self, side: int, row: int, bits: Bits) -> None:
        """Append rows of a side: bits [rows, vocab] of the compute dtype, starting at `row`, which
        must be the next one.

        The array is neither copied nor done with on return (it is stored and digested meanwhile):
        do not change it again.
        """
        header, stop = self.header, row + len(bits)
        is_shaped = bits.shape[1:] == (header.vocab,) and bits.dtype == header.format.carrier
        # the reference comes first
        most = self._rows_done[0] if side else header.rows
        if not is_shaped or row != self._rows_done[side] or stop > most:
            raise UsageError(
                f"side {side}: {bits.shape} {bits.dtype} arrived for row {row}; expected"
                f" [rows, {header.vocab}] {header.format.carrier} from row"
                f" {self._rows_done[side]} on.",
            )
        if not len(bits):
            return
        bits = np.ascontiguousarray(bits)
        self._storing.put(self._insert_logits, side, row, bits, size=bits.nbytes)
        self._hashing.put(self._hashes[side].update, bits, size=bits.nbytes)
        self._rows_done[side] = stop
        if side == 0:
            self._latest = row, bits
            return
        first, latest = self._latest
        reference = None
        if latest is not None and row >= first:
            reference = latest[row - first : stop - first]
        self._storing.put(self._compare, side, row, bits, reference)

    def write_kv(self, side: int, part: KvPart) -> None:
        """Write the keys or values of one layer after one prompt of a side; figures need both sides
        of a pair.

        The reference's come first. The array is the writer's from now on.
        """
        self._storing.put(self._compare_kv, side - 1, part, size=part.bits.nbytes)

    def _compare_kv(self, pair: int, part: KvPart) -> None:
        """Compare a part of a cache, or let the reference's wait, in the storing thread."""
        if pair < 0:
            place = self._caches.add(part.bits), part.bits.dtype, part.bits.shape
            self._parts[part.key] = part.first_position, place
        elif part.key in self._parts:
            first, place = self._parts[part.key]
            bits = self._caches.read(*place)
            # padding fills the buffers of a DeepSeek V4 in other steps
            if part.kind not in BY_POSITION and bits.shape != part.bits.shape:
                return
            reference = KvPart(*part.key, first, bits)
            by_head, by_position = kv_rows(pair, reference, part, self.header.format)
            self._keep(len(by_position), [(KV.name, by_head), (KV_POSITION.name, by_position)])

    def put(self, insert: Callable[..., None], *rows: object) -> None:
        """Have the storing thread insert rows into the database, by a function of their table's
        module. They are the writer's from now on.
        """
        self._storing.put(insert, self._database, *rows)

    def layers(self, positions: Sequence[Sequence[int]], *, is_async: bool = True) -> LayerRows:
        """Return a writer of the model's module outputs at these positions of each prompt. Once a
        run, before the first side.

        is_async: compare them in the storing thread, else in the caller's.
        """
        about = self._directory, positions, self._storing.put, self._database
        return LayerRows(*about, is_async=is_async)

    def write_choices(self, tables: Iterable[pa.Table]) -> None:
        """Write what a side chose in one prompt, rows of CHOICE."""
        for rows in tables:
            self._storing.put(self._database.insert, CHOICE.name, rows, size=rows.nbytes)

    def write_generation(self, generation: Generation) -> None:
        """Write the sides' free continuations of a prompt. Once a prompt."""
        self.put(insert_generation, generation)

    def write_verdict(self, verdict: Verdict) -> None:
        """Write the verdict of a pair with the rows it rests on. Once a pair, before `finish`."""
        self._verdicts[verdict.pair] = verdict
        self.put(insert_evidence, verdict.pair, self._places, verdict.evidence, verdict.floors)

    def _insert_logits(self, side: int, row: int, bits: Bits) -> None:
        """Insert logits, in the storing thread; if none are stored, the reference's go to a file of
        their own.
        """
        if self._spool is None:
            insert_logits(self._database, side, self._places[row : row + len(bits)], bits)
            self._commit(bits.nbytes)
        elif side == 0:
            self._spool.add(bits)

    def _commit(self, inserted: int) -> None:
        """Commit now and then: the file is not visible before it is whole. inserted: bytes."""
        self._uncommitted += inserted
        if self._uncommitted >= _COMMIT_BYTES:
            self._uncommitted = 0
            for step in ("COMMIT", "CHECKPOINT", "BEGIN"):
                self._database.execute(step)

    def _compare(
        self,
        side: int,
        row: int,
        bits: Array,
        reference: Array | None,
    ) -> None:
        """Compare rows, in the storing thread.

        `reference`: the same rows of side 0 if they are still in memory.
        """
        if reference is None and self._spool is not None:
            reference = self._spool.read(row * bits[:1].nbytes, bits.dtype, bits.shape)
        elif reference is None:
            span, columns = (row, row + len(bits)), (0, self.header.vocab)
            reference = read_window(self._database, self.header, 0, span, columns)
        places = self._places[row : row + len(bits)]
        has_tokens, pair = self.header.has_tokens, side - 1
        figures = compare(reference, bits, self.header.format, has_tokens=has_tokens)
        self._totals[pair].add(figures)
        tables = [("position", position_rows(pair, places, figures))]
        both_cells = figures.group_ulps, figures.group_row_ulps
        for pyramid, cells in zip(PYRAMIDS, both_cells, strict=True):
            if self._spool is None:
                tables.append((pyramid.name, cell_rows(pyramid, pair, 0, row, cells)))
            else:
                narrow = narrow_cells(self.header, cells)
                self._cells.setdefault((pair, pyramid.name), []).append(narrow)
        for index, of_side in ((0, figures.reference), (side, figures.variant)):
            # the reference's own figures are the same in every pair
            if has_tokens and (index or side == 1):
                tables.append(("side_position", side_position_rows(index, places, of_side)))
                tables.append(("top_token", top_token_rows(index, places, of_side)))
        self._keep(len(places), tables)

    def _keep(self, positions: int, tables: Sequence[tuple[str, pa.Table]]) -> None:
        """Keep figures, and insert all that wait once they are of many positions."""
        for name, table in tables:
            self._figures.setdefault(name, []).append(table)
        self._figure_rows += positions
        if self._figure_rows >= _FIGURE_ROWS:
            self._insert_figures()

    def _insert_figures(self) -> None:
        """Insert the figures, in the storing thread, or after it was drained."""
        for name, tables in self._figures.items():
            rows = pa.concat_tables(tables)
            self._database.insert(name, rows)
            self._commit(rows.nbytes)
        self._figures.clear()
        self._figure_rows = 0

    def digests(self) -> list[str]:
        """SHA-256 of every side's bits as far as they have been written, hexadecimal."""
        self._hashing.drain()
        return [digest.stored_digest() for digest in self._hashes]

    def _end_rows(self) -> None:
        """Insert all figures, once every row of every side has been written."""
        for side, done in zip(self.header.sides, self._rows_done, strict=True):
            if done != self.header.rows:
                raise UsageError(
                    f"side '{side.name}' has {done} of {self.header.rows} rows; the run is not"
                    " finished.",
                )
        self._storing.drain()
        self._insert_figures()

    def figures(self) -> Figures:
        """Figures measured, once every row of every side has been written; for a verdict that rests
        on them.
        """
        self._end_rows()
        return Figures(self._database, self.header)

    def finish(self, *, note: str = "") -> str:
        """Write summaries and provenance, put the file in its place, return the run's id.

        note: added to the header's own.
        """
        self._end_rows()
        header, database = self.header, self._database
        if header.keep == FIGURES:
            insert_used_vocabulary(database, header)
        if note:
            database.execute("UPDATE run SET note = trim(concat(note, ' ', ?))", [note])
        for pair, total in enumerate(self._totals):
            for pyramid in PYRAMIDS:
                narrow = self._cells.get((pair, pyramid.name), [])
                insert_levels(database, pyramid, header, pair, narrow)
            insert_pair(database, pair, total, self._verdicts.get(pair))
        insert_sides(database, header, self.digests(), [digest.values() for digest in self._hashes])
        database.execute("COMMIT")
        self._ending.close()
        return self.run_id
