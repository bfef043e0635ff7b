"""Quotas and retention: what may be stored, whether there is room for it, and which runs have been there long enough.

Retention moves runs into the trash, from where they come back for a week; it counts from when a file came into the
directory (its change time, which a restore or a copy renews), not from when its run was made: a run of last year that
is taken in today has just come.
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ...configuration import Limits, Retention, configuration
from ...disk import lock
from ...errors import LimitError, StoreError
from ..file.records import FAILING
from . import audit, labels
from .cards import RunCard, read_runs
from .partial import LOCK, PREFIX, RESERVED, reserved
from .store import SUFFIX, Store, cell_of
from .trash import FOLDER as TRASH

# Directories of the store: that of app.uploads, which keeps what arrives as UPLOADS/ID/CONTENT/NAME, and that of
# app.api.downloads.
UPLOADS, CONTENT, DOWNLOADS = ".uploads", "file", ".npz"
_DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Due:
    """A run that retention would move into the trash. days: since it came; because: in words, for a list."""

    run_id: str
    name: str
    bytes: int
    days: float
    because: str


def check_file(incoming_bytes: int, limits: Limits) -> None:
    """LimitError (413) for a file of so many bytes that is larger than one may be."""
    if limits.file_bytes and incoming_bytes > limits.file_bytes:
        raise LimitError(
            f"the file has {incoming_bytes:,} bytes; this server takes files of at most {limits.file_bytes:,}"
            " (limits.file_bytes).",
            413,
        )


def check_space(store: Store, more_bytes: int, limits: Limits | None = None, *, replaced: Sequence[Path] = ()) -> None:
    """LimitError (507) where so many bytes more would fill the store, or its disk, beyond what is in force; what others
    have reserved counts as if it were there.

    `replaced`: files that the new one is made of; those of them that arrived over HTTP go once it is there, so the
    store need not hold both. Before anything is refused, what can be done without is removed: what killed writers left,
    and downloads, which are made again.
    """
    limits = configuration().limits if limits is None else limits
    found = _shortage(store, more_bytes, limits, replaced)
    if found is not None:
        store.sweep()
        found = _shortage(store, more_bytes, limits, replaced)
    if found is not None and _drop_downloads(store, found[0]):
        found = _shortage(store, more_bytes, limits, replaced)
    if found is not None:
        raise LimitError(found[1])


@contextmanager
def room_for(
    store: Store, more_bytes: int, limits: Limits | None = None, *, replaced: Sequence[Path] = ()
) -> Iterator[None]:
    """Keep others from taking the room that is left while the block records what it takes (`reserve`); LimitError as
    `check_space` has it.

    What is recorded goes with its directory: when that is removed, or swept after its process died.
    """
    if not store.directory.is_dir():
        check_space(store, more_bytes, limits, replaced=replaced)  # where nothing fits nothing is made
    try:
        store.directory.mkdir(parents=True, exist_ok=True)
        held = _lock(store)
    except OSError as error:
        where = f"{store.directory}: cannot be written to ({error.strerror})"
        raise StoreError(f"{where}; set ULPSCOPE_STORE or --store to another directory.") from error
    try:
        check_space(store, more_bytes, limits, replaced=replaced)
        yield
    finally:
        if held is not None:
            os.close(held)


def _lock(store: Store) -> int | None:
    """Descriptor that holds the lock of the store's directory; None on a file system that has none for directories
    (NFS), where two that come within the same millisecond may both be let in.
    """
    try:
        return lock(store.directory.resolve())
    except OSError as error:
        if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP):
            return None
        raise


def check_free(store: Store, limits: Limits) -> None:
    """LimitError (507) where less would be free of the store's disk than has to stay free, once all that is reserved
    has come.
    """
    if found := _shortage(store, 0, replace(limits, store_bytes=0), ()):
        raise LimitError(found[1])


def _shortage(store: Store, more_bytes: int, limits: Limits, replaced: Sequence[Path]) -> tuple[int, str] | None:
    """(bytes that are lacking, a sentence) where so many bytes more are too many; None where they fit."""
    if not (limits.store_bytes or limits.free_bytes):
        return None
    on_disk, to_come = taken_bytes(store) if limits.store_bytes else (0, reserved_bytes(store))
    coming = f" and {to_come:,} more are on their way" if to_come else ""
    if limits.store_bytes:
        held = on_disk - _arrived(store, replaced)
        if (lacking := held + to_come + more_bytes - limits.store_bytes) > 0:
            return lacking, (
                f"no room for {more_bytes:,} bytes: the store holds {held:,} of at most {limits.store_bytes:,}{coming}"
                " (limits.store_bytes); delete runs for good, or ask who keeps this server."
            )
    free = free_bytes(store) if limits.free_bytes else None
    if free is not None and (lacking := limits.free_bytes - (free - to_come - more_bytes)) > 0:
        return lacking, (
            f"no room for {more_bytes:,} bytes: {free:,} are free on the store's disk{coming}, of which"
            f" {limits.free_bytes:,} have to stay free (limits.free_bytes)."
        )
    return None


def reserved_bytes(store: Store) -> int:
    """Bytes to come of files that are incomplete: what was reserved for them and is not on the disk yet."""
    return sum(_partly(*place)[1] for place in _incomplete(store))


def taken_bytes(store: Store) -> tuple[int, int]:
    """(bytes of files, bytes to come of those that are incomplete) of the writable directory: all run files, those in
    the trash and those being written included, files that arrive or have arrived, as long as they were announced to be,
    and downloads that were made.
    """
    runs = [] if store.mirror is not None else store.directory.glob(f"*{SUFFIX}")  # there, what is here is a copy
    whole = [*runs, *store.directory.glob(f"{TRASH}/*/*{SUFFIX}"), *_downloads(store)]
    incomplete = [_partly(*place) for place in _incomplete(store)]
    afar = 0 if store.mirror is None else store.mirror.bytes
    on_disk = afar + sum(map(_size, whole)) + sum(there for there, _ in incomplete)
    return on_disk, sum(more for _, more in incomplete)


def _incomplete(store: Store) -> list[tuple[Path, Path]]:
    """(directory, where in it the files are) of all that is being written or arriving, or has arrived and is no run
    yet.
    """
    partial = [(directory, directory) for directory in store.directory.glob(f"{PREFIX}*")]
    return partial + [(content.parent, content) for content in store.directory.glob(f"{UPLOADS}/*/{CONTENT}")]


def _partly(directory: Path, content: Path) -> tuple[int, int]:
    """(bytes of the files in `content`, bytes that are reserved in `directory` beyond those)"""
    there = sum(
        _size(Path(folder) / name)
        for folder, _, names in os.walk(content)
        for name in names
        if name not in (LOCK, RESERVED)
    )
    return there, max(0, reserved(directory) - there)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # gone between the listing and the look
        return 0


def _arrived(store: Store, files: Sequence[Path]) -> int:
    """Bytes of those of `files` that came to the store over HTTP."""
    own = store.directory.resolve()
    return sum(_size(path) for path in map(Path.resolve, files) if own in path.parents and _is_passing(path, own))


def _is_passing(path: Path, own: Path) -> bool:
    first = path.relative_to(own).parts[0]
    return first == UPLOADS or first.startswith(PREFIX)


def _downloads(store: Store) -> list[Path]:
    return list((store.directory / DOWNLOADS).glob("*"))


def _drop_downloads(store: Store, lacking: int) -> bool:
    """Remove downloads that were made, those used least recently first, until so many bytes are free; return whether
    there were any. Who is reading one reads on.
    """
    dropped, found = 0, sorted(_downloads(store), key=_last_used)
    for path in found:
        if dropped >= lacking:
            break
        size = _size(path)
        with suppress(OSError):
            path.unlink()
            dropped += size
    return dropped > 0


def _last_used(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


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
    run, and of each cell of a sweep the newest run without a suspected bug, which the next is held against.
    """
    if not (retention.days or retention.runs or retention.cells):
        return []
    if store.mirror is not None:
        raise StoreError(
            f"{store.address} has no trash that retention could move runs to; set [retention] days and runs to 0, and"
            " a lifecycle rule of the bucket."
        )
    now = time.time() if now is None else now
    arrivals = _arrivals(store)
    newest_first = sorted(arrivals, key=lambda path: (arrivals[path], path.name), reverse=True)
    cards = {path: card for path, card in read_runs(newest_first).items() if isinstance(card, RunCard)}
    runs = [path for path in newest_first if path in cards]
    found = []
    newer: Counter[str] = Counter()  # runs of each cell
    good: set[str] = set()  # cells of which one without a suspected bug has been met
    for place, path in enumerate(runs):
        age, cell = (now - arrivals[path]) / _DAY_SECONDS, cell_of(path.stem)
        if cell is not None and cell not in good and not set(FAILING) & set(cards[path].pair_verdicts):
            good.add(cell)
            newer[cell] += 1
            continue
        because = _because(age, place, retention)
        if cell is not None:
            if retention.cells and newer[cell] >= retention.cells:
                because = f"{newer[cell]} runs of its cell are newer, and {retention.cells} are kept"
            newer[cell] += 1
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
