"""`sweep-worker`: computes the cells of a sweep that it is asked for, one after another, and keeps its model."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...capture_request import CaptureRequest
from ...engines.registry import use_all as use_engines
from ...errors import UlpscopeError, UsageError
from ...runs.store.store import Store, open_store
from ...sweeps.ledger import DONE, FAILED, RUNNING, Ledger, run_id_of
from ...sweeps.plan import Cell
from ...sweeps.workers import CellOutcome
from ..capturing import load, plan_of, run_plan
from ..request_options import EngineOption
from ..terminal.console import StoreOption, Tell, stoppable

if TYPE_CHECKING:  # torch is for those who run a model
    from ...inference.models.model import LoadedModel


def computed_here(store: Store, cell: Cell, say: Tell) -> CellOutcome:
    """Compute a cell in this process."""
    ledger = Ledger(store)
    try:
        with ledger.claim(cell.asked) as is_ours:
            if not is_ours:
                return CellOutcome(cell, RUNNING, says="another process computes it")
            run_id, was_there = CellRunner(store).run(cell.asked, cell.request, say)
            return CellOutcome(cell, DONE, run_id, was_there=was_there)
    except UlpscopeError as error:
        return CellOutcome(cell, FAILED, says=str(error))


class CellRunner:
    """Computes cells one after another, and keeps the model of the last one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: tuple[Any, ...] = ()
        self._loaded: LoadedModel | None = None

    def about(self, asked: str, request: CaptureRequest) -> dict[str, Any]:
        """Id of a cell's run here, and what computing it takes; nothing large is read."""
        from ...inference.capture.environment import environment_of, free_bytes, needed_bytes

        plan = plan_of(request, weights=False)
        return {
            "run_id": run_id_of(asked, environment_of(request, plan)),
            "device": plan.loaded.device,
            "needed_bytes": needed_bytes(request, plan),
            "free_bytes": free_bytes(plan),
        }

    def run(self, asked: str, request: CaptureRequest, say: Tell) -> tuple[str, bool]:
        """Compute a cell, unless it is there. -> (run id, whether it was there)"""
        run_id = self.about(asked, request)["run_id"]
        if self._store.has(run_id):
            return run_id, True
        key = (request.model, request.dtype, request.device, request.revision, request.trust_remote_code)
        if key != self._key:
            self._loaded, self._key = None, ()  # the old one goes before the new one comes
            say("loading the model")
            self._loaded, self._key = load(request), key
        plan = plan_of(request, loaded=self._loaded)
        return run_plan(request, plan, self._store, say, run_id)[0], False


def sweep_worker(engine: EngineOption = None, store: StoreOption = None) -> None:
    """Compute the cells that are asked for on stdin, a JSON object a line; what becomes of each is a line on stdout."""
    use_engines(engine)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever libraries print is no answer
    target = open_store(store)
    runner, ledger = CellRunner(target), Ledger(target)

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    def say(stage: str, done: int = 0, total: int = 0, unit: str = "") -> None:  # noqa: ARG001  (positions)
        answer(stage=stage, rows_done=done, rows_total=total)

    with stoppable():
        for question in _questions():
            os.chdir(question["folder"])  # from where the plan's files are named
            asked, request = str(question["asked"]), CaptureRequest.from_json(question["request"])
            try:
                if request is None:
                    raise UsageError("the request of a cell is of another version of ULPscope.")
                if question["do"] == "about":
                    answer(**runner.about(asked, request))
                    continue
                with ledger.claim(asked) as is_ours:
                    if not is_ours:
                        answer(held=True)
                        continue
                    run_id, was_there = runner.run(asked, request, say)
                answer(done=run_id, was_there=was_there)
            except UlpscopeError as error:
                answer(failed=str(error))
            except MemoryError:
                answer(failed="its process ran out of memory.")


def _questions() -> Iterator[dict[str, Any]]:
    """Questions on stdin. Where it ends, nobody waits for what is being computed: the process is asked to end."""
    asked: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(json.loads(line))
        asked.put(None)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=listen, name="ulpscope-questions", daemon=True).start()
    while (question := asked.get()) is not None:
        yield question
