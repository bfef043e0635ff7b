"""Kernels in the run file and side by side: read by plain SQL and read back; counted a forward; the
public example found.
"""

import dataclasses
from contextlib import ExitStack

import pytest

from core.runs.queries.flips import SIDES
from core.runs.queries.kernels import (
    counts_in_words,
    find_start,
    in_words,
    place_in_words,
    short_name,
    side_by_side,
)
from core.runs.reader import RunReader
from core.runs.tables.kernels import KernelList, KernelRow
from tests.core.runs.damaging import damaged
from tests.core.runs.kernel_runs import (
    NARROW,
    ORDER,
    REDUCE,
    WIDE,
    block_lists,
    kernel_lists,
    kernel_run,
)


@pytest.fixture
def read(store):
    """Read a run of these kernels of each side; with modules, the first of which differs in
    `differs`.
    """
    with ExitStack() as stack:

        def opened(
            lists,
            order=(),
            differs="",
        ):
            path = store.path_of(kernel_run(store, lists=lists))
            rows = [
                f"(0, 0, {n}, '{name}', 'mlp', NULL, 'bfloat16', 1, 1,"
                f" {n >= order.index(differs):d}, 1, 1, 1, 1, 1, 1, 1, 0, 1, NULL)"
                for n, name in enumerate(order)
            ]
            if rows:
                damaged(path, f"INSERT INTO layer VALUES {', '.join(rows)}")
            return stack.enter_context(RunReader(path))

        yield opened


def test_the_public_example_is_told_another_tile_and_three_times_the_reductions(read):
    table = side_by_side(read(kernel_lists()), 0)
    found = {row.name: row for row in table.itertuples(index=False)}
    reduce = found[REDUCE]
    assert [each.only for each in (found[NARROW], found[WIDE], reduce)] == [*SIDES, ""]
    assert reduce.reference_launches == 2.0
    assert reduce.variant_launches == 6.0
    assert reduce.ratio == 3.0
    assert reduce.reference_microseconds == 4.0
    assert reduce.variant_microseconds == 12.0
    assert reduce.places == ["model.layers.*.mlp.down_proj"]
    assert table["is_multiplied"].tolist() == [False, False, True, False]
    names = ("prefill", "prefill+batch:2")
    assert "launch counts per forward" in in_words(table, names)
    assert "1 only in `prefill`, 1 only in `prefill+batch:2` and 1" in counts_in_words(table, names)


def test_as_often_a_forward_is_no_difference_whatever_the_number_of_forwards(read):
    """The twin: forty times as many forwards of the same."""
    reference, _ = kernel_lists()
    rows = tuple(dataclasses.replace(row, launches=row.launches * 8) for row in reference.rows)
    variant = dataclasses.replace(reference, side=1, rows=rows, forwards=8, forwards_of=40)
    table = side_by_side(read((reference, variant)), 0)
    assert not ((table["only"] != "") | table["is_multiplied"]).any()
    assert "Both sides launch the same" in in_words(table, ("prefill", "decode"))
    assert "both sides launch the same" in counts_in_words(table, ("prefill", "decode"))


def test_numbers_of_layers_are_left_out_of_a_kind_of_module(read):
    names = ("a.3.mlp", "a.4.mlp", "a.b2.mlp", "a.0.1", "a.2.5.w")
    rows = tuple(KernelRow(name, "torch", "aten::mm", "", 1, 1.0) for name in names)
    lists = [KernelList(side, rows, 1, 1) for side in range(2)]
    table = side_by_side(read(lists), 0)
    assert table["places"].tolist() == [["a.*.mlp", "a.b2.mlp", "a.*.*", "a.*.*.w"]]


def test_the_first_module_that_differs_is_told_with_what_ran_in_it_and_in_what_shapes(read):
    """Attention is launched as often and as differently; but the sides were still equal behind
    it.
    """
    down = "model.layers.0.mlp.down_proj"
    run = read(block_lists(), ORDER, down)
    place = find_start(run, 0)
    assert sorted(zip(place.kernels["modules"], place.kernels["name"], strict=True)) == [
        ([down], "SGEMM"),
        ([down], "aten::mm"),
    ]
    text = place_in_words(run.header, place, ("decode", "decode+batch:2"))
    assert "differs is `model.layers.0.mlp.down_proj`" in text
    # the first alone: a list of CUDA kernels is lines of raw names
    assert "`SGEMM` (`T,N,8,1,32` vs `T,N,8,2,32`) and 1 more." in text
    several = dataclasses.replace(run.header, prompts=2 * run.header.prompts)
    assert "position 1 of prompt 0" in place_in_words(several, place, ("a", "b"))


@pytest.mark.parametrize(
    ("differs", "modules"),
    [
        (
            "model.layers.0.self_attn.o_proj",
            {"model.layers.0.self_attn.o_proj", "model.layers.0.self_attn"},
        ),
        ("logits", {"lm_head"}),
    ],
)
def test_attention_shows_in_the_projection_behind_it_and_the_head_in_the_logits(
    differs,
    modules,
    read,
):
    place = find_start(read(block_lists(), ORDER, differs), 0)
    assert {name for names in place.kernels["modules"] for name in names} == modules


def test_names_of_cuda_kernels_are_cut_to_what_tells_them_apart():
    lambdas = "(at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda(float)#1}"
    name = (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::sin_kernel_cuda{lambdas},"
        " char*>(int, char*)"
    )
    assert short_name(name) == "vectorized_elementwise_kernel<4, sin_kernel_cuda, char*>"
    assert (
        short_name("void at::native::(anonymous namespace)::cat<long, -1>(long)") == "cat<long, -1>"
    )
    kept = (
        "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT",
        "Memcpy DtoH (Device -> Pinned)",
        "matmul (brg)",
    )
    assert [short_name(each) for each in kept] == list(kept)
