"""Kernels in the run file and side by side: read by plain SQL and read back; counted a forward; the public example
found.
"""

from __future__ import annotations

import dataclasses

import duckdb
import pytest

from core.errors import StoreError, UsageError
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.tables.kernels import KernelList
from core.runs.views.kernels import in_words, is_multiplied, place_in_words, side_by_side, where_it_starts
from core.runs.writer import RunWriter
from tests.core.runs.damaging import damaged
from tests.core.runs.kernel_runs import NARROW, ORDER, REDUCE, WIDE, block_lists, kernel_lists, kernel_run
from tests.core.runs.made_runs import header_of


def test_the_public_example_is_told_another_tile_and_three_times_the_reductions():
    pairs = side_by_side(*kernel_lists())
    found = {pair.name: pair for pair in pairs}
    assert (found[NARROW].only, found[WIDE].only, found[REDUCE].only) == ("reference", "variant", "")
    assert (found[REDUCE].reference_launches, found[REDUCE].variant_launches, found[REDUCE].ratio) == (2.0, 6.0, 3.0)
    assert (found[REDUCE].reference_microseconds, found[REDUCE].variant_microseconds) == (4.0, 12.0)
    assert found[REDUCE].places == ("model.layers.*.mlp.down_proj",)
    assert [is_multiplied(pair) for pair in pairs] == [False, False, True, False]
    said = in_words(pairs, ("prefill", "prefill+batch:2"))
    assert "more or less often a forward" in said


def test_as_often_a_forward_is_no_difference_whatever_the_number_of_forwards():
    """The twin: forty times as many forwards of the same."""
    reference, _ = kernel_lists()
    rows = tuple(dataclasses.replace(row, launches=row.launches * 8) for row in reference.rows)
    pairs = side_by_side(reference, dataclasses.replace(reference, rows=rows, forwards=8, of=40))
    assert not [pair for pair in pairs if pair.only or is_multiplied(pair)]
    assert "Both sides launch the same" in in_words(pairs, ("prefill", "decode"))


def test_kernels_come_back_as_they_were_and_are_plain_sql(tmp_path):
    store = Store(tmp_path)
    run_id = kernel_run(store)
    with RunReader(store.path_of(run_id)) as run:
        assert run.kernels == dict(enumerate(kernel_lists()))
    with duckdb.connect(str(store.path_of(run_id)), read_only=True) as database:
        asked = "SELECT side, sum(launches) FROM kernel WHERE name LIKE 'splitK%' GROUP BY side ORDER BY side"
        assert database.execute(asked).fetchall() == [(0, 2), (1, 18)]


def test_a_run_that_was_not_watched_has_none(tmp_path):
    store = Store(tmp_path)
    with RunReader(store.path_of(kernel_run(store, watched=False))) as run:
        assert run.kernels == {}


def test_kernels_of_a_side_that_is_not_there_are_refused(tmp_path):
    header = header_of(lengths=(3,))
    with RunWriter(Store(tmp_path), header) as writer, pytest.raises(UsageError, match="kernels of side 2 arrived"):
        writer.write_kernels(dataclasses.replace(kernel_lists()[0], side=2))


def test_two_sides_of_which_nothing_was_seen_are_not_called_the_same():
    empty = KernelList(0, (), 1, 1)
    assert "seen on either side" in in_words(side_by_side(empty, empty), ("a", "b"))


def names_at(first: str, lists: tuple[KernelList, KernelList] | None = None) -> list[tuple[str, str]]:
    place = where_it_starts(*(lists or block_lists()), ORDER, first, 0, 1)
    return [("; ".join(pair.modules), pair.name) for pair in place.pairs]


def test_the_first_module_that_differs_is_told_with_what_ran_in_it_and_in_what_shapes():
    """Attention is launched as often and as differently; but the sides were still equal behind it."""
    down = "model.layers.0.mlp.down_proj"
    assert sorted(names_at(down)) == [(down, "SGEMM"), (down, "aten::mm")]
    place = where_it_starts(*block_lists(), ORDER, down, 0, 1)
    said = place_in_words(place, ("decode", "decode+batch:2"))
    assert "differs is `model.layers.0.mlp.down_proj`" in said
    assert "[2, 32] x [32, 8]" in said
    assert "`T,N,8,1,32` against `T,N,8,2,32`" in said
    assert "prompt 3, position 1" in place_in_words(
        dataclasses.replace(place, prompt=3), ("a", "b"), is_one_prompt=False
    )


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE kernel SET microseconds = 'nan'",
        "UPDATE kernel SET launches = 0",
        "UPDATE kernel SET library = '<img>'",
        "UPDATE kernel_side SET forwards = 0",
        "UPDATE kernel_side SET forwards_of = 0",
    ],
)
def test_kernels_that_cannot_have_been_counted_are_a_damaged_file(tmp_path, damage):
    store = Store(tmp_path)
    path = store.path_of(kernel_run(store))
    damaged(path, damage)
    with RunReader(path) as run, pytest.raises(StoreError, match="kernels makes no sense"):
        _ = run.kernels
