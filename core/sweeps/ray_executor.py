"""Cells of a sweep on a Ray cluster: an actor a slot, which keeps its worker and so its model from cell to cell; cells
are handed to free slots one at a time, and what a slot computed out of sight of the store is fetched from it.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import UlpscopeError
from ..runs.store.store import Store
from ..text import joined, plural, shown
from . import workers
from .ledger import DONE, FAILED, RUNNING, Ledger
from .plan import Cell
from .ray_cluster import connected
from .slot import CarriedCell, Slot, SlotOrder, marked
from .workers import CellOutcome, Event, Memory

TRIES = 3  # of a cell whose slot is lost, and of a file that arrives damaged
_PIECE_BYTES = 8 << 20  # of a run file, in one answer
_WAIT_SECONDS = 1.0  # between two looks at whether the sweep is over, and what a slot is at
_LOOK_SECONDS = 2.0  # between two looks at the nodes
_LOST_SECONDS = 30.0  # without any node that could take them, cells fail
_CLAIM_SECONDS = 60.0  # for the worker of a lost slot to let go of its cell
_STOP_SECONDS = 25.0  # for slots to end their workers
_NODE_TRIES = 2  # of making a slot on a node
CPU, GPU = "CPU", "GPU"  # what Ray calls them


class _SlotLostError(Exception):
    """A slot that is there no more: its node, or its process."""


class _OverError(Exception):
    """The sweep is over, whatever was waited for."""


@dataclass
class _CellQueue:
    """Cells that wait, of one kind of slots. A slot gets those of the model that it has, while there are any."""

    groups: dict[tuple[str, str], deque[tuple[Cell, tuple[str, ...]]]] = field(default_factory=dict)
    at: dict[tuple[str, str], int] = field(default_factory=dict)  # how many slots have the model
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, cell: Cell, lost: tuple[str, ...] = ()) -> None:
        """lost: where the slots were that it was lost with."""
        with self.lock:
            group = self.groups.setdefault(_model_of(cell), deque())
            (group.appendleft if lost else group.append)((cell, lost))

    def take(self, model: tuple[str, str] | None) -> tuple[Cell, tuple[str, ...]] | None:
        """The next cell for a slot that has a model; None where none is left."""
        with self.lock:
            left = [key for key, group in self.groups.items() if group]
            if not left:
                return None
            key = model if model in left else min(left, key=lambda key: self.at.get(key, 0))
            if key != model:
                self._leave(model)
                self.at[key] = self.at.get(key, 0) + 1
            return self.groups[key].popleft()

    def leave(self, model: tuple[str, str] | None) -> None:
        with self.lock:
            self._leave(model)

    def _leave(self, model: tuple[str, str] | None) -> None:
        if model is not None:
            self.at[model] -= 1

    @property
    def count(self) -> int:
        with self.lock:
            return sum(map(len, self.groups.values()))


def _model_of(cell: Cell) -> tuple[str, str]:
    return cell.axes["model"], cell.axes["dtype"]


class _Handle:
    """A slot as the driver has it."""

    def __init__(self, sweep: _RaySweep, actor: Any, node: str) -> None:
        self._sweep, self.actor, self.node = sweep, actor, node
        self.host = node
        self.sees_store = False
        self.gpus = ""
        self.is_ready = False

    def begin(self) -> None:
        """Wait until it stands, which is as long as the cluster is busy with other things."""
        about = self.ask("introduced")
        self.host, self.sees_store, self.gpus = about["host"], about["sees_store"], about["gpus"]
        if about["version"] != __version__:
            there = f"{self.host} has ULPscope {about['version']}"
            raise UlpscopeError(f"{there}, and this is {__version__}; a sweep needs the same on every node.")
        self.is_ready = True

    def ask(self, method: str, *given: Any, tell: Callable[[str, int, int], None] | None = None) -> Any:
        """Answer of a method. tell: is told what the slot is at, as long as it takes."""
        ray = self._sweep.ray
        if self._sweep.is_over.is_set():
            raise _OverError
        try:
            reference = getattr(self.actor, method).remote(*given)
            while not ray.wait([reference], timeout=_WAIT_SECONDS)[0]:
                if self._sweep.is_over.is_set():
                    raise _OverError
                if tell is not None:
                    with suppress(ray.exceptions.GetTimeoutError):
                        tell(*ray.get(self.actor.stage.remote(), timeout=_WAIT_SECONDS))
            return ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause
            raise UlpscopeError(str(cause) if isinstance(cause, UlpscopeError) else _reason(cause)) from error
        except ray.exceptions.RayError as error:
            raise _SlotLostError(_reason(error)) from error

    def end(self) -> None:
        """End its worker, then the slot."""
        ray = self._sweep.ray
        with suppress(Exception):  # whatever is wrong with it, it goes
            ray.wait([self.actor.stop.remote()], timeout=_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        with suppress(Exception):
            self._sweep.ray.kill(self.actor)


def _reason(error: BaseException) -> str:
    """The message of an exception of Ray, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shown(lines[-1] if lines and len(lines) < 3 else lines[0] if lines else type(error).__name__, 300)


