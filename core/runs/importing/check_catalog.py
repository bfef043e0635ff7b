"""A run file from outside, looked at before anything in it is believed: what its catalog holds, and how much.

It is somebody else's database. Nothing of it is ever executed: a file with a view, a macro, a default, a generated
column or anything else that is not a plain column of a table of ours is refused by name. Compressed, a billion rows or
a terabyte of text take a few bytes, so rows and texts are counted before they are read.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import StoreError
from ...text import shown
from ..dumps.dump import MAX_ROWS, MAX_SIDES, MAX_VOCAB
from ..file.database import Database
from ..tables.run import refuse_development_form
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
_MOST_ROWS = {
    "run": 1,
    "prompt": MAX_ROWS,
    "token": MAX_ROWS,
    "vocabulary": MAX_VOCAB,
    "side": MAX_SIDES,
    "pair": MAX_SIDES,
    "generation": MAX_ROWS,
    "generated_token": 16 * MAX_ROWS,
    "evidence": 1 << 18,
    "floor_position": 16 * MAX_ROWS,
    "kv": 4 * MAX_ROWS,
    "kv_position": 64 * MAX_ROWS,
    "layer": 4 * MAX_ROWS,
    "layer_position": 64 * MAX_ROWS,
    "op": 1 << 17,
    "kernel": MAX_ROWS,
    "kernel_side": MAX_SIDES,
    "remedy": 1 << 17,
    "price": 1 << 17,
}
_TOGETHER = 256 << 20  # bytes of text of one table
_LONGEST_TEXT = 4096  # bytes of one text, where nothing else is said
_LONGEST = {
    ("run", "command"): 1 << 20,
    ("run", "note"): 1 << 20,
    ("run", "request"): 8 << 20,
    ("run", "versions"): 1 << 16,
    ("token", "text"): 1 << 16,
    ("vocabulary", "text"): 1 << 16,
    ("evidence", "figures"): 1 << 20,
    ("evidence", "says"): 1 << 16,
    ("pair", "because"): 1 << 16,
    ("generation", "text"): 16 << 20,
    ("op", "batch_classes"): 1 << 20,
    ("op", "row_positions"): 16 << 20,
    ("op", "modules"): 1 << 16,
    ("kernel", "detail"): 1 << 16,
    ("run", "name"): 1000,
    ("side", "name"): 400,
}


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
    refuse_development_form(database)
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


def check_amounts(database: Database) -> dict[str, int]:
    """Rows by table, after rows and texts were found to be no more than a run has."""
    file = shown(database.path.name)
    counts = {}
    for table in TABLES:
        counts[table] = int(database.rows(f"SELECT count(*) FROM run_file.main.{table}")[0][0])
        if counts[table] > _MOST_ROWS.get(table, counts[table]):
            raise StoreError(
                f"{file}: table {table} has {counts[table]:,} rows; expected at most {_MOST_ROWS[table]:,}."
            )
    for table, declared in TABLES.items():
        texts = [column for column, kind in declared.types.items() if kind == "VARCHAR"]
        if not counts[table] or not texts:
            continue
        asked = ", ".join(f"max(strlen({column})), sum(strlen({column}))" for column in texts)
        sizes = database.rows(f"SELECT {asked} FROM run_file.main.{table}")[0]
        if sum(size or 0 for size in sizes[1::2]) > _TOGETHER:
            raise StoreError(
                f"{file}: table {table} holds {sum(s or 0 for s in sizes[1::2]):,} bytes of text; expected at most"
                f" {_TOGETHER:,}."
            )
        for column, size in zip(texts, sizes[::2], strict=True):
            limit = _LONGEST.get((table, column), _LONGEST_TEXT)
            if (size or 0) > limit:
                raise StoreError(
                    f"{file}: {table}.{column} holds a text of {size:,} bytes; expected at most {limit:,}."
                )
    return counts
