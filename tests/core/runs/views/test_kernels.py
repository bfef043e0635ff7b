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
from core.runs.tables.kernels import KernelList, module_kind
from core.runs.views.kernels import (
    in_words,
    is_multiplied,
    place_in_words,
    shape_in_words,
    side_by_side,
    where_it_starts,
)
from core.runs.writer import RunWriter
from tests.core.runs.damaging import damaged
from tests.core.runs.kernel_runs import NARROW, ORDER, REDUCE, WIDE, block_lists, kernel_lists, kernel_run
from tests.core.runs.made_runs import header_of


def test_a_layers_number_is_left_out_of_a_modules_kind():
    assert module_kind("model.layers.13.mlp.up_proj") == "model.layers.*.mlp.up_proj"
    assert module_kind("transformer.h.0") == "transformer.h.*"
    assert module_kind("model.layers.2.block_sparse_moe.experts.7.w1") == "model.layers.*.block_sparse_moe.experts.*.w1"
    assert module_kind("lm_head") == "lm_head"


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


def test_names_that_hold_markdown_stay_names():
    reference, _ = kernel_lists()
    row = dataclasses.replace(reference.rows[0], name="a`**b**`")
    pairs = side_by_side(dataclasses.replace(reference, rows=()), dataclasses.replace(reference, rows=(row,)))
    assert in_words(pairs, ("x", "y`z")) == "`a'**b**'` only in `y'z`."


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


def test_a_name_cannot_leave_its_code_span_by_a_blank_line():
    reference, _ = kernel_lists()
    row = dataclasses.replace(reference.rows[0], name="a\n\n![x](http://x/y.png)")
    pairs = side_by_side(dataclasses.replace(reference, rows=()), dataclasses.replace(reference, rows=(row,)))
    assert in_words(pairs, ("x", "y")) == "`a ![x](http://x/y.png)` only in `y`."


def test_what_adds_something_up_is_named_before_what_only_moves_values():
    reference, variant = kernel_lists()
    moved = [
        dataclasses.replace(reference.rows[0], library="torch", name=f"aten::{name}")
        for name in ("arange", "cat", "clone", "mul")
    ]
    pairs = side_by_side(dataclasses.replace(reference, rows=(*moved, *reference.rows)), variant)
    assert "and 2 more only in `a`" in in_words(pairs, ("a", "b"))


def test_two_sides_of_which_nothing_was_seen_are_not_called_the_same():
    empty = KernelList(0, (), 1, 1)
    assert "seen on either side" in in_words(side_by_side(empty, empty), ("a", "b"))


def test_the_same_shapes_in_another_order_are_the_same_shapes():
    row = dataclasses.replace(kernel_lists()[0].rows[0], name="aten::mm", detail="1x8")
    other = dataclasses.replace(row, detail="2x8")
    lists = (KernelList(0, (row, other), 1, 1), KernelList(1, (other, row), 1, 1))
    assert "other shapes" not in in_words(side_by_side(*lists), ("a", "b"))
    lists = (KernelList(0, (row, row), 1, 1), KernelList(1, (other, row), 1, 1))  # the twin: one shape is another
    assert "1 of them in other shapes" in in_words(side_by_side(*lists), ("a", "b"))


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


def test_attention_which_is_no_module_is_told_with_the_projection_behind_it():
    attention, output = "model.layers.0.self_attn", "model.layers.0.self_attn.o_proj"
    fused = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert set(names_at(output)) == {(output, "aten::mm"), (attention, fused), (attention, "aten::cat")}
    found = {pair.name: pair for pair in where_it_starts(*block_lists(), ORDER, output, 0, 1).pairs}
    assert found[fused].variant_details == (
        "bfloat16 2x2x1x4, 2x2x1x4",
        "bfloat16 2x2x1x4, 2x2x2x4",
    )  # of both forwards


def test_logits_are_made_by_what_runs_behind_the_last_module_and_a_sum_of_streams_adds_nothing_up():
    assert names_at("logits") == [("lm_head", "aten::mm")]
    assert names_at("model.layers.0") == [("model.layers.0", "aten::add")]
    place = where_it_starts(*block_lists(), ORDER, "model.layers.0", 0, 1)
    assert "ran there adds up: `aten::add`" in place_in_words(place, ("a", "b"))


def test_another_kernel_where_it_starts_is_told_to_be_of_one_side():
    reference, variant = block_lists()
    rows = tuple(
        dataclasses.replace(row, name="aten::bmm") if row.module.endswith("o_proj") else row for row in variant.rows
    )
    place = where_it_starts(
        reference, dataclasses.replace(variant, rows=rows), ORDER, "model.layers.0.self_attn.o_proj", 0, 1
    )
    said = place_in_words(place, ("a", "b"))
    assert "[1, 8] x [8, 8]" in said
    assert "[2, 8] x [8, 8]" in said


def test_the_same_kernel_in_the_same_shape_is_said_to_be_that():
    reference, _ = block_lists()
    place = where_it_starts(reference, reference, ORDER, "model.layers.0.mlp.down_proj", 0, 1)
    assert "[1, 32] x [32, 8]" in place_in_words(place, ("a", "b"))


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("1x384, 384x2048", "[1, 384] x [384, 2048]"),  # as runs had it before dtypes were told
        ("bfloat16 1x384, 384x2048", "bfloat16 [1, 384] x [384, 2048]"),
        ("int64 5, float32 64x8", "int64 [5] x float32 [64, 8]"),
        ("T,N,384,2,384", "`T,N,384,2,384`"),
        ("bf16 13x384:384x2048", "`bf16 13x384:384x2048`"),
        ("a`b", "`a'b`"),
        ("", "no shape told"),
    ],
)
def test_shapes_are_written_as_shapes_and_a_librarys_own_words_stay(detail, said):
    assert shape_in_words(detail) == said


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
