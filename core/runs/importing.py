"""Import run files from elsewhere: checked, then stored as they are under a new id.

The file is an untrusted database. DuckDB opens it with external access off and its configuration
locked, its schema has to be ours, and the digests of its logits have to hold. Figures and verdicts
are taken as they are.
"""

import os
from pathlib import Path

from ..errors import StoreError, os_errors
from ..progress import Progress, no_progress
from ..text import clean
from .dumps.source_dtype import SideDigest
from .file.database import Database
from .new_run import changed_copy
from .ops_run import KIND as OPS
from .ops_run import ops_of
from .reader import RunReader
from .store.store import Store
from .tables.schema import TABLES, check_rows, check_tables, stored_columns

NOTE = "Imported from a run file: its figures and verdicts are as that file has them."

# objects that a run file has none of; each query names the first
_OBJECTS = {
    "schema": (
        "SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'run_file' AND schema_name"
        " <> 'main'"
    ),
    "view": "SELECT view_name FROM duckdb_views() WHERE database_name = 'run_file'",
    "macro": "SELECT function_name FROM duckdb_functions() WHERE database_name = 'run_file'",
    "trigger": "SELECT trigger_name FROM duckdb_triggers() WHERE database_name = 'run_file'",
    "default or generated column": (
        "SELECT column_name FROM duckdb_columns() WHERE database_name = 'run_file'"
        " AND (column_default IS NOT NULL OR is_generated)"
    ),
}


def is_run_file(path: Path) -> bool:
    """Return whether the first bytes are those of a DuckDB file.

    StoreError if it cannot be read.
    """
    # opening a pipe might never return
    if not path.is_file():
        return False
    with os_errors(StoreError, f"{clean(path.name)}: cannot be read"), path.open("rb") as file:
        # DuckDB's magic bytes follow a checksum
        return file.read(12)[8:] == b"DUCK"


def import_run(
    store: Store,
    path: Path,
    *,
    run_id: str | None = None,
    name: str | None = None,
    on_progress: Progress = no_progress,
) -> str:
    """Check a run file and store a copy as a new run; returns its id.

    StoreError, and nothing is stored, if its schema is not ours or a digest does not hold.
    """
    # the schema first: what reads a run trusts its tables
    if check_schema(path) == OPS:
        ops_of(path)
    else:
        with RunReader(path) as run:
            _check_run(run, on_progress)
    with changed_copy(store, path, name or path.stem, run_id) as database:
        ((old_name, note),) = database.rows("SELECT name, note FROM run_file.run")
        if not (name or old_name).strip():
            raise StoreError(f"{clean(path.name)}: the run has no name; give it one.")
        new_id = database.path.stem
        notes = note if NOTE in note else f"{note} {NOTE}".strip()
        values = [new_id, name or old_name, notes]
        database.execute("UPDATE run_file.run SET run_id = ?, name = ?, note = ?", values)
        return new_id


def check_schema(path: Path) -> str:
    """Return the run's kind.

    StoreError for views, macros and other objects than tables, for other types, and for columns
    that may be NULL.
    """
    file = clean(path.name)
    if os.path.lexists(f"{path}.wal"):
        raise StoreError(
            f"{file}: has unfinished changes (.wal); open and close it in DuckDB first.",
        )
    with Database.to_read(path) as database:
        for what, query in _OBJECTS.items():
            if rows := database.rows(f"SELECT * FROM ({query}) LIMIT 1"):
                raise StoreError(
                    f"{file}: holds the {what} '{clean(rows[0][0], 60)}'; a run file has none.",
                )
        provenance = check_tables(database)
        stored = stored_columns(database)
        # a newer build's tables and columns are left alone
        for name, table in TABLES.items():
            for column in table.columns:
                never_null = f"{column.type} NOT NULL"
                expected = column.type if column.is_nullable else never_null
                stored_type = stored.get(name, {}).get(column.name, expected)
                if stored_type not in (expected, never_null):
                    raise StoreError(
                        f"{file}: the column {name}.{column.name} has the type"
                        f" {clean(stored_type, 60)}; expected {expected}.",
                    )
        check_rows(database, provenance)
        return str(provenance["kind"])


def _check_run(run: RunReader, on_progress: Progress) -> None:
    """Check that the parts that pages read fit each other, and the digests of all logits."""
    header, count = run.header, len(run.sides)
    if len(run.pairs) != count - 1 or [side.index for side in run.sides] != [*range(count)]:
        raise StoreError(
            f"{run.path.name}: its sides and pairs do not fit each other; the file is damaged.",
        )
    if header.is_list:
        run.check_digests()
    else:
        for pair in run.pairs:
            places = run.positions(pair.index)[["prompt", "position"]]
            if [*places.itertuples(index=False, name=None)] != header.places():
                raise StoreError(
                    f"{run.path.name}: its figures are of other positions than its prompts have;"
                    " the file is damaged.",
                )
    if not run.has_all_logits:
        return
    for side in run.sides:
        digest = SideDigest(header.format)
        done = side.index * header.rows
        for start, bits in run.chunks(side.index):
            digest.update(bits)
            on_progress("checking", done + start + len(bits), count * header.rows)
        stored = side.stored_sha256, side.sha256, side.sha256_dtype
        if (digest.stored_digest(), *digest.values()) != stored:
            raise StoreError(
                f"{run.path.name}: the logits of side {side.index} do not have their SHA-256.",
            )
