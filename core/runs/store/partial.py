"""A run file while it is being written: in a directory that no reader looks at, locked for as long
as its writer lives.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from ...disk import WRITING, discard, lock

PREFIX = ".partial-"
LOCK = "lock"
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
        """
        directory = store / f"{PREFIX}{run_id}"
        # locked before a sweep can find it under its name
        begun = store / f"{WRITING}{secrets.token_hex(8)}"
        begun.mkdir()
        descriptor = lock(begun / LOCK, mode=0o666)
        try:
            begun.rename(directory)
        # the name's directory has a lock in it, so it is not replaced
        except OSError:
            discard(begun)
            os.close(descriptor)
            return None
        return cls(directory, descriptor)

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
            # a BlockingIOError: its writer lives
            os.close(lock(directory / LOCK, wait=False, mode=0o666))
            shutil.rmtree(directory, ignore_errors=True)
