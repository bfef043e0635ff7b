"""Processes that work on a store are killed at random moments: no half run is ever visible, nothing
stored is lost, the next one goes on. A failure prints the seed of its moments.
"""

import json
import random
import subprocess
import sys

import pytest

from core.runs.store.store import Store
from tests.core.runs.made_runs import make_run
from tests.faults.whole import Watched
from tests.places import ROOT

# from the start of the work to a kill: about as long as one piece of it takes
LONGEST_SECONDS = {"change": 0.02, "ingest": 0.06, "careless": 0.05}


def _kill(work, times, tmp_path):
    store = Store(tmp_path / "store")
    for number in range(3):
        make_run(store, number)
    watched = Watched(store)
    chance = random.Random(times)
    watched.check()
    command = [sys.executable, "-m", "tests.faults.nursery"]
    orders = [
        [str(store.directory), work, number, chance.uniform(0, LONGEST_SECONDS[work])]
        for number in range(times)
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        for order in orders:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "killed\n", order
            watched.check()
        process.stdin.close()
    return watched


@pytest.mark.parametrize(
    "times",
    [6, pytest.param(45, marks=pytest.mark.thorough)],
)
@pytest.mark.parametrize("work", ["change", "ingest"])
def test_a_worker_killed_at_any_moment_leaves_whole_runs_and_all_of_them(
    work,
    times,
    tmp_path,
):
    _kill(work, times, tmp_path).check_that_it_goes_on()


def test_a_store_that_writes_where_readers_look_is_caught(tmp_path):
    with pytest.raises(AssertionError, match="half a run is visible"):
        _kill("careless", 20, tmp_path)
