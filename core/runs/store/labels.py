"""What people attach to runs: tags, a note, a pin, and the date of a deletion. One SQLite file beside the run files,
which never change.

The file has a rollback journal and no write-ahead log: a store may be a shared folder (NFS), where SQLite's log does
not work, and a store of objects sends the file as a whole.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ...errors import StoreError, UsageError
from ...text import printable

FILE = "labels.sqlite"
LONGEST_TAG = 40  # characters
MOST_TAGS = 20
LONGEST_NOTE = 4000  # characters
_WAIT_SECONDS = 10.0  # for another writer
_TABLES = (
    "CREATE TABLE IF NOT EXISTS label (run_id TEXT PRIMARY KEY, tags TEXT NOT NULL, note TEXT NOT NULL,"
    " pinned INTEGER NOT NULL, judged_as TEXT NOT NULL) STRICT",
    "CREATE TABLE IF NOT EXISTS deleted (run_id TEXT PRIMARY KEY, at REAL NOT NULL) STRICT",
)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Labels:
    """Labels that a person attached to a run; `labels_of` cleans what was typed. UsageError for more than is stored.

    judged_as: id of the judged run that lists show instead of this one.
    """

    tags: tuple[str, ...] = ()
    note: str = ""
    pinned: bool = False
    judged_as: str = ""

    def __post_init__(self) -> None:
        for tag in self.tags:
            if not 0 < len(tag) <= LONGEST_TAG:
                raise UsageError(
                    f"the tag '{tag[:LONGEST_TAG]}…' has {len(tag)} characters; a tag has 1 to {LONGEST_TAG}."
                )
        if len(self.tags) > MOST_TAGS:
            raise UsageError(f"{len(self.tags)} tags; a run has at most {MOST_TAGS}.")
        if len(self.note) > LONGEST_NOTE:
            raise UsageError(f"the note has {len(self.note):,} characters; at most {LONGEST_NOTE:,} are stored.")


@dataclass(frozen=True)
class LabelUpdate:
    """Labels that are stored now. has_both_notes: two people's, one below the other."""

    labels: Labels
    has_both_notes: bool = False


@dataclass(frozen=True)
class Attached:
    """All that a store's file holds. deleted: run id -> UTC time."""

    labels: dict[str, Labels]
    deleted: dict[str, datetime]


def labels_of(tags: Iterable[str], note: str, pinned: bool = False) -> Labels:
    """Labels as a person typed them: control characters go, blanks are one space, a tag counts once."""
    cleaned = (" ".join(printable(tag).split()) for tag in tags)
    lines = note.replace("\r\n", "\n").replace("\r", "\n")
    return Labels(tuple(dict.fromkeys(tag for tag in cleaned if tag)), printable(lines, "", "\n\t").strip(), pinned)


def read_all(folder: Path) -> Attached:
    """All that a store's file holds, read once per change. StoreError if it cannot be read."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            status, counter = os.fstat(file.fileno()), file.read(28)[24:]  # SQLite's count of changes
        return _read(path, (status.st_ino, status.st_size, status.st_mtime_ns, counter))
    except FileNotFoundError:
        return Attached({}, {})
    except (sqlite3.Error, OSError, ValueError) as error:
        raise StoreError(
            f"{path}: tags, notes and deletions cannot be read ({error}). Move the file away to start without them."
        ) from error


@lru_cache(maxsize=8)
def _read(path: Path, _stamp: tuple[object, ...]) -> Attached:
    with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS)) as database:
        if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return Attached({}, {})  # its first writer was killed before it committed, or is at work
        labels = {
            run_id: Labels(tuple(json.loads(tags)), note, bool(pinned), judged_as)
            for run_id, tags, note, pinned, judged_as in database.execute("SELECT * FROM label")
        }
        deleted = {run_id: datetime.fromtimestamp(at, UTC) for run_id, at in database.execute("SELECT * FROM deleted")}
    return Attached(labels, deleted)


def read(folder: Path, run_id: str) -> Labels:
    """The labels of one run, empty ones if it has none."""
    return read_all(folder).labels.get(run_id, Labels())


def change(folder: Path, work: Callable[[sqlite3.Connection], Result]) -> Result:
    """Run `work` in one transaction on a store's file: all of it is stored, or nothing and StoreError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(folder / FILE, timeout=_WAIT_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                database.execute(table)
            result = work(database)
            database.execute("COMMIT")
            return result
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{folder / FILE}: cannot be written ({error}); nothing was changed.") from error


def update(database: sqlite3.Connection, run_id: str, wanted: Labels, seen: Labels | None) -> LabelUpdate:
    """Make the labels of a run what somebody wants who has `seen` them as they were; None: whatever they are.

    What others changed since then stays: their tags and pin, and a note that both changed becomes both notes.
    """
    row = database.execute("SELECT tags, note, pinned, judged_as FROM label WHERE run_id = ?", [run_id]).fetchone()
    stored = Labels(tuple(json.loads(row[0])), row[1], bool(row[2]), row[3]) if row else Labels()
    changed = LabelUpdate(wanted) if seen is None else _merged(seen, wanted, stored)
    labels = changed.labels
    database.execute("DELETE FROM label WHERE run_id = ?", [run_id])
    if labels != Labels():
        tags = json.dumps(labels.tags, ensure_ascii=False)
        database.execute(
            "INSERT INTO label VALUES (?, ?, ?, ?, ?)", [run_id, tags, labels.note, labels.pinned, labels.judged_as]
        )
    return changed


def write(folder: Path, run_id: str, wanted: Labels, seen: Labels | None = None) -> LabelUpdate:
    """`update` in a store's folder."""
    return change(folder, lambda database: update(database, run_id, wanted, seen))


def _merged(seen: Labels, wanted: Labels, stored: Labels) -> LabelUpdate:
    tags = [tag for tag in stored.tags if tag in wanted.tags or tag not in seen.tags]
    tags += [tag for tag in wanted.tags if tag not in seen.tags and tag not in tags]
    if stored.tags == seen.tags:
        tags = list(wanted.tags)  # in the order that was chosen
    both = False
    if wanted.note == seen.note:
        note = stored.note
    elif stored.note in (seen.note, wanted.note, ""):
        note = wanted.note
    else:  # both have changed it: the other's is never lost, not even to an empty one
        both = wanted.note != ""
        note = f"{stored.note}\n\n{wanted.note}" if both else stored.note
    pinned = stored.pinned if wanted.pinned == seen.pinned else wanted.pinned
    return LabelUpdate(Labels(tuple(tags), note, pinned, wanted.judged_as or stored.judged_as), both)
