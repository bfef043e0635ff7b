"""Tags, a note and a pin of a run, kept beside the run files: those are immutable, and sample runs are read-only.

One small JSON file a run, `.labels/RUN_ID.json` in the writable directory of the store, written whole under another
name and renamed. Who changes labels says what they were when he saw them, so that two who change one run at once both
get what they changed. Files there may come from anybody: what cannot be read is a sentence and no labels, and it is put
aside, not overwritten, when new labels are written.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...disk import WRITING, locked, read_regular, write_atomic
from ...errors import StoreError, UsageError
from ...text import printable, shown

FOLDER = ".labels"
LONGEST_TAG = 40  # characters
MOST_TAGS = 20
LONGEST_NOTE = 4000  # characters
_LARGEST_FILE = 64 << 10  # bytes; the largest labels there can be take 29 KB in the longest form that JSON has
_SUFFIX = ".json"
_ABANDONED_SECONDS = 3600


@dataclass(frozen=True)
class Labels:
    """Labels that a person attached to a run. Tags are cleaned by `labels_of` or `_parsed`; UsageError for more than is
    kept.

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
            raise UsageError(f"the note has {len(self.note):,} characters; at most {LONGEST_NOTE:,} are kept.")


def labels_of(tags: Iterable[str], note: str, pinned: bool = False) -> Labels:
    """Labels as a person typed them: control characters go, blanks are one space, a tag counts once."""
    cleaned = (" ".join(printable(tag).split()) for tag in tags)
    lines = note.replace("\r\n", "\n").replace("\r", "\n")
    return Labels(tuple(dict.fromkeys(tag for tag in cleaned if tag)), printable(lines, "", "\n\t").strip(), pinned)


def read_all(store: Path) -> tuple[dict[str, Labels], list[str]]:
    """The labels of every run that has some, by run id, and a sentence on each file that could not be read."""
    found, damaged = {}, []
    for entry in _entries(store):
        run_id = entry.name.removesuffix(_SUFFIX)
        try:
            labels = read(store, run_id)
        except StoreError as error:
            damaged.append(str(error))
        else:
            if labels != Labels():
                found[run_id] = labels
    return found, damaged


def read(store: Path, run_id: str) -> Labels:
    """The labels of one run, none where there is no file; StoreError where it cannot be read."""
    path = path_of(store, run_id)
    try:
        body = read_regular(path, _LARGEST_FILE + 1)  # neither a link nor a wait for a pipe
    except FileNotFoundError:
        return Labels()
    except OSError as error:
        raise _damaged(path, str(error.strerror).lower()) from error
    return _parsed(path, body)


@dataclass(frozen=True)
class LabelUpdate:
    """Result of an update of labels. labels: those that are stored now; aside: where a damaged file was put;
    has_both_notes: two people's, one below the other.
    """

    labels: Labels
    aside: str | None = None
    has_both_notes: bool = False


def write(store: Path, run_id: str, wanted: Labels, seen: Labels | None = None) -> LabelUpdate:
    """Make the labels of a run what somebody wants who has `seen` them as they were; None: whatever they are. No labels
    leave no file.

    What others changed since then stays: tags that were added or taken away are added to and taken away from those that
    are stored, a pin counts where it was changed, and a note that both have changed becomes both notes, the other's
    first. UsageError where that is more than is kept, StoreError where it cannot be written; then nothing is changed.
    """
    path = path_of(store, run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):  # a killed one lets go by being killed
            stored = _read_or_none(store, run_id)
            changed = LabelUpdate(wanted) if seen is None or stored is None else _merged(seen, wanted, stored)
            aside = _put_aside(path, run_id) if stored is None else None
            _write(path, changed.labels)
    except OSError as error:
        raise StoreError(
            f"the labels of run '{run_id}' cannot be written ({error.strerror}); they are as they were."
        ) from error
    return replace(changed, aside=aside)


def _read_or_none(store: Path, run_id: str) -> Labels | None:
    try:
        return read(store, run_id)
    except StoreError:
        return None


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
    else:  # both have changed it: somebody else's is never lost, not even to an empty one
        both = wanted.note != ""
        note = f"{stored.note}\n\n{wanted.note}" if both else stored.note
    pinned = stored.pinned if wanted.pinned == seen.pinned else wanted.pinned
    return LabelUpdate(Labels(tuple(tags), note, pinned, wanted.judged_as or stored.judged_as), has_both_notes=both)


def _write(path: Path, labels: Labels) -> None:
    if labels == Labels():
        path.unlink(missing_ok=True)
    else:
        said: dict[str, object] = {"tags": labels.tags, "note": labels.note}
        said |= {"pinned": True} if labels.pinned else {}
        said |= {"judged_as": labels.judged_as} if labels.judged_as else {}
        write_atomic(path, json.dumps(said, ensure_ascii=False).encode())


def forget(store: Path, run_id: str) -> None:
    """The run is gone for good, and so are its labels."""
    with suppress(OSError, UsageError):
        path_of(store, run_id).unlink()


def path_of(store: Path, run_id: str) -> Path:
    if not run_id or "/" in run_id or "\0" in run_id:
        raise UsageError(f"'{shown(run_id)}' is not a run id.")
    return store / FOLDER / f"{run_id}{_SUFFIX}"


def stamps(store: Path) -> tuple[tuple[str, int, int, int], ...]:
    """(name, time of change, size, inode) of every file of labels: equal where nothing has changed."""
    seen = []
    for entry in _entries(store):
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            seen.append((entry.name, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(sorted(seen))


def tidy(store: Path) -> None:
    """Remove what killed writers left behind an hour ago or earlier."""
    for path in (store / FOLDER).glob(f"{WRITING}*"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()


def _entries(store: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(store / FOLDER) as entries:
            yield from (
                entry for entry in entries if entry.name.endswith(_SUFFIX) and not entry.name.startswith(WRITING)
            )
    except OSError:  # not there yet, or no directory
        return


def _parsed(path: Path, body: bytes) -> Labels:
    if len(body) > _LARGEST_FILE:
        raise _damaged(path, f"more than {_LARGEST_FILE:,} bytes")
    try:
        said = json.loads(body)
        tags, note, pinned = said["tags"], said["note"], said.get("pinned", False)
        judged_as = said.get("judged_as", "")
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags) or not isinstance(note, str):
            raise TypeError("tags are a list of texts, the note is a text")
        if not isinstance(pinned, bool):
            raise TypeError("pinned is true or false")
        if not isinstance(judged_as, str):
            raise TypeError("judged_as is a run's id")
        return replace(labels_of(tags, note, pinned), judged_as=judged_as)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, UsageError) as error:
        raise _damaged(path, "no JSON object with tags and a note within bounds") from error


def _damaged(path: Path, why: str) -> StoreError:
    name = shown(path.name, 255)
    return StoreError(
        f"{FOLDER}/{name}: no labels are read from it ({why}); new ones would put it aside, not overwrite it."
    )


def _put_aside(path: Path, run_id: str) -> str:
    short = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)[:100]
    aside = path.with_name(f"{short}.damaged-{secrets.token_hex(4)}")
    path.rename(aside)
    return f"{FOLDER}/{aside.name}"
