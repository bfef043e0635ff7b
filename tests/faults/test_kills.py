"""Processes that work on a store are killed at random moments: no half run is ever visible, nothing stored is lost, the
next one goes on.

`make test` kills a dozen; `python -m pytest -m thorough tests/faults` kills a hundred and more. A failure prints the
seed of its moments.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.runs.store.store import Store
from tests.core.runs.made_runs import made
from tests.faults.nursery import Nursery
from tests.faults.whole import Watched

LONGEST_SECONDS = {"change": 0.02, "ingest": 0.06, "capture": 1.2, "careless": 0.05, "forgetful": 0.02, "losing": 0.02}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as running:
        yield running


def _kill(nursery: Nursery, work: str, times: int, seed: int, watched: Watched) -> None:
    chance = random.Random(seed)
    for number in range(times):
        moment = chance.uniform(0, LONGEST_SECONDS[work])
        said = nursery.kill(watched.store.directory, work, seed * 1000 + number, moment)
        assert said == "killed", f"{work}, seed {seed}, kill {number}: {said}"
        watched.check()


def _store(tmp_path: Path) -> Watched:
    store = Store(tmp_path / "store")
    for number in range(3):
        made(store, number)
    watched = Watched(store)
    watched.check()
    return watched


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("work", "times", "seed"),
    [
        pytest.param("change", 6, 1, id="change"),
        pytest.param("ingest", 6, 2, id="ingest"),
        pytest.param("change", 45, 3, id="change, many", marks=pytest.mark.thorough),
        pytest.param("ingest", 45, 4, id="ingest, many", marks=pytest.mark.thorough),
        pytest.param("capture", 20, 5, id="capture, many", marks=[pytest.mark.thorough, pytest.mark.model]),
    ],
)
def test_a_worker_killed_at_any_moment_leaves_whole_runs_and_all_of_them(
    work: str, times: int, seed: int, nursery: Nursery, tmp_path: Path
) -> None:
    watched = _store(tmp_path)
    _kill(nursery, work, times, seed, watched)
    watched.check_that_it_goes_on()


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("fault", "words"), [("careless", "half a run is visible"), ("forgetful", "has changed"), ("losing", "is lost")]
)
def test_a_store_that_writes_where_readers_look_is_caught(
    fault: str, words: str, nursery: Nursery, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=words):
        _kill(nursery, fault, 20, 6, _store(tmp_path))