class _RaySweep:
    """One sweep on a cluster: threads of this process each serve a slot, and `outcomes` are what they found."""

    def __init__(
        self,
        ray: Any,
        cells: Sequence[Cell],
        store: Store,
        order: SlotOrder,
        jobs: int,
        tell: Callable[[Event], None],
        note: Callable[[str], None],
    ) -> None:
        self.ray, self._store, self._order, self._jobs, self._tell, self._note = ray, store, order, jobs, tell, note
        self.is_over = threading.Event()
        self.outcomes: queue.Queue[CellOutcome | BaseException] = queue.Queue()
        self._ledger = Ledger(store)
        self._memory = Memory()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._handles: dict[tuple[str, str], list[_Handle]] = {}  # (kind, node) -> its slots
        self._faults: dict[str, list[str]] = {}  # of nodes on which no slot could be made
        self._barren: dict[str, float] = {}  # kinds that no node can take -> since when
        has_gpus = any(node["Resources"].get(GPU) for node in self._nodes())
        self._waiting = {CPU: _CellQueue(), GPU: _CellQueue()}
        for cell in cells:
            device = cell.axes["device"]
            self._waiting[GPU if device.startswith("cuda") or (has_gpus and not device) else CPU].put(cell)

    def man(self) -> None:
        """Make the slots that the cluster has room for and the waiting cells need; cells that no node could take for a
        while fail.
        """
        nodes = self._nodes()
        for kind, waiting in self._waiting.items():
            missing = waiting.count
            able = [node for node in nodes if self._most(kind, node)]
            with self._lock:
                there = [handle for (of, _), some in self._handles.items() if of == kind for handle in some]
            missing -= sum(not handle.is_ready for handle in there)
            for node in able:
                key = (kind, node["NodeID"])
                for _ in range(min(missing, self._most(kind, node) - len(self._handles.get(key, ())))):
                    self._start(kind, node["NodeID"])
                    missing -= 1
            if able or there or not waiting.count:
                self._barren.pop(kind, None)
            elif time.monotonic() - self._barren.setdefault(kind, time.monotonic()) > _LOST_SECONDS:
                self._give_up(kind, waiting)

    def close(self) -> None:
        """End every slot with its worker, all at once."""
        self.is_over.set()
        with self._lock:
            handles = [handle for some in self._handles.values() for handle in some]
        stops = []
        for handle in handles:
            with suppress(Exception):
                if handle.is_ready:
                    stops.append(handle.actor.stop.remote())
        with suppress(Exception):
            self.ray.wait(stops, num_returns=len(stops), timeout=_STOP_SECONDS)
        for handle in handles:
            handle.kill()  # which answers whoever waits for it
        ends = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:  # a thread within Ray while Ray is shut down ends the process by SIGSEGV
            thread.join(max(0.0, ends - time.monotonic()))

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def _most(self, kind: str, node: Mapping[str, Any]) -> int:
        """Slots of a kind that a node may have: `jobs` a device, of which its processors are one."""
        if len(self._faults.get(node["NodeID"], ())) >= _NODE_TRIES:
            return 0
        has = node["Resources"]
        processors = int(has.get(CPU, 0))
        return min(processors, self._jobs if kind == CPU else int(has.get(GPU, 0)) * self._jobs)

    def _start(self, kind: str, node: str) -> None:
        strategies: Any = import_module("ray.util.scheduling_strategies")
        made = self.ray.remote(Slot).options(
            num_cpus=1,
            num_gpus=0 if kind == CPU else 1 / self._jobs,
            max_restarts=0,
            max_concurrency=4,  # a computation, what it is at, and stopping it
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node, soft=False),
        )
        handle = _Handle(self, made.remote(self._order), node)
        with self._lock:
            self._handles.setdefault((kind, node), []).append(handle)
        thread = threading.Thread(target=self._serve, args=(kind, handle), name="ulpscope-slot", daemon=True)
        self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]
        thread.start()

    def _serve(self, kind: str, handle: _Handle) -> None:
        """Hand cells to a slot for as long as there are both."""
        waiting, model = self._waiting[kind], None
        try:
            handle.begin()
            while not self.is_over.is_set() and (next_ := waiting.take(model)) is not None:
                cell, lost = next_
                model = _model_of(cell)
                try:
                    self.outcomes.put(self._computed(handle, cell, is_again=bool(lost)))
                except _SlotLostError as error:
                    self._lose(waiting, cell, (*lost, handle.host), str(error))
                    break
            if not self.is_over.is_set():
                handle.end()
        except _OverError:
            return
        except (_SlotLostError, UlpscopeError) as error:  # it never began
            self._faults.setdefault(handle.node, []).append(str(error))
            self._note(f"no slot could be made on {handle.host}: {error}")
            handle.kill()
        except BaseException as error:
            self.outcomes.put(error)
        finally:
            waiting.leave(model)
            with self._lock:
                self._handles[kind, handle.node].remove(handle)

    def _lose(self, waiting: _CellQueue, cell: Cell, lost: tuple[str, ...], reason: str) -> None:
        """Try a cell again whose slot is gone; fail it where that was so TRIES times."""
        if len(lost) < TRIES:
            waiting.put(cell, lost)
            return
        says = f"its slot was lost {plural(len(lost), 'time')}, on {joined(list(dict.fromkeys(lost)))}: {reason}"
        self.outcomes.put(CellOutcome(cell, FAILED, says=says))

    def _give_up(self, kind: str, waiting: _CellQueue) -> None:
        reasons = [faults[-1] for faults in self._faults.values()]
        wanted = "a processor" if kind == CPU else "a GPU"
        says = f"no node of the cluster has {wanted} for it{f': {reasons[-1]}' if reasons else '.'}"
        while (next_ := waiting.take(None)) is not None:
            self.outcomes.put(CellOutcome(next_[0], FAILED, says=says))

    def _computed(self, handle: _Handle, cell: Cell, *, is_again: bool) -> CellOutcome:
        """Compute a cell by a slot. _SlotLostError where that is gone; all else is an outcome."""
        try:
            carried = CarriedCell.of(cell)
            about = handle.ask("about", carried)
            if "failed" in about:
                return CellOutcome(cell, FAILED, says=str(about["failed"]))
            device, needed = f"{handle.node} {handle.gpus} {about['device']}", int(about["needed_bytes"])
            self._memory.take(device, needed, about["free_bytes"])  # which waits, not within Ray
            try:
                if handle.sees_store:
                    return self._compute(handle, carried, is_again)
                return self._compute_and_fetch(handle, carried, str(about["run_id"]))
            finally:
                self._memory.give_back(device, needed)
        except UlpscopeError as error:
            return CellOutcome(cell, FAILED, says=str(error))

    def _compute(self, handle: _Handle, carried: CarriedCell, is_again: bool) -> CellOutcome:
        cell = carried.cell

        def tell(stage: str, done: int, total: int) -> None:
            self._tell(Event(cell, f"{stage or 'begun'}, on {handle.host}", done, total))

        ends = time.monotonic() + _CLAIM_SECONDS
        while True:
            outcome: CellOutcome = handle.ask("compute", carried, tell=tell)
            if outcome.state != RUNNING or not is_again or time.monotonic() > ends:
                return outcome
            if self.is_over.wait(_WAIT_SECONDS):  # the worker of the slot that was lost is still on its way out
                raise _OverError

    def _compute_and_fetch(self, handle: _Handle, carried: CarriedCell, run_id: str) -> CellOutcome:
        """The claim is held here, where the store is."""
        cell = carried.cell
        with self._ledger.claim(cell.asked) as is_ours:
            if not is_ours:
                return CellOutcome(cell, RUNNING, says="another process computes it")
            if self._store.has(run_id):
                return CellOutcome(cell, DONE, run_id, was_there=True)
            outcome = self._compute(handle, carried, is_again=False)
            if outcome.state == DONE:
                self._fetch(handle, outcome.run_id)
                handle.ask("forget", outcome.run_id)
                return CellOutcome(cell, DONE, outcome.run_id)
            return outcome

    def _fetch(self, handle: _Handle, run_id: str) -> None:
        """Bring a run file here in pieces, and make it visible once it is whole."""
        for _ in range(TRIES):
            partial = self._store.new_partial(run_id, datetime.now(UTC), run_id)
            try:
                size, sealed = handle.ask("sealed", run_id)
                digest, count = hashlib.sha256(), 0
                with partial.path.open("wb") as file:
                    for start in range(0, size, _PIECE_BYTES):
                        piece = handle.ask("piece", run_id, start, _PIECE_BYTES)
                        file.write(piece)
                        digest.update(piece)
                        count += len(piece)
                if (count, digest.hexdigest()) == (size, sealed):
                    self._store.place(partial.path, run_id)
                    return
            except OSError as error:
                raise UlpscopeError(f"{self._store.address}: cannot be written to ({error.strerror}).") from error
            finally:
                partial.remove()
        raise UlpscopeError(f"its run file came from {handle.host} with other bytes than it has there, {TRIES} times.")


