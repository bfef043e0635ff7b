"""The routes of the heatmap: what they answer and what they refuse."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.heatmap import routes
from app.shell import store_cache, store_changes
from core.numerics.formats import BFLOAT16, values_of
from core.runs.store.store import Store
from tests.core.runs.made_runs import calm_sides, header_of, opened, sides_one_ulp_apart, write_run

ROW, TOKEN = 40, 1234


def one(store):
    """The run `one`: 70 x 3000 in two prompts; one element differs by one ULP."""
    header = replace(header_of("bfloat16", (30, 40), 3000), vocabulary={7: " t"})
    write_run(store, header, sides_one_ulp_apart(header, ROW, TOKEN), "one")


@pytest.fixture
def store(built, monkeypatch):
    """With the run `one`, which tests only read."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(built(one)))
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    return Store(built(one))


@pytest.fixture
def client(store):
    with TestClient(Starlette(routes=routes.ROUTES)) as served:
        yield served


def tile(client, pair="0", **query):
    defaults = {"order": "id", "measure": "ulps", "level": "0,0", "tile": "0,1"}
    return client.get(f"/tiles/one/{pair}", params=defaults | query)


def test_a_tile_holds_its_cells_as_they_are_and_nothing_if_none_differs(client):
    cells = np.frombuffer(tile(client).content, "<u2").reshape(64, 1024)
    assert np.argwhere(cells).tolist() == [[ROW, TOKEN - 1024]]
    assert cells.max() == 1
    assert tile(client, tile="0,0").status_code == 200
    assert tile(client, tile="0,0").content == b""


@pytest.mark.parametrize(
    ("measure", "itemsize"),
    [("row_ulps", 4), ("ulps", 2), ("difference", 4)],
)
def test_the_whole_run_is_one_tile_at_its_coarsest_levels(client, measure, itemsize):
    answer = tile(client, level="1,2", tile="0,0", measure=measure)
    # 70 rows by 2, 3,000 tokens by 4
    cells = np.frombuffer(answer.content, f"<u{itemsize}").reshape(35, 750)
    assert np.argwhere(cells)[:, 0].tolist() == [ROW // 2]


def test_a_tile_is_kept_by_the_browser_only_under_the_stamp_of_the_file(client, store):
    stamp = store_cache.version_of(store.path_of("one"))
    assert "immutable" in tile(client, v=stamp).headers["cache-control"]
    assert tile(client, v="1-1").headers["cache-control"] == "no-store"
    assert tile(client).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "query",
    [
        {"level": "0"},
        # int() raises a ValueError of its own beyond 4,300 digits
        {"level": "9" * 5000 + ",0"},
        # int() reads the digits of every script
        {"level": "٣,0"},
        {"tile": "0,3"},
        {"tile": ""},
        {"pair": "1"},
        {"pair": "x"},
        {"order": "token"},
        {"measure": ""},
    ],
    ids=lambda query: str(query)[:40],
)
def test_bad_numbers_are_refused_with_a_sentence(client, query):
    answer = tile(client, **query)
    assert answer.status_code == 400
    assert len(answer.text) < 300


@pytest.mark.parametrize(
    "run_id",
    ["none", "<b>x", "..%2f..%2fREADME", "one%00"],
)
@pytest.mark.parametrize("end", ["", "/largest", "/tokens"])
def test_a_run_that_is_not_there_is_not_found(client, run_id, end):
    assert client.get(f"/tiles/{run_id}/0{end}").status_code == 404


def largest(client, end="largest", **query):
    defaults = {"rows": "0:70", "columns": "0:3000", "order": "id", "measure": "ulps"}
    return client.get(f"/tiles/one/0/{end}", params=defaults | query)


@pytest.mark.parametrize(
    "query",
    [
        {"order": "rank"},
        {"measure": "row_ulps"},
        {"rows": "40:41", "columns": "1234:1235"},
    ],
)
def test_the_element_of_a_rectangle_is_told_exactly(client, query):
    answer = largest(client, **query)
    assert answer.status_code == 200
    told = answer.json()
    assert told["row"] == ROW
    assert told["token"] == TOKEN
    in_row_ulps, _, ulps = told["apart"].partition(" row ULPs, ")
    assert ulps == "1 ULP of bfloat16"
    assert 0 < float(in_row_ulps) <= 1
    assert told["where"] == "prompt 1, position 10"
    difference = float(told["difference"].removeprefix("difference "))
    assert difference == float(told["variant"]) - float(told["reference"])


@pytest.mark.parametrize("end", ["largest", "tokens"])
@pytest.mark.parametrize(
    "query",
    [{"rows": "5:5"}, {"rows": "0:71"}, {"columns": "0:3001"}, {"rows": "0"}],
)
def test_a_rectangle_that_is_none_is_refused(client, query, end):
    assert largest(client, end, **{"rows": "0:1", "columns": "0:9"} | query).status_code == 400


def test_tokens_are_those_of_the_cells_with_their_texts(client, store):
    by_id = largest(client, "tokens", rows="3:4", columns="7:9")
    assert by_id.json() == [[[7, "·t"], [8, "#8"]]]
    with opened(store, "one") as run:
        logits = values_of(run.read_rows(0, 3, 5), BFLOAT16)
    # equal logits rank by token id
    order = np.argsort(-logits, axis=1, kind="stable")
    ranked = order[:, 10:12].tolist()
    by_rank = largest(client, "tokens", order="rank", rows="3:5", columns="10:12")
    assert [[token for token, _ in row] for row in by_rank.json()] == ranked


def test_a_run_that_is_deleted_and_written_anew_is_answered_anew(
    client,
    store,
    tmp_path,
    monkeypatch,
):
    own = Store(shutil.copytree(store.directory, tmp_path / "runs"))
    monkeypatch.setenv("ULPSCOPE_STORE", str(own.directory))
    before = tile(client).content
    store_changes.delete("one")
    assert tile(client).status_code == 404
    header = header_of("bfloat16", (30, 40), 3000)
    write_run(own, header, calm_sides(header, seed=1), "one")
    assert tile(client).content != before
