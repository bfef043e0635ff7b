"""Cells are computed once, by processes of this machine or of a Ray cluster, and what is killed
loses nothing.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import closing
from functools import partial
from importlib.util import find_spec

import pytest

from core.errors import UlpscopeError
from core.sweeps.ledger import DONE, FAILED, RUNNING, Ledger
from core.sweeps.plan import read_plan
from core.sweeps.ray_executor import RETRIES, compute_on_ray, connection
from core.sweeps.workers import compute_here
from tests.core.runs.made_runs import opened
from tests.core.sweeps.stand_in import compute
from tests.covering import thorough
from tests.places import ROOT
from tests.waiting import until

GOOD = ["p1", "p2", "p3"]
BOTH = ["a.txt", "b.jsonl"]  # prompts of a plan
DRIVER = """
import sys
from functools import partial
from pathlib import Path
from core.runs.store.store import Store
from core.sweeps.plan import read_plan
from core.sweeps.ray_executor import compute_on_ray
from core.sweeps.workers import compute_here
from tests.core.sweeps.stand_in import compute

if __name__ == "__main__":
    plan, folder, address = sys.argv[1:]
    cells = read_plan(Path(plan)).cells
    task = partial(compute, folder=folder)
    if address:
        outcomes = compute_on_ray(cells, task, Store(Path(folder)), address)
    else:
        # two workers, as the cluster has: both cells that wait are running at the kill
        outcomes = compute_here(cells, task, jobs=2)
    for outcome in outcomes:
        print(outcome.run_id, flush=True)
