"""Cells of a sweep by worker processes of this machine; each keeps its model loaded between
cells.
"""

import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from .ledger import FAILED, CellOutcome
from .plan import Cell

# can be pickled; computes a cell unless its run exists; never raises
Compute = Callable[[Cell], CellOutcome]
# a worker gets this long to remove what it was writing
_PATIENCE_SECONDS = 20.0


class Worker:
    """One process that computes cells in sequence.

    If it dies, that is an outcome, and it is replaced.
    """

    def __init__(self, compute: Compute) -> None:
        self._compute = compute
        self._process: Any = None
        self._pipe: Any = None

    def compute(self, cell: Cell) -> CellOutcome:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, end = context.Pipe()
            self._process = context.Process(target=_serve, args=(self._compute, end), daemon=True)
            self._process.start()
            end.close()
        process = self._process
        # the worker has ended
        with suppress(EOFError, OSError):
            self._pipe.send(cell)
            outcome: CellOutcome = self._pipe.recv()
            return outcome
        process.join()
        self._process = None
        code = process.exitcode
        if code == -signal.SIGKILL:
            return CellOutcome(cell, FAILED, says="its process was killed, probably out of memory.")
        text = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return CellOutcome(
            cell,
            FAILED,
            says=f"its process ended {text}; `sweep --cell {cell.digest}` shows its output.",
        )

    def stop(self) -> None:
        """Ask the process to end, without waiting for it."""
        if process := self._process:
            process.terminate()

    def end(self) -> None:
        """Wait for the process to end, and kill it if it does not."""
        if process := self._process:
            self._pipe.close()
            process.join(_PATIENCE_SECONDS)
            process.kill()


def _serve(compute: Compute, pipe: Connection) -> None:
    """Compute the cells that arrive, in a worker process that ends with its parent."""
    # Ctrl-C reaches it too; the driver ends it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError):
        while True:
            pipe.send(compute(pipe.recv()))


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def compute_here(
    cells: Sequence[Cell],
    compute: Compute,
    *,
    jobs: int = 1,
    on_begin: Callable[[Cell], None] = lambda _: None,
) -> Iterator[CellOutcome]:
    """Compute cells by `jobs` workers per device; yield outcomes as they come.

    Closing ends the workers.
    """
    outcomes: queue.Queue[CellOutcome | BaseException] = queue.Queue()
    is_over = threading.Event()

    def work(worker: Worker, waiting: deque[Cell]) -> None:
        try:
            while waiting and not is_over.is_set():
                # another worker took the last one
                with suppress(IndexError):
                    cell = waiting.popleft()
                    on_begin(cell)
                    outcomes.put(worker.compute(cell))
        except BaseException as error:
            outcomes.put(error)

    workers = []
    threads = []
    for device in sorted({cell.axes["device"] for cell in cells}):
        waiting = deque(by_model([cell for cell in cells if cell.axes["device"] == device]))
        for _ in range(min(jobs, len(waiting))):
            workers.append(Worker(compute))
            threads.append(threading.Thread(target=work, args=(workers[-1], waiting), daemon=True))
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


def by_model(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells grouped by model and dtype, so that a worker loads each once."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.axes["model"], cell.axes["dtype"]), []).append(cell)
    return [cell for group in groups.values() for cell in group]
