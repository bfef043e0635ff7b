"""The gallery: filters list the right runs, deletions are undone, labels stay with the runs."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from app.gallery import actions
from app.gallery.filters import Filters, matching
from app.gallery.table import DELETE, EDIT, OPEN, export_table
from app.shell import store_cache
from core.runs.store.cards import list_runs
from core.runs.store.labels import Labels
from core.runs.store.store import Store
from tests.app.opening import click, enter, keys, open_page, page_text, table_of
from tests.core.runs.made_runs import copied
from tests.places import ROOT, RUNS

SAMPLES = {
    "injected-bug",
    "continuations-that-part",
    "float32-three-paths",
    "batch-1-against-n",
    "fresh-against-cached",
    "where-it-starts",
}


@pytest.fixture(autouse=True)
def own_store(own_store):
    return Store(own_store.directory, [RUNS])


@pytest.fixture
def mine(own_store):
    """A run of one's own."""
    own_store.directory.mkdir()
    return Path(
        shutil.copy(
            RUNS / "batch-1-against-n.duckdb",
            own_store.directory / "mine.duckdb",
        ),
    )


def search(app, words):
    enter(app, "text_input", "gallery_search", words)


def names(app):
    assert not app.exception
    return table_of(app)["name"].tolist() if app.dataframe else []


(SAMPLE, *_), _ = list_runs(Store(Path("nowhere"), [RUNS]))
CARD = structs.replace(
    SAMPLE,
    run_id="one",
    name="First",
    model="org/Small-Model",
    compute_dtype="bfloat16",
    device="cpu",
    flips=0,
    max_ulps=7,
    pair_verdicts=("rounding",),
)
_BUG = {"flips": 2, "pair_verdicts": ("bug suspected", "rounding")}
_LATER = {
    "compute_dtype": "float32",
    "max_ulps": 900,
    "device": "",
    "pair_verdicts": ("of a later version",),
}
CARDS = [  # newest first, as they come
    structs.replace(CARD, run_id="three", name="café", device="cuda", **_BUG),
    structs.replace(CARD, run_id="two", name="B", **_LATER),
    CARD,
]
LABELS = {"one": Labels(("nightly", "vLLM"), "look at the Second block"), "two": Labels(("night",))}
PROMPTS = {"one": "def main():\n  pass", "two": "straße".casefold(), "three": ""}
# what is asked -> the runs shown, in order
ASKED = [
    ({}, ["three", "two", "one"]),
    ({"text": "CAFÉ"}, ["three"]),
    ({"text": "small-model"}, ["three", "two", "one"]),
    ({"text": "def pass"}, ["one"]),  # all of the words, in any order
    ({"text": "def nowhere"}, []),
    ({"text": "STRASSE"}, ["two"]),
    ({"text": "second BLOCK"}, ["one"]),
    ({"text": "vllm"}, ["one"]),
    ({"text": "  "}, ["three", "two", "one"]),
    ({"text": "cuda"}, ["three"]),
    ({"verdict": "rounding"}, ["three", "one"]),
    ({"flips": "without flips"}, ["two", "one"]),
    ({"tags": ("night",)}, ["two"]),  # the whole tag, not a part
    ({"tags": ("nightly", "night")}, []),  # all of them, not any
    ({"tags": ("nightly",), "text": "float32"}, []),
]


@pytest.mark.parametrize(
    ("asked", "shown"),
    ASKED,
    ids=[str(asked) for asked, _ in ASKED],
)
def test_what_is_asked_for_is_what_is_shown(asked, shown):
    assert [card.run_id for card in matching(CARDS, Filters(**asked), LABELS, PROMPTS)] == shown


@pytest.mark.parametrize("flips", ["with flips", "without flips"])
def test_unknown_flips_are_neither_some_nor_none(flips):
    assert matching([structs.replace(CARD, flips=None)], Filters(flips=flips), {}, {}) == []


