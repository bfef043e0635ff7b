"""Provenance of a run: the table `run`, by which a file is known to be of this form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ...errors import StoreError
from ..file.bounds import longest
from ..file.database import FILE_VERSION, READ_VERSIONS, Database
from ..file.table import Table

RUN = Table(
    "run",
    """
    -- provenance of the run; exactly one row
    run_id VARCHAR -- the file name without .duckdb
    name VARCHAR -- what a person called it
    created TIMESTAMP -- when the capture or upload began, UTC
    kind VARCHAR -- capture: forwards run by ULPscope; upload: a dump from elsewhere; ops: probes of operations;
    -- sparse: what engines sent of their rows, in the tables sparse_* only
    model VARCHAR -- folder or hub id of the model, empty if unknown
    revision VARCHAR -- hub revision, or sha256: and the digest of a local folder's weight files; empty if unknown
    compute_dtype VARCHAR -- dtype the logits were computed in; ULPs are counted in it
    vocab INTEGER -- logits a position, number of tokens
    positions INTEGER -- positions of all prompts together
    device VARCHAR -- cpu, cuda, ...; empty if unknown
    device_name VARCHAR -- processor or GPU name; empty if unknown
    seed HUGEINT NULL -- seed set before each side, null if none
    command VARCHAR -- command line that repeats the capture
    request VARCHAR NULL -- JSON object: what the capture was asked for; null where the run was not captured
    note VARCHAR -- free text, such as how the compute dtype was found
    versions VARCHAR -- JSON object: library or setting to its version or value
    file_version INTEGER -- version of this form of run file
    kept VARCHAR NULL SINCE 4 -- what is kept of the logits: all; flips: those of positions that flip or nearly tie in
    -- a pair, of its two sides, and of the positions beside these; figures: none; null where a run of its kind has none
    """,
)


def insert_run(database: Database, created: datetime, versions: Mapping[str, str], **values: Any) -> None:
    """The one row; `values`: the other columns, as they are."""
    RUN.insert_row(
        database,
        created=created.astimezone(UTC).replace(tzinfo=None),
        versions=json.dumps(versions, sort_keys=True),
        file_version=FILE_VERSION,
        **values,
    )


def read_run(database: Database, *columns: str) -> dict[str, Any]:
    """Read these columns of the one row; the database knows its version from then on. StoreError where the file is not
    of a form that is read.
    """
    since = {column.name: column.since for column in RUN.columns}
    newer = [column for column in columns if since[column] > 1]
    columns = tuple(column for column in columns if since[column] == 1)
    read = [_bounded(column) if RUN.types[column] == "VARCHAR" else column for column in columns]
    try:
        found = database.rows(f"SELECT {', '.join(['file_version', *read])} FROM run_file.run", most=2)
    except StoreError:
        refuse_development_form(database)
        raise
    if len(found) != 1:
        several = database.rows("SELECT count(*) FROM run_file.run")[0][0]
        raise StoreError(f"{database.file}: {several} rows of provenance, a run file has one.")
    if found[0][0] not in READ_VERSIONS:
        known = f"{', '.join(map(str, READ_VERSIONS[:-1]))} and {READ_VERSIONS[-1]}"
        raise StoreError(
            f"{database.file}: a run file of version {found[0][0]!r:.40}, this ULPscope reads versions {known}."
        )
    database.version = int(found[0][0])
    about = dict(zip(columns, found[0][1:], strict=True))
    for column in newer:  # asked for apart: what else a file has is known once its version is
        is_there = since[column] <= database.version
        about[column] = database.rows(f"SELECT {_bounded(column)} FROM run_file.run")[0][0] if is_there else None
    for column, value in about.items():
        check_text(database, RUN.name, column, len(value.encode()) if isinstance(value, str) else 0)
    return about


def _bounded(column: str) -> str:
    """SQL of a text of which no more is read than a run has, and a character."""
    return f"left({column}, {longest(RUN.name, column) + 1})"


def check_text(database: Database, table: str, column: str, size: int | None) -> None:
    """StoreError for a text of so many bytes, or cut to so many, that is longer than one of this column may be."""
    if (size or 0) > (most := longest(table, column)):
        size = int(database.rows(f"SELECT max(strlen({column})) FROM run_file.main.{table}")[0][0])
        raise StoreError(
            f"{database.file}: {table}.{column} holds a text of {size:,} bytes; expected at most {most:,}."
        )


def refuse_development_form(database: Database) -> None:
    """StoreError for a file of the forms before the first release: they counted a `schema_version`."""
    asked = "SELECT 1 FROM duckdb_columns() WHERE database_name = 'run_file' AND column_name = 'schema_version'"
    if database.rows(asked):
        raise StoreError(
            f"{database.file}: written by a development version of ULPscope before 0.2, whose run files are not"
            " read any more; capture the run again, or export it as npz with that version and ingest that."
        )
