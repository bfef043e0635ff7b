"""Cells on a real Ray cluster of two nodes of this machine, of which nodes, slots and drivers are killed; and what is
said where there is no Ray.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from core.errors import UlpscopeError
from core.runs.importing.import_process import take_in
from core.runs.store.store import Store
from core.sweeps import ray_cluster, ray_executor
from core.sweeps.ledger import DONE, FAILED, Ledger
from core.sweeps.plan import read_plan
from core.sweeps.ray_cluster import connected
from core.sweeps.ray_executor import compute_on_ray
from tests.core.conftest import environment
from tests.core.sweeps.stand_in import DamagingSlot, KeepingSlot
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
BOTH = ["a.txt", "b.jsonl"]  # prompts of a plan
GOOD = ["p1", "p2", "p3", "p4"]
PROGRAM = (
    "import sys\nfrom core.sweeps import workers\nworkers.PACKAGE = 'tests.core.sweeps.stand_in'\n"
    "from core.__main__ import main\nmain()\n"
)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed; `make thorough` brings it")


def on_cluster(test):
    return pytest.mark.thorough(needs_ray(test))


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    # A short name: the paths of Ray's sockets, below it, have 107 bytes.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="u") as folder:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("TMPDIR", folder)  # where slots have their folders
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture
def cells_of(plan_file):
    return lambda *paths, **keys: read_plan(plan_file(paths=list(paths), **keys)).cells


@pytest.fixture
def out_of_sight(monkeypatch):
    """No slot sees the store."""

    @contextmanager
    def marked(store):
        yield store / "no-such-marker", "token"

    monkeypatch.setattr(ray_executor, "marked", marked)
    monkeypatch.setattr(ray_executor, "Slot", KeepingSlot)
    monkeypatch.setattr(ray_executor, "_PIECE_BYTES", 50_000)


def _computed(store) -> Counter:
    path = store.directory / "computed"
    return Counter(path.read_text().split() if path.exists() else [])


def _all(cluster, cells, store, **how):
    with closing(compute_on_ray(cells, store, cluster.address, **how)) as outcomes:
        return {(one.cell.request.variants[0], one.cell.axes["prompts"]): one for one in outcomes}


def _all_wait(store, cells) -> bool:
    """True once every cell that waits is being computed, and no other is."""
    return Ledger(store).running().keys() == {cell.asked for cell in cells if cell.request.variants == ("wait",)}


def _states(found) -> dict[str, str]:
    return {path: one.state for (path, _), one in found.items()}


def _all_whole(store, tmp_path) -> int:
    """How many run files there are, each checked table by table as one from outside."""
    checked = Store(tmp_path / "checked")
    for run_id in Ledger(store).run_ids():
        take_in(checked, store.path_of(run_id), run_id=run_id, name=None, on_progress=lambda *_: None)
    return len(checked.paths())


def _nothing_half(store) -> bool:
    return not Ledger(store).running() and not list(store.directory.glob(".partial-*"))


@on_cluster
def test_every_cell_is_computed_on_both_nodes_and_none_again(stand_in, cluster, store, cells_of, tmp_path):
    cells, said = cells_of(*GOOD), []
    found = _all(cluster, cells, store, note=said.append)
    assert set(_states(found).values()) == {DONE}
    assert set(_computed(store).values()) == {1}
    assert _all_whole(store, tmp_path) == len(GOOD)
    again = _all(cluster, cells, store)
    assert {key: (one.run_id, one.was_there) for key, one in again.items()} == {
        key: (one.run_id, True) for key, one in found.items()
    }
    assert len(_computed(store)) == len(GOOD)
    assert said == []


@on_cluster
def test_what_fails_by_itself_says_why_once_and_the_rest_is_done(stand_in, cluster, store, cells_of, tmp_path):
    found = _all(cluster, cells_of("p1", "crash", "memory", "refuse", "p2"), store)
    assert {path: (one.state, one.says) for (path, _), one in found.items()} == {
        "p1": (DONE, ""),
        "p2": (DONE, ""),
        "crash": (FAILED, "its process was killed, as where memory runs out."),
        "memory": (FAILED, "its process ran out of memory."),
        "refuse": (FAILED, "path 'refuse': there is no such path."),
    }
    assert _all_whole(store, tmp_path) == 2
    assert _nothing_half(store)


@on_cluster
def test_a_cell_that_ends_every_slot_is_tried_three_times_and_the_rest_is_done(stand_in, cluster, store, cells_of):
    found = _all(cluster, cells_of("slot", *GOOD[:2]), store)
    assert _states(found) == {"slot": FAILED, "p1": DONE, "p2": DONE}
    (says,) = [one.says for (path, _), one in found.items() if path == "slot"]
    assert "slot was lost 3 times" in says
    assert "\n" not in says


@on_cluster
def test_a_node_that_is_killed_takes_no_cell_with_it(stand_in, cluster, store, cells_of, tmp_path):
    cells = cells_of("p1", "wait", "p2", prompts=BOTH)
    (node,), found = cluster.worker_nodes, {}
    thread = threading.Thread(target=lambda: found.update(_all(cluster, cells, store)), daemon=True)
    thread.start()
    until(lambda: _all_wait(store, cells))  # one on each node
    cluster.remove_node(node, allow_graceful=False)
    try:
        until(lambda: len(Ledger(store).running()) == 1)
        (store.directory / "go").touch()
        thread.join(120)
        assert len(found) == len(cells)
        assert {one.state for one in found.values()} == {DONE}
        assert set(_computed(store).values()) == {1}
        assert _all_whole(store, tmp_path) == len(cells)
        assert _nothing_half(store)
    finally:
        cluster.add_node(num_cpus=1)


@on_cluster
def test_a_driver_that_was_killed_goes_on_where_it_was(stand_in, cluster, store, plan_file, tmp_path):
    plan = plan_file(paths=["p1", "wait", "p2"], prompts=BOTH)
    cells = read_plan(plan).cells
    driver = _driver(cluster, store, plan, tmp_path)
    until(lambda: _all_wait(store, cells))
    there = Ledger(store).run_ids()
    driver.kill()
    driver.communicate()
    until(lambda: not Ledger(store).running())  # the slots' workers end when their driver is gone
    (store.directory / "go").touch()
    found = _all(cluster, cells, store)
    assert {one.state for one in found.values()} == {DONE}
    assert set(_computed(store).values()) == {1}
    assert {one.run_id for one in found.values() if one.was_there} == there
    assert len(there) >= 2
    assert _all_whole(store, tmp_path) == len(cells)


@on_cluster
def test_ctrl_c_ends_the_workers_and_leaves_nothing_behind(stand_in, cluster, store, plan_file, tmp_path):
    plan = plan_file(paths=["p1", "wait", "p2"], prompts=BOTH)
    driver = _driver(cluster, store, plan, tmp_path)
    cells = read_plan(plan).cells
    until(lambda: _all_wait(store, cells))
    driver.send_signal(signal.SIGINT)
    out, err = driver.communicate(timeout=30)
    assert driver.returncode == 130
    assert "stopped; " in err
    assert "Traceback" not in err
    assert "the sweep goes on from there" in err
    assert out == ""
    until(lambda: _nothing_half(store))
    until(lambda: not list(Path(os.environ["TMPDIR"]).glob("ulpscope-slots-*/*")))
    assert list((store.directory / ".sweeps" / "markers").iterdir()) == []


def _driver(cluster, store, plan, tmp_path) -> subprocess.Popen:
    command = [sys.executable, "-c", PROGRAM, "sweep", plan, "--store", store.directory, "--ray", cluster.address]
    return subprocess.Popen(
        [*map(str, command), "--json"],
        cwd=ROOT,
        env=os.environ | environment(tmp_path) | {"ULPSCOPE_STORE": str(store.directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@on_cluster
def test_runs_come_whole_and_with_equal_bytes_from_nodes_that_do_not_see_the_store(
    stand_in, cluster, store, cells_of, out_of_sight, tmp_path
):
    found = _all(cluster, cells_of(*GOOD[:3], "crash"), store)
    assert _states(found) == {**dict.fromkeys(GOOD[:3], DONE), "crash": FAILED}
    for one in found.values():
        if one.state == DONE:
            kept = tmp_path / "fetched" / f"{one.run_id}.duckdb"
            assert store.path_of(one.run_id).read_bytes() == kept.read_bytes()
            assert kept.stat().st_size > 3 * 50_000  # so that it came in pieces
    assert not (store.directory / "computed").exists()  # it was computed elsewhere
    assert _all_whole(store, tmp_path) == 3
    assert _nothing_half(store)
    again = _all(cluster, cells_of(*GOOD[:3]), store)
    assert {one.was_there for one in again.values()} == {True}


@on_cluster
@pytest.mark.parametrize("damages", [2, 1000])
def test_a_damaged_piece_is_caught_and_fetched_again_or_its_cell_failed(
    stand_in, cluster, store, cells_of, out_of_sight, monkeypatch, tmp_path, damages
):
    monkeypatch.setattr(ray_executor, "Slot", DamagingSlot)
    (store.directory / "damages").write_text(str(damages))
    (one,) = _all(cluster, cells_of("p1"), store).values()
    if damages == 1000:
        assert one.state == FAILED
        assert "has there, 3 times" in one.says
        assert Ledger(store).run_ids() == set()
    else:
        assert one.state == DONE
        assert _all_whole(store, tmp_path) == 1
    assert _nothing_half(store)


@on_cluster
def test_a_cluster_without_a_gpu_fails_the_cells_that_need_one(stand_in, cluster, store, cells_of, monkeypatch):
    monkeypatch.setattr(ray_executor, "_LOST_SECONDS", 3.0)
    found = _all(cluster, cells_of("p1", devices=["cpu", "cuda"]), store)
    assert len(found) == 1  # of two cells, by path
    with closing(compute_on_ray(cells_of("p1", devices=["cpu", "cuda"]), store, cluster.address)) as outcomes:
        told = {one.cell.axes["device"]: (one.state, one.says) for one in outcomes}
    assert told == {"cpu": (DONE, ""), "cuda": (FAILED, "no node of the cluster has a GPU for it.")}


@on_cluster
def test_the_command_tells_json_alone_on_stdout(stand_in, cluster, store, plan_file, tmp_path):
    driver = _driver(cluster, store, plan_file(paths=["p1", "refuse"]), tmp_path)
    out, err = driver.communicate(timeout=120)
    assert driver.returncode == 2
    assert [cell["state"] for cell in json.loads(out)["cells"]] == ["done", "failed"]
    assert "failed: m, refuse against prefill, bfloat16, a.txt: path 'refuse'" in err


def _refused(address: str) -> str:
    with pytest.raises(UlpscopeError) as refused, connected(address):
        pass
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_without_ray_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "`pip install 'ulpscope[ray]'` brings" in _refused("auto")


def test_an_address_that_nobody_listens_at_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        says = _refused(f"127.0.0.1:{taken.getsockname()[1]}")
    assert "`ray start --head` starts" in says
    assert "cannot be reached" in says


@needs_ray
def test_a_port_that_is_no_clusters_is_one_sentence_within_its_time(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_HEALTH_SECONDS", 5.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert "no Ray cluster" in _refused(f"127.0.0.1:{silent.getsockname()[1]}")


def test_what_is_no_address_is_one_sentence():
    assert "expected local, auto and HOST:PORT" in _refused("ray://head")


def test_a_slot_gets_cells_of_its_model_first_and_a_lost_cell_goes_ahead(cells_of):
    cells = cells_of("p1", "p2", models=["m", "n"])
    waiting = ray_executor._CellQueue()
    for cell in cells:
        waiting.put(cell)
    one, _ = waiting.take(None)
    other, _ = waiting.take(None)
    assert {one.axes["model"], other.axes["model"]} == {"m", "n"}, "another slot begins with another model"
    waiting.put(one, ("a node",))
    assert waiting.take((one.axes["model"], one.axes["dtype"])) == (one, ("a node",))
    left = [waiting.take((one.axes["model"], one.axes["dtype"]))[0] for _ in range(2)]
    assert [cell.axes["model"] for cell in left] == [one.axes["model"], other.axes["model"]]
    assert waiting.take(None) is None
    assert waiting.count == 0