LINKS = {
    "search": ("scheduler", {"fresh-against-cached"}),  # the name of no run, a word of a prompt
    "verdict": ("bug-suspected", {"injected-bug"}),
    "flips": ("none", {"float32-three-paths", "where-it-starts"}),
    "hidden": ("listed", SAMPLES),
}


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", LINKS)
def test_a_link_restores_what_the_gallery_was_asked_and_keeps_it_in_the_address(name, own_store):
    value, shown = LINKS[name]
    app = open_page("runs", run="fresh-against-cached", **{name: value})
    cards = {card.name: card.run_id for card in list_runs(own_store)[0]}
    found = [cards[each] for each in names(app)]
    assert set(found) == shown
    assert app.query_params[name] == value
    assert not app.warning


def test_a_judged_run_stands_for_the_run_that_it_judges_which_a_link_still_opens(own_store):
    own_store.mark_judged("injected-bug", "where-it-starts")
    app = open_page("runs")
    assert len(names(app)) == len(SAMPLES) - 1
    enter(app, "toggle", "gallery_hidden", True)
    assert len(names(app)) == len(SAMPLES)
    app = open_page("runs", run="injected-bug")
    assert app.query_params["run"] == "injected-bug"
    click(app, "open_judged_run")
    assert app.query_params["run"] == "where-it-starts"
    assert "open_judged_run" not in keys(app)


def test_a_file_that_is_no_run_is_named_above_the_table(own_store):
    own_store.directory.mkdir()
    (own_store.directory / "torn.duckdb").write_bytes(b"no run")
    app = open_page("runs")
    order = [type(element).__name__ for element in app.main if not hasattr(element, "children")]
    assert "torn" in app.warning[0].value
    assert order.index("Warning") < order.index("Dataframe")


def test_a_run_without_logits_has_no_share_of_them(own_store):
    own_store.directory.mkdir()
    shutil.copy(ROOT / "sample_runs" / "trainer-against-rollout.duckdb", own_store.directory)
    table = table_of(open_page("runs"))
    has_none = table["differ"].isna()
    assert table["name"][has_none].str.startswith("Trainer vs. rollout").tolist() == [True]


def test_prompts_are_searched_and_read_only_when_words_are_sought(monkeypatch):
    read = []
    original = store_cache.prompt_texts
    monkeypatch.setattr(
        store_cache,
        "prompt_texts",
        lambda paths: read.append(len(paths)) or original(paths),
    )
    # prompts that earlier tests have read are kept by file
    store_cache._by_file.clear()
    app = open_page("runs")
    assert read == []
    search(app, "import parser")
    assert read == [len(SAMPLES)]
    assert 0 < len(names(app)) < 5
    search(app, "import parser zebra")
    assert read == [len(SAMPLES)]  # nothing is read twice
    assert names(app) == []
    click(app, "clear_filters")
    assert len(names(app)) == len(SAMPLES)


def ticked(*run_ids, **link):
    """The gallery with some runs ticked."""
    app = open_page("runs", **link)
    # AppTest cannot click in a table
    app.session_state["ticked"] = list(run_ids)
    return app.run()


def test_a_deleted_run_can_be_had_back_for_ten_seconds(mine, own_store, monkeypatch):
    app = ticked("mine", run="mine")
    assert "undo_delete" not in keys(app)
    click(app, "delete")
    assert not app.warning  # its own deletion is no surprise
    assert not own_store.has("mine")
    assert len(names(app)) == len(SAMPLES)
    assert "Deleted 'Batch 1 against N, bfloat16'" in page_text(app)
    click(app, "undo_delete")
    assert app.session_state["run"] == "mine"
    app.run()
    assert len(names(app)) == len(SAMPLES) + 1
    assert "undo_delete" not in keys(app)
    monkeypatch.setattr(actions, "UNDO_SECONDS", 0)
    app.session_state["ticked"] = ["mine"]
    app.run().button(key="delete").click().run()
    assert "undo_delete" not in keys(app)
    assert own_store.deleted()


