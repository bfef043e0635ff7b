"""A run file while it is being written: in a directory that no reader looks at, locked for as long
as its writer lives.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from ...disk import lock

PREFIX = ".partial-"
LOCK = "lock"
# a sweep may find the directory before it is locked; each further try waits a millisecond
_TRIES = 1000
_living: set[Partial] = set()  # of this process


class Partial:
    """`.partial-RUN_ID/RUN_ID.duckdb`; what the writer spills or logs is in the same folder and is
    removed with it.

    The lock is flock's, which the system drops when the process dies and which acts between two
    writers of one process too. DuckDB's own lock would not do: it ends when the finished file is
    closed, before the file is on the disk and in its place.
    """

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self.path = directory / f"{directory.name.removeprefix(PREFIX)}.duckdb"
        self._lock: int | None = lock
        _living.add(self)

    @classmethod
    def make(cls, store: Path, run_id: str) -> Partial | None:
        """Make the directory of a partial run; None if the name is taken. OSError if nothing can be
        made.

        A sweep may find the directory before it is locked, and remove it: then it is made again,
        under the same name, which may be one that was promised.
        """
        directory = store / f"{PREFIX}{run_id}"
        was_swept = False
        for _ in range(_TRIES):
            try:
                directory.mkdir()
            except FileExistsError:
                if not was_swept:
                    return None
                # a sweep holds its lock and has not removed it yet
                time.sleep(0.001)
                continue
            descriptor = _lock(directory)
            if descriptor is not None:
                return cls(directory, descriptor)
            was_swept = True
        return None

    def __enter__(self) -> Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Leave nothing behind; may be called again."""
        if self._lock is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            os.close(self._lock)
            self._lock = None
            _living.discard(self)


def is_passing(path: str) -> bool:
    """Return whether a path leads into a partial run's directory, so that it will soon lead
    nowhere.
    """
    return any(part.startswith(PREFIX) for part in Path(path).parts)


def remove_living() -> None:
    """Remove what this process is writing: for one that ends at once, without unwinding."""
    for partial in list(_living):
        # a writer's thread may put a file into a directory while it is being emptied
        for _ in range(3):
            shutil.rmtree(partial.directory, ignore_errors=True)


def sweep(store: Path) -> None:
    """Remove what killed writers left behind; the directories of living ones stay."""
    for directory in store.glob(f"{PREFIX}*"):
        # one may be another user's, or gone meanwhile
        with suppress(OSError):
            if directory.is_symlink() or not directory.is_dir():
                continue
            descriptor = _lock(directory)
            if descriptor is not None:
                shutil.rmtree(directory, ignore_errors=True)
                os.close(descriptor)


def _lock(directory: Path) -> int | None:
    """Return the descriptor that holds the directory's lock, or None if another holds it or has
    removed it.
    """
    try:
        return lock(directory / LOCK, wait=False, mode=0o666)
    except (BlockingIOError, FileNotFoundError):
        return None
