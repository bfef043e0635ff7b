"""Runs of kind `ops`: what one machine's torch operations keep bit for bit.

Such a run has no sides and no logits.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from .file.database import Database
from .new_run import new_run
from .store.store import Store
from .tables import ops
from .tables.run import insert_run
from .tables.schema import check_tables

KIND = "ops"


@dataclass(frozen=True)
class OpsHeader:
    """Everything about the run but its rows. dtypes: those probed."""

    name: str
    device: str
    device_name: str
    dtypes: tuple[str, ...]
    command: str
    model: str = ""
    note: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    created: datetime | None = None


@dataclass(frozen=True)
class OpsRun:
    """One stored run of probes. `header.created` is UTC without a zone, as stored."""

    run_id: str
    header: OpsHeader
    rows: list[ops.OpRow]


def write_ops_run(
    store: Store,
    header: OpsHeader,
    rows: Sequence[ops.OpRow],
    *,
    run_id: str | None = None,
) -> str:
    """Store the probes as an immutable run; it appears when it is whole. -> its id"""
    if not rows:
        raise UsageError("no operation was probed; nothing was stored.")
    about = asdict(header) | {"compute_dtype": ", ".join(header.dtypes)}
    del about["dtypes"]
    with new_run(store, header.name, run_id, created=header.created) as (database, created):
        values = about | {"run_id": database.path.stem, "created": created}
        insert_run(database, kind=KIND, revision="", vocab=0, positions=0, **values)
        ops.insert_ops(database, rows)
    return database.path.stem


def read_ops(store: Store, run_id: str) -> OpsRun:
    """Return a stored run of probes; StoreError for a run of another kind."""
    return ops_of(store.path_of(run_id))


def ops_of(path: Path) -> OpsRun:
    """Return the run of probes in this file, under any name."""
    names = ("name", "created", "model", "device", "device_name", "command", "note")
    with Database.to_read(path) as database:
        about = check_tables(database)
        if about["kind"] != KIND:
            raise StoreError(
                f"run '{path.stem}' holds logits and no probes of operations; `{COMMAND} show`"
                " shows it.",
            )
        with database.decoding("provenance"):
            header = OpsHeader(
                dtypes=tuple(about["compute_dtype"].split(", ")),
                versions=json.loads(about["versions"]),
                **{name: about[name] for name in names},
            )
        return OpsRun(path.stem, header, ops.read_ops(database))
