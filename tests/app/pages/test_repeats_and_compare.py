"""The Repeats and Compare pages on every sample run and on made ones; figures are those of the run
files.
"""

import shutil
from dataclasses import replace

import pytest
from streamlit.proto.SelectWidgetFilterMode_pb2 import FILTER_MODE_CONTAINS

from app.compare import parts as compare_parts
from app.shell.store_cache import open_run
from core.runs.file.records import Provenance
from core.runs.queries.compare import RunPair
from tests.app.opening import figures_of, open_page, page_text
from tests.core.runs.made_runs import copied, header_of, write_run
from tests.core.runs.queries.test_classes import stored
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("own_store")


def sample_in(store, name, *run_ids):
    """Store a sample under other ids, or its own."""
    store.directory.mkdir(exist_ok=True)
    for run_id in run_ids or (name,):
        shutil.copy(ROOT / "sample_runs" / f"{name}.duckdb", store.directory / f"{run_id}.duckdb")


def figures_in(app):
    """The table of figures of a page, as a reader sees it."""
    return app.table[0].value.map(lambda text: text.replace("\\", ""))


def test_a_sweep_is_drawn_over_its_values(own_store, tmp_path):
    run = stored(
        own_store.directory,
        ["decode"] + [f"decode+batch:{n}" for n in (2, 3, 4, 8)],
        [0, 1, 1, 2, 3],
    )
    app = open_page("classes", run=run.run_id)
    assert "5 sides in 4 classes" in page_text(app)
    assert "Over batch" in page_text(app)


def test_without_a_choice_the_latest_run_of_the_model_is_compared(own_store):
    for run_id in ("one", "two"):
        copied(own_store.directory / f"{run_id}.duckdb")
    app = open_page("compare", run="two")
    assert app.multiselect(key="compare_runs").value == ["one"]
    text = page_text(app)
    # of the same model, but without token ids
    assert "A and B: unknown tokens." in text
    assert "Nothing moved" not in text
    app = open_page("machine", run="two")
    assert app.multiselect(key="compare_runs").value == ["one"]
    assert "The machines record the same facts" in page_text(app)


@pytest.mark.parametrize("selected", ["fresh-against-cached", "injected-bug"])
def test_a_run_with_the_sides_of_the_pair_is_preferred_to_a_later_one(bare_store, selected):
    for name in (selected, "where-it-starts", "batches-on-an-h100"):
        sample_in(bare_store, name)
    app = open_page("compare", run=selected)
    assert app.multiselect(key="compare_runs").value == ["where-it-starts"]


def test_a_run_of_another_vocabulary_is_not_compared_with_unless_chosen(own_store):
    header = replace(header_of(vocab=31), provenance=Provenance(kind="upload"))
    write_run(own_store, header, run_id="dump")
    copied(own_store.directory / "one.duckdb")
    app = open_page("compare", run="dump")
    assert app.multiselect(key="compare_runs").value == []
    assert "No other run has this model" in app.info[0].value
    assert not app.table
    app = open_page("machine", run="dump")
    assert "No machine is recorded: this run was uploaded" in page_text(app)


def test_only_facts_that_differ_are_listed():
    facts = [
        {"device": "cpu", "torch": "2.13"},
        {"device": "cuda", "torch": "2.13", "cuda": "13"},
    ]
    table = compare_parts.differing(facts, ["a", "b"])
    assert table.to_dict("index") == {
        "device": {"a": "cpu", "b": "cuda"},
        "cuda": {"a": "–", "b": "13"},
    }


def test_two_runs_stand_side_by_side_with_ratios(own_store):
    app = open_page("compare", run="fresh-against-cached", **{"with": "float32-three-paths"})
    figures = figures_in(app)
    assert list(figures) == ["A", "B"]
    first, second = figures.loc["largest difference, logits"]
    assert "(" not in first
    assert second.endswith("x)")
    flips = figures.loc["flips, share of positions"].tolist()
    assert "0.5%, 4 of 729" in flips
    assert figures.loc["verdict"].tolist() == ["rounding", "rounding"]
    assert "A and B: different tokens. Compare rates only" in page_text(app)


