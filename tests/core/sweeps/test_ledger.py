"""A store's files alone say what became of every cell, on every machine that shares it."""

import shutil

import pytest

from core.runs.queries.layers import modules
from core.runs.store.store import cell_of
from core.sweeps.ledger import (
    DONE,
    FAILED,
    MISSING,
    RUNNING,
    CellOutcome,
    Ledger,
    in_ledger,
    run_id_of,
)
from core.sweeps.plan import read_plan
from tests.core.runs.made_runs import opened
from tests.core.runs.store.machines import machines_of
from tests.core.sweeps.stand_in import write
from tests.places import ROOT

SAMPLES = ROOT / "sample_runs"


@pytest.fixture
def cell(plan_file):
    return read_plan(plan_file(), build="7").cells[0]


@pytest.fixture
def ledger(store):
    return Ledger(store)


def _state(ledger, cell):
    (state,) = ledger.states(in_ledger([cell]))
    return state


def test_the_run_of_a_cell_is_named_by_its_request_and_its_environment(cell):
    run_id = run_id_of(cell.digest, {"b": 1, "a": 2})
    assert run_id == run_id_of(cell.digest, {"a": 2, "b": 1})
    assert run_id != run_id_of(cell.digest, {"a": 2, "b": 2})
    assert cell_of(run_id) == cell.digest
    assert cell_of("20261120-213000-fresh-against-cached-3f9a") is None


def test_a_cell_is_missing_running_failed_or_done(ledger, cell, store):
    run_id = run_id_of(cell.digest, {})
    assert _state(ledger, cell).state == MISSING
    # its lock is held by this process, which lives
    partial = store.new_partial(run_id, None, run_id)
    assert _state(ledger, cell).state == RUNNING
    partial.remove()
    ledger.record(CellOutcome(cell, FAILED, says="no\x1b[31m room"))
    assert _state(ledger, cell).state == FAILED
    assert _state(ledger, cell).says.isprintable()
    write(store, run_id, cell.request)
    ledger.record(CellOutcome(cell, DONE, run_id))
    state = _state(ledger, cell)
    assert state.state == DONE
    assert [card.run_id for card in state.cards] == [run_id]
    store.delete(run_id)
    assert _state(Ledger(store), cell).state == MISSING


def test_the_latest_run_of_a_cell_is_first(ledger, cell, store):
    run_ids = [run_id_of(cell.digest, {"build": build}) for build in (1, 2)]
    for run_id in run_ids:
        write(store, run_id, cell.request)
    assert [card.run_id for card in _state(ledger, cell).cards] == run_ids[::-1]


def test_a_card_has_the_figures_of_its_run(ledger, cell, store):
    """moved by 2 logits in one of 8 elements: token 2 has 5 where token 3 has 4, a flip."""
    run_id = run_id_of(cell.digest, {})
    write(store, run_id, cell.request, moved=2.0, verdict="bug suspected")
    card = ledger.cards()[run_id]
    assert card.verdict == "bug suspected"
    assert card.flips == 1
    assert card.neq_share == 1 / 8
    assert card.noise_ratio == 1.0
    assert card.versions["build"] == "7"
    with opened(store, run_id) as run:
        assert card.bits == tuple(side.stored_sha256 for side in run.sides)
    assert card.versions["engine"] == "1"


def test_a_card_has_the_growth_that_the_layers_page_shows(ledger, cell, store):
    run_id = run_id_of(cell.digest, {})
    shutil.copy(SAMPLES / "where-it-starts.duckdb", store.directory / f"{run_id}.duckdb")
    growth = ledger.cards()[run_id].growth
    with opened(store, run_id) as run:
        table = modules(run, 0)
    expected = table.loc[table["kind"] == "residual", "rms_row_ulps"].tolist()
    assert len(growth) > 3
    assert growth == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("damage", [None, "{", '{"run_id": 1}'])
def test_a_card_is_read_once_and_again_from_the_run_if_it_is_lost(ledger, cell, store, damage):
    run_id = run_id_of(cell.digest, {})
    write(store, run_id, cell.request)
    cards = ledger.cards()
    path = ledger.folder / "cards" / f"{run_id}.json"
    body = store.path_of(run_id).read_bytes()
    store.path_of(run_id).write_bytes(b"no run")
    assert Ledger(store).cards() == cards  # not out of the run
    store.path_of(run_id).write_bytes(body)
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage)
    assert Ledger(store).cards() == cards


def test_a_plan_replaces_the_older_one_of_its_name(ledger, plan_file):
    ledger.write_plan(read_plan(plan_file(name="nightly")))
    assert len(ledger.plans()[0].cells) == 1
    plan = read_plan(plan_file(name="nightly", dtypes=["bfloat16", "float32"]))
    ledger.write_plan(plan)
    ledger.write_plan(read_plan(plan_file(name="other")))
    nightly, other = ledger.plans()
    assert nightly.name == "nightly"
    assert other.name == "other"
    assert list(nightly.cells) == in_ledger(plan.cells)


def test_machines_that_share_a_store_of_objects_share_its_sweeps(
    request,
    plan_file,
    tmp_path,
    monkeypatch,
):
    machine = machines_of(request, tmp_path, monkeypatch)
    here, there, plan = (
        Ledger(machine("a")),
        Ledger(machine("b")),
        read_plan(plan_file(paths=["decode", "chunked:8"])),
    )
    here.write_plan(plan)
    here.record(CellOutcome(plan.cells[1], FAILED, says="no room"))
    assert [stored.name for stored in there.plans()] == [plan.name]
    assert [(state.state, state.says) for state in there.states(in_ledger(plan.cells))] == [
        (MISSING, ""),
        (FAILED, "no room"),
    ]
    run_id = run_id_of(plan.cells[1].digest, {})
    write(there.store, run_id, plan.cells[1].request, verdict="bug suspected")
    there.record(CellOutcome(plan.cells[1], DONE, run_id))
    there.cards()
    _, state = here.states(in_ledger(plan.cells))
    assert state.state == DONE
    assert state.cards[0].verdict == "bug suspected"
    assert not list(here.store.directory.glob("*.duckdb")), (
        "a card is not a reason to fetch its run"
    )
