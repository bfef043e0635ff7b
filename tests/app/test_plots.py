"""Figures on their way to the browser: the library that draws them, what they are sent, what the
browser says was picked.
"""

import math
import re

import pytest
import streamlit as st

from app.components import plots
from tests.app.opening import figures_of, open_page

DRAWS = {"bar", "heatmap", "scatter"}  # what our figures are made of


@pytest.mark.parametrize(
    ("page", "run", "count"),
    [("near_ties", "fresh-against-cached", 2), ("layers", "where-it-starts", 3)],
)
def test_pages_send_figures_that_the_library_draws(page, run, count):
    figures = figures_of(open_page(page, run=run))
    assert len(figures) == count
    for one in figures:
        kinds = {trace.get("type", "scatter") for trace in one["figure"]["data"]}
        assert kinds <= DRAWS
        assert one["height"] == one["figure"]["layout"]["height"]
        # colours are the browser's theme's
        assert "layout" not in one["figure"]["layout"].get("template", {})
        assert one["picture"]["filename"].startswith(run)
        of_run, pair, unit, *_ = one["picture"]["of"]  # above the saved figure
        assert of_run.endswith(f"({run})")
        assert " vs " in pair
        assert unit == "logits and ULPs of bfloat16"
    bundle = plots.LIBRARY.read_text(encoding="utf-8")
    assert all(re.search(rf'moduleType:\s*"trace",\s*name:\s*"{kind}"', bundle) for kind in DRAWS)
    # which is what makes it small
    assert not re.search(r'moduleType:\s*"trace",\s*name:\s*"surface"', bundle)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["a.b", 2], 2),
        ([1, 2.9], 2),
        ([7], None),
        ([1, "x"], None),
        ([1, math.inf], None),
        (3, None),
    ],
)
def test_what_a_browser_says_is_taken_if_it_makes_sense(monkeypatch, said, expected):
    monkeypatch.setattr(st, "session_state", {"chart": {"picked": said}})
    assert plots.clicked_value("chart", 1) == expected
    assert plots.clicked_value("another", 1) is None
