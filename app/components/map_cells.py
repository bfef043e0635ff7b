"""Cells that maps of layers or modules by position share: equal cells, cells that may be thinner than a pixel, NaN on
one side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from app.components.chart_style import FLIP, MISMATCH, QUIET, ULPS

_SPARSE = 400  # as many cells are marked with two pixels, more with one: there is no room for two
_LEVELS = 32  # of the scale, for marks: within half a level no eye tells a mark from the cell it lies in


def add_map(
    figure: go.Figure,
    borders: np.ndarray,
    cells: np.ndarray,
    shade: np.ndarray,
    bar: dict,
    *,
    is_mismatch: np.ndarray,
    names: np.ndarray,
    about: Callable[[np.ndarray, np.ndarray], np.ndarray],
    hovertemplate: str,
    position: int,
) -> None:
    """Draw a map of rows by position, with a mark over the selected position; faint grey where nothing differs.

    cells, shade, is_mismatch: [rows, cells]; cells has NaN where there is no figure, shade also where nothing differs.
    borders: between cells, in positions. bar: the colour axis. names: of the rows, the hover's text; about(i, j):
    custom data of the cells at rows i and columns j.
    """
    rows = np.arange(len(cells))
    add_equal(figure, cells, borders, rows)
    figure.add_heatmap(z=shade, x=borders, y=rows, coloraxis="coloraxis", hoverinfo="skip")
    i, j = np.nonzero(~np.isnan(cells))
    # A heatmap takes no click; points do, and a point that is not drawn costs nothing. All cells have one, one of them
    # is drawn.
    figure.add_scatter(
        x=((borders[:-1] + borders[1:]) / 2)[j],
        y=i,
        mode="markers",
        name="cells",
        text=names[i],
        customdata=about(i, j),
        marker={"opacity": 0, "maxdisplayed": 1},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        hovertemplate=hovertemplate,
    )
    add_marks(figure, borders, shade, bar["cmin"], bar["cmax"])
    add_mismatch(figure, borders, is_mismatch)
    figure.add_annotation(  # above the map, not on it: it would cover the first rows
        x=position,
        y=1,
        yref="paper",
        yanchor="bottom",
        text="▼",
        showarrow=False,
        font={"color": FLIP, "size": 16},
        yshift=-3,
    )
    figure.update_layout(coloraxis={**bar, "colorscale": ULPS})


def add_equal(figure: go.Figure, cells: np.ndarray, x: np.ndarray, y: np.ndarray, **place: int) -> None:
    """Draw a faint ground under cells that were compared and found equal, so that they are not taken for missing."""
    z = np.where(cells == 0, 1.0, np.nan).astype(np.float32)
    ground = [[0, QUIET], [1, QUIET]]
    figure.add_heatmap(z=z, x=x, y=y, colorscale=ground, showscale=False, opacity=0.22, hoverinfo="skip", **place)


def add_marks(figure: go.Figure, borders: np.ndarray, shade: np.ndarray, low: float, high: float) -> None:
    """Draw a line of each cell's own colour and height through its middle, one or two pixels wide, larger shades on
    top.

    A heatmap leaves out cells that round to no pixel; these keep their line. In a wider cell the line is not seen, and
    what is equal beside it is not covered. shade: [rows, cells], NaN where nothing differs; low and high are those of
    the colour axis; rows stand at 0, 1, ...
    """
    levels = np.rint(np.clip((shade - low) / max(high - low, 1e-30), 0, 1) * _LEVELS)
    width = 2 if np.count_nonzero(~np.isnan(shade)) <= _SPARSE else 1
    for level in np.unique(levels[~np.isnan(levels)]):
        (colour,) = sample_colorscale(ULPS, [float(level) / _LEVELS])
        _add_lines(figure, borders, levels == level, colour, width, "differs")


def add_mismatch(figure: go.Figure, borders: np.ndarray, is_mismatch: np.ndarray) -> None:
    """Draw the cells with NaN or infinity on one side, red, three pixels wide at least, on top of all others."""
    if is_mismatch.any():
        z = np.where(is_mismatch, 1.0, np.nan).astype(np.float32)
        red = [[0, MISMATCH], [1, MISMATCH]]
        figure.add_heatmap(z=z, x=borders, y=np.arange(len(z)), colorscale=red, showscale=False, hoverinfo="skip")
        _add_lines(figure, borders, is_mismatch, MISMATCH, 3, "NaN or infinity on one side")


def _add_lines(figure: go.Figure, borders: np.ndarray, chosen: np.ndarray, colour: str, width: int, name: str) -> None:
    rows, columns = np.nonzero(chosen)
    middles = ((borders[:-1] + borders[1:]) / 2)[columns]
    gap = np.full(len(rows), np.nan)
    figure.add_scatter(
        x=np.stack([middles, middles, gap], axis=1).ravel(),
        y=np.stack([rows - 0.5, rows + 0.5, gap], axis=1).ravel(),
        mode="lines",
        line={"color": colour, "width": width, "simplify": False},
        hoverinfo="skip",
        showlegend=False,
        name=name,
    )
