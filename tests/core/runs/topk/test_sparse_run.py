"""A run of sparse sides keeps what was sent, bit for bit, and its figures follow from that alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from core.errors import DumpError, StoreError, UsageError
from core.runs.importing import adopt
from core.runs.reader import RunReader
from core.runs.reports.sparse_json import sparse_json
from core.runs.sparse_run import SparseHeader, sparse_of, write_sparse_run
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from core.runs.topk.records import ListSide
from tests.core.runs.topk.made_sides import engine_side, response, side


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def told(found: ListSide) -> list[tuple]:
    """Everything of a side, arrays as lists."""
    return [
        (
            replace(one, rows=one.rows, texts=dict(one.texts), settings=dict(one.settings)).__dict__
            | {"rows": {name: values.tolist() for name, values in vars(one.rows).items()}},
        )
        for one in found.responses
    ]


def sides() -> tuple[ListSide, ListSide]:
    odd = response(
        [-1, 7, 8],
        {0: {7: -0.1234567, 1: -3.0000000000000004}, 1: {8: -0.25, 1: float("-inf")}},
        prompt=1,
        start_known=False,
        texts={7: "ß", 8: "\x00"},
        processed=False,
        asked=2,
        cached=3,
        settings={"temperature": "0"},
        warnings=("a note.",),
    )
    first, second = engine_side("A", 1, 20), engine_side("B", 2, 20)
    return ListSide("A", (*first.responses, odd)), ListSide("B", (*second.responses, odd))


def test_what_was_sent_comes_back_exactly(store: Store) -> None:
    written = sides()
    run_id = write_sparse_run(store, SparseHeader("top 20", model="m", note="n", versions={"vllm": "1"}), written)
    found = sparse_of(store.path_of(run_id))
    assert [told(side) for side in found.sides] == [told(side) for side in written]
    assert (found.header.name, found.header.versions) == ("top 20", {"vllm": "1"})
    again = sparse_json(found.pairs, with_positions=True)
    assert again["summary"]["flips"] == len(again["flips"])


def test_its_card_tells_what_differs_and_nothing_more(store: Store) -> None:
    write_sparse_run(store, SparseHeader("top 20"), sides())
    cards, broken = list_runs(store)
    assert not broken
    (card,) = cards
    assert (card.kind, card.sides, card.pairs, card.prompts) == ("sparse", ("A", "B"), 1, 2)
    assert card.compute_dtype == "bfloat16"
    assert 0 < card.max_neq_share < 1
    assert card.pair_verdicts == ("undecided",)
    assert card.bit_identical_pairs == 0


def test_readers_of_complete_rows_refuse_it_in_a_sentence(store: Store) -> None:
    run_id = write_sparse_run(store, SparseHeader("top 20"), sides())
    with pytest.raises(StoreError, match="no complete logits"):
        RunReader(store.path_of(run_id))


def test_sides_that_cannot_be_compared_leave_nothing(store: Store) -> None:
    one = side("A", response([5, 6], {0: {6: -0.5, 1: -1.0}}))
    other = side("B", response([7, 6], {0: {6: -0.5, 1: -1.0}}))
    with pytest.raises(DumpError, match="no position"):
        write_sparse_run(store, SparseHeader("x"), (one, other))
    with pytest.raises(UsageError, match="called 'A'"):
        write_sparse_run(store, SparseHeader("x"), (one, one))
    assert list_runs(store) == ([], [])


def test_it_goes_from_store_to_store(store: Store, tmp_path: Path) -> None:
    first = store.path_of(write_sparse_run(store, SparseHeader("top 20"), sides()))
    other = Store(tmp_path / "other")
    taken = sparse_of(other.path_of(adopt(other, first)))
    assert [told(side) for side in taken.sides] == [told(side) for side in sparse_of(first).sides]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sparse_value SET token_id = -3 WHERE rowid = 0",
        "UPDATE sparse_value SET position = 9999 WHERE rowid = 0",
        "UPDATE sparse_value SET value = 'NaN' WHERE rowid = 0",
        "INSERT INTO sparse_value SELECT * FROM sparse_value LIMIT 1",
        "UPDATE sparse_row SET best = 400 WHERE rowid = 0",
        "UPDATE sparse_row SET position = 1 WHERE rowid = 0",
        "UPDATE sparse_side SET holds = 'entropy'",
        "DELETE FROM sparse_side WHERE side = 0",
        "UPDATE sparse_response SET settings = '[' ",
        "UPDATE sparse_response SET prompt = 7 WHERE prompt = 1",
        "DROP TABLE sparse_token",
    ],
)
def test_a_damaged_file_is_refused_in_a_sentence(store: Store, tmp_path: Path, damage: str) -> None:
    path = store.path_of(write_sparse_run(store, SparseHeader("top 20"), sides()))
    with duckdb.connect(str(path)) as shell:
        shell.execute(damage)
    with pytest.raises(StoreError, match=path.stem):
        sparse_of(path)
    with pytest.raises(StoreError):
        adopt(Store(tmp_path / "other"), path)
