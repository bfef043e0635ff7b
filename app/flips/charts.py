"""Two candidates for an argmax on the grid of the dtype."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.components.chart_style import QUIET, REFERENCE, VARIANT, inert, layout
from core.runs.queries.flips import SIDES, Candidates

_APART = 0.17  # of the two marks of a side, above and below its line
_LABELLED = 9  # lines of the grid


def on_grid(found: Candidates, names: tuple[str, str], texts: tuple[str, str], dtype: str) -> go.Figure:
    """Logits of both candidates on both sides, a line of the grid for every value that the dtype has there.

    names: of the sides; texts: of the candidates. The first candidate points down on a side's line from above, the
    second up from below: where they meet is a tie.
    """
    figure = go.Figure()
    for value in found.grid:
        figure.add_vline(x=value, line={"color": QUIET, "width": 1}, opacity=0.45, layer="below")
    for candidate, (text, symbol, offset) in enumerate(
        zip(texts, ("triangle-down", "triangle-up"), (_APART, -_APART), strict=True)
    ):
        figure.add_scatter(  # colours are sides, so the legend's mark has none
            x=[None],
            y=[None],
            mode="markers",
            name=inert(text),
            legendgroup=symbol,
            marker={"symbol": symbol, "size": 11, "color": QUIET},
        )
        figure.add_scatter(
            x=found.logits[:, candidate],
            y=[1 + offset, offset],
            mode="markers",
            name=inert(text),
            legendgroup=symbol,
            showlegend=False,
            marker={"symbol": symbol, "size": 15, "color": [REFERENCE, VARIANT]},
            customdata=[inert(name).replace("%", "&#37;") for name in names],
            hovertemplate=f"{inert(text).replace('%', '&#37;')}: %{{x:.9g}} logits on %{{customdata}}<extra></extra>",
        )
    axis: dict = {"title": f"logit; lines: values of {dtype}" if len(found.grid) else "logit", "zeroline": False}
    if len(found.grid):
        step = max(1, -(-len(found.grid) // _LABELLED))
        shown = found.grid[::step]
        half = float(np.diff(found.grid).max(initial=0.0)) / 2
        axis |= {
            "showgrid": False,
            "tickvals": shown,
            "ticktext": [f"{value:.9g}" for value in shown],
            "range": [float(found.grid[0]) - half, float(found.grid[-1]) + half],
        }
    figure.update_xaxes(**axis)
    figure.update_yaxes(
        tickvals=[1, 0], ticktext=[inert(name) for name in names], range=[-0.6, 1.6], zeroline=False, title=None
    )
    for height in range(len(SIDES)):
        figure.add_hline(y=height, line={"color": QUIET, "width": 1.2}, layer="below")
    return layout(figure, 220, hovermode="closest")
