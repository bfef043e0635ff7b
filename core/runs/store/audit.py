"""Audit log, who added, changed or deleted what: one JSON line an event, in `.audit/audit.jsonl` of the writable
directory of the store.

Lines are appended under a lock, so any number of processes may write; a file that has reached its size, or a month, is
put aside under the time at which that happened. One put aside is removed once everything in it is older than
`audit_days` and those put aside take more than `audit_kept_bytes`; nothing younger ever is. What a line says is of
others (names, titles): it is JSON, with everything but ASCII escaped.
"""

from __future__ import annotations

import getpass
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ...configuration import Hosting, configuration
from ...disk import lock
from ...errors import ConfigurationError

FOLDER = ".audit"
FILE = "audit.jsonl"
_LONGEST_TEXT = 400  # characters of one value
_LARGEST_LINE = 16 << 10  # bytes; one that is longer was not written by us
_FILE_DAYS = 30.0  # after which a new file is begun, however small: what is old can go without what is not
_TIME = re.compile(rb'\{"time": "([0-9T:.-]{19,26}Z)"')  # with which a line of ours begins
_MOMENT = "%Y%m%dT%H%M%S%f"  # in the name of a file put aside
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
        _append(Path(store_directory) / FOLDER, line, _settings())
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


def _settings() -> Hosting:
    try:
        return configuration().hosting
    except ConfigurationError:  # somebody is writing at it
        return Hosting()


def _append(folder: Path, line: bytes, settings: Hosting) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / FILE
    while True:
        descriptor = lock(path)
        try:
            size, now, first = os.fstat(descriptor).st_size, datetime.now(UTC), _first_moment(descriptor)
            if _is_full(size, now, first, settings):
                path.rename(path.with_name(f"audit-{now.strftime(_MOMENT)}-{secrets.token_hex(2)}.jsonl"))
                if first is not None and settings.audit_days:
                    _remove_old(folder, min(now, first), settings)
                continue
            _write(descriptor, size, line)
            return
        finally:
            os.close(descriptor)


def _first_moment(descriptor: int) -> datetime | None:
    """Time of a file's first event, by its own word; None where it begins with none of ours."""
    found = _TIME.match(os.pread(descriptor, 64, 0))
    try:
        return None if found is None else datetime.fromisoformat(found[1].decode())
    except ValueError:
        return None


def _is_full(size: int, now: datetime, first: datetime | None, settings: Hosting) -> bool:
    most_days = min(_FILE_DAYS, settings.audit_days or _FILE_DAYS)
    is_old = first is not None and now - first >= timedelta(days=most_days)
    return is_old or 0 < settings.audit_bytes <= size


def _remove_old(folder: Path, now: datetime, settings: Hosting) -> None:
    """Remove files that were put aside more than `audit_days` before `now`, the oldest first, while there is too much.

    `now` is no later than the first event of the file that was put aside last: a clock that is a year ahead for a
    moment removes nothing.
    """
    with suppress(OSError):
        sizes = {path: path.lstat().st_size for path in sorted(folder.glob("audit-*.jsonl"))}
        total = sum(sizes.values())
        for path, size in sizes.items():
            moment = _put_aside(path)
            if moment is None or now - moment <= timedelta(days=settings.audit_days):
                continue
            if total <= settings.audit_kept_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size
            _log.info("%s is removed: everything in it is older than %g days", path.name, settings.audit_days)


def _put_aside(path: Path) -> datetime | None:
    """Time at which a file was put aside, by its name: no event in it is later."""
    try:
        return datetime.strptime(path.name.split("-")[1], _MOMENT).replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return None


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
