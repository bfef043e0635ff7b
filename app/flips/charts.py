"""Candidates for an argmax on the grid of the dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import plotly.graph_objects as go

from app.components.chart_style import QUIET, REFERENCE, VARIANT, inert, layout
from core.runs.queries.flips import Candidates

_APART = 0.17  # of a mark of a side, above or below its line
_SYMBOLS = ("triangle-down", "triangle-up", "circle", "square", "diamond", "cross", "star", "x", "pentagon", "hexagram")
_LABELLED = 9  # lines of the grid


def on_grid(candidates: Candidates, names: Sequence[str], texts: Sequence[str], dtype: str) -> go.Figure:
    """Logits of the candidates on every side, a line of the grid for every value that the dtype has there.

    names: of the sides, the reference first; texts: of the candidates. The first candidate points down on a side's line
    from above, the second up from below: where they meet is a tie.
    """
    figure, sides = go.Figure(), range(len(names))[::-1]
    thin = {"type": "line", "layer": "below", "y0": 0, "y1": 1, "xref": "x", "yref": "y domain", "opacity": 0.45}
    lines = [{**thin, "x0": value, "x1": value, "line": {"color": QUIET, "width": 1}} for value in candidates.grid]
    thin = {"type": "line", "layer": "below", "x0": 0, "x1": 1, "xref": "x domain", "yref": "y"}
    lines += [{**thin, "y0": height, "y1": height, "line": {"color": QUIET, "width": 1.2}} for height in sides]
    figure.update_layout(shapes=lines)  # at once: add_vline validates every earlier line again, 0.3 s
    for candidate, (text, symbol) in enumerate(zip(texts, cycle(_SYMBOLS), strict=False)):
        offset = -_APART if candidate % 2 else _APART
        figure.add_scatter(  # colours are sides, so the legend's mark has none
            x=[None],
            y=[None],
            mode="markers",
            name=inert(text),
            legendgroup=symbol,
            marker={"symbol": symbol, "size": 11, "color": QUIET},
        )
        figure.add_scatter(
            x=candidates.logits[:, candidate],
            y=[side + offset for side in sides],
            mode="markers",
            name=inert(text),
            legendgroup=symbol,
            showlegend=False,
            marker={"symbol": symbol, "size": 15, "color": [REFERENCE, *[VARIANT] * (len(names) - 1)]},
            customdata=[inert(name).replace("%", "&#37;") for name in names],
            hovertemplate=f"{inert(text).replace('%', '&#37;')}: %{{x:.9g}} logits on %{{customdata}}<extra></extra>",
        )
    axis: dict = {"title": f"logit; lines: values of {dtype}" if len(candidates.grid) else "logit", "zeroline": False}
    if len(candidates.grid):
        step = max(1, -(-len(candidates.grid) // _LABELLED))
        ticks = candidates.grid[::step]
        half = float(np.diff(candidates.grid).max(initial=0.0)) / 2
        axis |= {
            "showgrid": False,
            "tickvals": ticks,
            "ticktext": [f"{value:.9g}" for value in ticks],
            "range": [float(candidates.grid[0]) - half, float(candidates.grid[-1]) + half],
        }
    figure.update_xaxes(**axis)
    figure.update_yaxes(
        tickvals=[*sides],
        ticktext=[inert(name) for name in names],
        range=[-0.6, len(names) - 0.4],
        zeroline=False,
        title=None,
    )
    return layout(figure, 120 + 50 * len(names), hovermode="closest")
