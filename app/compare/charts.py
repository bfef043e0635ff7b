"""Charts of the Compare page: pairs of several runs over each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.components.chart_style import VARIANT, add_lone, gaps_at_zero, inert, layout, log_axis

# Here a color is a run, not a side. Okabe-Ito without vermilion, in which flips are marked on every page.
RUNS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#9A6FD6", "#E69F00")


def runs_by_distance(curves: list[tuple[str, pd.DataFrame]]) -> go.Figure:
    """Share of logits that differ by at least so many ULPs, one step line per run, log axes. curves: name, table of
    core.runs.queries.compare.distribution.
    """
    figure = go.Figure()
    for (name, table), color in zip(curves, RUNS, strict=False):
        figure.add_scatter(
            x=table["distance"],
            y=table["share"],
            mode="lines",
            line={"color": color, "width": 2, "shape": "vh"},
            name=inert(name),
            hovertemplate="%{y:.3g} of the logits differ by at least %{x:,} ULPs<extra></extra>",
        )
    whole = pd.concat([table for _, table in curves])
    figure.update_xaxes(title="ULPs of each run's own dtype", **log_axis(whole["distance"].to_numpy(float)))
    figure.update_yaxes(title="share that differs by at least as much", **log_axis(whole["share"].to_numpy(float)))
    return layout(figure, 320).update_layout(legend_tracegroupgap=0)


def runs_by_position(runs: list[tuple[str, pd.DataFrame]], prompt: int, by: str, title: str) -> go.Figure:
    """Plot a figure by position of a prompt, one line per run, flips marked. runs: name, figures by position."""
    runs = [(name, table[table["prompt"] == prompt]) for name, table in runs]
    figure = go.Figure()
    flips = []
    for place, ((name, table), color) in enumerate(zip(runs, RUNS, strict=False)):
        at, values = table["position"].to_numpy(int), gaps_at_zero(table[by].to_numpy(float, na_value=np.nan))
        hover = "position %{x}: %{y:.3g}<extra>" + inert(name) + "</extra>"
        of_run = {"name": inert(name), "legendgroup": str(place), "hovertemplate": hover}
        figure.add_scatter(x=at, y=values, mode="lines", line={"color": color, "width": 1.6}, **of_run)
        add_lone(figure, at, values, color, 4)
        is_marked = table["is_flip"].to_numpy(bool) & ~np.isnan(values)
        flips.append((at[is_marked], values[is_marked], color, hover))
    flips = [one for one in flips if len(one[0])]
    for at, values, color, hover in flips:  # after every line: none is drawn over them
        figure.add_scatter(
            x=at,
            y=values,
            mode="markers",
            name="flip",
            legendgroup="flip",
            marker={"color": VARIANT, "size": 10, "symbol": "x", "line": {"color": color, "width": 1}},
            showlegend=at is flips[0][0],
            hovertemplate=f"flip at {hover}",
        )
    figure.update_xaxes(title="position")
    every = np.concatenate([table[by].to_numpy(float, na_value=np.nan) for _, table in runs])
    figure.update_yaxes(title=title, **log_axis(every))
    return layout(figure, 320).update_layout(legend_tracegroupgap=0)
