"""Machines that share a store of objects share its sweeps: plans, reasons of failures, claims and cards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.runs.store import lease
from core.sweeps import ledger as ledgers
from core.sweeps.ledger import DONE, FAILED, MISSING, RUNNING, Ledger, in_ledger, run_id_of
from core.sweeps.plan import SweepPlan, read_plan
from tests.core.runs.store.machines import machines_of
from tests.core.sweeps.stand_in import write
from tests.waiting import until


@pytest.fixture(params=["file", "s3"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Ledger]:
    """Ledger of one store as a machine of that name has it."""
    if request.param == "s3":
        pytest.importorskip("s3fs")
    machine = machines_of(request.param, request, tmp_path, monkeypatch)
    return lambda name: Ledger(machine(name))


@pytest.fixture
def plan(plan_file) -> SweepPlan:
    return read_plan(plan_file(paths=["decode", "chunked:8"]))


def _states(ledger: Ledger, plan: SweepPlan) -> list[tuple[str, str]]:
    return [(state.state, state.says) for state in ledger.states(in_ledger(plan.cells))]


def test_another_machine_sees_the_plan_what_failed_and_what_is_done(machine, plan):
    here, there = machine("a"), machine("b")
    here.keep(plan)
    here.fail(plan.cells[1].asked, "no room")
    assert [kept.name for kept in there.plans()] == [plan.name]
    assert _states(there, plan) == [(MISSING, ""), (FAILED, "no room")]
    run_id = run_id_of(plan.cells[1].asked, {})
    write(there.store, run_id, plan.cells[1].request)
    there.succeed(plan.cells[1].asked, run_id)
    assert _states(here, plan) == [(MISSING, ""), (DONE, "")]
    assert here.failures() == {}


def test_a_cell_that_another_machine_computes_is_not_computed_here(machine, plan):
    here, there, cell = machine("a"), machine("b"), plan.cells[0]
    with here.claim(cell.asked) as is_ours:
        assert is_ours
        with there.claim(cell.asked) as is_theirs:
            assert not is_theirs
        ((state, says), _) = _states(there, plan)
        assert state == RUNNING
        assert says.startswith("on ")
    assert _states(there, plan)[0] == (MISSING, "")
    with there.claim(cell.asked) as is_theirs:
        assert is_theirs


def test_the_claim_of_a_machine_that_died_is_nobodys_after_a_while(machine, plan, monkeypatch):
    here, there, cell = machine("a"), machine("b"), plan.cells[0]
    now = time.time()
    name = f"{ledgers.FOLDER}/claims/{cell.asked}.json"
    said = {"host": "gone", "since": now, "token": "x", "renewed": now - lease.LEASE_SECONDS / 2}
    here.store.mirror._objects.write(name, json.dumps(said).encode())
    with there.claim(cell.asked) as is_theirs:
        assert not is_theirs
    said["renewed"] = now - 2 * lease.LEASE_SECONDS
    here.store.mirror._objects.write(name, json.dumps(said).encode())
    assert _states(there, plan)[0] == (MISSING, "")
    with there.claim(cell.asked) as is_theirs:
        assert is_theirs
        with here.claim(cell.asked) as is_ours:
            assert not is_ours
    assert here.store.mirror._objects.find(name) is None


def test_a_cell_that_was_being_computed_when_its_machine_was_killed_is_its_own_at_once_and_no_others(machine, plan):
    here, there, cell = machine("a"), machine("b"), plan.cells[0]
    killed = {"host": "a", "token": "x", "since": time.time(), "renewed": time.time()}
    name = f"{ledgers.FOLDER}/claims/{cell.asked}.json"
    here.store.mirror._objects.write(name, json.dumps({**killed, "machine": here.store.mirror.machine}).encode())
    with there.claim(cell.asked) as is_theirs:
        assert not is_theirs
    with here.claim(cell.asked) as is_ours:
        assert is_ours


@pytest.mark.parametrize("said", [b"", b"{", b"[]", b'{"renewed": "now"}', b"[" * 100_000])
def test_a_claim_that_says_nothing_holds_nothing(machine, plan, said):
    here, cell = machine("a"), plan.cells[0]
    here.store.mirror._objects.write(f"{ledgers.FOLDER}/claims/{cell.asked}.json", said)
    assert _states(here, plan)[0] == (MISSING, "")
    with here.claim(cell.asked) as is_ours:
        assert is_ours


def test_a_lease_is_renewed_as_long_as_it_is_held(machine, plan, monkeypatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.01)
    here, cell = machine("a"), plan.cells[0]
    name = f"{ledgers.FOLDER}/claims/{cell.asked}.json"
    objects = here.store.mirror._objects
    with here.claim(cell.asked):
        first = json.loads(objects.read(name))["renewed"]
        until(lambda: json.loads(objects.read(name))["renewed"] > first)
    assert objects.find(name) is None


def test_cards_come_from_the_machine_that_computed_them_and_no_run_is_fetched(machine, plan):
    here, there, cell = machine("a"), machine("b"), plan.cells[0]
    run_id = run_id_of(cell.asked, {})
    write(here.store, run_id, cell.request, moved=2.0, verdict="bug suspected")
    here.cards()
    here.share()
    (state, _) = there.states(in_ledger(plan.cells))
    assert [card.verdict for card in state.cards] == ["bug suspected"]
    assert not list(there.store.directory.glob("*.duckdb"))


def test_a_machine_that_fetches_runs_for_their_cards_would_be_noticed(machine, plan, monkeypatch):
    monkeypatch.setattr(Ledger, "share", lambda self: None)
    with pytest.raises(AssertionError):
        test_cards_come_from_the_machine_that_computed_them_and_no_run_is_fetched(machine, plan)
