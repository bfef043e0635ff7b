"""Cells that run no model: `compute` writes real run files of four logits, as workers compute
cells. The path of a cell says how it behaves: `crash` kills its process, `refuse` fails, `wait`
waits for the file `go` in the store, anything else works. Each computation is a line of the file
`computed` in the store.
"""

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from core.sweeps.ledger import DONE, FAILED, RUNNING, CellOutcome, Ledger, run_id_of
from core.verdict import Verdict
from tests.waiting import until

LOGITS = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], np.float32)


def write(store, run_id, request, *, moved=0.0, verdict="rounding", wait=""):
    """A run of a cell whose variant is `moved` from the reference in one logit; beyond 1 a flip.
    wait: until this file is there, with the run half written.
    """
    versions = {"engine": "1"}
    header = RunHeader(
        name=run_id,
        compute_dtype="float32",
        vocab=4,
        prompts=(Prompt(2),),
        sides=(
            SideHeader("reference", "prefill", "float32"),
            SideHeader("variant", request.variants[0], "float32"),
        ),
        provenance=Provenance(
            kind="capture",
            model="m",
            request=request.to_json(),
            versions=versions,
        ),
        created=datetime.now(UTC),
    )
    with RunWriter(store, header, run_id=run_id) as writer:
        variant = LOGITS.copy()
        variant[0, 2] += moved
        writer.write(0, 0, LOGITS.view(np.uint32))
        if wait:
            until(Path(wait).exists)
        writer.write(1, 0, variant.view(np.uint32))
        writer.write_verdict(Verdict(verdict, "It is.", (), 1.0))
        writer.finish()


def compute(cell, folder):
    """Compute a cell into the store in a folder, unless it is there."""
    store, (path,) = Store(Path(folder)), cell.request.variants
    run_id = run_id_of(cell.digest, {"build": cell.request.build})
    if path == "crash":
        # as the kernel ends a process when memory runs out
        os.kill(os.getpid(), signal.SIGKILL)
    if path == "refuse":
        return CellOutcome(cell, FAILED, says="there is no such path.")
    if store.has(run_id):
        return CellOutcome(cell, DONE, run_id, was_there=True)
    if cell.digest in Ledger(store).running():
        return CellOutcome(cell, RUNNING)
    write(store, run_id, cell.request, wait=f"{folder}/go" if path == "wait" else "")
    with (store.directory / "computed").open("a") as file:
        file.write(f"{run_id}\n")
    return CellOutcome(cell, DONE, run_id)
