"""A slot of another machine: it knows a store that it shares, has the files that a cell names, gives runs in pieces."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import UlpscopeError
from core.sweeps.ledger import DONE, FAILED, Ledger
from core.sweeps.plan import read_plan
from core.sweeps.slot import CarriedCell, Slot, SlotOrder, marked

PACKAGE = "tests.core.sweeps.stand_in"


@pytest.fixture
def order(store, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where slots have their folders
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with marked(store.directory) as (marker, token):
        yield SlotOrder(store.directory, marker, token, tmp_path, (), PACKAGE, None)


@pytest.fixture
def slot_of():
    """Make slots, and stop them."""
    made: list[Slot] = []

    def make(order: SlotOrder) -> Slot:
        made.append(Slot(order))
        return made[-1]

    yield make
    for slot in made:
        slot.stop()


def _cell(plan_file, path="p1"):
    return CarriedCell.of(read_plan(plan_file(paths=[path])).cells[0])


def test_a_slot_that_sees_the_store_computes_into_it(order, slot_of, store, plan_file):
    slot = slot_of(order)
    assert slot.introduced()["sees_store"]
    outcome = slot.compute(_cell(plan_file))
    assert outcome.state == DONE
    assert Ledger(store).run_ids() == {outcome.run_id}


@pytest.mark.parametrize("fault", ["another token", "no marker"])
def test_a_slot_that_sees_another_store_gives_the_run_in_pieces(order, slot_of, store, plan_file, fault):
    other = replace(order, token="0" * 32) if fault == "another token" else replace(order, marker=Path("/nowhere"))
    slot = slot_of(other)
    assert not slot.introduced()["sees_store"]
    outcome = slot.compute(_cell(plan_file))
    size, sealed = slot.sealed(outcome.run_id)
    body = b"".join(slot.piece(outcome.run_id, start, 100_000) for start in range(0, size, 100_000))
    assert (len(body), hashlib.sha256(body).hexdigest()) == (size, sealed)
    assert Ledger(store).run_ids() == set()
    slot.forget(outcome.run_id)
    with pytest.raises(OSError, match="No such file"):
        slot.sealed(outcome.run_id)


def test_a_slot_leaves_nothing_and_removes_what_a_killed_one_left(order, slot_of, tmp_path):
    top = tmp_path / f"ulpscope-slots-{os.getuid()}"
    first = slot_of(order)
    (left,) = top.iterdir()
    killed = top / "killed"
    (killed / "store").mkdir(parents=True)
    second = slot_of(order)
    assert not killed.exists()
    assert left.exists(), "its slot lives"
    first.stop()
    second.stop()
    assert list(top.iterdir()) == []


def test_prompts_travel_with_their_cell_to_a_machine_that_has_none_or_others(order, plan_file, tmp_path):
    plan = plan_file(prompt="here")
    (cell,) = read_plan(plan).cells
    carried, there = CarriedCell.of(cell), tmp_path / "there"
    assert carried.placed(Path.cwd(), there) is cell
    (plan.parent / "a.txt").write_text("another")
    placed = carried.placed(Path.cwd(), there)
    (named,) = placed.request.prompt_files
    assert Path(named).read_text() == "here"
    assert Path(named).is_relative_to(there)
    assert (placed.asked, replace(placed.request, prompt_files=cell.request.prompt_files)) == (cell.asked, cell.request)


def test_a_file_of_prompts_that_is_gone_is_one_sentence(plan_file):
    plan = plan_file()
    (cell,) = read_plan(plan).cells
    (plan.parent / "a.txt").unlink()
    with pytest.raises(UlpscopeError, match=r"a\.txt: cannot be read \(No such file"):
        CarriedCell.of(cell)


def test_threads_are_the_drivers_and_not_the_schedulers(order, slot_of, monkeypatch):
    slot_of(order)
    assert "OMP_NUM_THREADS" not in os.environ
    slot_of(replace(order, threads="2"))
    assert os.environ["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_cell_that_fails_in_a_slot_says_why(order, slot_of, plan_file):
    outcome = slot_of(order).compute(_cell(plan_file, "crash"))
    assert (outcome.state, outcome.says) == (FAILED, "its process was killed, as where memory runs out.")


def test_markers_of_sweeps_that_were_killed_go_and_those_of_living_ones_stay(store):
    folder = store.directory / ".sweeps" / "markers"
    with marked(store.directory) as (living, token):
        (folder / "killed").write_text("killed")
        with marked(store.directory) as (other, _):
            assert {path.name for path in folder.iterdir()} == {living.name, other.name}
        assert living.read_text() == token
    assert list(folder.iterdir()) == []