def compute_on_ray(
    cells: Sequence[Cell],
    store: Store,
    address: str,
    *,
    jobs: int = 1,
    engines: Sequence[str] = (),
    tell: Callable[[Event], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[CellOutcome]:
    """Compute cells by the slots of a cluster, `jobs` a device of each node; each cell's outcome as it comes. Closing
    the iterator ends the slots and what they were writing goes. note: is told what is wrong with a node.
    """
    with connected(address) as ray, marked(store.directory) as (marker, token):
        order = SlotOrder(
            store=store.directory.absolute(),
            marker=marker,
            token=token,
            folder=Path.cwd(),
            engines=tuple(engines),
            package=workers.PACKAGE,
            threads=os.environ.get("OMP_NUM_THREADS"),
        )
        sweep = _RaySweep(ray, cells, store, order, jobs, tell, note)
        try:
            left, looked = len(cells), -_LOOK_SECONDS
            while left:
                if time.monotonic() - looked > _LOOK_SECONDS:
                    sweep.man()
                    looked = time.monotonic()
                with suppress(queue.Empty):
                    outcome = sweep.outcomes.get(timeout=_WAIT_SECONDS)
                    if isinstance(outcome, BaseException):
                        raise outcome
                    left -= 1
                    yield outcome
        finally:
            sweep.close()
