"""Classes of equal bits against each other, and a sweep over its value."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from app.components.chart_style import QUIET, ULPS, inert, layout
from core.text import clipped, number

# Okabe-Ito without the two colours of the sides; classes beyond these share one.
_CLASSES = ("#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#9A6FD6", "#8A93A0")
_LONGEST = 34  # of a side's name on an axis


def class_matrix(values: NDArray[np.float64], names: list[str], measure: str) -> go.Figure:
    """One figure of every two classes as shaded cells with their numbers; NaN, which is a class against itself, stays
    empty.
    """
    shown = [inert(clipped(name, _LONGEST)) for name in names]
    labels = [f"{number}  {name}" for number, name in enumerate(shown)]
    places = np.arange(len(names))
    with np.errstate(divide="ignore"):
        shade = np.log10(np.where(values > 0, values, np.nan))
    figure = go.Figure()
    figure.add_heatmap(
        z=np.where(np.isnan(values), np.nan, 0.0),
        x=places,
        y=places,
        colorscale=[[0, "rgba(138,147,160,0.16)"], [1, "rgba(138,147,160,0.16)"]],
        showscale=False,
        hoverinfo="skip",
        xgap=2,
        ygap=2,
    )
    figure.add_heatmap(
        z=shade,
        x=places,
        y=places,
        colorscale=ULPS,
        showscale=False,
        xgap=2,
        ygap=2,
        customdata=values,
        text=[[_figure(float(value), measure) for value in row] for row in values],
        hovertemplate="class %{y} against class %{x}: %{text}<extra></extra>",
    )
    if len(names) <= 12:
        for i, j in np.ndindex(values.shape):
            if not np.isnan(values[i, j]):
                is_dark = values[i, j] > 0 and _is_dark(shade, i, j)
                figure.add_annotation(
                    x=j,
                    y=i,
                    text=_figure(float(values[i, j]), measure),
                    showarrow=False,
                    font={"color": QUIET if values[i, j] == 0 else "#FFFFFF" if is_dark else "#101418", "size": 12},
                )
    ticks = {"tickvals": places, "range": [-0.5, len(names) - 0.5]}
    figure.update_xaxes(
        **ticks, ticktext=[str(number) for number in places], title="class", showgrid=False, zeroline=False
    )
    figure.update_yaxes(**ticks, ticktext=labels, showgrid=False, zeroline=False, autorange="reversed")
    return layout(figure, class_matrix_height(len(names)), showlegend=False)


def class_matrix_height(classes: int) -> int:
    """Height of the matrix of classes, in pixels."""
    return 110 + int(np.clip(34 * classes, 90, 620))


def _is_dark(shade: NDArray[np.float64], i: int, j: int) -> bool:
    """Return whether the cell is in the lower third of the scale, whose blue takes white letters."""
    low, high = np.nanmin(shade), np.nanmax(shade)
    return bool(high == low or (shade[i, j] - low) / (high - low) < 0.3)


def _figure(value: float, measure: str) -> str:
    return "" if np.isnan(value) else number(value if measure in ("max_abs", "max_row_ulps") else int(value))


def sweep(table: pd.DataFrame, name: str) -> go.Figure:
    """Small multiples over the value that was swept: share of differing logits, largest difference, flips. One colour a
    class.

    table: value, side, class, neq_share, max_abs, flips; one row a side, by value.
    """
    titles = {"neq_share": "logits that differ", "max_abs": "largest difference", "flips": "flips"}
    figure = make_subplots(rows=1, cols=3, horizontal_spacing=0.09, subplot_titles=list(titles.values()))
    values = [str(value) for value in table["value"]]  # as categories: 1, 2, 4, 33 stand side by side
    for column, measure in enumerate(titles, start=1):
        figure.add_scatter(
            x=values,
            y=table[measure],
            mode="lines",
            line={"color": QUIET, "width": 1},
            showlegend=False,
            hoverinfo="skip",
            row=1,
            col=column,
        )
        for group, rows in table.groupby("class", sort=False):
            figure.add_scatter(
                x=[str(value) for value in rows["value"]],
                y=rows[measure],
                mode="markers",
                name=f"class {group}",
                legendgroup=str(group),
                showlegend=column == 1,
                marker={"size": 10, "color": _CLASSES[int(group) % len(_CLASSES)]},
                customdata=[[inert(side)] for side in rows["side"]],
                hovertemplate="%{customdata[0]}: %{y}<extra>class " + str(group) + "</extra>",
                row=1,
                col=column,
            )
    figure.update_annotations(font_size=11)  # the titles, side by side on a telephone too
    figure.update_xaxes(title=inert(name), type="category", categoryorder="array", categoryarray=values)
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".0%", row=1, col=1)
    step = {"dtick": 1} if table["flips"].max() < 6 else {}  # whole numbers only, each once
    figure.update_yaxes(tickformat=",d", row=1, col=3, **step)
    return layout(figure, 300).update_layout(legend={"y": -0.28, "yanchor": "top"}, margin={"t": 36})
