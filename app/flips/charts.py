"""Candidates for an argmax on the grid of the dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np

from app.components.chart_style import LAYOUT, QUIET, REFERENCE, VARIANT, inert
from core.runs.queries.flips import Candidates

_APART = 0.17  # of a mark of a side, above or below its line
_SYMBOLS = ("triangle-down", "triangle-up", "circle", "square", "diamond", "cross", "star", "x", "pentagon", "hexagram")
_LABELLED = 9  # lines of the grid


def on_grid(candidates: Candidates, names: Sequence[str], texts: Sequence[str], dtype: str) -> dict[str, Any]:
    """Logits of the candidates on every side, a line of the grid for every value that the dtype has there; a plain
    dict, for plotly takes 20 ms to check it.

    names: of the sides, the reference first; texts: of the candidates. The first candidate points down on a side's line
    from above, the second up from below: where they meet is a tie.
    """
    sides, grid = range(len(names))[::-1], candidates.grid.tolist()
    thin = {"type": "line", "layer": "below", "y0": 0, "y1": 1, "xref": "x", "yref": "y domain", "opacity": 0.45}
    lines = [{**thin, "x0": value, "x1": value, "line": {"color": QUIET, "width": 1}} for value in grid]
    thin = {"type": "line", "layer": "below", "x0": 0, "x1": 1, "xref": "x domain", "yref": "y"}
    lines += [{**thin, "y0": height, "y1": height, "line": {"color": QUIET, "width": 1.2}} for height in sides]
    marks: list[dict[str, Any]] = []
    for candidate, (text, symbol) in enumerate(zip(texts, cycle(_SYMBOLS), strict=False)):
        offset = -_APART if candidate % 2 else _APART
        hover = f"{inert(text).replace('%', '&#37;')}: %{{x:.9g}} logits on %{{customdata}}<extra></extra>"
        mark = {"type": "scatter", "mode": "markers", "name": inert(text), "legendgroup": symbol}
        legend = {"symbol": symbol, "size": 11, "color": QUIET}  # colours are sides, so the legend's mark has none
        marks.append({**mark, "x": [None], "y": [None], "marker": legend})
        marks.append(
            {
                **mark,
                "x": candidates.logits[:, candidate].tolist(),
                "y": [side + offset for side in sides],
                "showlegend": False,
                "marker": {"symbol": symbol, "size": 15, "color": [REFERENCE, *[VARIANT] * (len(names) - 1)]},
                "customdata": [inert(name).replace("%", "&#37;") for name in names],
                "hovertemplate": hover,
            }
        )
    fixed = {"zeroline": False, "automargin": True}
    across: dict[str, Any] = {"title": {"text": "logit"}, **fixed}
    if grid:
        ticks = grid[:: max(1, -(-len(grid) // _LABELLED))]
        half = float(np.diff(candidates.grid).max(initial=0.0)) / 2
        across |= {
            "title": {"text": f"logit (grid lines: representable {dtype} values)"},
            "showgrid": False,
            "tickvals": ticks,
            "ticktext": [f"{value:.9g}" for value in ticks],
            "range": [grid[0] - half, grid[-1] + half],
        }
    up = {"tickvals": [*sides], "ticktext": [*map(inert, names)], "range": [-0.6, len(names) - 0.4], **fixed}
    of_all = {**LAYOUT, "height": 120 + 50 * len(names), "hovermode": "closest"}
    return {"data": marks, "layout": {**of_all, "shapes": lines, "xaxis": across, "yaxis": up}}