def test_after_a_deletion_nothing_is_selected_so_a_second_click_deletes_nothing(mine, own_store):
    copied(own_store.directory / "another.duckdb")
    app = ticked("mine", run="another")
    click(app, "delete")
    assert not own_store.has("mine")
    assert own_store.has("another")
    assert "delete" not in keys(app)
    assert "run" not in app.query_params


def test_the_filter_rules_the_selection(mine):
    app = ticked("mine", run="mine")
    search(app, "no run has these words")
    assert "delete" not in keys(app)
    search(app, "")
    assert "delete" in keys(app)


def test_a_row_offers_what_may_be_done_with_its_run(mine, own_store):
    rows = table_of(open_page("runs"))
    mine_first = rows.sort_values("actions", key=lambda cells: -cells.map(len))["actions"]
    assert [list(each) for each in mine_first[:2]] == [[OPEN, EDIT, DELETE], [OPEN, EDIT]]


def test_several_ticked_runs_are_deleted_together_and_had_back_together(mine, own_store):
    copied(own_store.directory / "another.duckdb")
    app = ticked("mine", "another", "injected-bug", run="fresh-against-cached")
    assert "3 runs ticked" in page_text(app)
    assert "1 sample run, read-only" in page_text(app)
    click(app, "delete")
    assert len(names(app)) == len(SAMPLES)
    assert "Deleted 2 runs." in page_text(app)
    assert len(own_store.deleted()) == 2
    click(app, "undo_delete")
    assert len(names(app.run())) == len(SAMPLES) + 2
    assert own_store.deleted() == []


def test_a_name_tags_and_a_note_are_saved_shown_and_found(mine, own_store):
    app = ticked("mine", run="mine")
    click(app, "edit")
    assert app.multiselect(key="tags_mine").value == []
    assert app.text_area(key="note_mine").value == ""
    app.text_input(key="name_mine").set_value(" Night  shift ")
    app.multiselect(key="tags_mine").set_value(["<b>x</b>", "nightly"])
    app.text_area(key="note_mine").set_value("**bold** [x](http://e)")
    next(button for button in app.button if button.label == "Save").click().run()
    assert not app.exception
    stored = Labels(("<b>x</b>", "nightly"), "**bold** [x](http://e)", name="Night shift")
    assert own_store.labels("mine") == stored
    assert ["<b>x</b>", "nightly"] in [list(tags) for tags in table_of(app)["tags"]]
    search(app, "nightly")
    assert names(app) == ["Night shift"]
    assert "Night shift" in page_text(open_page("overview", run="mine"))


def unfolded(app, rows):
    """The list of deleted runs, with some of them ticked."""
    app.session_state["trash_fold"] = True
    app.run()
    # what the browser sends when rows are ticked
    app.session_state[str(trash(app).key)] = {
        "selection": {"rows": rows, "columns": [], "cells": []}
    }
    return app.run()


def trash(app):
    return next(each for each in app.dataframe if str(each.key).startswith("trash_"))


def test_what_was_deleted_is_listed_restored_or_deleted_for_good(mine, own_store):
    copied(own_store.directory / "another.duckdb")
    own_store.delete("mine")
    app = open_page("runs")
    assert "Recently deleted: 1 run, 11.2 MB" in page_text(app)
    assert "undo_delete" not in keys(app)  # another viewer deleted it
    app = unfolded(app, [0])
    assert trash(app).value["run"].tolist() == ["mine"]
    click(app, "restore")
    assert own_store.has("mine")
    assert "Recently deleted" not in page_text(app)
    own_store.delete("another")
    app = unfolded(open_page("runs"), [0])
    click(app, "purge")
    assert own_store.deleted() == []
    assert "Recently deleted" not in page_text(app)


def test_the_list_is_exported_as_it_is_shown_with_every_figure():
    table = export_table(CARDS, LABELS)
    assert table["run_id"].tolist() == ["three", "two", "one"]
    assert table["max_ulps"].tolist() == [7, 900, 7]
    assert json.loads(table["tags"][2]) == ["nightly", "vLLM"]
    assert json.loads(table["verdicts"][0]) == ["bug suspected", "rounding"]
