"""Run files from outside: taken into a store as new files, by a process of their own that may crash.

A damaged file can make DuckDB end the process that reads it, and a made one can try to use up the machine, so neither
happens here.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...command_name import COMMAND
from ...errors import LimitError, StoreError
from ...subprocess_json import Child
from ...text import shown
from ..store.store import Store
from .check_catalog import is_run_file

_SILENT_SECONDS = 900.0  # without a word; every 16 MB of logits bring one
_KILLED_BY: dict[int, str] = {
    signal.SIGXCPU: "takes longer to read than a file of its size can",
    signal.SIGKILL: "could not be read within the memory that a run needs, or the process that read it was killed",
}


def adopt(
    store: Store,
    path: Path,
    *,
    run_id: str | None = None,
    name: str | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> str:
    """Check a run file table by table and store it as a new run; returns its id. `on_progress(rows done, rows of all
    sides)`.

    StoreError, and nothing is stored, where anything in it is not a run's: objects or columns of other kinds, rows out
    of range, figures that are not those of its logits, logits that are not those of its digests. `path` itself is only
    read.
    """
    path = Path(path)
    if not path.is_file():
        raise StoreError(f"{shown(path.name)}: is no file; expected a run file (.duckdb).")
    if not is_run_file(path):
        raise StoreError(f"{shown(path.name)}: is no DuckDB file; expected a run file. `{COMMAND} ingest` takes dumps.")
    store.sweep()
    asked = {"store": str(store.directory.absolute()), "path": str(path.absolute()), "run_id": run_id, "name": name}
    child = Child(["-m", f"{__package__}.import_process", json.dumps(asked)], seconds=_SILENT_SECONDS, is_patient=True)
    last: dict[str, object] = {}
    try:
        with child:
            for said in child.said():
                if "run_id" in said or "error" in said:
                    last = said
                elif (
                    on_progress is not None and isinstance(said.get("done"), int) and isinstance(said.get("total"), int)
                ):
                    on_progress(said["done"], said["total"])
    finally:
        if "run_id" not in last:
            with suppress(StoreError, OSError):
                store.sweep()  # what it had begun, where it was killed
    if isinstance(new_id := last.get("run_id"), str):
        return new_id
    if isinstance(sentence := last.get("error"), str):
        if isinstance(status := last.get("status"), int) and status:
            raise LimitError(sentence, status)
        raise StoreError(sentence)
    why = _KILLED_BY.get(-child.code)
    raise StoreError(
        f"{shown(path.name)}: {why or 'made the process that read it crash'}; it is damaged, or made to do that."
    )
