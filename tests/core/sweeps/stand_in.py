"""A worker of a sweep that runs no model: it speaks as `sweep-worker` does, and writes real run files of four logits.
The path of a cell says how it behaves: `crash`, `refuse`, `memory`, `slot` (ends the slot that asks), `wait` until a
file is there, anything else works. Each computation is a line of the file `computed` in the store. Where nobody asks
any more it ends, as `sweep-worker` does.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from core.capture_request import CaptureRequest
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from core.sweeps.ledger import Ledger, run_id_of
from core.sweeps.slot import Slot
from tests.waiting import until

LOGITS = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32)


def environment(request: CaptureRequest) -> dict[str, str]:
    return {"version": os.environ.get("STAND_IN_VERSION", "1"), "build": request.build}


def write(store: Store, run_id: str, request: CaptureRequest, *, moved: float = 0.0, verdict: str = "rounding") -> None:
    """A run of a cell whose variant is `moved` from the reference in one logit; beyond 1 a flip."""
    versions = {"engine": environment(request)["version"]}
    header = RunHeader(
        name=run_id,
        compute_dtype="float32",
        vocab=4,
        prompts=(Prompt(2),),
        sides=(SideHeader("reference", "prefill", "float32"), SideHeader("variant", request.variants[0], "float32")),
        provenance=Provenance(kind="capture", model="m", request=request.to_json(), versions=versions),
        created=datetime.now(UTC),
    )
    with RunWriter(store, header, run_id=run_id) as writer:
        variant = LOGITS.copy()
        variant[0, 2] += moved
        writer.write(0, 0, LOGITS.view(np.uint32))
        writer.write(1, 0, variant.view(np.uint32))
        writer.write_verdict(0, verdict, "It is.", 1.0, ())
        writer.finish()


class KeepingSlot(Slot):
    """A slot that keeps a copy of each file that was fetched, in `fetched` beside the driver's store."""

    def forget(self, run_id: str) -> None:
        kept = self._order.store.parent / "fetched"
        kept.mkdir(exist_ok=True)
        shutil.copy(self._path_of(run_id), kept)
        super().forget(run_id)


class DamagingSlot(KeepingSlot):
    """A slot of which the second piece of a file arrives with a bit turned, as often as the file `damages` says, in the
    driver's store.
    """

    def piece(self, run_id: str, start: int, count: int) -> bytes:
        body = super().piece(run_id, start, count)
        budget = self._order.store / "damages"
        left = int(budget.read_text())
        if start == 0 or not left:
            return body
        budget.write_text(str(left - 1))
        return bytes([body[0] ^ 1]) + body[1:]


def _questions() -> Iterator[dict[str, str]]:
    asked: queue.Queue[dict[str, str]] = queue.Queue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(json.loads(line))
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield asked.get()


def main() -> None:
    place = Path(sys.argv[sys.argv.index("--store") + 1])
    store = Store(place)
    answers = os.fdopen(os.dup(1), "w", buffering=1)

    def answer(**said: object) -> None:
        answers.write(json.dumps(said) + "\n")

    for question in _questions():
        asked, request = question["asked"], CaptureRequest.from_json(question["request"])
        assert request is not None
        run_id, path = run_id_of(asked, environment(request)), request.variants[0]
        if path == "refuse":
            answer(failed="path 'refuse': there is no such path.")
            continue
        if question["do"] == "about":
            answer(run_id=run_id, device="cpu", needed_bytes=100, free_bytes=1000)
            continue
        with Ledger(store).claim(asked) as is_ours:
            if not is_ours:
                answer(held=True)
                continue
            if (place / f"{run_id}.duckdb").exists():
                answer(done=run_id, was_there=True)
                continue
            answer(stage="decode", rows_done=1, rows_total=2)
            if path == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            if path == "slot":
                os.kill(os.getppid(), signal.SIGKILL)
                until(lambda: False)
            if path == "memory":
                answer(failed="its process ran out of memory.")
                continue
            if path == "wait":
                until((place / "go").exists)
            with (place / "computed").open("a") as file:
                file.write(f"{run_id}\n")
            write(store, run_id, request)
        answer(done=run_id)


if __name__ == "__main__":
    main()
