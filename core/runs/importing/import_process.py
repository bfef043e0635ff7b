"""A foreign run file read and written anew as a run of our schema: the process that `core.runs.importing.adopt` starts
for it, and shuts in.

The logits are copied bit for bit and everything that follows from them is computed again by the kernel; what the file
said of them has to agree (core.runs.importing.check_figures). The rest is copied after it was found to be in range:
verdicts with their evidence, caches, modules, kernels, remedies, what the sides generated, and where it all comes from.
No bits prove these, and the run's note says so.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...errors import StoreError, UlpscopeError, UsageError
from ...numerics.formats import format_named
from ...text import shown
from ..file.database import DECODING, Database
from ..file.records import IDENTICAL, VERDICTS, FloorRows, RunHeader
from ..ops_run import KIND as OPS
from ..ops_run import ops_of, write_ops_run
from ..reader import RunReader
from ..sparse_run import KIND as SPARSE
from ..sparse_run import sparse_of, write_sparse_run
from ..store.store import Store
from ..tables.amounts import check_amounts
from ..tables.run import read_run
from ..tables.schema import check_tables
from ..writer import RunWriter
from .check_catalog import check_catalog
from .check_figures import check_figures
from .check_rows import COPIED, check_rows

NOTE = (
    "Taken in from a run file: figures were computed anew from its logits; verdicts, evidence, caches, modules, kernels"
    " and remedies are as that file has them."
)
_CHUNK_BYTES = 16 << 20  # of logits of one side, read at a time
_COPY_ROWS = 1 << 16
_YEARS = (1990, 2200)
_MEMORY_BYTES = 4 << 30  # of data; a run of any size needs some 600 MB of it

Progress = Callable[[int, int], None]


def counted(path: Path) -> tuple[dict[str, int], str]:
    """Rows by table of a run file from outside, and the run's kind; StoreError where they are not what a run has."""
    if os.path.lexists(f"{path}.wal"):
        raise StoreError(
            f"{shown(path.name)}: has a log of unfinished changes beside it (.wal); open and close it in DuckDB first."
        )
    database = Database.to_read(path)
    try:
        check_catalog(database)
        check_tables(database)
        return check_amounts(database), read_run(database, "kind")["kind"]
    finally:
        database.abandon()


def take_in(store: Store, path: Path, *, run_id: str | None, name: str | None, on_progress: Progress) -> str:
    """Store what `path` holds as a new run; returns its id. StoreError, and nothing stored, where it is no run that can
    be believed.
    """
    counts, kind = counted(path)
    if kind == OPS:
        return _take_ops(store, path, run_id, name)
    if kind == SPARSE:
        return _take_sparse(store, path, run_id, name)
    with RunReader(path) as run:
        if not run.has_all_logits:
            raise StoreError(
                f"{shown(path.name)}: keeps no logits, by which its figures cannot be checked; copy it"
                " into the store's directory if you trust who made it."
            )
        return _take_run(store, run, counts, run_id=run_id, name=name, on_progress=on_progress)


def _take_ops(store: Store, path: Path, run_id: str | None, name: str | None) -> str:
    """Every row is read into a record that checks itself."""
    found = ops_of(path)
    about = found.header
    created = _created(path, about.created)
    header = replace(about, name=name or about.name, note=_noted(about.note), created=created)
    return write_ops_run(store, header, found.rows, run_id=run_id)


def _take_sparse(store: Store, path: Path, run_id: str | None, name: str | None) -> str:
    """Every value is read into records that check themselves, and every figure is computed anew."""
    found = sparse_of(path)
    about = found.header
    header = replace(about, name=name or about.name, created=_created(path, about.created))
    differing = {pair.variant: pair.differing for pair in found.pairs}
    for verdict in found.verdicts:
        if verdict.name not in VERDICTS:
            raise StoreError(f"{path.name}: its verdict '{shown(verdict.name, 40)}' is none that is known.")
        if verdict.name == IDENTICAL and differing[verdict.variant]:
            raise StoreError(f"{path.name}: calls sides identical that differ; the file is damaged.")
    return write_sparse_run(store, header, found.sides, pairs=found.pairs, verdicts=found.verdicts, run_id=run_id)


def _take_run(
    store: Store, run: RunReader, counts: dict[str, int], *, run_id: str | None, name: str | None, on_progress: Progress
) -> str:
    header = _header(run, name)
    _check_header(run, header, counts)
    inspected = Database.to_read(run.path)
    try:
        check_rows(inspected, header)
        with RunWriter(store, header, run_id=run_id) as writer:
            _copy_logits(run, writer, on_progress)
            check_figures(run, writer)
            _copy_rest(run, inspected, counts, writer)
            return writer.finish()
    finally:
        inspected.abandon()


def _header(run: RunReader, name: str | None) -> RunHeader:
    about = run.header.provenance
    versions = about.versions
    is_plain = isinstance(versions, dict) and all(isinstance(value, str) for value in versions.values())
    if not is_plain:
        raise StoreError(f"{run.path.name}: its versions are no JSON object of texts; the file is damaged.")
    try:
        return replace(
            run.header,
            name=name or run.header.name,
            provenance=replace(about, note=_noted(about.note)),
            vocabulary=run.vocabulary,
            created=_created(run.path, run.created),
        )
    except UsageError as error:
        raise StoreError(f"{run.path.name}: {error}") from error


