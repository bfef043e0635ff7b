"""The Kernels page on a run whose kernels are planted, and on runs that have none."""

from __future__ import annotations

import pytest

from core.runs.queries.kernels import find_start, in_words, place_in_words, side_by_side
from core.runs.reader import RunReader
from tests.app.opening import open_page
from tests.core.runs.kernel_runs import NARROW, REDUCE, WIDE, kernel_run
from tests.core.runs.layer_runs import layer_run, with_kernels

pytestmark = pytest.mark.usefixtures("own_store")


def test_what_only_one_side_launched_stands_first_and_the_sentence_says_it(own_store):
    app = open_page("kernels", run=kernel_run(own_store))
    assert f"`{NARROW}` only in `side_0`; `{WIDE}` only in `side_1`" in "\n".join(
        element.value for element in app.markdown
    )
    table = app.dataframe[0].value
    assert table["name"].tolist() == [NARROW, WIDE, REDUCE, "aten::mm"]
    assert table["only"].tolist() == ["reference", "variant", "", ""]
    assert table["ratio"].tolist()[2:] == [3.0, 1.0]
    assert any("1 of 1 of `side_0`, 3 of 40 of `side_1`" in element.value for element in app.caption)


def test_the_page_begins_where_the_sides_begin_to_differ_and_counts_come_after(own_store):
    """Both sides launch the same as often; the first module that differs is the norm, not the embedding before it."""
    run_id = with_kernels(own_store, layer_run(own_store, {(1, 1, 4): 3, (5, 1, 4): 1}))
    app = open_page("kernels", run=run_id)
    assert [element.value for element in app.subheader] == ["Where it starts", "All kernels"]
    said = [element.value for element in app.markdown]
    with RunReader(own_store.path_of(run_id)) as run:
        pair = run.pairs[0]
        sides = (pair.reference, pair.variant)
        start, counts = find_start(run, 0), in_words(side_by_side(run, 0), sides)
    assert (start.module, start.prompt, start.position) == ("model.layers.0.norm", 1, 4)
    first = said.index(place_in_words(start, sides, names_prompt=True, has_shapes=False))
    assert counts in said[first + 1 :]
    there = app.dataframe[0].value
    assert there["modules"].tolist() == ["model.layers.0.norm"]
    assert (there["reference_details"][0], there["variant_details"][0]) == ("bfloat16 [1, 8]", "bfloat16 [2, 8]")
