"""A run of what servers sent, on the pages of every run: figures of the values that both sides
sent, one note.
"""

import pytest

from core.judging.ingest import ingest
from core.runs.file import records
from tests.app.opening import metrics, open_page, page_text
from tests.core.responses.made_sides import engine_side, response, side, store_run

NOTE = "figures cover th"
PAGES = (
    "overview",
    "near_ties",
    "flips",
    "heatmap",
    "layers",
    "kv_cache",
    "kernels",
    "compare",
    "repeats",
    "runs",
)


def fill(store):
    """An engine twice, slightly different; two short answers with a flip; answers without a common
    token.
    """
    engines = engine_side("cold", 1, 20), engine_side("warm", 2, 20)
    store_run(store, "apart", *engines, run_id="apart")
    texts = {7: " cat", 8: " dog", 9: "<b>"}
    rows = {2: {7: -0.5, 8: -0.75, 9: -3.0}, 3: {9: -0.1, 8: -2.5}}
    other = {2: {8: -0.5, 7: -0.625, 9: -3.0}, 3: {9: -0.2, 8: -2.0}}
    first = response([1, 2, 3, 7, 9], rows, prompt=3, texts=texts, text=" cat<b>")
    second = response([1, 2, 3, 8, 9], other, prompt=3, texts=texts, text=" dog<b>")
    store_run(store, "parted", side("alone", first), side("loaded", second), run_id="parted")
    words = {4: "The", 5: " A"}
    bare = []
    for name, token in (("A", 4), ("B", 5)):
        answer = response([1, 2, token], {1: {token: -0.7}}, prompt=2, texts=words)
        bare.append(side(name, answer))
    store_run(store, "bare", *bare, run_id="bare")
    drafted = response([1, 2, 3, 7, 9], {2: rows[2], 3: {9: 0.0}}, prompt=3, texts=texts)
    # no position that both have
    one = response([5, 6], {0: {6: -0.5}}, prompt=1)
    elsewhere = response([5, 6], {1: {6: -0.5}}, prompt=1)
    sides = side("on", drafted, one), side("off", first, elsewhere)
    store_run(store, "drafted", *sides, run_id="drafted")


@pytest.fixture
def store(built, monkeypatch):
    directory = built(fill)
    monkeypatch.setenv("ULPSCOPE_STORE", str(directory))
    return directory


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("run", ["apart", "parted", "bare", "drafted"])
def test_every_page_opens(page, run):
    text = page_text(open_page(page, run=run))
    if page == "heatmap":
        assert "needs whole rows of logits" in text
    elif page != "runs":
        assert NOTE in text


@pytest.mark.usefixtures("store")
def test_the_overview_has_the_figures_of_what_both_sent():
    app = open_page("overview", run="parted")
    text = page_text(app)
    assert text.count("A server sent the log-probabilities") == 1
    shown = metrics(app)
    assert shown["Flips"] == "1"
    assert shown["Values that differ"] == "66.7%"
    assert shown["Largest difference"] == "0.25"


@pytest.mark.usefixtures("store")
def test_simple_causes_are_looked_for_when_they_are_asked_for():
    app = open_page("overview", run="apart")
    assert "No common cause fits." not in page_text(app)
    app.session_state["causes"] = True
    app.run()
    assert "No common cause fits." in page_text(app)


@pytest.mark.parametrize("page", PAGES)
def test_a_long_run_opens_at_its_largest_difference_and_shows_an_overview_only(
    page,
    own_store,
    tmp_path,
    monkeypatch,
):
    path = tmp_path / "tokens.jsonl"
    far = '{"token_ids": [1, 2], "reference": [-1.0, -2.0], "variant": [-1.0, -2.5]}'
    path.write_text(far.replace("-2.5", "-2.0") + "\n" + far)
    run_id = ingest(own_store, [path])
    monkeypatch.setattr(records, "MAX_ROWS", 3)
    text = page_text(open_page(page, run=run_id))
    if page == "overview":
        assert "Token at position 1" in text
        assert "Sequence 1, 2 positions" in text
    elif page != "runs":
        assert "A run of 4 positions has an Overview only." in text


@pytest.mark.usefixtures("store")
def test_lists_have_no_ulps_and_no_near_ties_to_choose():
    app = open_page("near_ties", run="apart")
    assert [each.label for each in app.select_slider] == ["Threshold, nats"]
    assert not app.get("button_group")
    assert not open_page("flips", run="apart").get("button_group")
    app = open_page("compare", run="apart", **{"with": "parted"})
    assert "ULPs of" not in page_text(app)
    figures = set(app.table[0].value.index)
    assert {"RMS difference, nats", "smallest margin, nats"} <= figures