@pytest.mark.parametrize(
    "selected",
    ["fresh-against-cached", "injected-bug"],
)
def test_the_selected_run_is_the_first_column_of_any_age(own_store, selected):
    (other,) = {"fresh-against-cached", "injected-bug"} - {selected}
    app = open_page("compare", run=selected, **{"with": other})
    header = open_run(selected).header
    assert f"A: {header.name}" in page_text(app)
    expected = compare_parts.number(open_run(selected).pairs[0].summary.max_abs)
    assert figures_in(app).loc["largest difference, logits", "A"] == expected


def test_two_runs_of_the_same_input_say_what_moved_and_three_do_not(own_store):
    sample_in(own_store, "injected-bug", "one", "two", "three")
    for others, is_told in (("two", True), ("two,three", False)):
        text = page_text(open_page("compare", run="one", **{"with": others}))
        assert ("Nothing moved" in text) == is_told
        assert ":orange" not in text


def test_a_run_without_the_selected_variant_is_opened_at_its_gravest(own_store):
    sample_in(own_store, "batches-on-an-h100", "batches-on-an-h100", "again")
    # its pairs: decode+batch:8, which is identical, and prefill
    for run, link, expected in (
        ("fresh-against-cached", {}, 1),
        ("batches-on-an-h100", {"variant": "decode+batch:8"}, 0),
    ):
        app = open_page("compare", run=run, **link, **{"with": "again"})
        (box,) = [box for box in app.selectbox if box.label == "Variant of B"]
        assert box.value == expected


def test_enter_in_the_choice_of_runs_takes_one_that_contains_what_was_typed():
    choice = open_page("compare").multiselect(key="compare_runs").proto
    # Streamlit matches loosely by default, and Enter selects all matches
    assert choice.filter_mode == FILTER_MODE_CONTAINS
    assert choice.select_all == 0


def test_a_figure_that_a_run_lacks_has_no_ratio(own_store):
    sample_in(own_store, "trainer-against-rollout")
    pages = {"run": "trainer-against-rollout", "with": "fresh-against-cached", "prompt": "69"}
    app = open_page("compare", **pages)
    figures = figures_in(app)
    unknown = [text for text in figures.to_numpy().ravel() if text.startswith("–")]
    assert unknown
    assert set(unknown) == {"–"}
    # nats over logits are no ratio, and chosen tokens say nothing of flips
    assert not figures.iloc[:, 1].str.contains("x)", regex=False).any()
    text = page_text(app)
    assert "A and B: unknown tokens" in text
    assert "different units" in text
    assert "No line: A" in text
    assert "B has no sequence 69" in text
    assert "Flips in every run" not in text
    assert "flips are unknown" in text
    by_position = figures_of(app)[1]["figure"]["layout"]
    assert by_position["showlegend"]
    assert by_position["yaxis"]["title"]["text"] == "largest difference, nats or logits"


def test_runs_of_the_same_tokens_name_the_flips_they_share(own_store):
    first = stored(own_store.directory, ["decode", "decode+batch:2"], [0, 3])
    second = stored(own_store.directory, ["decode", "decode+batch:4"], [0, 3])
    app = open_page("compare", run=first.run_id, **{"with": second.run_id})
    count = first.pairs[0].summary.flips
    assert (f"{count} of {count}" if count else "No run has a flip") in page_text(app)


def test_a_variant_out_of_a_link_is_the_one_compared():
    app = open_page("compare", run="fresh-against-cached", **{"with": "batch-1-against-n~2"})
    boxes = [box for box in app.selectbox if box.label.startswith("Variant of")]
    assert [box.value for box in boxes] == [2]
    boxes[0].set_value(1).run()
    assert app.session_state["compare_with"] == "batch-1-against-n~1"
    assert app.query_params["with"] in ("batch-1-against-n~1", ["batch-1-against-n~1"])


def test_tables_of_a_comparison_hold_the_figures_of_the_run_files(own_store):
    runs = [open_run(name) for name in ("fresh-against-cached", "batch-1-against-n")]
    compared = [RunPair(run, run.pairs[0], run.positions(0)) for run in runs]
    whole = compare_parts.export_runs(compared)
    assert whole["run"].tolist() == [run.run_id for run in runs]
    assert whole["flips"].tolist() == [run.pairs[0].summary.flips for run in runs]
