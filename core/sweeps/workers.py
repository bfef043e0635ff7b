"""Workers of a sweep: processes that keep their model from cell to cell; and the cells of a sweep by those of this
machine, one a device unless more are asked for, as many at once as fit into memory.
"""

from __future__ import annotations

import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UlpscopeError
from ..subprocess_json import Child
from .ledger import DONE, FAILED, RUNNING
from .plan import Cell

PACKAGE = __name__.partition(".")[0]
_PATIENCE_SECONDS = 20.0  # that a worker has to remove what it was writing


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of a cell: done (run_id), failed (says why), or running: another process computes it."""

    cell: Cell
    state: str
    run_id: str = ""
    says: str = ""
    was_there: bool = False


@dataclass(frozen=True)
class Event:
    """Progress of a worker within a cell."""

    cell: Cell
    stage: str
    rows_done: int = 0
    rows_total: int = 0


class Worker:
    """One process that computes cells into a store. A context; asked from one thread at a time.

    folder: from where the files of plans are named, by default where we are; package: what this package is called.
    """

    def __init__(
        self, store: Path, engines: Sequence[str] = (), *, folder: Path | None = None, package: str | None = None
    ) -> None:
        given = [part for engine in engines for part in ("--engine", engine)]
        self._arguments = ["-m", package or PACKAGE, "sweep-worker", "--store", str(store.absolute()), *given]
        self._folder = folder
        self._child: Child | None = None
        self._said: Iterator[dict[str, Any]] = iter(())

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def stop(self) -> None:
        """Ask it to end, without waiting for it."""
        if (child := self._child) is not None:
            child.terminate()

    def end(self) -> None:
        """Have it remove what it was writing, and end. From any thread."""
        child, self._child = self._child, None
        if child is not None:
            child.end(_PATIENCE_SECONDS)

    def about(self, cell: Cell) -> dict[str, Any]:
        """{"run_id", "needed_bytes", "free_bytes"} of a cell here, or {"failed": sentence}."""
        return next(self._answers({"do": "about", **self._asked(cell)}))

    def compute(self, cell: Cell, tell: Callable[[Event], None] = lambda _: None) -> CellOutcome:
        """Compute a cell, unless it is there. Whatever becomes of the process is an outcome."""
        for said in self._answers({"do": "compute", **self._asked(cell)}):
            if "stage" in said:
                tell(Event(cell, str(said["stage"]), int(said.get("rows_done", 0)), int(said.get("rows_total", 0))))
            elif "failed" in said:
                return CellOutcome(cell, FAILED, says=str(said["failed"]))
            elif "held" in said:
                return CellOutcome(cell, RUNNING, says="another process computes it")
            else:
                return CellOutcome(cell, DONE, str(said["done"]), was_there=bool(said.get("was_there")))
        raise AssertionError("answers end with one")

    def _answers(self, value: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Everything it says to one question, the answer last."""
        child = self._child
        if child is None:
            child = self._child = Child(self._arguments, may_ask=True, is_asked=True)
            self._said = child.said()
        child.ask(value)
        for said in self._said:
            yield said
            if "stage" not in said:
                return
        with child:  # it has ended
            self._child = None
        yield {"failed": self._ended_how(child)}

    def _asked(self, cell: Cell) -> dict[str, str]:
        folder = Path.cwd() if self._folder is None else self._folder
        return {"asked": cell.asked, "request": cell.request.to_json(), "folder": str(folder)}

    @staticmethod
    def _ended_how(child: Child) -> str:
        if child.code == -signal.SIGKILL:
            return "its process was killed, as where memory runs out."
        if child.code < 0:
            return f"its process ended by {signal.Signals(-child.code).name}."
        return child.sentence


class Memory:
    """Accounts of memory: a cell begins when what it needs fits beside the others, or when it is alone."""

    def __init__(self) -> None:
        self._free: dict[str, int] = {}  # as each device had it before the first cell
        self._taken: dict[str, list[int]] = {}
        self._changed = threading.Condition()

    def take(self, device: str, needed: int, free: int | None) -> None:
        """Wait until there is room on the device."""
        with self._changed:
            taken = self._taken.setdefault(device, [])
            if free is not None:
                self._free.setdefault(device, free)
                self._changed.wait_for(lambda: not taken or sum(taken) + needed <= self._free[device])
            taken.append(needed)

    def give_back(self, device: str, needed: int) -> None:
        with self._changed:
            self._taken[device].remove(needed)
            self._changed.notify_all()


def compute_here(
    cells: Sequence[Cell],
    store: Path,
    *,
    jobs: int = 1,
    engines: Sequence[str] = (),
    tell: Callable[[Event], None] = lambda _: None,
) -> Iterator[CellOutcome]:
    """Compute cells by `jobs` workers a device, each cell's outcome as it comes. Closing the iterator ends the workers,
    and what they were writing goes.
    """
    outcomes: queue.Queue[CellOutcome | BaseException] = queue.Queue()
    is_over = threading.Event()
    memory = Memory()
    devices = sorted({cell.axes["device"] for cell in cells})
    waiting = {device: deque(_by_model(cells, device)) for device in devices}
    workers: list[Worker] = []

    def work(device: str, worker: Worker) -> None:
        try:
            while not is_over.is_set():
                try:
                    cell = waiting[device].popleft()
                except IndexError:
                    return
                outcomes.put(_computed(worker, memory, cell, tell))
        except BaseException as error:
            outcomes.put(error)

    threads = []
    for device in devices:
        for _ in range(min(jobs, len(waiting[device]))):
            workers.append(Worker(store, engines))
            threads.append(threading.Thread(target=work, args=(device, workers[-1]), daemon=True))
    try:
        for thread in threads:
            thread.start()
        for _ in cells:
            outcome = outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        is_over.set()
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.end()


def _computed(worker: Worker, memory: Memory, cell: Cell, tell: Callable[[Event], None]) -> CellOutcome:
    try:
        about = worker.about(cell)
        if "failed" in about:
            return CellOutcome(cell, FAILED, says=str(about["failed"]))
        device, needed = str(about["device"]), int(about["needed_bytes"])
        memory.take(device, needed, about["free_bytes"])
        try:
            return worker.compute(cell, tell)
        finally:
            memory.give_back(device, needed)
    except UlpscopeError as error:
        return CellOutcome(cell, FAILED, says=str(error))


def _by_model(cells: Sequence[Cell], device: str) -> list[Cell]:
    """Cells of a device, those of one model and dtype after one another, so that it is loaded once."""
    own = [cell for cell in cells if cell.axes["device"] == device]
    place: dict[tuple[str, str], int] = {}
    for cell in own:
        place.setdefault((cell.axes["model"], cell.axes["dtype"]), len(place))
    return sorted(own, key=lambda cell: place[cell.axes["model"], cell.axes["dtype"]])
