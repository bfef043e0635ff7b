"""Figures: what must not be lost in drawing."""

from __future__ import annotations

import numpy as np
import pytest

from app import charts
from core.runs.ingest import ingest
from core.runs.reader import RunReader
from core.runs.store import Store
from core.runs.views import heatmap_window


@pytest.fixture
def one_differs(tmp_path):
    """A run of 2100 x 4100 logits in which one differs, and its place."""
    reference = np.random.default_rng(0).standard_normal((2100, 4100), dtype=np.float32)
    variant = reference.copy()
    variant[1234, 777] = np.nextafter(variant[1234, 777], np.float32(9))
    np.savez(tmp_path / "one.npz", reference=reference, variant=variant)
    store = Store(tmp_path / "runs")
    with RunReader(store.path_of(ingest(store, [tmp_path / "one.npz"]))) as run:
        yield run, 1234, 777


def points(figure) -> list[tuple[float, float]]:
    return [point for trace in figure.data if trace.name == "differs" for point in zip(trace.x, trace.y, strict=True)]


@pytest.mark.parametrize("rows", [(0, 2100), (1000, 1500), (1230, 1240), (1234, 1235)])
@pytest.mark.parametrize("tokens", [(0, 4100), (700, 800), (777, 778)])
def test_one_differing_logit_is_a_point_of_six_pixels_at_every_zoom(one_differs, rows, tokens):
    run, row, token = one_differs
    window = heatmap_window(run, 0, rows, tokens)
    figure = charts.heatmap(window, 1, "float32", row, "position")
    ((x, y),) = points(figure)
    i = np.searchsorted(window.row_edges, row, side="right") - 1
    j = np.searchsorted(window.token_edges, token, side="right") - 1
    assert window.row_edges[i] <= y < window.row_edges[i + 1]
    assert window.token_edges[j] <= x < window.token_edges[j + 1]


def test_a_window_without_it_shows_no_point(one_differs):
    run, row, _ = one_differs
    assert points(charts.heatmap(heatmap_window(run, 0, (0, 1200), (0, 4100)), 1, "float32", row, "position")) == []


def test_the_selected_position_is_marked_beside_the_map_and_not_across_it(one_differs):
    run, row, _ = one_differs
    figure = charts.heatmap(heatmap_window(run, 0, (0, 2100), (0, 4100)), 1, "float32", row, "position")
    (mark,) = (trace for trace in figure.data if trace.name == "selected")
    assert (mark.x[0], mark.y[0]) == (-0.5, row)
    assert not figure.layout.shapes
