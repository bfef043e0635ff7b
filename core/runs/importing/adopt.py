"""Run files from outside: taken into a store as new files, by a process of their own that may crash.

A damaged file can make DuckDB end the process that reads it, and a made one can try to use up the machine, so neither
happens here.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...command_name import COMMAND
from ...errors import LimitError, StoreError
from ...text import shown
from ..store.store import Store
from .check_catalog import is_run_file

_ROOT = Path(__file__).resolve().parents[3]
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
    process = subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.import_process", json.dumps(asked)],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )
    said: dict[str, object] = {}
    try:
        said = _followed(process, on_progress)
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if "run_id" not in said:
            with suppress(StoreError, OSError):
                store.sweep()  # what it had begun, where it was killed
    if isinstance(new_id := said.get("run_id"), str):
        return new_id
    if isinstance(sentence := said.get("error"), str):
        if isinstance(status := said.get("status"), int) and status:
            raise LimitError(sentence, status)
        raise StoreError(sentence)
    number = -process.returncode
    why = _KILLED_BY.get(number) if number > 0 else None
    raise StoreError(
        f"{shown(path.name)}: {why or 'made the process that read it crash'}; it is damaged, or made to do that."
    )


def _followed(process: subprocess.Popen, on_progress: Callable[[int, int], None] | None) -> dict[str, object]:
    """The last word of the process: its `run_id` or `error`; empty where it ended without one, or said nothing for too
    long.
    """
    assert process.stdout is not None  # it was asked for
    watch = threading.Timer(_SILENT_SECONDS, process.kill)
    watch.daemon = True
    watch.start()
    try:
        for line in process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if not isinstance(said, dict):
                continue
            if "run_id" in said or "error" in said:
                return said
            watch.cancel()
            watch = threading.Timer(_SILENT_SECONDS, process.kill)
            watch.daemon = True
            watch.start()
            if on_progress is not None and isinstance(said.get("done"), int) and isinstance(said.get("total"), int):
                on_progress(said["done"], said["total"])
    finally:
        watch.cancel()
    return {}
