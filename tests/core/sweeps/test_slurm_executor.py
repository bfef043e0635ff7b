"""Cells as jobs: by submitit's own processes, and as far as Slurm's commands go, by commands that stand in for them."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec

import pytest

from core.errors import UlpscopeError, UsageError
from core.runs.importing.import_process import take_in
from core.runs.store.store import Store
from core.sweeps import slurm_executor
from core.sweeps.ledger import DONE, FAILED, Ledger
from core.sweeps.plan import SlurmTable, read_plan
from core.sweeps.slurm_executor import compute_on_slurm, parts_of
from tests.waiting import until

LOCAL = SlurmTable(cluster="local", cells=2)
needs_submitit = pytest.mark.skipif(
    find_spec("submitit") is None, reason="submitit is not installed; `make thorough` brings it"
)


def on_submitit(test):
    return pytest.mark.thorough(needs_submitit(test))


@pytest.fixture
def cells_of(plan_file):
    return lambda *paths, **keys: read_plan(plan_file(paths=list(paths), **keys)).cells


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(slurm_executor, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(slurm_executor, "_GRACE_SECONDS", 2.0)


def _all(cells, store, table=LOCAL):
    with closing(compute_on_slurm(cells, store, table)) as outcomes:
        return {outcome.cell.request.variants[0]: outcome for outcome in outcomes}


def _computed(store) -> Counter:
    return Counter((store.directory / "computed").read_text().split())


@on_submitit
def test_every_cell_is_computed_by_some_jobs_and_none_again(stand_in, store, cells_of, tmp_path):
    paths = ["p1", "p2", "crash", "p3", "refuse"]
    found = _all(cells_of(*paths), store)
    assert {path: one.state for path, one in found.items()} == {
        **dict.fromkeys(["p1", "p2", "p3"], DONE),
        **dict.fromkeys(["crash", "refuse"], FAILED),
    }
    assert "where memory runs out" in found["crash"].says
    assert found["refuse"].says == "path 'refuse': there is no such path."
    assert {path for path, one in _all(cells_of(*paths), store).items() if one.was_there} == {"p1", "p2", "p3"}
    assert set(_computed(store).values()) == {1}
    checked = Store(tmp_path / "checked")
    for run_id in Ledger(store).run_ids():
        take_in(checked, store.path_of(run_id), run_id=run_id, name=None, on_progress=lambda *_: None)
    assert len(checked.paths()) == 3
    assert list((store.directory / ".sweeps" / "slurm").iterdir()) == []


@on_submitit
def test_a_job_that_ends_without_a_word_fails_its_cells_and_no_other(stand_in, store, cells_of):
    found = _all(cells_of("p1", "p2", "slot", "p3", "p4"), store)
    assert {path: one.state for path, one in found.items()} == {
        **dict.fromkeys(["p1", "p2", "p4"], DONE),
        **dict.fromkeys(["slot", "p3"], FAILED),
    }
    assert found["slot"].says == found["p3"].says
    assert "before it was computed" in found["slot"].says


@on_submitit
def test_a_sweep_that_is_left_cancels_its_jobs(stand_in, store, cells_of):
    outcomes = compute_on_slurm(cells_of("p1", "wait"), store, LOCAL)
    assert next(outcomes).state == DONE
    until(lambda: Ledger(store).running())
    outcomes.close()
    until(lambda: not Ledger(store).running())
    assert len(Ledger(store).run_ids()) == 1


@on_submitit
def test_the_command_takes_the_plans_table(cli, plan_file, tmp_path, stand_in):
    plan = plan_file(paths=["p1", "refuse"])
    plan.write_text(plan.read_text() + '\n[slurm]\ncluster = "local"\n')
    done = cli("sweep", plan, "--slurm", "--json")
    assert done.returncode == 2
    assert [cell["state"] for cell in json.loads(done.stdout)["cells"]] == ["done", "failed"]


SBATCH = """#!/bin/sh
for script; do :; done
cp "$script" "{folder}/asked-$(ls {folder} | wc -l)"
echo "Submitted batch job 7$(ls {folder} | wc -l)"
"""
SACCT = """#!/bin/sh
echo "JobID|State|NodeList"
for job in 71 72; do for task in 0 1; do echo "${{job}}_$task|{state}|node$task"; done; done
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Slurm's commands, which keep what they are asked for, run nothing, and say that all jobs are out of memory."""
    commands, folder = tmp_path / "commands", tmp_path / "asked"
    commands.mkdir()
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "sacct": SACCT, "srun": "#!/bin/sh\n", "scancel": "#!/bin/sh\n"}.items():
        (commands / name).write_text(text.format(folder=folder, state="OUT_OF_MEMORY"))
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return folder


