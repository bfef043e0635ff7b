"""Runs that were deleted and can still be had back: `.trash/TIME-RANDOM/RUN_ID.duckdb` in the store, with the run's
labels beside it.

A run goes there and comes back by renaming on one file system, so either is immediate whatever its size, and its disk
is free only once it is purged: by hand, or by writers' sweeps after `KEPT_SECONDS` (`expire`). No reader looks into a
hidden directory, so such a run is listed nowhere.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ...disk import place_new
from ...errors import StoreError
from ...text import shown
from . import labels

FOLDER = ".trash"
KEPT_SECONDS = 7 * 24 * 3600
CONFIRMED_AFTER_SECONDS = 3600
SUFFIX = ".duckdb"
_ENTRY = re.compile(r"(\d{8}-\d{6})-[0-9a-f]{8}", re.ASCII)
_TIME = "%Y%m%d-%H%M%S"
_EXPIRED = "expired"  # in an entry: a sweep has found it too old


@dataclass(frozen=True)
class Discarded:
    """A run in the trash. `deleted`: UTC."""

    entry: str
    path: Path
    deleted: datetime
    bytes: int

    @property
    def run_id(self) -> str:
        return self.path.stem


def discard(store: Path, path: Path) -> str:
    """Move the run file `path` of the store into the trash, and its labels after it; returns the entry. OSError where
    that fails.
    """
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(21, "Is a directory")
    entry = store / FOLDER / f"{datetime.now(UTC).strftime(_TIME)}-{secrets.token_hex(4)}"
    entry.mkdir(parents=True)
    try:
        path.rename(entry / path.name)
    except OSError:
        with suppress(OSError):
            entry.rmdir()
        raise
    with suppress(OSError):  # there are none, or they stay where they are and are found again on the way back
        kept = labels.path_of(store, path.stem)
        kept.rename(entry / kept.name)
    return entry.name


def restore(store: Path, entry: str) -> str:
    """Put a run back where it was, never over another; returns its id. Labels that the store has under its id meanwhile
    stay.
    """
    found = next((run for run in listed(store) if run.entry == entry), None)
    if found is None:
        raise StoreError("that run is not in the trash any more.")
    run_id = found.path.stem
    kept = found.path.with_name(f"{run_id}.json")
    if os.path.lexists(store / found.path.name):
        raise StoreError(f"run '{run_id}' is there again; nothing was changed.")
    try:
        if os.path.lexists(kept):  # before the run: should this be cut short, the next attempt finds them in place
            place = labels.path_of(store, run_id)
            place.parent.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                place_new(kept, place)
        place_new(found.path, store / found.path.name)
    except FileExistsError:
        raise StoreError(f"run '{run_id}' is there again; nothing was changed.") from None
    except FileNotFoundError:
        raise StoreError(f"run '{run_id}' is not in the trash any more.") from None
    except OSError as error:
        raise StoreError(f"run '{run_id}' cannot be put back ({error.strerror}).") from error
    shutil.rmtree(found.path.parent, ignore_errors=True)
    return run_id


def listed(store: Path) -> list[Discarded]:
    """List the runs in the trash, the latest deleted first."""
    found = [run for path in _entries(store) if (run := _run_in(path)) is not None]
    return sorted(found, key=lambda run: (run.deleted, run.entry), reverse=True)


def entry_of(trash: Sequence[Discarded], name: str) -> str:
    """The entry that a run's id, a unique beginning of one, or an entry's own name means; StoreError if there is none
    or several.

    A run that was deleted, captured under the same id and deleted again is there twice: then the entry has to be named.
    """
    found = [run for run in trash if run.entry == name] or [run for run in trash if run.run_id == name]
    if name and not found:
        found = [run for run in trash if run.run_id.startswith(name)]
    if len(found) == 1:
        return found[0].entry
    if found:
        known = ", ".join(f"{run.run_id} ({run.entry})" for run in found[:3])
        raise StoreError(f"'{shown(name)}' could be {known}; give the entry.")
    raise StoreError(f"no deleted run '{shown(name)}'; `list --deleted` shows those there are.")


def purge(store: Path, older_than_seconds: float = 0.0, entry: str | None = None) -> int:
    """Remove for good what was deleted that long ago, or one entry; returns how many entries that were."""
    now, purged = datetime.now(UTC).replace(tzinfo=None), 0
    for path in _entries(store):
        moment = _deleted(path.name)
        is_old = older_than_seconds <= 0 or (
            moment is not None and (now - moment).total_seconds() >= older_than_seconds
        )
        if is_old and entry in (None, path.name):
            shutil.rmtree(path, ignore_errors=True)
            purged += not path.exists()
    return purged


def expire(store: Path) -> None:
    """Remove for good what has been in the trash for a week, at the second look that finds it so, an hour or more after
    the first.

    A clock that is ahead for a moment (a machine that wakes up, another one on a shared directory) thus costs no run.
    """
    now = time.time()
    for path in _entries(store):
        moment, mark = _deleted(path.name), path / _EXPIRED
        is_old = moment is not None and now - moment.replace(tzinfo=UTC).timestamp() >= KEPT_SECONDS
        with suppress(OSError):
            if not is_old:
                mark.unlink(missing_ok=True)
            elif not mark.exists() or mark.stat().st_mtime > now:
                mark.touch()
                os.utime(mark, (now, now))
            elif now - mark.stat().st_mtime >= CONFIRMED_AFTER_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _entries(store: Path) -> list[Path]:
    """The directories of the trash that have an entry's name; a link is somebody else's, and is left alone."""
    trash = store / FOLDER
    if trash.is_symlink():
        return []
    try:
        return [path for path in trash.iterdir() if _deleted(path.name) and path.is_dir() and not path.is_symlink()]
    except OSError:  # there is none
        return []


def _deleted(entry: str) -> datetime | None:
    """Time of deletion, out of an entry's name; None for what is no entry."""
    match = _ENTRY.fullmatch(entry)
    try:
        return datetime.strptime(match[1], _TIME) if match else None
    except ValueError:
        return None


def _run_in(entry: Path) -> Discarded | None:
    """The run of an entry; None where it has none, because it was put back, purged, or never got there."""
    moment = _deleted(entry.name)
    if moment is None or entry.is_symlink():
        return None
    try:
        path = next((path for path in entry.iterdir() if path.name.endswith(SUFFIX)), None)
        return None if path is None else Discarded(entry.name, path, moment, path.lstat().st_size)
    except OSError:
        return None
