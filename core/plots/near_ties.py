"""Chart of the Near ties page: margins against differences."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from ..numerics.arrays import Array, DataFrame, Record
from ..places import words_of
from ..runs.queries.flips import KINDS, margin_points
from ..text import on_axis, visible
from .style import (
    FLIP,
    MISMATCH,
    NEAREST_CLICK,
    QUIET,
    REFERENCE,
    UNDRAWN,
    VARIANT,
    gaps_at_zero,
    hover,
    inert,
    layout,
    log_axis,
    log_ticks,
)

# positions of a kind from which on they are shaded by density: points would lie on each other
CROWDED = 2000
# cells of the density are about 8 px at 800 x 430
_CELLS = (96, 56)
# A path: of other shapes in pixels, plotly moves corners below 0 to 0 if the axis is logarithmic.
_RING = "M9,0 C9,5 5,9 0,9 C-5,9 -9,5 -9,0 C-9,-5 -5,-9 0,-9 C5,-9 9,-5 9,0 Z"
_MOST_TICKS = 8  # of an axis with a gutter
_GUTTER = 10**0.25  # end of a gutter of zeros, over their place in it
# by kind
_MARKS = (
    (QUIET, "circle", 6),
    (REFERENCE, "circle", 7),
    (VARIANT, "x", 10),
    (MISMATCH, "square", 10),
)


def near_tie_scatter(
    table: DataFrame,
    texts: Sequence[tuple[str, ...]],
    unit: str = "logits",
) -> go.Figure:
    """Smaller margin against largest difference of every position, log axes; the line beyond which
    no flip is possible.

    Zeros have no place on a log axis: they stand in a shaded gutter, half a decade below the
    smallest other value. Many positions of a kind are shaded by density, with points that are there
    to be hovered and clicked only. texts: of every prompt's tokens, empty if unknown; unit: of the
    values. A click gives prompt, position, difference, margin.
    """
    points, x_zero, y_zero = margin_points(table)
    x, y = points["x"], points["y"]
    ends = [(v.min() / 2, v.max() * 2) if len(v) else (0.1, 10.0) for v in (x, y)]
    (left, right), (bottom, top) = ends
    # the line begins after the gutters of zeros
    start = left if x_zero is None else x_zero * _GUTTER
    floor = y_zero * _GUTTER if y_zero is not None else min(bottom, right)
    # and is in sight, however far the points are from it
    bottom = min(bottom, floor)
    right = max(right, floor)
    top = max(top, 4 * start)
    ends = [(left, right), (bottom, top)]
    span = np.array([max(start, floor / 2), max(right, top / 2)])
    figure = go.Figure()
    figure.add_scatter(
        x=span,
        y=2 * span,
        mode="lines",
        name="margin = 2 × difference",
        hoverinfo="skip",
        line={"color": QUIET, "dash": "dash", "width": 1.5},
    )
    points["label"] = _labels(points, texts)
    hover_text = (
        f"%{{text}}<br>smaller margin {hover(points['margin'], 'customdata[3]')}"
        f"<br>largest difference {hover(points['difference'], 'customdata[2]')}<extra></extra>"
    )
    for name, (color, symbol, size) in zip(KINDS, _MARKS, strict=True):
        shown = points[points["kind"] == name]
        count = len(shown)
        if not count:
            continue
        is_dense = count > CROWDED
        look: Record = {"opacity": 0.8}
        if is_dense:
            _add_density(figure, shown["x"], shown["y"], ends, color)
            look = UNDRAWN
        figure.add_scatter(
            x=shown["x"],
            y=shown["y"],
            mode="markers",
            name=f"{name} ({count:,}{', by density' if is_dense else ''})",
            marker={"color": color, "symbol": symbol, "size": size, **look},
            customdata=shown[["prompt", "position", "difference", "margin"]].to_numpy(float),
            text=shown["label"],
            hovertemplate=hover_text,
        )
    band = {"fillcolor": QUIET, "opacity": 0.1, "line_width": 0, "layer": "below"}
    text = {"showarrow": False, "xanchor": "left", "yanchor": "bottom"}
    # annotations on a log axis are placed by logarithm, shapes by value
    if y_zero is not None:
        figure.add_hrect(y0=bottom, y1=floor, **band)
        figure.add_annotation(xref="paper", x=0, y=np.log10(y_zero), text="tie: margin 0", **text)
    if x_zero is not None:
        figure.add_vrect(x0=left, x1=start, **band)
        figure.add_annotation(x=np.log10(left), yref="paper", y=0.94, text="no difference", **text)
    figure.update_xaxes(range=np.log10(ends[0]), **log_axis(x))
    figure.update_yaxes(range=np.log10(ends[1]))
    # other labels in a gutter would give its zeros a size
    if x_zero is not None:
        figure.update_xaxes(**_ticks_after_zero(x_zero, start, x.max()))
    if y_zero is not None:
        figure.update_yaxes(**_ticks_after_zero(y_zero, floor, y.max()))
    return layout(
        figure,
        460,
        f"largest difference at the position, {unit}",
        f"smaller margin of the two sides, {unit}",
        y,
        # Room above the legend for the buttons of the figure, which would lie on it.
        margin={"t": 58},
        **NEAREST_CLICK | {"hoverdistance": 20},
    )


def _ticks_after_zero(zero: float, low: float, largest: float) -> Record:
    """Return the ticks of a log axis that begins with a gutter: 0 in it, and from `low` on others,
    unless all values are 0.
    """
    ticks = log_ticks(np.log10(low), np.log10(2 * largest), _MOST_TICKS) if largest > zero else []
    return {"tickvals": [zero, *ticks], "ticktext": ["0", *on_axis(ticks)]}


def selection_ring(table: DataFrame, prompt: int, position: int) -> tuple[Record, ...]:
    """Ring around a position in the scatter of the same table, as shapes of a layout; none if it is
    not drawn.
    """
    points, *_ = margin_points(table)
    selected = points[(points["prompt"] == prompt) & (points["position"] == position)]
    ring: Record = {
        "type": "path",
        "path": _RING,
        "xsizemode": "pixel",
        "ysizemode": "pixel",
        "line": {"color": FLIP, "width": 2.5},
    }
    places = selected[["x", "y"]].to_numpy(float)
    return tuple(ring | {"xanchor": x, "yanchor": y} for x, y in places)


def _labels(table: DataFrame, texts: Sequence[tuple[str, ...]]) -> Array:
    """Labels of positions: `position 17 after 'self'`, with the prompt if the run has several."""
    lengths = [0] * len(texts)
    labels = []
    for prompt, position in table[["prompt", "position"]].itertuples(index=False):
        front = words_of((prompt, position), lengths)
        if position < len(texts[prompt]):
            text = inert(visible(texts[prompt][position]))
            front = f"{front} after {text!r}"
        labels.append(front)
    return np.array(labels, object)


def _add_density(
    figure: go.Figure,
    x: Array,
    y: Array,
    ends: list[tuple[float, float]],
    color: str,
) -> None:
    """Add how many points lie in each cell of the plot, log shades; the lightest is of a single
    point.
    """
    edges = [np.geomspace(*end, cells + 1) for end, cells in zip(ends, _CELLS, strict=True)]
    counts, _, _ = np.histogram2d(x, y, bins=edges)
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    figure.add_heatmap(
        z=np.log10(gaps_at_zero(counts.T)),
        x=edges[0],
        y=edges[1],
        colorscale=[
            [0.0, f"rgba({red},{green},{blue},0.28)"],
            [1.0, f"rgba({red},{green},{blue},1)"],
        ],
        zmin=0,
        zmax=float(np.log10(max(counts.max(), 10))),
        showscale=False,
        hoverinfo="skip",
        name="density",
    )
