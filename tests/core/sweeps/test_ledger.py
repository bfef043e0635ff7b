"""A store's files alone say what became of every cell, whatever was killed, lost or damaged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from core.runs.reader import RunReader
from core.runs.store.store import cell_of
from core.runs.views.layers import modules_of
from core.sweeps.ledger import DONE, FAILED, MISSING, RUNNING, Ledger, in_ledger, run_id_of
from core.sweeps.plan import read_plan
from tests.core.sweeps.stand_in import write
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
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


def test_the_run_of_a_cell_is_named_by_what_was_asked_and_with_what(cell):
    run_id = run_id_of(cell.asked, {"b": 1, "a": 2})
    assert run_id == run_id_of(cell.asked, {"a": 2, "b": 1})
    assert run_id != run_id_of(cell.asked, {"a": 2, "b": 2})
    assert cell_of(run_id) == cell.asked
    assert cell_of("20261120-213000-fresh-against-cached-3f9a") is None


def test_a_cell_is_missing_running_failed_or_done(ledger, cell, store):
    assert _state(ledger, cell).state == MISSING
    with ledger.claim(cell.asked) as is_ours:
        assert is_ours
        assert _state(ledger, cell).state == RUNNING
        with Ledger(store).claim(cell.asked) as is_anothers:
            assert not is_anothers
        assert _state(ledger, cell).state == RUNNING
    ledger.fail(cell.asked, "no room")
    assert (_state(ledger, cell).state, _state(ledger, cell).says) == (FAILED, "no room")
    run_id = run_id_of(cell.asked, {})
    write(store, run_id, cell.request)
    ledger.succeed(cell.asked, run_id)
    found = _state(ledger, cell)
    assert (found.state, [card.run_id for card in found.cards]) == (DONE, [run_id])


def test_a_card_has_the_figures_of_its_run(ledger, cell, store):
    """moved by 2 logits in one of 8 elements: token 2 has 5 where token 3 has 4, a flip."""
    run_id = run_id_of(cell.asked, {})
    write(store, run_id, cell.request, moved=2.0, verdict="bug suspected")
    card = ledger.cards()[run_id]
    assert (card.verdict, card.flips, card.neq_share, card.max_abs) == ("bug suspected", 1, 1 / 8, 2.0)
    assert (card.noise_ratio, card.bit_identical, card.build) == (1.0, False, "7")
    with RunReader(store.path_of(run_id)) as run:
        assert card.bits == tuple(side.stored_sha256 for side in run.sides)
    assert card.versions["engine"] == "1"


def test_a_card_has_the_growth_over_the_blocks_that_the_layers_page_shows(ledger, cell, store):
    run_id = run_id_of(cell.asked, {})
    shutil.copy(SAMPLES / "where-it-starts.duckdb", store.directory / f"{run_id}.duckdb")
    growth = ledger.cards()[run_id].growth
    with RunReader(store.path_of(run_id)) as run:
        expected = [each.rms_row_ulps for each in modules_of(run.layers(0)) if each.kind == "residual"]
    assert len(growth) > 3
    assert growth == pytest.approx(expected, rel=1e-12)
    assert Ledger(store).cards()[run_id].growth == growth  # out of cards.jsonl


def test_cards_without_growth_as_they_were_once_kept_are_read_again(ledger, cell, store):
    run_id = run_id_of(cell.asked, {})
    write(store, run_id, cell.request)
    kept = asdict(ledger.cards()[run_id])
    del kept["growth"]
    (ledger.folder / "cards.jsonl").write_text(json.dumps(kept) + "\n")
    assert Ledger(store).cards()[run_id].growth == ()


def test_a_state_with_nothing_new_is_the_same_object_and_one_with_a_run_more_or_less_is_not(ledger, plan_file, store):
    cells = in_ledger(read_plan(plan_file(paths=["decode", "chunked:8"])).cells)
    (first, _), requests = cells, read_plan(plan_file(paths=["decode", "chunked:8"])).cells
    write(store, run_id_of(first[0], {"build": 1}), requests[0].request)
    before = ledger.states(cells)
    assert [state is kept for state, kept in zip(ledger.states(cells), before, strict=True)] == [True, True]
    write(store, run_id_of(first[0], {"build": 2}), requests[0].request)
    after = ledger.states(cells)
    assert [len(state.cards) for state in after] == [2, 0]
    assert after[1] is before[1]
    assert after[0].cards[1] is before[0].cards[0]  # the latest first
    store.delete(run_id_of(first[0], {"build": 1}))
    store.delete(run_id_of(first[0], {"build": 2}))
    assert [state.state for state in ledger.states(cells)] == [MISSING, MISSING]


@pytest.mark.parametrize("damage", [b"", b"\0\xff", b"{", b'{"run_id": 1}\n', b"[[[[", b"null\n"])
def test_figures_that_were_lost_or_damaged_are_read_from_the_runs_again(ledger, cell, store, damage):
    write(store, run_id_of(cell.asked, {}), cell.request)
    cards = ledger.cards()
    place = ledger.folder / "cards.jsonl"
    assert len(place.read_text().splitlines()) == 1
    place.write_bytes(damage)
    assert Ledger(store).cards() == cards
    assert Ledger(store).cards() == cards


def test_figures_that_are_kept_are_not_read_again(ledger, cell, store):
    """The twin: with the run's file gone bad, only kept figures can be had."""
    run_id = run_id_of(cell.asked, {})
    write(store, run_id, cell.request)
    cards = ledger.cards()
    store.path_of(run_id).write_bytes(b"no run")
    assert ledger.cards() == cards
    (ledger.folder / "cards.jsonl").unlink()
    assert Ledger(store).cards() == {}


