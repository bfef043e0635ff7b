"""The Repeats and Compare pages on every sample run and on made ones; figures are those of the run files."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from app.compare import charts as compare_charts
from app.compare import parts as compare_parts
from app.repeats import charts as repeats_charts
from app.repeats import pairwise_job
from app.repeats import parts as repeats_parts
from app.shell.store_cache import open_run
from core.errors import StoreError
from core.runs.store.cards import list_runs
from core.runs.store.store import open_store
from core.runs.views.compare import Compared, flip_sets
from core.runs.views.repeats import classes_of, pairwise
from tests.app.pages.test_verdict import opened, said
from tests.app.test_selection import followed
from tests.core.runs.views.test_repeats import stored
from tests.waiting import until

SAMPLES = [
    "fresh-against-cached",
    "batch-1-against-n",
    "float32-three-paths",
    "continuations-that-part",
    "injected-bug",
    "where-it-starts",
]

pytestmark = pytest.mark.usefixtures("own_store")


def table(app: AppTest, key: str):
    return next(
        frame.value for frame in app.dataframe if frame.key == key or getattr(frame.proto, "id", "").find(key) >= 0
    )


@pytest.mark.parametrize("run", SAMPLES)
def test_every_sample_run_shows_its_classes(run):
    app = opened("repeats", run=run)
    groups = classes_of(open_run(run))
    shown = table(app, "classes")
    assert len(shown) == len(groups)
    assert shown["count"].sum() == sum(len(group.members) for group in groups)


def test_a_sweep_is_drawn_over_its_values_and_classes_against_each_other(own_store, tmp_path):
    run = stored(own_store.directory, ["decode"] + [f"decode+batch:{n}" for n in (2, 3, 4, 8)], [0, 1, 1, 2, 3])
    app = opened("repeats", run=run.run_id)
    assert "5 sides in 4 classes" in said(app)
    assert "Over batch" in said(app)
    assert "Every two classes" in said(app)
    shown = table(app, "classes")
    assert shown["differing logits"].tolist()[1:] == [
        pair.summary.neq for pair in (run.pairs[0], run.pairs[2], run.pairs[3])
    ]


def test_a_large_comparison_waits_to_be_asked_for(own_store, monkeypatch):
    monkeypatch.setattr("app.repeats.parts.WITHOUT_ASKING", 10)
    run = stored(own_store.directory, ["decode", "decode+batch:2", "decode+batch:4"], [0, 1, 2])
    app = opened("repeats", run=run.run_id)
    (button,) = [each for each in app.button if each.label == "Compare every two"]
    assert "reads" in said(app)
    button.click().run()
    assert not app.exception
    assert "of every two classes" in said(app)


def test_the_page_is_drawn_while_classes_are_compared_and_the_figures_come_by_themselves(own_store, monkeypatch):
    may_go_on = threading.Event()

    def slow(run, tick):
        for done in range(1, 101):
            tick(done, 100)
            if done == 40:
                may_go_on.wait(20)
        return pairwise(run)

    monkeypatch.setattr("app.repeats.pairwise_job.pairwise", slow)
    run = stored(own_store.directory, ["decode", "decode+batch:2", "decode+batch:4"], [0, 1, 2])
    app = opened("repeats", run=run.run_id)
    assert len(table(app, "classes")) == 3
    assert "of every two classes" not in said(app)
    may_go_on.set()
    until(lambda: pairwise_job.comparison(run).is_over)
    app.run()
    assert not app.exception
    assert "of every two classes" in said(app)


def test_a_stopped_comparison_is_offered_again_and_begins_anew(own_store, monkeypatch):
    monkeypatch.setattr("app.repeats.parts.WITHOUT_ASKING", 10)
    began = []

    def endless(run, tick):
        began.append(run.run_id)
        until(lambda: tick(1, 100) or len(began) > 1)  # the first time until it is stopped, which `tick` raises
        return pairwise(run)

    monkeypatch.setattr("app.repeats.pairwise_job.pairwise", endless)
    run = stored(own_store.directory, ["decode", "decode+batch:2", "decode+batch:4"], [0, 1, 2])
    app = opened("repeats", run=run.run_id)
    button(app, "Compare every two").click().run()
    button(app, "Stop").click().run()
    until(lambda: app.session_state["classes_asked"][run.run_id].is_over)
    app.run()
    button(app, "Compare every two").click().run()
    assert not app.exception
    assert began == [run.run_id] * 2
    assert "of every two classes" in said(app)


def test_a_run_that_cannot_be_read_is_a_sentence_and_not_asked_for_ever(own_store, monkeypatch):
    def damaged(run, tick):
        raise StoreError("x.duckdb: its logits are damaged.")

    run = stored(own_store.directory, ["decode", "decode+batch:2", "decode+batch:4"], [0, 1, 2])
    monkeypatch.setattr("app.repeats.pairwise_job.pairwise", damaged)
    assert "its logits are damaged" in said(opened("repeats", run=run.run_id))
    monkeypatch.setattr("app.repeats.pairwise_job.pairwise", pairwise)
    assert "of every two classes" in said(opened("repeats", run=run.run_id))


def button(app: AppTest, label: str):
    (found,) = [each for each in app.button if each.label == label]
    return found


def test_equal_sides_are_said_to_be(own_store):
    run = stored(own_store.directory, ["decode", "decode+batch:2", "decode+batch:4"], [0, 0, 0])
    assert "All 3 sides are equal" in said(opened("repeats", run=run.run_id))


def test_two_runs_stand_side_by_side_with_ratios(own_store):
    app = followed("compare", run="fresh-against-cached", **{"with": "float32-three-paths"})
    figures = app.dataframe[0].value
    assert figures.shape[1] == 2
    first, second = figures.loc["flips, share of positions"]
    assert first == "0.5%, 4 of 729"
    assert second.startswith("0.0%")
    assert "bfloat16" in said(app) or "dtype" in " ".join(str(t.value) for t in app.table)
    assert "different tokens" in said(app)


def test_runs_of_the_same_tokens_name_the_flips_they_share(own_store):
    first = stored(own_store.directory, ["decode", "decode+batch:2"], [0, 3])
    second = stored(own_store.directory, ["decode", "decode+batch:4"], [0, 3])
    app = followed("compare", run=first.run_id, **{"with": second.run_id})
    count = first.pairs[0].summary.flips
    if count:
        assert f"{count} of {count}" in said(app)
    else:
        assert "No run has a flip" in said(app)


@pytest.mark.parametrize(
    "asked", ["nothing", "nothing~3", "batch-1-against-n~99", "~", ",,,", "<b>x</b>", "batch-1-against-n~x" * 40]
)
def test_links_that_make_no_sense_are_a_sentence_at_most(asked):
    app = followed("compare", run="fresh-against-cached", **{"with": asked})
    assert not app.exception


def test_a_variant_out_of_a_link_is_the_one_compared():
    cards = {card.run_id: card for card in list_runs(open_store())[0]}
    assert cards["batch-1-against-n"].pairs == 3
    app = followed("compare", run="fresh-against-cached", **{"with": "batch-1-against-n~2"})
    boxes = [box for box in app.selectbox if box.label.startswith("Variant of")]
    assert [box.value for box in boxes] == [2]
    boxes[0].set_value(1).run()
    assert app.session_state["compare_with"] == "batch-1-against-n~1"
    assert app.query_params["with"] == ["batch-1-against-n~1"] or app.query_params["with"] == "batch-1-against-n~1"


def test_names_of_others_are_inert_in_the_figures():
    figure = repeats_charts.class_matrix(np.array([[np.nan, 3.0], [3.0, np.nan]]), ["<b>a</b>", "b" * 90], "neq")
    assert "<b>a" not in figure.to_json().replace("\\u003c", "<")
    figure = compare_charts.runs_by_distance([("<i>x</i>", np.array([1.0]), np.array([0.5]))])
    assert "<i>x" not in figure.to_json().replace("\\u003c", "<")
    assert compare_parts.MOST + 1 <= 6


def test_tables_of_a_comparison_hold_the_figures_of_the_run_files(own_store):
    runs = [open_run(name) for name in ("fresh-against-cached", "batch-1-against-n")]
    compared = [Compared(run, run.pairs[0], run.positions(0)) for run in runs]
    whole = compare_parts.exported(compared)
    assert whole["run"].tolist() == [run.run_id for run in runs]
    assert whole["flips"].tolist() == [run.pairs[0].summary.flips for run in runs]
    assert whole["largest difference, logits"].tolist() == [run.pairs[0].summary.max_abs for run in runs]
    assert whole["differing logits, share"].tolist() == [
        run.pairs[0].summary.neq / (run.header.rows * run.header.vocab) for run in runs
    ]
    along = compare_parts.by_position(compared, 0)
    assert along.groupby("run").size().to_dict() == {run.run_id: run.header.prompts[0].positions for run in runs}
    for run in runs:
        counted = (
            compare_parts.distributions(compared).query("run == @run.run_id and distance_ulps > 0")["elements"].sum()
        )
        assert counted == run.pairs[0].summary.neq


def test_flips_of_a_comparison_are_one_row_a_run(own_store):
    run = open_run("fresh-against-cached")
    twice = [Compared(run, run.pairs[0], run.positions(0))] * 2
    table = compare_parts.flips_exported(flip_sets(twice), twice)
    flips = run.positions(0).query("is_flip")
    assert len(table) == 2 * len(flips) == 8
    assert set(table["position"]) == set(flips["position"])
    assert compare_parts.flips_exported([], twice).columns.tolist() == table.columns.tolist()


def test_every_two_classes_are_exported_with_their_names(own_store):
    run = open_run("batch-1-against-n")
    groups = classes_of(run)
    table = repeats_parts.pair_table(pairwise(run), groups, run)
    assert table[["side", "other_side"]].to_numpy().tolist() == [
        ["decode", "decode+batch:2"],
        ["decode", "prefill"],
        ["decode+batch:2", "prefill"],
    ]
    assert table["neq"].tolist()[:2] == [run.pairs[0].summary.neq, run.pairs[2].summary.neq]
