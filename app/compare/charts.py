"""Charts of the Compare page: pairs of several runs over each other."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.components.chart_style import VARIANT, add_lone, inert, layout, log_axis

# Here a colour is a run, not a side. Okabe-Ito without vermilion, in which flips are marked on every page.
RUNS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#9A6FD6", "#E69F00")


def runs_by_distance(curves: list[tuple[str, NDArray[np.float64], NDArray[np.float64]]]) -> go.Figure:
    """Share of logits at least so many ULPs apart, one step line a run, both axes logarithmic. curves: name, ULPs,
    share.
    """
    figure = go.Figure()
    for place, (name, ulps, share) in enumerate(curves):
        figure.add_scatter(
            x=ulps,
            y=share,
            mode="lines",
            line={"color": RUNS[place % len(RUNS)], "width": 2, "shape": "vh"},
            name=inert(name),
            hovertemplate="%{y:.3g} of the logits are at least %{x:,} ULPs apart<extra></extra>",
        )
    every = [np.concatenate([[], *(curve[place] for curve in curves)]) for place in (1, 2)]
    figure.update_xaxes(title="ULPs of each run's own dtype", **log_axis(every[0]))
    figure.update_yaxes(title="share at least so far apart", **log_axis(every[1]))
    return layout(figure, 320).update_layout(legend_tracegroupgap=0)


def runs_by_position(
    curves: list[tuple[str, NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]], title: str, selected: int
) -> go.Figure:
    """A figure at each position of a prompt, one line a run, flips marked. curves: name, positions, values, positions
    that flip.
    """
    figure = go.Figure()
    for place, (name, at, values, _) in enumerate(curves):
        colour = RUNS[place % len(RUNS)]
        shown = np.where(values > 0, values, np.nan)
        figure.add_scatter(
            x=at,
            y=shown,
            mode="lines",
            line={"color": colour, "width": 1.6},
            name=inert(name),
            legendgroup=str(place),
            hovertemplate="position %{x}: %{y:.3g}<extra>" + inert(name) + "</extra>",
        )
        add_lone(figure, at, shown, colour, 4)
    for place, (name, at, values, flips) in enumerate(curves):  # after every line: none is drawn over them
        marked = np.isin(at, flips) & (values > 0)
        if marked.any():
            figure.add_scatter(
                x=at[marked],
                y=values[marked],
                mode="markers",
                name="flip",
                legendgroup="flip",
                marker={
                    "color": VARIANT,
                    "size": 10,
                    "symbol": "x",
                    "line": {"color": RUNS[place % len(RUNS)], "width": 1},
                },
                showlegend=not any(line.name == "flip" for line in figure.data),
                hovertemplate="flip at position %{x}: %{y:.3g}<extra>" + inert(name) + "</extra>",
            )
    figure.add_vline(x=selected, line={"color": "#8A93A0", "width": 1.2, "dash": "dot"})
    figure.update_xaxes(title="position")
    figure.update_yaxes(title=title, **log_axis(np.concatenate([[], *(values for _, _, values, _ in curves)])))
    return layout(figure, 320).update_layout(legend_tracegroupgap=0)