def test_a_run_that_was_deleted_is_no_cell_of_anything(ledger, cell, store):
    run_id = run_id_of(cell.asked, {})
    write(store, run_id, cell.request)
    assert ledger.cards()
    store.delete(run_id)
    assert ledger.cards() == {}
    assert _state(ledger, cell).state == MISSING


def test_a_cell_whose_worker_was_killed_is_not_running(ledger, cell):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom core.runs.store.store import Store\n"
        "from core.sweeps.ledger import Ledger\n"
        "with Ledger(Store(Path(sys.argv[1]))).claim(sys.argv[2]):\n"
        "    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(ledger.store.directory), cell.asked],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert _state(ledger, cell).state == RUNNING
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        until(lambda: _state(ledger, cell).state == MISSING)
    assert (ledger.folder / "claims" / cell.asked).exists()  # what it left is no claim
    with ledger.claim(cell.asked) as is_ours:
        assert is_ours


def test_a_plan_is_kept_and_one_that_is_damaged_is_left_out(ledger, plan_file):
    plan = read_plan(plan_file(name="nightly", dtypes=["bfloat16", "float32"]))
    ledger.keep(plan)
    ledger.keep(read_plan(plan_file(name="other")))
    kept, other = ledger.plans()
    assert (kept.name, other.name) == ("nightly", "other")
    assert [asked for asked, _ in kept.cells] == [cell.asked for cell in plan.cells]
    assert kept.cells[1][1] == dict(plan.cells[1].axes)
    for path in ledger.folder.glob("plans/*.json"):
        if json.loads(path.read_text())["name"] == "other":
            path.write_text('{"name": "other", "cells": [[1]]}')
    assert [plan.name for plan in ledger.plans()] == ["nightly"]


def test_what_failed_is_told_in_characters_that_can_be_seen(ledger, cell):
    ledger.fail(cell.asked, "a\x1b[31m\nb")
    assert ledger.failures()[cell.asked].isprintable()
    (ledger.folder / "failed" / f"{cell.asked}.json").write_text("{")
    assert ledger.failures() == {}
