"""Import run files from elsewhere: checked in a process of their own, then stored as they are under a new id.

The file is an untrusted database. DuckDB opens it with external access off and its configuration locked, its schema
has to be ours, and the digests of its logits have to hold. Figures and verdicts are taken as they are. A damaged or
made file can crash DuckDB or keep it busy for ever: hence the process and its time limit.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from ..command_name import COMMAND
from ..errors import LimitError, StoreError, UlpscopeError
from ..subprocess_json import Child
from ..text import clean
from .dumps.digests import SideDigest
from .file.database import DECODING, Database
from .ops_run import KIND as OPS
from .ops_run import ops_of
from .reader import RunReader
from .store.store import Store
from .tables.run import read_run, refuse_other_versions
from .tables.schema import TABLES, check_tables

NOTE = "Imported from a run file: its figures and verdicts are as that file has them."
SILENT_SECONDS = 300.0  # without a word; every 16 MB of logits bring one
_CHUNK_BYTES = 16 << 20  # of logits of one side, read at a time
Progress = Callable[[int, int], None]

_OBJECTS = {  # what a run file has none of; each query names the first
    "schema": "SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'run_file' AND schema_name <> 'main'",
    "view": "SELECT view_name FROM duckdb_views() WHERE database_name = 'run_file'",
    "macro": "SELECT function_name FROM duckdb_functions() WHERE database_name = 'run_file'",
    "sequence": "SELECT sequence_name FROM duckdb_sequences() WHERE database_name = 'run_file'",
    "type": "SELECT type_name FROM duckdb_types() WHERE database_name = 'run_file' AND NOT internal",
    "index": "SELECT index_name FROM duckdb_indexes() WHERE database_name = 'run_file'",
    "trigger": "SELECT trigger_name FROM duckdb_triggers() WHERE database_name = 'run_file'",
    "constraint": "SELECT constraint_text FROM duckdb_constraints() WHERE database_name = 'run_file'"
    " AND constraint_type <> 'NOT NULL'",
    "default or generated column": "SELECT column_name FROM duckdb_columns() WHERE database_name = 'run_file'"
    " AND (column_default IS NOT NULL OR is_generated)",
}


def is_run_file(path: Path) -> bool:
    """Return whether the first bytes are those of a DuckDB file. StoreError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(12)[8:] == b"DUCK"  # after a checksum
    except OSError as error:
        raise StoreError(f"{clean(path.name)}: cannot be read ({error.strerror}).") from error


def adopt(
    store: Store, path: Path, *, run_id: str | None = None, name: str | None = None, on_progress: Progress | None = None
) -> str:
    """Check a run file and store it as a new run; returns its id. `on_progress(rows done, rows of all sides)`.

    StoreError, and nothing is stored, if its schema is not ours, a digest does not hold, or it cannot be read in time.
    """
    path = Path(path)
    if not path.is_file() or not is_run_file(path):
        raise StoreError(
            f"{clean(path.name)}: is not a DuckDB file; expected a run file. `{COMMAND} ingest` takes dumps."
        )
    settings = {"store": str(store.directory.absolute()), "path": str(path.absolute()), "run_id": run_id, "name": name}
    last: dict[str, object] = {}
    child = Child(["-m", f"{__package__}.importing", json.dumps(settings)], seconds=SILENT_SECONDS)
    try:
        with child:
            for last in child.messages():
                if on_progress is not None and "done" in last:
                    on_progress(int(str(last["done"])), int(str(last["total"])))
    finally:
        if "run_id" not in last:
            with suppress(StoreError, OSError):
                store.sweep()  # what it had begun, if it was killed
    if "run_id" in last:
        return str(last["run_id"])
    if "error" in last:
        raise LimitError(str(last["error"])) if last.get("is_limit") else StoreError(str(last["error"]))
    problem = "takes too long to read" if child.is_late else "made the process that read it crash"
    raise StoreError(f"{clean(path.name)}: {problem}; it is damaged, or made to do that.")


