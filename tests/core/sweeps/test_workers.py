"""Cells are computed once, by as many workers as are asked for, and one that fails takes no other with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from core.runs.reader import RunReader
from core.sweeps.ledger import DONE, FAILED, RUNNING, Ledger
from core.sweeps.plan import read_plan
from core.sweeps.workers import Memory, compute_here
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
GOOD = ["p1", "p2", "p3"]


@pytest.fixture
def cells_of(plan_file):
    return lambda *paths, **keys: read_plan(plan_file(paths=list(paths), **keys)).cells


def _computed(store) -> Counter:
    path = store.directory / "computed"
    return Counter(path.read_text().split() if path.exists() else [])


def _all(cells, store, **how):
    with closing(compute_here(cells, store.directory, **how)) as outcomes:
        return {outcome.cell.request.variants[0]: outcome for outcome in outcomes}


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_cell_is_computed_and_none_again(stand_in, store, cells_of, jobs):
    cells, events = cells_of(*GOOD), []
    found = _all(cells, store, jobs=jobs, tell=events.append)
    assert {path: (one.state, one.was_there) for path, one in found.items()} == dict.fromkeys(GOOD, (DONE, False))
    assert {(event.stage, event.rows_done, event.rows_total) for event in events} == {("decode", 1, 2)}
    again = _all(cells, store, jobs=jobs)
    assert {path: (one.run_id, one.was_there) for path, one in again.items()} == {
        path: (one.run_id, True) for path, one in found.items()
    }
    assert set(_computed(store).values()) == {1}
    assert len(_computed(store)) == len(GOOD)


def test_cells_of_another_build_or_version_are_computed_beside_them(stand_in, store, plan_file, monkeypatch):
    def run(build):
        return _all(read_plan(plan_file(), build).cells, store)["decode"].run_id

    first, second = run("1"), run("2")
    monkeypatch.setenv("STAND_IN_VERSION", "2")
    third = run("2")
    assert len({first, second, third}) == 3
    assert Ledger(store).run_ids() == {first, second, third}


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("crash", "its process was killed, as where memory runs out."),
        ("memory", "its process ran out of memory."),
        ("refuse", "path 'refuse': there is no such path."),
    ],
)
def test_a_cell_that_fails_says_why_and_the_rest_is_done(stand_in, store, cells_of, path, says):
    found = _all(cells_of("p1", path, "p2"), store)
    assert (found[path].state, found[path].says) == (FAILED, says)
    assert [found[one].state for one in ("p1", "p2")] == [DONE, DONE]
    for run_id in Ledger(store).run_ids():
        with RunReader(store.path_of(run_id)) as run:
            assert [prompt.positions for prompt in run.header.prompts] == [2]  # whole
    assert Ledger(store).running() == {}


def test_two_sweeps_on_one_store_compute_no_cell_twice(stand_in, store, cells_of):
    first = compute_here(cells_of("wait"), store.directory)
    thread_found = []
    thread = threading.Thread(target=lambda: thread_found.extend(first))
    thread.start()
    until(lambda: Ledger(store).running())
    assert _all(cells_of("wait"), store)["wait"].state == RUNNING
    (store.directory / "go").touch()
    thread.join()
    assert [outcome.state for outcome in thread_found] == [DONE]
    assert set(_computed(store).values()) == {1}


def test_a_sweep_that_is_left_ends_its_workers_and_nothing_half_is_there(stand_in, store, cells_of):
    outcomes = compute_here(cells_of("p1", "wait", "p2"), store.directory)
    assert next(outcomes).cell.request.variants == ("p1",)
    until(lambda: Ledger(store).running())
    outcomes.close()
    assert Ledger(store).running() == {}
    assert len(Ledger(store).run_ids()) == 1
    (store.directory / "go").touch()
    assert Counter(one.state for one in _all(cells_of("p1", "wait", "p2"), store).values()) == {DONE: 3}
    assert set(_computed(store).values()) == {1}


def test_a_sweep_that_was_killed_goes_on(stand_in, store, cells_of, plan_file):
    """SIGKILL of the driver, which can tidy nothing up: its worker ends by itself when nobody asks it any more."""
    code = (
        "import sys\nfrom pathlib import Path\nfrom core.sweeps import workers\n"
        "from core.sweeps.plan import read_plan\n"
        "workers.PACKAGE = 'tests.core.sweeps.stand_in'\n"
        "for outcome in workers.compute_here(read_plan(Path(sys.argv[1])).cells, Path(sys.argv[2])):\n"
        "    print(outcome.run_id, flush=True)\n"
    )
    paths = ["p1", "p2", "wait", "p3"]
    command = [sys.executable, "-c", code, str(plan_file(paths=paths)), str(store.directory)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as driver:
        until(lambda: Ledger(store).running() and len(Ledger(store).run_ids()) == 2)
        os.kill(driver.pid, signal.SIGKILL)
    (store.directory / "go").touch()
    until(lambda: not Ledger(store).running())
    cells = read_plan(plan_file(paths=paths)).cells
    found = _all(cells, store)
    assert [found[path].state for path in paths] == [DONE] * 4
    assert set(_computed(store).values()) == {1}
    assert len(_computed(store)) == 4


class _Taking(threading.Thread):
    def __init__(self, memory: Memory, needed: int, free: int | None = 1000) -> None:
        super().__init__(daemon=True)
        self._asked = (memory, needed, free)
        self.start()

    def run(self) -> None:
        memory, needed, free = self._asked
        memory.take("cpu", needed, free)


def test_cells_that_do_not_fit_beside_each_other_wait():
    memory = Memory()
    memory.take("cpu", 700, 1000)
    beside = _Taking(memory, 300)
    beside.join(60)
    assert not beside.is_alive()
    waiting = _Taking(memory, 100)
    waiting.join(0.2)
    assert waiting.is_alive()
    memory.take("cuda:0", 900, 1000)  # another device has memory of its own
    memory.give_back("cpu", 300)
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_cell_larger_than_the_memory_begins_alone_and_is_refused_where_it_is_loaded():
    memory = Memory()
    memory.take("cpu", 5000, 1000)
    other = _Taking(memory, 1)
    other.join(0.2)
    assert other.is_alive()
    memory.give_back("cpu", 5000)
    other.join(60)
    assert not other.is_alive()
