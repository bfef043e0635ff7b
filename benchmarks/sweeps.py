"""A sweep of 10,000 cells: its plan, what a store knows of it, and what handing out a cell costs each executor, with
cells that compute nothing. Run as a module it is the worker of those.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.scratch import scratch
from benchmarks.timing import Line
from core.runs.store.store import Store
from core.sweeps import workers
from core.sweeps.ledger import DONE, Ledger, in_ledger
from core.sweeps.plan import Cell, SweepPlan, read_plan
from core.sweeps.ray_executor import compute_on_ray
from core.sweeps.workers import CellOutcome, compute_here
from tests.core.sweeps.stand_in import write

Found = TypeVar("Found")
CELLS = 10_000
EMPTY = 400  # cells of an executor, by turns
TURNS = 3
NODES = 100
CELL_SECONDS = 60.0


def run() -> list[Line]:
    with scratch() as folder:
        store = Store(folder / "store")
        store.directory.mkdir()
        plan, plan_seconds = _timed(lambda: _plan(folder, CELLS))
        lines = [
            Line(f"plan of {CELLS:,} cells, expanded", "", f"{plan_seconds:.2f} s", "read_plan, once"),
            *_stored(store, plan),
        ]
        each = _handed_out(folder, _plan(folder, EMPTY).cells)
    return lines + [line for name, seconds in each.items() for line in _of_executor(name, seconds)]


def _plan(folder: Path, count: int) -> SweepPlan:
    """Paths x two dtypes x five models, none of which is there."""
    paths = [f"chunked:{number}" for number in range(1, count // 10 + 1)]
    (folder / "a.txt").write_text("def f():")
    said = {"models": [f"m{n}" for n in range(5)], "prompts": ["a.txt"], "paths": paths}
    said["dtypes"], said["devices"] = ["float32", "bfloat16"], ["cpu"]
    file = folder / "plan.toml"
    file.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in said.items()))
    plan = read_plan(file)
    assert len(plan.cells) == count
    return plan


def _stored(store: Store, plan: SweepPlan) -> list[Line]:
    """Figures of a store with a run a cell: one file of eight logits under 10,000 names."""
    first, *others = [f"cell-{cell.asked}-{'0' * 16}" for cell in plan.cells]
    write(store, first, plan.cells[0].request)
    path = store.path_of(first)
    for run_id in others:
        path.with_name(f"{run_id}{path.suffix}").hardlink_to(path)
    ledger, cells = Ledger(store), in_ledger(plan.cells)
    _, keep_seconds = _timed(lambda: ledger.keep(plan))
    ids, list_seconds = _timed(ledger.run_ids)
    assert len(ids) == len(cells)
    _, cold_seconds = _timed(lambda: ledger.states(cells))
    warm = [_timed(lambda: ledger.states(cells))[1] for _ in range(TURNS)]
    states, fresh_seconds = _timed(lambda: Ledger(store).states(cells))
    assert {state.state for state in states} == {DONE}
    cards = (ledger.folder / "cards.jsonl").stat().st_size / CELLS
    kept = sum(file.stat().st_size for file in ledger.folder.glob("plans/*.json")) / CELLS
    what, how = f"{CELLS:,} cells", "one run of eight logits under 10,000 names"
    return [
        Line(f"{what}: plan kept in the store", "", f"{keep_seconds:.2f} s", f"{kept:.0f} bytes a cell"),
        Line(f"{what}: runs listed", "", f"{list_seconds * 1000:.0f} ms", how),
        Line(f"{what}: states, cards read from run files", "", f"{cold_seconds:.1f} s", "once a run, whoever looks"),
        Line(f"{what}: states in another process, cards kept", "", f"{fresh_seconds:.2f} s", f"{cards:.0f} bytes each"),
        Line(f"{what}: states again", "", f"{median(warm):.2f} s", f"median of {TURNS}"),
        Line("bytes to the store a cell, beside its logits", "", f"{path.stat().st_size / 1024:.0f} KB", "a run file"),
    ]


def _handed_out(folder: Path, cells: tuple[Cell, ...]) -> dict[str, float]:
    """Seconds a cell by executor, from the first outcome on, for the workers and the cluster begin before it. Ray is
    left out where it is not installed.
    """
    workers.PACKAGE = "benchmarks.sweeps"
    store = Store(folder / "empty")
    store.directory.mkdir()
    contenders: dict[str, Callable[[], Iterator[CellOutcome]]] = {
        "here, two workers": lambda: compute_here(cells, store.directory, jobs=2)
    }
    seconds: dict[str, list[float]] = {}
    with _cluster() as address:
        if address:
            contenders["Ray, two nodes of this machine"] = lambda: compute_on_ray(cells, store, address)
        for _ in range(TURNS):
            for name, begin in contenders.items():
                with closing(begin()) as outcomes:
                    assert next(outcomes).state == DONE
                    began = time.perf_counter()
                    assert all(outcome.state == DONE for outcome in outcomes)
                    seconds.setdefault(name, []).append((time.perf_counter() - began) / (len(cells) - 1))
    return {name: median(taken) for name, taken in seconds.items()}


@contextmanager
def _cluster() -> Iterator[str]:
    """Address of two nodes of this machine; '' where Ray is not installed."""
    if find_spec("ray") is None:
        yield ""
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


def _of_executor(name: str, seconds: float) -> list[Line]:
    """A cell's cost, and a plan on many nodes: its driver hands out a cell in that time at most."""
    how = f"{EMPTY} cells that compute nothing, from the first outcome on; median of {TURNS}"
    lines = [Line(f"handing out a cell: {name}", "", f"{seconds * 1000:.1f} ms", how)]
    if name.startswith("Ray"):
        busy, handing = CELLS * CELL_SECONDS / NODES, CELLS * seconds
        lines.append(
            Line(
                f"{CELLS:,} cells of {CELL_SECONDS:.0f} s on {NODES} nodes, on paper",
                "",
                f"{max(busy, handing):,.0f} s, the driver busy for {handing:,.0f} s",
                f"max(n c / s, n d); nodes wait for it where a cell takes less than s d = {NODES * seconds:.1f} s",
            )
        )
    return lines


def _timed(work: Callable[[], Found]) -> tuple[Found, float]:
    began = time.perf_counter()
    found = work()
    return found, time.perf_counter() - began


def _empty_worker() -> None:
    """Answer as `sweep-worker` does, at once."""
    for line in sys.stdin:
        question = json.loads(line)
        run_id = f"cell-{question['asked']}-{'0' * 16}"
        about = {"run_id": run_id, "device": "cpu", "needed_bytes": 0, "free_bytes": None}
        sys.stdout.write(json.dumps(about if question["do"] == "about" else {"done": run_id}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _empty_worker()