"""


@pytest.fixture(scope="module")
def cluster():
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed; `make thorough` brings it")
    from ray.cluster_utils import Cluster

    # A short name: the paths of Ray's sockets, below it, have 107 bytes.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="u") as folder:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("TMPDIR", folder)
        made = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "include_dashboard": False},
        )
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


def _outcomes(cells, store, cluster=None, **options):
    """Outcomes by path and prompts, computed here or on a cluster."""
    task = partial(compute, folder=str(store.directory))
    running = compute_here(cells, task, **options)
    if cluster is not None:
        running = compute_on_ray(cells, task, store, cluster.address)
    with closing(running) as outcomes:
        return {(one.cell.request.variants[0], one.cell.axes["prompts"]): one for one in outcomes}


def _states(outcomes):
    return {path: one.state for (path, _), one in outcomes.items()}


def _computed(store):
    path = store.directory / "computed"
    return Counter(path.read_text().split() if path.exists() else [])


def _waiting(cells):
    return {cell.digest for cell in cells if cell.request.variants == ("wait",)}


def _assert_all_once(outcomes, store, count):
    """Every cell is done, was computed once, and its run is whole."""
    assert Counter(one.state for one in outcomes.values()) == {DONE: count}
    assert set(_computed(store).values()) == {1}
    for run_id in store.cells():
        with opened(store, run_id) as run:
            assert [prompt.positions for prompt in run.header.prompts] == [2]
    assert len(store.cells()) == count


@pytest.mark.parametrize("jobs", [*thorough([1]), 3])
def test_every_cell_is_computed_and_none_again(store, cells_of, jobs):
    cells = cells_of(*GOOD)
    begun = []
    first = _outcomes(cells, store, jobs=jobs, on_begin=begun.append)
    _assert_all_once(first, store, 3)
    assert {cell.digest for cell in begun} == {cell.digest for cell in cells}
    again = _outcomes(cells, store, jobs=jobs)
    assert {key: (one.run_id, one.was_there) for key, one in again.items()} == {
        key: (one.run_id, True) for key, one in first.items()
    }
    assert len(_computed(store)) == 3


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("crash", "its process was killed, probably out of memory."),
        ("refuse", "there is no such path."),
    ],
)
def test_a_cell_that_fails_says_why_and_the_rest_is_done(store, cells_of, path, says):
    outcomes = _outcomes(cells_of("p1", path, "p2"), store)
    assert _states(outcomes) == {"p1": DONE, path: FAILED, "p2": DONE}
    assert outcomes[path, "a.txt"].says == says


def test_two_sweeps_on_one_store_compute_no_cell_twice(store, cells_of):
    cells = cells_of("wait")
    first = {}
    thread = threading.Thread(target=lambda: first.update(_outcomes(cells, store)))
    thread.start()
    until(lambda: Ledger(store).running())
    assert _states(_outcomes(cells, store)) == {"wait": RUNNING}
    (store.directory / "go").touch()
    thread.join()
    _assert_all_once(first, store, 1)


def test_closing_a_sweep_ends_its_workers_and_nothing_half_is_visible(store, cells_of):
    cells = cells_of("p1", "wait", "p2")
    outcomes = compute_here(cells, partial(compute, folder=str(store.directory)))
    assert next(outcomes).cell.request.variants == ("p1",)
    until(lambda: Ledger(store).running())
    outcomes.close()
    until(lambda: not Ledger(store).running())
    assert len(store.cells()) == 1
    (store.directory / "go").touch()
    _assert_all_once(_outcomes(cells, store), store, 3)


def _driver(tmp_path, plan, store, address=""):
    program = tmp_path / "driver.py"
    program.write_text(DRIVER)
    command = [sys.executable, str(program), str(plan), str(store.directory), address]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("place", ["here", *thorough(["cluster"])])
def test_a_killed_driver_loses_nothing_and_computes_nothing_twice(
    place,
    request,
    store,
    plan_file,
    tmp_path,
):
    """SIGKILL: it tidies up nothing, and its workers end by themselves."""
    cluster = None if place == "here" else request.getfixturevalue(place)
    plan = plan_file(paths=["p1", "wait", "p2"], prompts=BOTH)
    cells = read_plan(plan).cells
    with _driver(tmp_path, plan, store, cluster.address if cluster else "") as driver:
        until(lambda: Ledger(store).running() == _waiting(cells))
        there = store.cells()
        os.kill(driver.pid, signal.SIGKILL)
    until(lambda: not Ledger(store).running())
    (store.directory / "go").touch()
    outcomes = _outcomes(cells, store, cluster)
    _assert_all_once(outcomes, store, len(cells))
    assert {one.run_id for one in outcomes.values() if one.was_there} == there


@pytest.mark.thorough
def test_a_killed_node_loses_nothing_and_computes_nothing_twice(cluster, store, cells_of):
    cells = cells_of("p1", "wait", "p2", prompts=BOTH)
    outcomes = {}
    thread = threading.Thread(
        target=lambda: outcomes.update(_outcomes(cells, store, cluster)),
        daemon=True,
    )
    thread.start()
    until(lambda: Ledger(store).running() == _waiting(cells))  # one on each node
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)
    try:
        until(lambda: len(Ledger(store).running()) == 1)
        (store.directory / "go").touch()
        thread.join(120)
        _assert_all_once(outcomes, store, len(cells))
    finally:
        cluster.add_node(num_cpus=1)


@pytest.mark.thorough
def test_what_fails_on_ray_says_why_and_the_rest_is_done(cluster, store, cells_of):
    outcomes = _outcomes(cells_of("p1", "crash", "refuse", "p2"), store, cluster)
    assert _states(outcomes) == {"p1": DONE, "crash": FAILED, "refuse": FAILED, "p2": DONE}
    assert f"its process was lost, {RETRIES + 1} times" in outcomes["crash", "a.txt"].says
    assert outcomes["refuse", "a.txt"].says == "there is no such path."
    gpu = cells_of("p3", devices=["cuda"])
    assert "no node of the cluster has a GPU" in _outcomes(gpu, store, cluster)["p3", "a.txt"].says


@pytest.mark.thorough
def test_a_node_that_does_not_share_the_store_fails_its_cells(cluster, store, cells_of, tmp_path):
    (tmp_path / "of the node").mkdir()
    task = partial(compute, folder=str(tmp_path / "of the node"))
    (outcome,) = compute_on_ray(cells_of("p1"), task, store, cluster.address)
    assert outcome.state == FAILED
    assert "must share the store" in outcome.says


def test_an_address_without_a_cluster_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", type(sys)("ray"))
    with pytest.raises(UlpscopeError, match="no Ray cluster answers"), connection("127.0.0.1:1"):
        pass


def test_without_ray_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UlpscopeError, match=r"pip install 'ulpscope\[ray\]'"), connection("auto"):
        pass
