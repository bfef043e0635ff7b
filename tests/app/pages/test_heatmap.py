"""The heatmap's page without a browser: what a link asks for, what the address says, the selected
token.
"""

import numpy as np
import pytest

from app.heatmap import canvas
from app.shell import store_cache
from app.shell.selection import View
from core.judging.ingest import ingest
from core.runs.queries.elements import every_element
from tests.app import opening
from tests.app.opening import enter, sent
from tests.core.runs.made_runs import sample

pytestmark = pytest.mark.usefixtures("own_store")


def opened(**link):
    return opening.open_page("heatmap", **({"run": "batch-1-against-n"} | link))


def said(app, *names):
    """What the address says of these."""
    return {name: app.query_params[name] for name in names if name in app.query_params}


NAMES = ("rows", "tokens", "order", "cells", "token")


@pytest.mark.parametrize(
    "link",
    [
        {"rows": "80:97", "tokens": "100:200"},
        {"cells": "ulps"},
        {"token": " the"},
        {
            "rows": "0:1",
            "tokens": "4095:4096",
            "order": "rank",
            "cells": "difference",
            "token": "0",
        },
    ],
)
def test_a_link_to_a_window_is_kept_as_it_is(link):
    assert said(opened(**link), *NAMES) == link


@pytest.mark.parametrize(
    "link",
    [
        {"rows": "5:4"},
        {"rows": "1:2:3"},
        {"tokens": "0:4097"},
        {"token": "4096"},
        {"token": "-1"},
        {"token": "<b>"},
    ],
)
def test_a_link_to_what_is_not_there_shows_the_whole_run(link):
    data = drawn(opened(order="id", **link))
    assert data["window"]["rows"] == [0, data["rows"]]
    assert data["window"]["columns"] == [0, data["columns"]]
    assert data["selected"]["token"] is None


def drawn(app):
    """What the canvas is sent."""
    (data,) = sent(app, "ulpscope_heatmap")
    return data


@pytest.mark.parametrize(
    ("link", "order", "rows", "columns"),
    [
        ({}, "rank", [0, 287], [0, 64]),
        ({"tokens": "100:200"}, "id", [0, 287], [100, 200]),  # of before ranks came first
        ({"rows": "80:97"}, "id", [80, 97], [0, 4096]),
        ({"order": "rank", "rows": "80:97"}, "rank", [80, 97], [0, 64]),
    ],
)
def test_the_map_opens_by_rank_and_a_link_of_before_by_token_id(link, order, rows, columns):
    window = drawn(opened(**link))["window"]
    assert window["order"] == order
    assert window["rows"] == rows
    assert window["columns"] == columns


def test_of_a_large_run_the_rows_around_the_position_are_ranked(monkeypatch):
    # 20 rows of this vocabulary: ten before the position, unless the run begins or ends there
    monkeypatch.setattr(canvas, "MOST_READ", 20 * 4096)
    assert drawn(opened(position="89"))["window"]["rows"] == [79, 99]
    assert drawn(opened(position="285"))["window"]["rows"] == [267, 287]
    session = dict.fromkeys(("heatmap_rows", "heatmap_tokens", "heatmap_order"), "") | {
        "heatmap_cells": "ulps",
    }
    monkeypatch.setattr("streamlit.session_state", session)
    with sample("batch-1-against-n") as run:
        view = View(run, run.pairs[0], 0, 89, run.positions(0))
        canvas.keep_window(view, canvas.current_window(view))
    assert session["heatmap_rows"] == "79:99"  # a click selects another position, and the map stays
    assert session["heatmap_tokens"] == ""


@pytest.mark.parametrize(
    ("order", "typed", "token", "columns"),
    [
        # 12 columns on either side, moved back where the vocabulary ends
        ("id", "4095", 4095, [4072, 4096]),
        ("id", "the", 1146, [1134, 1158]),
        ("id", "·the", 293, [281, 305]),
        ("rank", "get", 396, [0, 64]),  # the argmax at position 89, in sight
        ("rank", "idth", 994, [4072, 4096]),  # the last one
        ("rank", "no such token", None, [0, 64]),
    ],
)
def test_a_token_is_looked_for_by_id_and_text(order, typed, token, columns):
    app = opened(order=order, position="89")
    enter(app, "text_input", "heatmap_token", typed)
    data = drawn(app)
    assert data["window"]["columns"] == columns
    assert data["selected"]["token"] == token
    assert said(app, "token") == {"token": typed}
    assert bool(app.warning) == (token is None)


@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
def test_every_logit_of_a_position_is_exported_exactly(tmp_path, dtype):
    """Distances between 1 and 1.5 and between 0.25 and 0.5 are so many steps by the formats'
    significands.
    """
    reference = np.array([[0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 2.0, 0.5]] * 2, np.float32)
    variant = np.array([[-0.0, 1.5, -1.0, np.nan, np.inf, 3.0, np.nan, 0.25]] * 2, np.float32)
    dump = tmp_path / "dump.npz"
    np.savez(dump, reference=reference, variant=variant, compute_dtype=dtype)
    run = store_cache.open_run(ingest(store_cache.store(), [dump]))
    assert run.header.compute_dtype == dtype
    table = every_element(run, 0, 0, 1)
    assert table["token_id"].tolist() == list(range(8))
    assert np.array_equal(table["reference_logit"], reference[1].astype(float), equal_nan=True)
    assert np.array_equal(table["variant_logit"], variant[1].astype(float), equal_nan=True)
    # ordinals between two powers of two: 2 to the bits of the fraction
    steps = 1 << {"float16": 10, "float32": 23, "bfloat16": 7}[dtype]
    ulps = table["ulps"].astype(object).where(table["ulps"].notna(), None).tolist()
    assert ulps == [0, steps // 2, 0, 0, 0, None, None, steps]
    assert table["difference"].tolist()[:2] == [0.0, 0.5]
    assert table["difference"].isna().tolist() == [False] * 5 + [True] * 2 + [False]
    assert table["difference"].tolist()[7] == -0.25


def test_the_window_and_the_logit_that_the_browser_names_are_taken_over(monkeypatch):
    window = {
        "rows": [2, 9],
        "columns": [0, 4096],
        "order": "id",
        "measure": "ulps",
        "scale": "log",
    }
    session = {}
    monkeypatch.setattr("streamlit.session_state", session)
    with sample("fresh-against-cached") as run:
        view = View(run, run.pairs[0], 0, 0, run.positions(0))
        canvas._follow(view, {"window": window, "serial": "s-1", "row": 445, "token": 7})
    followed = session.pop("heatmap_followed")
    assert followed.rows == (2, 9)
    assert followed.columns == (0, 4096)
    assert session == {
        "heatmap_rows": "2:9",
        "heatmap_tokens": "",
        "heatmap_order": "id",
        "heatmap_cells": "ulps",
        "heatmap_colours": "log",
        "heatmap_serial": "s-1",
        "prompt": 1,
        "position": 3,
        "heatmap_token": "7",
    }
