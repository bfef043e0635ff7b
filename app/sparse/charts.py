"""Charts of sparse pairs: margins against the changes that were sent, and changes by rank."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.components.chart_style import FLIP, QUIET, REFERENCE, VARIANT, above_zero, layout, log_axis

_DIVERGING = [[0.0, REFERENCE], [0.5, "#E8E8E4"], [1.0, VARIANT]]


def margins(table: pd.DataFrame, selected: tuple[int, int], unit: str) -> go.Figure:
    """Smaller margin against the largest change that was sent, log axes; positions without a margin are left out.

    Custom data of a point: prompt, position, change, margin.
    """
    margin = table[["reference_margin", "variant_margin"]].min(axis=1)
    table, margin = table[margin.notna()], margin[margin.notna()].to_numpy(float)
    change = table["max_abs"].to_numpy(float)
    x, _ = above_zero(change)
    y, _ = above_zero(margin)
    figure = go.Figure()
    flips, near = table["is_flip"].to_numpy(bool), table["could_flip"].to_numpy(bool)
    for name, chosen, colour, symbol, size in (
        ("cannot flip by what was sent", ~near & ~flips, QUIET, "circle", 6),
        ("could flip", near & ~flips, REFERENCE, "circle", 7),
        ("flip", flips, VARIANT, "x", 10),
    ):
        if not chosen.any():
            continue
        places = table[["prompt", "position"]].to_numpy(float)[chosen]
        figure.add_scatter(
            x=x[chosen],
            y=y[chosen],
            mode="markers",
            name=f"{name} ({int(chosen.sum()):,})",
            marker={"color": colour, "symbol": symbol, "size": size},
            customdata=np.column_stack([places, change[chosen], margin[chosen]]),
            hovertemplate=(
                "position %{customdata[1]}<br>smaller margin %{customdata[3]:.5g}<br>largest change sent"
                " %{customdata[2]:.5g}<extra></extra>"
            ),
        )
    here = (table["prompt"].to_numpy(int) == selected[0]) & (table["position"].to_numpy(int) == selected[1])
    if here.any():
        figure.add_scatter(
            x=x[here],
            y=y[here],
            mode="markers",
            name="selected",
            hoverinfo="skip",
            marker={"color": FLIP, "symbol": "circle-open", "size": 16, "line": {"width": 2}},
        )
    figure.update_xaxes(title=f"largest change that was sent, {unit}", **log_axis(x))
    figure.update_yaxes(title=f"smaller margin, {unit}", **log_axis(y))
    return layout(figure, 380)


def by_rank(positions: NDArray[np.int64], changes: NDArray[np.float64], selected: int, unit: str) -> go.Figure:
    """Change of the token at each rank of the reference, over positions; what the variant did not send is blank."""
    most = float(np.nanmax(np.abs(changes), initial=0.0)) or 1.0
    ranks = np.arange(1, changes.shape[1] + 1)
    figure = go.Figure(
        go.Heatmap(
            x=ranks,
            y=positions,
            z=[[None if np.isnan(value) else value for value in row] for row in changes.tolist()],
            zmin=-most,
            zmax=most,
            colorscale=_DIVERGING,
            colorbar={"title": {"text": unit, "side": "right"}},
            hovertemplate="position %{y}, rank %{x}<br>variant − reference: %{z:.5g}<extra></extra>",
        )
    )
    figure.add_hline(y=selected, line={"color": FLIP, "width": 1.5})
    figure.update_xaxes(title="rank in the reference, 1 = best", range=[0.5, len(ranks) + 0.5])
    figure.update_yaxes(title="position", autorange="reversed")
    return layout(figure, int(min(760, max(260, 120 + 6 * len(positions)))))
