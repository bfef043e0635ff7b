"""Labels of runs: a name of one's own, tags, a note, a pin, and the date of a deletion, in one
SQLite file. Run files never change.

The file has a rollback journal and no write-ahead log: a store may be a shared folder (NFS), in
which SQLite's log does not work, and a store of objects sends the file as a whole.
"""

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, structs

from ...errors import StoreError, UsageError
from ...text import printable

FILE = "labels.sqlite"
LONGEST_TAG = 40  # characters
MOST_TAGS = 20
LONGEST_NOTE = 4000  # characters
LONGEST_NAME = 120  # characters
_WAIT_SECONDS = 10.0  # for another writer
_TABLES = (
    (
        "CREATE TABLE IF NOT EXISTS label (run_id TEXT PRIMARY KEY, tags TEXT NOT NULL, note TEXT"
        " NOT NULL, pinned INTEGER NOT NULL, judged_as TEXT NOT NULL) STRICT"
    ),
    "CREATE TABLE IF NOT EXISTS deleted (run_id TEXT PRIMARY KEY, at REAL NOT NULL) STRICT",
    # no column of `label`: an older build reads that table as it knows it
    "CREATE TABLE IF NOT EXISTS renamed (run_id TEXT PRIMARY KEY, name TEXT NOT NULL) STRICT",
)
Result = TypeVar("Result")


class Labels(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Labels that a person attached to a run, a row of the table `label`; `labels_of` cleans what
    was typed.

    judged_as: id of the judged run that lists show instead of this one; name: shown instead of the
    run's own.
    """

    tags: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=LONGEST_TAG)], ...],
        Meta(max_length=MOST_TAGS),
    ] = ()
    note: Annotated[str, Meta(max_length=LONGEST_NOTE)] = ""
    pinned: bool = False
    judged_as: str = ""
    name: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""


@dataclass(frozen=True)
class Attached:
    """All that a store's file holds. deleted: run id -> UTC time."""

    labels: dict[str, Labels]
    deleted: dict[str, datetime]


def labels_of(
    tags: Iterable[str],
    note: str,
    pinned: bool = False,
    name: str = "",
) -> Labels:
    """Labels as a person typed them: control characters go, blanks are one space, a tag counts
    once.
    """
    words = [" ".join(printable(text).split()) for text in (name, *tags)]
    # a browser sends line ends of Windows
    lines = note.replace("\r\n", "\n").replace("\r", "\n")
    return Labels(
        tuple(dict.fromkeys(filter(None, words[1:]))),
        printable(lines, "", "\n\t").strip(),
        pinned,
        name=words[0],
    )


def _labels_of_row(run_id: str, *row: Any) -> Labels:
    """Return the labels of a row. StoreError for what is none, with its path."""
    values = dict(zip(Labels.__struct_fields__, row, strict=False))
    try:
        values["tags"] = msgspec.json.decode(values["tags"])
        return msgspec.convert(values, Labels, strict=False)
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise StoreError(
            f"{FILE}: the labels of run '{run_id}' cannot be read ({error}).",
        ) from None


def read_all(folder: Path) -> Attached:
    """All that a store's file holds, read once per change. StoreError if it cannot be read."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            # SQLite's count of changes
            status, counter = os.fstat(file.fileno()), file.read(28)[24:]
        return _read(path, (status.st_ino, status.st_size, status.st_mtime_ns, counter))
    except FileNotFoundError:
        return Attached({}, {})
    except (sqlite3.Error, OSError, msgspec.ValidationError) as error:
        raise StoreError(
            f"{path}: tags, notes and deletions cannot be read ({error}). Move the file away to"
            " start without them.",
        ) from error


@lru_cache(maxsize=8)
def _read(path: Path, _stamp: tuple[object, ...]) -> Attached:
    with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if not tables:
            # its first writer was killed before it committed, or is at work
            return Attached({}, {})
        labels = _read_labels(database, "renamed" in tables)
        deleted = dict(database.execute("SELECT * FROM deleted"))
        deleted = msgspec.convert(deleted, dict[str, datetime], strict=False)
    return Attached(labels, deleted)


def _read_labels(database: sqlite3.Connection, has_names: bool = True) -> dict[str, Labels]:
    labels = {row[0]: _labels_of_row(*row) for row in database.execute("SELECT * FROM label")}
    if has_names:
        for run_id, name in database.execute("SELECT * FROM renamed"):
            labels[run_id] = structs.replace(labels.get(run_id, Labels()), name=name)
    return labels


def change(folder: Path, work: Callable[[sqlite3.Connection], Result]) -> Result:
    """Run `work` in one transaction on a store's file: all of it is stored, or nothing and
    StoreError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(folder / FILE, timeout=_WAIT_SECONDS, isolation_level=None)
        with closing(connection) as database:
            database.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                database.execute(table)
            result = work(database)
            database.execute("COMMIT")
            return result
    except (sqlite3.Error, OSError) as error:
        raise StoreError(
            f"{folder / FILE}: cannot be written ({error}); nothing was changed.",
        ) from error


def update(database: sqlite3.Connection, run_id: str, mine: Labels, base: Labels | None) -> Labels:
    """Merge new labels of a run with changes that others made since `base` was read; without
    `base`, replace them.

    Others' tags and pin stay, and a note that both changed becomes both notes. UsageError for more
    than may be stored.
    """
    current = _read_labels(database).get(run_id, Labels())
    if base:
        kept = [tag for tag in current.tags if tag in mine.tags or tag not in base.tags]
        kept += [tag for tag in mine.tags if tag not in base.tags and tag not in kept]
        if current.tags == base.tags:
            # tags keep the order that was chosen
            kept = list(mine.tags)
        note = current.note
        if mine.note != base.note:
            if current.note in (base.note, mine.note, ""):
                note = mine.note
            elif mine.note:
                # both have changed it: the other's is never lost, not even to an empty one
                note = f"{current.note}\n\n{mine.note}"
        pinned = current.pinned if mine.pinned == base.pinned else mine.pinned
        name = current.name if mine.name == base.name else mine.name
        mine = Labels(tuple(kept), note, pinned, mine.judged_as or current.judged_as, name)
    try:
        labels = msgspec.convert(structs.asdict(mine), Labels)
    except msgspec.ValidationError as error:
        raise UsageError(f"these labels are not stored: {error}.") from None
    forget(database, run_id)
    if labels != Labels(name=labels.name):
        tags = msgspec.json.encode(labels.tags).decode()
        row = [run_id, tags, labels.note, labels.pinned, labels.judged_as]
        database.execute("INSERT INTO label VALUES (?, ?, ?, ?, ?)", row)
    if labels.name:
        database.execute("INSERT INTO renamed VALUES (?, ?)", [run_id, labels.name])
    return labels


def forget(database: sqlite3.Connection, run_id: str) -> None:
    """Remove the labels of a run."""
    for table in ("label", "renamed"):
        database.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
