"""A run of sparse sides on the pages: what was sent in full, what cannot be known said."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.runs.sparse_run import SparseHeader, write_sparse_run
from core.runs.store.store import Store
from tests.app.opening import codes, opened, said
from tests.core.runs.topk.made_sides import engine_side, response, side


def fill(store: Store) -> None:
    """An engine twice, a little apart; and two short answers that part after a flip."""
    write_sparse_run(
        store,
        SparseHeader("apart", model="m"),
        [engine_side("cold", 1, 20), engine_side("warm", 2, 20)],
        run_id="apart",
    )
    texts = {7: " cat", 8: " dog", 9: "<b>"}
    first = response(
        [1, 2, 3, 7, 9], {2: {7: -0.5, 8: -0.75, 9: -3.0}, 3: {9: -0.1, 8: -2.5}}, prompt=3, texts=texts, text=" cat<b>"
    )
    second = response(
        [1, 2, 3, 8, 9],
        {2: {8: -0.5, 7: -0.625, 9: -3.0}, 3: {9: -0.2, 8: -2.0}},
        prompt=3,
        texts=texts,
        text=" dog<b>",
    )
    write_sparse_run(store, SparseHeader("parted"), [side("alone", first), side("loaded", second)], run_id="parted")

    bare = [
        response([1, 2, token], {1: {token: -0.7}}, prompt=2, texts={4: "The", 5: " A"}, text=text)
        for token, text in ((4, "The"), (5, " A"))
    ]
    write_sparse_run(store, SparseHeader("bare"), [side("A", bare[0]), side("B", bare[1])], run_id="bare")
    drafted = response([1, 2, 3, 7, 9], {2: {7: -0.5, 8: -0.75, 9: -3.0}, 3: {9: 0.0}}, prompt=3, texts=texts)
    other = response([5, 6], {0: {6: -0.5}}, prompt=1)
    elsewhere = response([5, 6], {1: {6: -0.5}}, prompt=1)  # no position that both have
    made = [side("on", drafted, other), side("off", first, elsewhere)]
    write_sparse_run(store, SparseHeader("drafted"), made, run_id="drafted")


@pytest.fixture
def store(built, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = built(fill)
    monkeypatch.setenv("ULPSCOPE_STORE", str(directory))
    return directory


@pytest.mark.usefixtures("store")
def test_the_overview_says_what_was_sent_and_what_follows() -> None:
    app = opened("overview", run="parted")
    text = said(app).replace("\\", "")
    assert "2 of 3 (66.7%) values" in text
    assert "position 3 on; rows after" in text
    assert {m.label: m.value for m in app.metric} == {
        "Flips": "1",
        "Could flip": "1",
        "Sent values that differ": "66.7%",
        "Largest difference sent": "0.25",
    }
    assert any("▸" in shown and "cat" in shown for shown in codes(app))
    lists = app.dataframe[0].value
    assert lists["reference logprob"].tolist() == [-0.5, -0.75, -3.0]
    assert lists["variant rank"].tolist() == [2, 1, 3]


@pytest.mark.usefixtures("store")
def test_flips_list_every_flip_with_its_margins() -> None:
    app = opened("flips", run="parted")
    assert "1 flip at 1 position" in said(app)
    found = app.dataframe[0].value
    assert found["position"].tolist() == [2]
    assert found["reference: margin"].tolist() == [0.25]
    assert found["variant: margin"].tolist() == [0.125]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("near_ties", "Tokens that were not sent may have changed by more"),
        ("heatmap", "blank cells were not sent"),
        ("overview", "logits of bfloat16, shown by the gaps of 24 rows"),
        ("flips", "positions that both sides have"),
        ("layers", "Layers needs what a capture records"),
        ("kv_cache", "KV cache needs what a capture records"),
        ("compare", "Compare needs whole rows of logits"),
        ("repeats", "Repeats needs whole rows of logits"),
    ],
)
def test_every_page_says_what_it_has(page: str, sentence: str) -> None:
    assert sentence in said(opened(page, run="apart"))


@pytest.mark.usefixtures("store")
def test_a_link_selects_a_position_and_one_beyond_is_refused() -> None:
    assert "at position 7" in said(opened("overview", run="apart", variant="warm", position="7"))
    assert "this run has 0 to 23" in said(opened("overview", run="apart", position="99"))


@pytest.mark.usefixtures("store")
def test_simple_causes_are_looked_for_when_they_are_asked_for() -> None:
    app = opened("overview", run="apart")
    assert "No simple cause found." not in said(app)
    app.session_state["causes"] = True
    app.run()
    assert "No simple cause found." in said(app)
