"""Quotas and retention: what may be stored, whether there is room for it, and which runs have been there long enough.

Retention moves runs into the trash, from where they come back for a week; it counts from when a file came into the
directory (its change time, which a restore or a copy renews), not from when its run was made: a run of last year that
is taken in today has just come.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...configuration import Limits, Retention, configuration
from ...errors import LimitError, StoreError
from . import audit, labels
from .cards import RunCard, read_runs
from .store import SUFFIX, Store
from .trash import FOLDER as TRASH

UPLOADS = ".uploads"  # the directory of the store in which app.uploads keeps what arrives, as UPLOADS/ID/file/NAME
_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Due:
    """A run that retention would move into the trash. days: since it came; because: in words, for a list."""

    run_id: str
    name: str
    bytes: int
    days: float
    because: str


def check_room(store: Store, incoming_bytes: int, limits: Limits) -> None:
    """LimitError for a file of so many bytes that is larger than one may be (413), or that there is no room for
    (507).
    """
    if limits.file_bytes and incoming_bytes > limits.file_bytes:
        raise LimitError(
            f"the file has {incoming_bytes:,} bytes; this server takes files of at most {limits.file_bytes:,}"
            " (limits.file_bytes).",
            413,
        )
    check_space(store, incoming_bytes, limits)


def check_space(store: Store, more_bytes: int, limits: Limits | None = None, *, replaced: Sequence[Path] = ()) -> None:
    """LimitError (507) where so many bytes more would fill the store, or its disk, beyond what is in force.

    `replaced`: files that the new one is made of; those of them that are uploads go once it is there, so the store need
    not hold both.
    """
    limits = configuration().limits if limits is None else limits
    if (
        limits.store_bytes
        and (held := stored_bytes(store) - _uploaded(store, replaced)) + more_bytes > limits.store_bytes
    ):
        raise LimitError(
            f"no room for {more_bytes:,} bytes: the store holds {held:,} of at most {limits.store_bytes:,}"
            " (limits.store_bytes); delete runs for good, or ask who keeps this server."
        )
    check_free(store, more_bytes, limits)


def check_free(store: Store, more_bytes: int, limits: Limits) -> None:
    """LimitError (507) where so many bytes more would leave less of the store's disk free than has to stay free."""
    free = free_bytes(store)
    if limits.free_bytes and free is not None and free - more_bytes < limits.free_bytes:
        raise LimitError(
            f"no room for {more_bytes:,} bytes: {free:,} are free on the store's disk, of which {limits.free_bytes:,}"
            " have to stay free (limits.free_bytes)."
        )


def stored_bytes(store: Store) -> int:
    """Bytes of all run files of the writable directory, those in the trash and those being written included, and of
    what arrived of uploads.
    """
    total = 0
    for pattern in (f"*{SUFFIX}", f"{TRASH}/*/*{SUFFIX}", f".partial-*/*{SUFFIX}", f"{UPLOADS}/*/file/*"):
        for path in store.directory.glob(pattern):
            with suppress(OSError):  # gone between the listing and the look
                total += path.lstat().st_size
    return total


def _uploaded(store: Store, files: Sequence[Path]) -> int:
    """Bytes of those of `files` that are uploads to the store."""
    uploads = (store.directory / UPLOADS).resolve()
    return sum(path.stat().st_size for path in files if path.is_file() and uploads in path.resolve().parents)


def free_bytes(store: Store) -> int | None:
    """Bytes that whoever runs this may still write on the disk of the store, which may not have been made yet; None for
    a file system without blocks (`/proc`), which is no disk that could be full: writing there fails with its own
    sentence.
    """
    place = store.directory.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        found = os.statvfs(place)
    except OSError as error:
        raise StoreError(f"{store.directory}: its disk cannot be asked for room ({error.strerror}).") from error
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def due(store: Store, retention: Retention, now: float | None = None) -> list[Due]:
    """The runs that retention would move, the oldest first. `now`: seconds since 1970.

    Pinned runs stay, and those whose labels cannot be read, for they may be pinned; so does a file that is no readable
    run.
    """
    if not retention.days and not retention.runs:
        return []
    now = time.time() if now is None else now
    arrivals = _arrivals(store)
    newest_first = sorted(arrivals, key=lambda path: (arrivals[path], path.name), reverse=True)
    cards = {path: card for path, card in read_runs(newest_first).items() if isinstance(card, RunCard)}
    runs = [path for path in newest_first if path in cards]
    found = []
    for place, path in enumerate(runs):
        age = (now - arrivals[path]) / _DAY_SECONDS
        because = _because(age, place, retention)
        if because and not _may_be_pinned(store, path.stem):
            found.append(Due(path.stem, cards[path].name, cards[path].bytes, age, because))
    return found[::-1]


def apply_retention(store: Store, retention: Retention) -> list[str]:
    """Move what is due into the trash; returns the ids. One that cannot be moved stays, and is tried again the next
    time.
    """
    moved = []
    for run in due(store, retention):
        with suppress(StoreError):  # another process was faster, or it cannot be moved
            if _may_be_pinned(store, run.run_id):  # since the list was made
                continue
            store.discard(run.run_id)
            moved.append(run.run_id)
            audit.record(store.directory, "retention", "delete", run.run_id, because=run.because)
    return moved


def _because(age_days: float, place: int, retention: Retention) -> str:
    """Reason why the run at this place, the newest being 0, is due; '' where it is not."""
    if retention.days and age_days > retention.days:
        return f"it came {age_days:.1f} days ago, and runs are kept for {retention.days:g}"
    if retention.runs and place >= retention.runs:
        return f"{place} runs are newer, and {retention.runs} are kept"
    return ""


def _arrivals(store: Store) -> dict[Path, float]:
    """Time at which each run file of the writable directory came there, in seconds since 1970."""
    found = {}
    for path in _own(store):
        with suppress(OSError):
            found[path] = path.lstat().st_ctime
    return found


def _own(store: Store) -> Sequence[Path]:
    return [path for path in store.paths() if store.is_writable(path)]


def _may_be_pinned(store: Store, run_id: str) -> bool:
    try:
        return labels.read(store.directory, run_id).pinned
    except StoreError:
        return True