@on_submitit
def test_slurm_is_asked_for_what_the_plan_says_and_its_states_are_told(slurm, stand_in, store, cells_of):
    table = SlurmTable(partition="long", account="us", minutes=90, gpus=1, cpus=8, memory_gb=40, cells=1, jobs=1)
    found = list(compute_on_slurm(cells_of("p1", "p2", devices=["cuda", "cpu"]), store, table, name="a b"))
    assert {(one.state, one.says.partition(" ended")[2]) for one in found} == {
        (FAILED, " as OUT_OF_MEMORY before it was computed.")
    }
    with_gpus, without = [set(path.read_text().splitlines()) for path in sorted(slurm.iterdir())]
    common = {"partition=long", "account=us", "time=90", "cpus-per-task=8", "mem=40GB", "job-name=ulpscope-a-b"}
    common = {f"#SBATCH --{one}" for one in common} | {"#SBATCH --array=0-1%1"}
    assert common <= with_gpus
    assert common <= without
    assert {"#SBATCH --gpus-per-node=1"} == {line for line in with_gpus ^ without if "gpus" in line}


@on_submitit
def test_a_machine_without_slurm_is_one_sentence(store, cells_of, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UlpscopeError, match=r'submitted \(Could not detect "srun"'):
        _all(cells_of("p1"), store, replace(LOCAL, cluster="slurm"))


def test_without_submitit_one_sentence_names_the_extra(store, cells_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UlpscopeError) as refused:
        _all(cells_of("p1"), store)
    assert "`pip install 'ulpscope[slurm]'` brings" in str(refused.value)
    assert list((store.directory / ".sweeps" / "slurm").iterdir()) == []


def test_ray_and_slurm_at_once_are_refused(cli, plan_file):
    done = cli("sweep", plan_file(), "--ray", "local", "--slurm")
    assert done.returncode == 2
    assert "two places to compute; choose" in done.stderr


def test_a_job_has_cells_of_one_model_and_dtype(cells_of):
    cells = cells_of("p1", "p2", "p3", models=["m", "n"], dtypes=["float32", "bfloat16"])
    parts = parts_of(cells, 2)
    assert Counter(map(len, parts)) == {2: 4, 1: 4}
    assert {len({(cell.axes["model"], cell.axes["dtype"]) for cell in part}) for part in parts} == {1}
    assert sorted(cell.asked for part in parts for cell in part) == sorted(cell.asked for cell in cells)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("slurm = 3", "'slurm' is 3; expected a [slurm] section."),
        ("[slurm]\npartitions = 'x'", "[slurm] 'partitions' is not known; there are partition, account,"),
        ("[slurm]\nminutes = 0", "[slurm] 'minutes' is 0; expected a whole number from 1 on."),
        ("[slurm]\ngpus = true", "[slurm] 'gpus' is True; expected a whole number from 0 on."),
        ("[slurm]\ncluster = 'ray'", "[slurm] 'cluster' is 'ray'; expected slurm and local."),
    ],
)
def test_a_table_that_says_what_nothing_is_known_of_is_refused(plan_file, table, says):
    plan = plan_file()
    plan.write_text(f"{table}\n{plan.read_text()}" if "[" not in table else f"{plan.read_text()}\n{table}\n")
    with pytest.raises(UsageError) as refused:
        read_plan(plan)
    assert says in str(refused.value)


def test_the_table_changes_no_cell(plan_file):
    plan = plan_file()
    before = read_plan(plan)
    plan.write_text(plan.read_text() + "\n[slurm]\nminutes = 5\n")
    after = read_plan(plan)
    assert after.cells == before.cells
    assert (before.slurm.minutes, after.slurm.minutes) == (240, 5)
