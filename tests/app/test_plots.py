"""Figures on their way to the browser: the library that draws them, what they are sent, what the browser says was
picked.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import streamlit as st

from app.components import plots
from app.components.chart_style import layout
from app.near_ties import parts
from tests.app.opening import figures_of, opened

DRAWS = {"bar", "heatmap", "scatter"}  # what our figures are made of


@pytest.mark.parametrize(
    ("page", "run", "count"),
    [
        ("overview", "fresh-against-cached", 3),
        ("near_ties", "fresh-against-cached", 3),
        ("layers", "where-it-starts", 3),
    ],
)
def test_pages_send_figures_that_the_library_draws(page, run, count):
    figures = figures_of(opened(page, run=run))
    assert len(figures) == count
    for one in figures:
        kinds = {trace.get("type", "scatter") for trace in one["figure"]["data"]}
        assert kinds <= DRAWS
        assert one["height"] == one["figure"]["layout"]["height"]
        assert "layout" not in one["figure"]["layout"].get("template", {})  # colours are the browser's theme's
        assert one["picture"]["filename"].startswith(run)
        of_run, pair, unit, *_ = one["picture"]["of"]  # stands above the figure where it is saved
        assert of_run.endswith(f"({run})")
        assert " against " in pair
        assert unit == "logits and ULPs of bfloat16"
    bundle = plots.LIBRARY.read_text(encoding="utf-8")
    assert all(re.search(rf'moduleType:\s*"trace",\s*name:\s*"{kind}"', bundle) for kind in DRAWS)
    assert not re.search(r'moduleType:\s*"trace",\s*name:\s*"surface"', bundle)  # which is what makes it small


SOUND = {"points": [[3, 0, 17.0], [4, 0, 18.5]], "is_brush": True}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (SOUND, plots.Picked(((3, 0, 17.0), (4, 0, 18.5)), True)),
        ({"points": [["a.b", 2]], "is_brush": False}, plots.Picked((("a.b", 2),), False)),
        ({"points": [], "is_brush": True}, plots.Picked((), True)),
        ({**SOUND, "is_brush": "yes"}, plots.Picked(((3, 0, 17.0), (4, 0, 18.5)), False)),
        ({**SOUND, "points": [[]]}, plots.Picked()),
        ({**SOUND, "points": [3]}, plots.Picked()),
        ({**SOUND, "points": [[{"a": 1}]]}, plots.Picked()),
        ({**SOUND, "points": {"0": [1]}}, plots.Picked()),
        ({"is_brush": True}, plots.Picked()),
        ("points", plots.Picked()),
        (None, plots.Picked()),
    ],
)
def test_what_a_browser_says_is_taken_where_it_makes_sense(monkeypatch, said, expected):
    monkeypatch.setattr(st, "session_state", {"chart": {"picked": said}})
    assert plots.picked("chart") == expected
    assert plots.picked("another") == plots.Picked()


VIEW: Any = SimpleNamespace(
    run=SimpleNamespace(run_id="a-run"), pair=SimpleNamespace(index=0), prompt=1
)  # what a brush is of


def said_by_a_browser(monkeypatch, *points: list, is_brush: bool = False) -> None:
    monkeypatch.setattr(
        st,
        "session_state",
        {"near_ties": {"picked": {"points": list(points), "is_brush": is_brush}}, parts.BRUSHED: "before"},
    )


def test_a_click_selects_and_a_brush_is_kept(monkeypatch):
    said_by_a_browser(monkeypatch, [7, 1, 36, 0.5, 0.25])
    parts.follow(VIEW, "near_ties", "this prompt")
    assert (st.session_state["prompt"], st.session_state["position"]) == (1, 36)
    assert st.session_state[parts.BRUSHED] == "before"
    said_by_a_browser(monkeypatch, [7, 1, 36], [3, 1, 4], [7, 1, 36], is_brush=True)
    parts.follow(VIEW, "near_ties", "this prompt")
    assert st.session_state[parts.BRUSHED][1] == [3, 7]
    said_by_a_browser(monkeypatch, is_brush=True)
    parts.follow(VIEW, "near_ties", "this prompt")
    assert parts.BRUSHED not in st.session_state


@pytest.mark.parametrize("point", [["x", "y", "z"], [7], [float("nan")] * 3, [7, float("inf"), 3]])
def test_a_click_that_makes_no_sense_selects_nothing_and_breaks_nothing(monkeypatch, point):
    said_by_a_browser(monkeypatch, point)
    parts.follow(VIEW, "near_ties", "this prompt")
    assert not {"prompt", "position"} & st.session_state.keys()
    assert st.session_state[parts.BRUSHED] == "before"


def test_figures_are_spelled_with_their_height_and_whole():
    import plotly.graph_objects as go

    values = np.array([1.0, np.nan, 3.0])
    one = plots.figure_spec(layout(go.Figure().add_scatter(y=values), 280))
    assert one.height == 280
    assert '"height":280' in one.spec.replace(" ", "")