def _check_header(run: RunReader, header: RunHeader, counts: dict[str, int]) -> None:
    """Everything that says how much there is agrees with what there is."""
    file = run.path.name
    if not header.name.strip():
        raise StoreError(f"{file}: the run has no name; give it one.")
    for table, rows in run.expected_rows.items():
        if counts[table] != rows:
            raise StoreError(
                f"{file}: table {table} has {counts[table]:,} rows; the run makes {rows:,}; the file is damaged."
            )
    if [side.index for side in run.sides] != list(range(len(header.sides))):
        raise StoreError(f"{file}: its sides are not numbered from 0 on; the file is damaged.")
    for pair in run.pairs:
        if pair.verdict is not None and pair.verdict not in VERDICTS:
            raise StoreError(
                f"{file}: pair {pair.index} has the verdict '{shown(pair.verdict, 40)}', which is none of this"
                " ULPscope's."
            )
        if pair.verdict == IDENTICAL and not pair.summary.bit_identical:
            raise StoreError(f"{file}: pair {pair.index} has the verdict '{IDENTICAL}', and its sides are not.")


def _created(path: Path, created: datetime | None) -> datetime:
    if created is None or not _YEARS[0] <= created.year < _YEARS[1]:
        raise StoreError(f"{path.name}: it was made at {created}, which cannot be; the file is damaged.")
    return created.replace(tzinfo=UTC)


def _noted(note: str) -> str:
    """A run that goes from store to store says it once."""
    return note if NOTE in note else " ".join(part for part in (note, NOTE) if part)


def _copy_logits(run: RunReader, writer: RunWriter, on_progress: Progress) -> None:
    header = writer.header
    at_once = max(1, _CHUNK_BYTES // (header.vocab * header.format.itemsize))
    total = header.rows * len(header.sides)
    for start in range(0, header.rows, at_once):
        stop = min(start + at_once, header.rows)
        for side in range(len(header.sides)):
            writer.write(side, start, run.read_rows(side, start, stop))
        on_progress(stop * len(header.sides), total)


def _copy_rest(run: RunReader, inspected: Database, counts: dict[str, int], writer: RunWriter) -> None:
    """Copy the rest in the order in which a capture writes it, by the same records."""
    for table in COPIED:
        for start in range(0, counts[table], _COPY_ROWS):
            chosen = f"rowid >= {start} AND rowid < {start + _COPY_ROWS}"
            writer.copy(table, inspected.table(f"SELECT * FROM run_file.main.{table} WHERE {chosen}"))
    for index in sorted(run.generations):
        _check_generation(run, index)
        writer.write_generation(run.generations[index])
    for listed in run.kernels.values():
        writer.write_kernels(listed)
    for pair, rows in run.remedies.items():
        writer.write_remedies(pair, rows)
    if run.prices:
        writer.write_prices(run.prices)
    for stored in run.pairs:
        if stored.verdict is not None:
            floors = [
                FloorRows(str(dtype), rows["pair_rms"].to_numpy(float), rows["floor_rms"].to_numpy(float))
                for dtype, rows in run.floor_positions(stored.index).groupby("compute_dtype", sort=False)
            ]
            for floor in floors:
                format_named(floor.compute_dtype)
            because, ratio = stored.because or "", stored.noise_ratio
            writer.write_verdict(stored.index, stored.verdict, because, ratio, run.evidence(stored.index), floors)


def _check_generation(run: RunReader, prompt: int) -> None:
    made, given = run.generations[prompt], run.header.prompts[prompt]
    if made.given_positions > given.positions or any(
        token >= run.header.vocab for side in made.tokens for token in side
    ):
        raise StoreError(
            f"{run.path.name}: what was generated for prompt {prompt} does not fit the run; the file is damaged."
        )


def limit_this_process(source_bytes: int) -> None:
    """Limits of this process: memory, time by the size of the file, no dumps of it; and it dies with the one that
    started it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    seconds = 60 + source_bytes // 4_000_000
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _die_with_parent()


def _die_with_parent() -> None:
    """Linux's PR_SET_PDEATHSIG; elsewhere the parent has to end it."""
    import ctypes

    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (AttributeError, OSError):
        return
    if os.getppid() == 1:
        sys.exit(1)


def main(arguments: list[str]) -> int:
    """SETTINGS, a JSON object: store, path, run_id, name. Lines of JSON come out: progress, then `run_id` or
    `error`.
    """
    asked: dict[str, Any] = json.loads(arguments[0])
    path = Path(asked["path"])

    def say(**said: object) -> None:
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()

    try:
        limit_this_process(path.stat().st_size)
        run_id = take_in(
            Store(Path(asked["store"])),
            path,
            run_id=asked["run_id"],
            name=asked["name"],
            on_progress=lambda done, total: say(done=done, total=total),
        )
    except UlpscopeError as error:
        say(error=str(error), status=getattr(error, "status", 0))
        return 2
    except (*DECODING, MemoryError, OSError) as error:
        say(error=f"{shown(path.name)}: cannot be taken in ({type(error).__name__}: {shown(error)}).")
        return 2
    say(run_id=run_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
