"""Small multiples of a sweep: how the difference grows over the model's blocks, a panel a place of the matrix."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.components.chart_style import CLICKABLE, NEAREST_CLICK, QUIET, REFERENCE, VARIANT, inert, layout, log_axis
from core.runs.file.records import FAILING
from core.sweeps.matrix import Matrix
from core.text import shown

_PANEL = 120  # pixels


def growth_panels(matrix: Matrix) -> go.Figure:
    """rms in row ULPs after each block, axes in common: of the gravest cell of each place, and dotted of its last good
    run. A click gives the row and the column of the place.
    """
    rows, columns = len(matrix.rows), len(matrix.columns)
    figure = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.12 / columns,
        vertical_spacing=min(0.2 / rows, 0.08),
        column_titles=[inert(shown(name, 24)) for name in matrix.columns],
        row_titles=[inert(shown(name, 16)) for name in matrix.rows],
    )
    everything: list[float] = []
    for row, places in enumerate(matrix.places, 1):
        for column, place in enumerate(places, 1):
            change = place.change
            if change is None or change.now is None:
                continue
            at = {"row": row, "col": column}
            verdict = inert(shown(change.now.verdict, 40))
            now = _above_zero(change.growth)
            before = _above_zero(() if change.before is None else change.before.growth)
            everything += [*now, *before]
            figure.add_scatter(
                x=np.arange(len(before)),
                y=before,
                mode="lines",
                line={"color": QUIET, "dash": "dot"},
                hoverinfo="skip",
                **at,
            )
            figure.add_scatter(
                x=np.arange(len(now)),
                y=now,
                line={"color": VARIANT if change.now.verdict in FAILING else REFERENCE, "width": 2},
                **CLICKABLE,
                customdata=[[row - 1, column - 1]] * len(now),
                hovertemplate=f"block %{{x}}: %{{y:.3g}} row ULPs<br>{verdict}<extra></extra>",
                **at,
            )
    known = np.array([value for value in everything if value == value])
    figure.update_yaxes(**log_axis(known), nticks=4)
    figure.update_xaxes(showgrid=False, rangemode="tozero")
    figure.update_xaxes(title="block", row=rows)
    return layout(figure, 70 + _PANEL * rows, showlegend=False, **NEAREST_CLICK)


def _above_zero(values: tuple[float | None, ...]) -> np.ndarray:
    """Values for a log axis; a gap where there is none, or it is 0."""
    return np.array([value if value else np.nan for value in values], float)
