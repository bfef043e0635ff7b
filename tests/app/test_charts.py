"""Figures: what must not be lost in drawing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from app import charts
from core.runs.caches import HeadGrid, PositionGrid


def points(figure) -> list[tuple[float, float]]:
    return [point for trace in figure.data if trace.name == "differs" for point in zip(trace.x, trace.y, strict=True)]


def position_map(layers: int = 3, positions: int = 1000, width: int = 3) -> PositionGrid:
    """Equal caches but for layer 1 around position 500; layer 2 holds nothing before position 300."""
    edges = np.minimum(np.arange(-(-positions // width) + 1) * width, positions)
    share = np.zeros((layers, len(edges) - 1))
    share[1, 500 // width] = 0.25
    share[2, : 300 // width] = np.nan
    return PositionGrid("key", np.array([3, 7, 11]), edges, share, share * 8, share > 1)


def trace(figure, name):
    (found,) = (one for one in figure.data if one.name == name)
    return found


def test_every_cell_of_the_cache_map_that_was_compared_can_be_clicked_and_leads_into_itself():
    grid = position_map()
    cells = trace(charts.cache_positions(grid, "neq_share", "bfloat16", 0), "cells")
    assert len(cells.x) == np.count_nonzero(~np.isnan(grid.neq_share))
    for x, y, (position, share) in zip(cells.x, cells.y, cells.customdata, strict=True):
        i, j = np.flatnonzero(grid.layers == y)[0], np.searchsorted(grid.edges, x, side="right") - 1
        assert grid.edges[j] <= position < grid.edges[j + 1]
        assert share == grid.neq_share[i, j]
    assert cells.marker.maxdisplayed == 1  # unseen points by the thousand would each be an element of the page


@pytest.mark.parametrize("measure", ["neq_share", "max_ulps"])
def test_the_only_differing_cell_of_a_cache_map_is_a_point_too(measure):
    figure = charts.cache_positions(position_map(), measure, "bfloat16", 0)
    ((x, y),) = points(figure)
    assert (498 <= x < 501, y) == (True, "7")


def test_equal_cells_have_a_ground_and_cells_that_were_not_compared_have_none():
    ground = charts.cache_positions(position_map(), "neq_share", "bfloat16", 0).data[0].z
    assert ground[0].tolist() == [1] * 334
    assert np.isnan(ground[1, 166])
    assert np.isnan(ground[2, :100]).all()
    assert not np.isnan(ground[2, 100:]).any()


def test_keys_and_values_share_one_colour_scale():
    keys = HeadGrid("key", np.arange(2), np.arange(1), np.array([[0.0], [1e-6]]), np.zeros((2, 1), bool))
    values = HeadGrid("value", np.arange(2), np.arange(1), np.array([[0.0], [0.5]]), np.zeros((2, 1), bool))
    for measure, top in (("neq_share", 0.5), ("rms", -1.0)):  # log2 of 0.5
        figure = charts.cache_heads([keys, values], measure, "bfloat16")
        assert figure.layout.coloraxis.cmax == pytest.approx(top)
        coloured = [one for one in figure.data if one.coloraxis == "coloraxis"]
        assert [int(np.isfinite(one.z).sum()) for one in coloured] == [1, 1]  # one element of a million is coloured as well


def test_layers_without_a_difference_have_no_point_on_a_log_axis_and_one_at_0_of_a_share():
    table = pd.DataFrame(
        {"layer": [0, 0, 1, 1], "kind": ["key", "value"] * 2, "neq_share": [0, 0, 0.5, 0.25], "rms": [0, 0, 1, 2]}
    )
    shares = charts.over_layers(table, "neq_share", "bfloat16")
    assert [one.y.tolist() for one in shares.data] == [[0, 0.5], [0, 0.25]]
    rms = charts.over_layers(table, "rms", "bfloat16")
    assert [np.isnan(one.y).tolist() for one in rms.data] == [[True, False]] * 2


@pytest.mark.parametrize("low", [1e-9, 3.1e-5, 0.02, 7.0])
@pytest.mark.parametrize("spread", [1.0, 1.0001, 2.3, 40.0, 1e7])
@pytest.mark.parametrize("layers", [3, 80])
def test_a_colour_bar_always_has_labels_that_fit(low, spread, layers):
    cells = np.linspace(low, low * spread, layers)[:, None]
    grid = HeadGrid("key", np.arange(layers), np.arange(1), cells, np.zeros(cells.shape, bool))
    axis = charts.cache_heads([grid], "rms", "bfloat16").layout.coloraxis
    assert 1 <= len(axis.colorbar.tickvals) <= (4 if layers == 3 else 8)
    assert axis.cmin < axis.cmax