def import_run(store: Store, path: Path, *, run_id: str | None, name: str | None, on_progress: Progress) -> str:
    """Check a run file and store a copy as a new run; returns its id. Meant for a process of its own."""
    kind = check_schema(path)
    if kind == OPS:
        ops_of(path)
    else:
        with RunReader(path) as run:
            _check_run(run, on_progress)
    store.check_space(path.stat().st_size)
    with store.new_partial(name or path.stem, datetime.now(UTC), run_id) as partial:
        shutil.copyfile(path, partial.path)
        with Database.to_change(partial.path) as database:
            ((old_name, note),) = database.rows("SELECT name, note FROM run_file.run")
            if not (name or old_name).strip():
                raise StoreError(f"{clean(path.name)}: the run has no name; give it one.")
            notes = note if NOTE in note else " ".join(part for part in (note, NOTE) if part)
            values = [partial.path.stem, name or old_name, notes]
            database.execute("UPDATE run_file.run SET run_id = ?, name = ?, note = ?", values)
        store.place(partial.path, partial.path.stem)
        return partial.path.stem


def check_schema(path: Path) -> str:
    """Return the run's kind. StoreError for anything in the file that is no table of a run, and for too many rows."""
    file = clean(path.name)
    if os.path.lexists(f"{path}.wal"):
        raise StoreError(f"{file}: has unfinished changes (.wal); open and close it in DuckDB first.")
    with Database.to_read(path) as database:
        for what, query in _OBJECTS.items():
            if rows := database.rows(f"SELECT * FROM ({query}) LIMIT 1"):
                raise StoreError(f"{file}: holds the {what} '{clean(rows[0][0], 60)}'; a run file has none.")
        refuse_other_versions(database)
        check_tables(database)
        sql = "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE database_name = 'run_file'"
        theirs = set(database.rows(sql))
        columns = [(name, column) for name, table in TABLES.items() for column in table.columns]
        ours = {(name, one.name, one.type): one.is_nullable for name, one in columns}
        for odd in sorted((theirs - ours.keys()) | {one for one in ours.keys() - theirs if not ours[one]}, key=str):
            verb = "lacks" if odd in ours else "has"
            raise StoreError(f"{file}: {verb} the column {clean('.'.join(odd[:2]), 120)} ({clean(odd[2], 60)}).")
        return str(read_run(database, "kind")["kind"])


def _check_run(run: RunReader, on_progress: Progress) -> None:
    """Check that the parts that pages read fit each other, and the digests of all logits."""
    header, pairs = run.header, run.pairs
    if len(pairs) != len(header.sides) - 1 or [side.index for side in run.sides] != list(range(len(header.sides))):
        raise StoreError(f"{run.path.name}: its sides and pairs do not fit each other; the file is damaged.")
    if header.k is not None:
        run.check_digests()
    if not run.has_all_logits:
        return
    rows = max(1, _CHUNK_BYTES // (header.vocab * header.format.itemsize))
    for side in run.sides:
        digest = SideDigest(header.format)
        for start in range(0, header.rows, rows):
            stop = min(start + rows, header.rows)
            digest.update(run.read_rows(side.index, start, stop))
            on_progress(side.index * header.rows + stop, len(run.sides) * header.rows)
        if (digest.stored_digest(), *digest.values()) != (side.stored_sha256, side.sha256, side.sha256_dtype):
            raise StoreError(f"{run.path.name}: the logits of side {side.index} do not have their SHA-256.")


def main(arguments: list[str]) -> None:
    """Import a run. arguments: a JSON object of store, path, run_id, name. Print JSON lines: progress, then `run_id` or
    `error`.
    """
    settings = json.loads(arguments[0])
    path = Path(settings["path"])

    def say(**values: object) -> None:
        sys.stdout.write(json.dumps(values) + "\n")
        sys.stdout.flush()

    try:
        run_id = import_run(
            Store(Path(settings["store"])),
            path,
            run_id=settings["run_id"],
            name=settings["name"],
            on_progress=lambda done, total: say(done=done, total=total),
        )
        say(run_id=run_id)
    except UlpscopeError as error:
        say(error=str(error), is_limit=isinstance(error, LimitError))
    except (*DECODING, MemoryError, OSError) as error:
        say(error=f"{clean(path.name)}: cannot be imported ({type(error).__name__}: {clean(error)}).")


if __name__ == "__main__":
    main(sys.argv[1:])
