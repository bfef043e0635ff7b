"""A run file from outside, looked at before anything in it is believed: what its catalog holds.

It is somebody else's database. Nothing of it is ever executed: a file with a view, a macro, a default, a generated
column or anything else that is not a plain column of a table of ours is refused by name. How much of it there is
core.runs.tables.amounts asks.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import StoreError
from ...text import shown
from ..file.database import Database
from ..tables.run import refuse_other_versions
from ..tables.schema import TABLES

_OBJECTS = {  # what a run file has none of; each query names the first, cut short
    "schema": "SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'run_file' AND schema_name <> 'main'",
    "view": "SELECT view_name FROM duckdb_views() WHERE database_name = 'run_file'",
    "macro": "SELECT function_name FROM duckdb_functions() WHERE database_name = 'run_file'",
    "sequence": "SELECT sequence_name FROM duckdb_sequences() WHERE database_name = 'run_file'",
    "type": "SELECT type_name FROM duckdb_types() WHERE database_name = 'run_file' AND NOT internal",
    "index": "SELECT index_name FROM duckdb_indexes() WHERE database_name = 'run_file'",
    "trigger": "SELECT trigger_name FROM duckdb_triggers() WHERE database_name = 'run_file'",
    "constraint": (
        "SELECT constraint_text FROM duckdb_constraints() WHERE database_name = 'run_file' AND constraint_type <> 'NOT"
        " NULL'"
    ),
}
_COLUMNS = (
    "SELECT table_name, column_name, data_type, column_default IS NOT NULL OR is_generated FROM duckdb_columns() WHERE"
    " database_name = 'run_file'"
)


def is_run_file(path: Path) -> bool:
    """Return whether the first bytes are those of a DuckDB file, whatever it is called. StoreError where it cannot be
    read.
    """
    try:
        with path.open("rb") as file:
            return is_database(file.read(12))
    except OSError as error:
        raise StoreError(f"{shown(path.name)}: cannot be read ({error.strerror}).") from error


def is_database(start: bytes) -> bool:
    """Return whether these are the first 12 bytes of a DuckDB file: its name stands at byte 8, after a checksum."""
    return start[8:12] == b"DUCK"


def check_catalog(database: Database) -> None:
    """StoreError for anything in the file that is not a table of a run file with its columns. Reads no row."""
    file = shown(database.path.name)
    for what, query in _OBJECTS.items():
        if found := database.rows(f"SELECT * FROM ({query}) LIMIT 1"):
            raise StoreError(
                f"{file}: holds the {what} '{shown(found[0][0], 60)}', and a run file has none; nothing was taken in."
            )
    refuse_other_versions(database)
    there: dict[str, set[str]] = {}
    for table, column, kind, has_default in database.rows(_COLUMNS):
        if table not in TABLES:
            raise StoreError(
                f"{file}: holds the table '{shown(table, 60)}', which a run file does not have; nothing was taken in."
            )
        expected = TABLES[table].types.get(column)
        if expected is None:
            raise StoreError(
                f"{file}: table {table} has the column '{shown(column, 60)}', which a run file's does not have."
            )
        if kind != expected:
            raise StoreError(f"{file}: column {table}.{column} is {shown(kind, 60)}; expected {expected}.")
        if has_default:
            raise StoreError(
                f"{file}: column {table}.{column} has a default or is generated; a run file's columns are plain."
            )
        there.setdefault(table, set()).add(column)
    for table, columns in there.items():
        if missing := sorted(TABLES[table].types.keys() - columns):
            raise StoreError(f"{file}: table {table} has no column '{missing[0]}'; the file is damaged.")
