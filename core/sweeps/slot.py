"""Place of a worker on another machine: a slot of an executor, which computes cells into the sweep's store where it
sees it, else into a temporary one, out of which finished run files are fetched in pieces. Knows no scheduler.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..disk import lock, read_regular
from ..errors import UlpscopeError
from ..runs.store.store import SUFFIX
from .ledger import FOLDER
from .plan import Cell
from .workers import CellOutcome, Event, Worker

_TOKEN_BYTES = 64
_LARGEST_PROMPTS = 64 << 20  # bytes of a file of prompts, which travels with its cell
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class SlotOrder:
    """Order that every slot of a sweep is given. store: as the driver names it; marker: a file in it that holds
    `token`; folder: from where the plan's files are named; package: what this package is called; threads: the driver's
    OMP_NUM_THREADS, None where it has none.
    """

    store: Path
    marker: Path
    token: str
    folder: Path
    engines: tuple[str, ...]
    package: str
    threads: str | None

    @property
    def sees_store(self) -> bool:
        """True on a machine that shares the file system of the driver's store, and may write there."""
        try:
            is_same = read_regular(self.marker, _TOKEN_BYTES) == self.token.encode()
        except OSError:
            return False
        return is_same and os.access(self.store, os.W_OK)


@dataclass(frozen=True)
class CarriedCell:
    """A cell with the files of its prompts, name -> bytes, for a machine that may not have them."""

    cell: Cell
    files: Mapping[str, bytes]

    @classmethod
    def of(cls, cell: Cell) -> CarriedCell:
        """The cell with what its files hold now. UlpscopeError, one sentence, where one cannot be read."""
        names = (*cell.request.prompt_files, *cell.request.prompt_lists)
        try:
            return cls(cell, {name: read_regular(Path(name).resolve(), _LARGEST_PROMPTS) for name in names})
        except OSError as error:
            raise UlpscopeError(f"{error.filename or names}: cannot be read ({error.strerror}).") from error

    def placed(self, folder: Path, beside: Path) -> Cell:
        """The cell as it can be computed here: its files where the driver has them, from `folder`, if they hold the
        same; else written to `beside`.
        """
        if all(_holds(folder / name, body) for name, body in self.files.items()):
            return self.cell
        there = {}
        for name, body in self.files.items():
            place = beside / hashlib.sha256(body).hexdigest()[:16] / Path(name).name
            if not _holds(place, body):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(body)
            there[name] = str(place)
        request = self.cell.request
        files = tuple(there[name] for name in request.prompt_files)
        lists = tuple(there[name] for name in request.prompt_lists)
        return replace(self.cell, request=replace(request, prompt_files=files, prompt_lists=lists))


class Slot:
    """A worker and, where its machine does not see the store, a temporary store of its own. One cell at a time; `stage`
    and `stop` may be called from other threads meanwhile.
    """

    def __init__(self, order: SlotOrder) -> None:
        if order.threads is None:
            os.environ.pop(_THREADS, None)  # a scheduler's, which counts what it was asked for and not the cores
        else:
            os.environ[_THREADS] = order.threads
        self._order = order
        self._event: Event | None = None
        self._held: int | None
        self._own, self._held = _own_folder()
        self._sees_store = order.sees_store
        store = order.store if self._sees_store else self._own / "store"
        store.mkdir(exist_ok=True)
        self._store = store
        self._folder = order.folder if order.folder.is_dir() else self._own
        self._worker = Worker(store, order.engines, folder=self._folder, package=order.package)

    def introduced(self) -> dict[str, Any]:
        """{"host", "sees_store", "version", "gpus"} of its machine; gpus: those that it may use."""
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return {"host": socket.gethostname(), "sees_store": self._sees_store, "version": __version__, "gpus": gpus}

    def about(self, carried: CarriedCell) -> dict[str, Any]:
        """Return what `Worker.about` says of a cell here."""
        return self._worker.about(self._placed(carried))

    def compute(self, carried: CarriedCell) -> CellOutcome:
        """Compute a cell, unless it is there. The outcome's cell is the one that was given."""
        try:
            return replace(self._worker.compute(self._placed(carried), self._tell), cell=carried.cell)
        finally:
            self._event = None

    def stage(self) -> tuple[str, int, int]:
        """The worker's stage, with rows done and rows in all; '' where it is at nothing."""
        event = self._event
        return ("", 0, 0) if event is None else (event.stage, event.rows_done, event.rows_total)

    def sealed(self, run_id: str) -> tuple[int, str]:
        """Bytes and sha256 of a finished run's file in the temporary store."""
        path = self._path_of(run_id)
        with path.open("rb") as file:
            return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()

    def piece(self, run_id: str, start: int, count: int) -> bytes:
        """Bytes of that file from `start` on, fewer at its end."""
        return read_regular(self._path_of(run_id), count, start)

    def forget(self, run_id: str) -> None:
        """Remove a run that was fetched."""
        self._path_of(run_id).unlink(missing_ok=True)

    def stop(self) -> None:
        """End the worker, with what it was writing, and remove the slot's folder."""
        self._worker.end()
        if self._held is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._held)
            self._held = None

    def _placed(self, carried: CarriedCell) -> Cell:
        return carried.placed(self._folder, self._own / "prompts")

    def _path_of(self, run_id: str) -> Path:
        return self._store / f"{run_id}{SUFFIX}"

    def _tell(self, event: Event) -> None:
        self._event = event


@contextmanager
def marked(store: Path) -> Iterator[tuple[Path, str]]:
    """A marker in a store for as long as a sweep lasts -> (its path, what it holds). Those of sweeps that were killed
    are removed.
    """
    token = secrets.token_hex(16)
    path = store.absolute() / FOLDER / "markers" / token
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in path.parent.iterdir():
            _remove_unheld(other)
        held = lock(path, mode=0o666)
        os.pwrite(held, token.encode(), 0)
    except OSError as error:
        raise UlpscopeError(f"{path.parent}: cannot be written to ({error.strerror}).") from error
    try:
        yield path, token
    finally:
        path.unlink(missing_ok=True)
        os.close(held)


def _holds(path: Path, body: bytes) -> bool:
    try:
        return read_regular(path.resolve(), len(body) + 1) == body
    except OSError:
        return False


def _own_folder() -> tuple[Path, int]:
    """A new folder of this slot, with the lock that says it is in use; those of slots that were killed are removed."""
    top = Path(tempfile.gettempdir()) / f"ulpscope-slots-{os.getuid()}"
    top.mkdir(mode=0o700, exist_ok=True)
    if top.is_symlink() or top.stat().st_uid != os.getuid():
        raise UlpscopeError(f"{top} on {socket.gethostname()} belongs to somebody else.")
    for other in top.iterdir():
        _remove_unheld(other)
    while True:
        own = top / secrets.token_hex(8)
        own.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # another slot that begins took it for one that nobody holds
            return own, lock(own)


def _remove_unheld(path: Path) -> None:
    with suppress(OSError):  # BlockingIOError, where its owner lives, is one
        held = lock(path, wait=False)
        try:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        finally:
            os.close(held)
