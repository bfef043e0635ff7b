"""Provenance of a run: the table `run`, by which a file is known to be of this form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from ...errors import StoreError
from ..file.database import FILE_VERSION, Database
from ..file.table import Table

RUN = Table(
    "run",
    """
    -- provenance of the run; exactly one row
    run_id VARCHAR -- the file name without .duckdb
    name VARCHAR -- what a person called it
    created TIMESTAMP -- when the capture or upload began, UTC
    kind VARCHAR -- capture: forwards run by ULPscope; upload: a dump from elsewhere; ops: probes of operations
    model VARCHAR -- folder or hub id of the model, empty if unknown
    revision VARCHAR -- hub revision, or sha256: and the digest of a local folder's weight files; empty if unknown
    compute_dtype VARCHAR -- dtype the logits were computed in; ULPs are counted in it; empty if lists do not show it
    vocab INTEGER -- logits per position, number of tokens; 0: of lists, if nothing says it
    positions INTEGER -- positions of all prompts together
    device VARCHAR -- cpu, cuda, ...; empty if unknown
    device_name VARCHAR -- processor or GPU name; empty if unknown
    seed HUGEINT NULL -- seed set before each side, null if none
    command VARCHAR -- command line that repeats the capture
    request VARCHAR NULL -- JSON object: the request of the capture; null if the run was not captured
    note VARCHAR -- free text, such as how the compute dtype was found
    versions VARCHAR -- JSON object: library or setting to its version or value
    file_version INTEGER -- version of this form of run file
    kept VARCHAR NULL -- what is kept of the logits: all; figures: none; null if a run of its kind has none
    """,
)


def insert_run(database: Database, created: datetime, versions: Mapping[str, str], **values: Any) -> None:
    """Return the only row; `values`: the other columns, unchanged."""
    RUN.insert_row(
        database,
        created=created.astimezone(UTC).replace(tzinfo=None),
        versions=json.dumps(versions, sort_keys=True),
        file_version=FILE_VERSION,
        **values,
    )


def read_run(database: Database, *columns: str) -> dict[str, Any]:
    """Read these columns of the one row. StoreError if the file is not of the version that is read."""
    try:
        rows = database.rows(f"SELECT {', '.join(['file_version', *columns])} FROM run_file.run", most=2)
    except StoreError:
        refuse_other_versions(database)
        raise
    if len(rows) != 1:
        several = database.rows("SELECT count(*) FROM run_file.run")[0][0]
        raise StoreError(f"{database.file}: {several} rows of provenance, a run file has one.")
    if rows[0][0] != FILE_VERSION:
        raise _other_version(database, rows[0][0])
    return dict(zip(columns, rows[0][1:], strict=True))


def refuse_other_versions(database: Database) -> None:
    """StoreError for a file that lacks columns because another version of ULPscope wrote it."""
    sql = (
        "SELECT column_name FROM duckdb_columns() WHERE database_name = 'run_file' AND table_name = 'run'"
        " AND column_name IN ('file_version', 'schema_version')"
    )
    for (column,) in database.rows(sql):
        version = database.rows(f"SELECT {column} FROM run_file.run")[0][0]
        if column != "file_version" or version != FILE_VERSION:
            raise _other_version(database, version)


def _other_version(database: Database, version: object) -> StoreError:
    return StoreError(
        f"{database.file}: a run file of version {version!r:.40}; this ULPscope reads version {FILE_VERSION}. Capture"
        " or ingest it again, or export it as npz with the version that wrote it."
    )
