"""The Repeats and Compare pages on every sample run and on made ones; figures are those of the run
files.
"""

import shutil
from dataclasses import replace

import pytest

from app.compare import parts as compare_parts
from app.shell.store_cache import open_run
from core.runs.file.records import Provenance
from core.runs.queries.compare import RunPair
from core.runs.store.cards import list_runs
from core.runs.store.store import open_store
from tests.app.opening import open_page, page_text, table_of
from tests.core.runs.made_runs import calm_sides, copied, header_of, write_run
from tests.core.runs.queries.test_classes import stored
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("own_store")


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
    assert "Nothing moved" in page_text(app)
    app = open_page("machine", run="two")
    assert app.multiselect(key="compare_runs").value == ["one"]
    assert "The machines record the same facts" in page_text(app)


def test_a_run_of_another_vocabulary_is_not_compared_with_unless_chosen(own_store):
    header = header_of(vocab=31)
    header = replace(header, provenance=Provenance(kind="upload"))
    write_run(own_store, header, calm_sides(header, 0), "dump")
    copied(own_store.directory / "one.duckdb")
    app = open_page("compare", run="dump")
    assert app.multiselect(key="compare_runs").value == []
    app = open_page("machine", run="dump")
    assert "No machine is recorded" in page_text(app)


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
    figures = table_of(app)
    assert figures.shape[1] == 2
    first, second = figures.loc["flips, share of positions"]
    assert first == "0.5%, 4 of 729"
    assert second.startswith("0.0%")
    assert "Different tokens" in page_text(app)


def test_a_figure_that_a_run_lacks_has_no_ratio(own_store):
    own_store.directory.mkdir()
    shutil.copy(ROOT / "sample_runs" / "trainer-against-rollout.duckdb", own_store.directory)
    pages = {"run": "fresh-against-cached", "with": "trainer-against-rollout"}
    app = open_page("compare", **pages)
    figures = table_of(app)
    unknown = [text for text in figures.to_numpy().ravel() if text.startswith("–")]
    assert unknown
    assert set(unknown) == {"–"}
    # nats over logits are no ratio, and chosen tokens say nothing of flips
    assert not figures.iloc[:, 1].str.contains("x)", regex=False).any()
    assert "values that differ" in page_text(app)
    assert "Flips in every run" not in page_text(app)
    assert "flips are unknown" in page_text(app)


def test_runs_of_the_same_tokens_name_the_flips_they_share(own_store):
    first = stored(own_store.directory, ["decode", "decode+batch:2"], [0, 3])
    second = stored(own_store.directory, ["decode", "decode+batch:4"], [0, 3])
    app = open_page("compare", run=first.run_id, **{"with": second.run_id})
    count = first.pairs[0].summary.flips
    assert (f"{count} of {count}" if count else "No run has a flip") in page_text(app)


def test_a_variant_out_of_a_link_is_the_one_compared():
    cards = {card.run_id: card for card in list_runs(open_store())[0]}
    assert cards["batch-1-against-n"].pairs == 3
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
    assert whole["max_abs"].tolist() == [run.pairs[0].summary.max_abs for run in runs]
