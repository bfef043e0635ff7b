"""Margins against differences, and how margins are distributed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.charts.style import FLIP, MISMATCH, QUIET, REFERENCE, VARIANT, above_zero, doubling_labels, layout, position_labels


def near_tie_scatter(table: pd.DataFrame, texts: tuple[str, ...], selected: int) -> go.Figure:
    """Smaller margin against largest difference of every position, logits, log axes; the line beyond which no flip is possible.

    Zeros cannot stand on a log axis: they are drawn half a decade below the smallest other value, on lines labelled 0.
    """
    margin = table[["reference_margin", "variant_margin"]].min(axis=1)
    known = margin.notna()
    table, margin = table[known], margin[known].to_numpy(float)
    difference = table["max_abs"].to_numpy(float)
    y, y_zero = above_zero(margin)
    x, x_zero = above_zero(difference)
    figure = go.Figure()
    ends = [(v.min() / 2, v.max() * 2) if len(v) else (0.1, 10.0) for v in (x, y)]
    span = np.array([min(ends[0][0], ends[1][0] / 2), max(ends[0][1], ends[1][1] / 2)])
    figure.add_scatter(
        x=span,
        y=2 * span,
        mode="lines",
        line={"color": QUIET, "dash": "dash", "width": 1.5},
        name="margin = 2 × difference",
        hoverinfo="skip",
    )
    flips = table["is_flip"].to_numpy(bool)
    near = table["near_tie"].to_numpy(bool)
    odd = table["nonfinite_mismatch"].to_numpy() > 0  # the bound is a theorem about finite numbers
    labels = np.array(position_labels(table["position"], texts), object)
    positions = table["position"].to_numpy(int)
    for name, chosen, colour, symbol, size in (
        ("no flip possible", ~near & ~odd, QUIET, "circle", 6),
        ("near tie without a flip", near & ~flips & ~odd, REFERENCE, "circle", 7),
        ("flip", flips & ~odd, VARIANT, "x", 10),
        ("NaN or infinity on one side", odd, MISMATCH, "square", 10),
    ):
        if not chosen.any():
            continue
        figure.add_scatter(
            x=x[chosen], y=y[chosen], mode="markers", name=f"{name} ({int(chosen.sum())})",
            marker={"color": colour, "symbol": symbol, "size": size, "opacity": 0.8, "line": {"width": 0}},
            customdata=np.stack([positions[chosen], difference[chosen], margin[chosen]], axis=1), text=labels[chosen],
            hovertemplate="position %{text}<br>smaller margin %{customdata[2]:.5g}<br>largest difference %{customdata[1]:.5g}<extra></extra>",
        )  # fmt: skip
    here = positions == selected
    figure.add_scatter(
        x=x[here], y=y[here], mode="markers", name=f"position {selected}", hoverinfo="skip",
        marker={"color": "rgba(0,0,0,0)", "size": 18, "line": {"color": FLIP, "width": 2.5}},
    )  # fmt: skip
    line = {"color": QUIET, "width": 1, "dash": "dot"}
    if y_zero is not None:  # annotations on a log axis are placed by logarithm, lines by value
        figure.add_hline(y=y_zero, line=line)
        figure.add_annotation(
            xref="paper", x=1, y=np.log10(y_zero), yshift=9, text="tie: margin 0", showarrow=False, xanchor="right"
        )
    if x_zero is not None:
        figure.add_vline(x=x_zero, line=line)
        figure.add_annotation(
            yref="paper", y=1, x=np.log10(x_zero), xshift=4, text="no difference", showarrow=False, xanchor="left"
        )
    (left, right), (bottom, top) = np.log10(ends)
    figure.update_xaxes(
        type="log", title="largest difference at the position, logits", exponentformat="power", range=[left, right]
    )
    figure.update_yaxes(type="log", title="smaller margin of the two sides, logits", exponentformat="power", range=[bottom, top])
    return layout(figure, 430, clickmode="event+select")


def margin_distribution(table: pd.DataFrame, threshold_ulps: int, dtype: str) -> go.Figure:
    """How many positions have which margin, ULPs, both sides, in doubling bins; the threshold as a line."""
    figure = go.Figure()
    top = 1
    for name, column, colour in (("reference", "reference_margin_ulps", REFERENCE), ("variant", "variant_margin_ulps", VARIANT)):
        margins = table[column].dropna().to_numpy(np.int64)
        bins = np.where(margins > 0, np.floor(np.log2(np.maximum(margins, 1))).astype(int) + 1, 0)
        counts = np.bincount(bins, minlength=1)
        top = max(top, len(counts))
        figure.add_bar(
            x=doubling_labels(len(counts)),
            y=counts,
            name=name,
            marker_color=colour,
            hovertemplate="%{x} ULPs: %{y} positions<extra></extra>",
        )
    edge = 0 if threshold_ulps == 0 else int(np.floor(np.log2(threshold_ulps))) + 1
    if edge < top:
        low = 1 << max(edge - 1, 0)  # the line stands within its bin, where the threshold is
        within = (threshold_ulps - low + 1) / low if edge else 1.0
        figure.add_vline(x=edge - 0.5 + within, line={"color": FLIP, "width": 2, "dash": "dash"})
    figure.update_xaxes(
        title=f"margin, ULPs of {dtype}", type="category", categoryorder="array", categoryarray=doubling_labels(top)
    )
    figure.update_yaxes(title="positions")
    return layout(figure, 300, barmode="group", bargap=0.15)
