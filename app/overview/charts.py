"""Charts of the Overview page: a pair along its prompt, and its logits by ULP distance."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.components.chart_style import QUIET, REFERENCE, VARIANT, add_selected, doubling_labels, layout


def ulp_histogram(histogram: dict[int, int], dtype: str) -> go.Figure:
    """Elements by ULP distance, in doubling bins, log counts from a half on: a bar of one element is seen, and every
    bar has a length.
    """
    top = max(histogram, default=0).bit_length()
    counts = [0] * (top + 1)
    for distance, elements in histogram.items():
        counts[distance.bit_length()] += elements
    labels = doubling_labels(top + 1)
    figure = go.Figure(
        go.Bar(
            x=labels,
            y=counts,
            marker_color=[QUIET, *[REFERENCE] * top],
            hovertemplate="%{x} ULPs: %{y:,} elements<extra></extra>",
        )
    )
    figure.update_xaxes(title=f"distance, ULPs of {dtype}", type="category")
    most = float(np.log10(max(*counts, 10)))
    figure.update_yaxes(
        title="elements", type="log", exponentformat="power", dtick=1, range=[np.log10(0.5), most + 0.05 * (most + 0.3)]
    )
    return layout(figure, 300)


def over_positions(table: pd.DataFrame, column: str, title: str, selected: int) -> go.Figure:
    """One figure along the prompt, flips marked."""
    figure = go.Figure()
    values = table[column].to_numpy(float)
    positions = table["position"].to_numpy(int)
    figure.add_scatter(
        x=positions,
        y=values,
        mode="lines" if len(values) > 1 else "markers",  # a line of one point is none
        line={"color": REFERENCE, "width": 1.4},
        marker={"color": REFERENCE, "size": 8},
        name=title,
        hovertemplate="position %{x}: %{y:.5g}<extra></extra>",
    )
    flips = table["is_flip"].to_numpy(bool)
    if flips.any():
        figure.add_scatter(
            x=positions[flips],
            y=values[flips],
            mode="markers",
            marker={"color": VARIANT, "symbol": "x", "size": 9},
            name="flip",
            hovertemplate="flip at %{x}: %{y:.5g}<extra></extra>",
        )
    add_selected(figure, selected)
    figure.update_xaxes(title="position")
    figure.update_yaxes(title=title, exponentformat="power")
    return layout(figure, 260)
