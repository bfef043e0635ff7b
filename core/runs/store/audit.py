"""Audit log, who added, changed or deleted what: one JSON line an event, in `.audit/audit.jsonl` of the writable
directory of the store.

Lines are appended under a lock, so any number of processes may write; a file that has reached its size is put aside
under the time at which that happened, and never removed. What a line says is of others (names, titles): it is JSON,
with everything but ASCII escaped.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...configuration import Hosting, configuration
from ...disk import lock
from ...errors import ConfigurationError

FOLDER = ".audit"
FILE = "audit.jsonl"
_LONGEST_TEXT = 400  # characters of one value
_LARGEST_LINE = 16 << 10  # bytes; one that is longer was not written by us
_log = logging.getLogger(__name__)


def record(store_directory: Path, who: str, what: str, run_id: str = "", **figures: object) -> bool:
    """Append one event; False, and a line in the server's log, where that cannot be done. It never raises: the event
    has happened.
    """
    said: dict[str, object] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "who": who,
        "what": what,
    }
    said |= {"run_id": run_id} if run_id else {}
    said |= {key: value for key, value in figures.items() if key not in said}
    line = json.dumps({key: _plain(value) for key, value in said.items()}).encode() + b"\n"
    try:
        if len(line) > _LARGEST_LINE:
            raise ValueError(f"{len(line):,} bytes are too many for a line")
        _append(Path(store_directory) / FOLDER, line, _largest_file())
    except (OSError, ValueError) as error:
        _log.error("not in the audit log (%s): %s %s %s", error, ascii(who), ascii(what), ascii(run_id))
        return False
    return True


def read(store_directory: Path, limit: int) -> list[dict[str, Any]]:
    """The latest `limit` events, the earliest of them first; lines that are none are left out."""
    found: list[dict[str, Any]] = []
    for path in _files(Path(store_directory) / FOLDER):
        if len(found) >= limit:
            break
        found = [*_events(path), *found]
    return found[-limit:] if limit > 0 else []


def local_user() -> str:
    """Name of the user of the command line on this machine, as an audit line has it."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (OSError, KeyError):  # a container's user may have no name
        return f"user {os.getuid()} (command line)"


def _plain(value: object) -> object:
    """Convert a value for JSON: numbers as they are, anything else as a text that is not too long."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and value - value == 0:  # neither infinite nor NaN, which JSON has no words for
        return value
    return str(value)[:_LONGEST_TEXT]


def _largest_file() -> int:
    try:
        return configuration().hosting.audit_bytes
    except ConfigurationError:  # somebody is writing at it
        return Hosting().audit_bytes


def _append(folder: Path, line: bytes, largest: int) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / FILE
    while True:
        descriptor = lock(path)
        try:
            size = os.fstat(descriptor).st_size
            if largest and size >= largest:
                moment = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
                path.rename(path.with_name(f"audit-{moment}-{secrets.token_hex(2)}.jsonl"))
                continue
            _write(descriptor, size, line)
            return
        finally:
            os.close(descriptor)


def _write(descriptor: int, size: int, line: bytes) -> None:
    """Write all of the line or nothing of it: a full disk may take a part, and a killed writer may have left one."""
    is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
    line = b"\n" + line if is_torn else line
    if os.write(descriptor, line) != len(line):
        os.ftruncate(descriptor, size)
        raise OSError("the disk is full")


def _files(folder: Path) -> Iterator[Path]:
    """The newest first. Their names begin with the time at which they were put aside."""
    yield folder / FILE
    try:
        yield from sorted(folder.glob("audit-*.jsonl"), key=lambda path: path.name, reverse=True)
    except OSError:
        return


def _events(path: Path) -> list[dict[str, Any]]:
    found = []
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            while line := file.readline(_LARGEST_LINE):
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(said, dict) and isinstance(said.get("what"), str):
                    found.append(said)
    except OSError:  # there is none
        return []
    return found
