"""Charts of the Near ties page: margins against differences, and the distribution of margins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.components.chart_style import FLIP, MISMATCH, NEAREST_CLICK, QUIET, REFERENCE, VARIANT, inert, layout
from core.text import visible

CROWDED = 2000  # positions of a kind from which on they are shaded by density: points would lie on each other
_CELLS = (96, 56)  # of the density, across and up: about 8 px at 800 x 430


def near_tie_scatter(table: pd.DataFrame, texts: Sequence[tuple[str, ...]], selected: tuple[int, int]) -> go.Figure:
    """Smaller margin against largest difference of every position, logits, log axes; the line beyond which no flip is
    possible.

    Zeros have no place on a log axis: they stand in a shaded gutter, half a decade below the smallest other value. Many
    positions of a kind are shaded by density, with points that are there to be hovered and clicked only. texts: of
    every prompt's tokens, empty if unknown; selected: (prompt, position). A click gives prompt, position, difference,
    margin.
    """
    margin = table[["reference_margin", "variant_margin"]].min(axis=1)
    table, margin = table[margin.notna()], margin[margin.notna()].to_numpy(float)
    difference = table["max_abs"].to_numpy(float)
    (x, x_zero), (y, y_zero) = _above_zero(difference), _above_zero(margin)
    ends = [(v.min() / 2, v.max() * 2) if len(v) else (0.1, 10.0) for v in (x, y)]
    figure = go.Figure()
    low = max(x_zero * 10**0.25 if x_zero else ends[0][0], (y_zero * 10**0.25 if y_zero else ends[1][0]) / 2)
    span = np.array([low, max(ends[0][1], ends[1][1] / 2)])
    bound = {"name": "margin = 2 × difference", "line": {"color": QUIET, "dash": "dash", "width": 1.5}}
    figure.add_scatter(x=span, y=2 * span, mode="lines", hoverinfo="skip", **bound)
    flips, could = (table[name].to_numpy(bool) for name in ("is_flip", "could_flip"))
    odd = table["nonfinite_mismatch"].to_numpy() > 0  # the bound is a theorem about finite numbers
    labels = _labels(table, texts)
    told = np.stack([table["prompt"], table["position"], difference, margin], axis=1)
    for name, chosen, color, symbol, size in (
        ("no flip possible", ~could & ~odd, QUIET, "circle", 6),
        ("could flip", could & ~flips & ~odd, REFERENCE, "circle", 7),
        ("flip", flips & ~odd, VARIANT, "x", 10),
        ("NaN or infinity on one side", odd, MISMATCH, "square", 10),
    ):
        count = int(chosen.sum())
        if not count:
            continue
        is_dense = count > CROWDED
        if is_dense:
            _add_density(figure, x[chosen], y[chosen], ends, color)
        figure.add_scatter(
            x=x[chosen],
            y=y[chosen],
            mode="markers",
            name=f"{name} ({count:,}{', by density' if is_dense else ''})",
            marker={"color": color, "symbol": symbol, "size": size}
            | ({"maxdisplayed": 1, "opacity": 0} if is_dense else {"opacity": 0.8}),
            customdata=told[chosen],
            text=labels[chosen],
            hovertemplate=(
                "%{text}<br>smaller margin %{customdata[3]:.5g}<br>largest difference"
                " %{customdata[2]:.5g}<extra></extra>"
            ),
        )
    here = (told[:, 0] == selected[0]) & (told[:, 1] == selected[1])
    ring = {"color": "rgba(0,0,0,0)", "size": 18, "line": {"color": FLIP, "width": 2.5}}
    figure.add_scatter(
        x=x[here], y=y[here], mode="markers", name=f"position {selected[1]}", hoverinfo="skip", marker=ring
    )
    band = {"fillcolor": QUIET, "opacity": 0.1, "line_width": 0, "layer": "below"}
    text = {"showarrow": False, "xanchor": "left", "yanchor": "bottom"}
    if y_zero is not None:  # annotations on a log axis are placed by logarithm, shapes by value
        figure.add_hrect(y0=ends[1][0], y1=y_zero * 10**0.25, **band)
        figure.add_annotation(xref="paper", x=0, y=np.log10(y_zero), text="tie: margin 0", **text)
    if x_zero is not None:
        figure.add_vrect(x0=ends[0][0], x1=x_zero * 10**0.25, **band)
        figure.add_annotation(yref="paper", y=0.94, x=np.log10(ends[0][0]), text="no difference", **text)
    axis = {"type": "log", "exponentformat": "power"}
    figure.update_xaxes(title="largest difference at the position, logits", range=np.log10(ends[0]).tolist(), **axis)
    figure.update_yaxes(title="smaller margin of the two sides, logits", range=np.log10(ends[1]).tolist(), **axis)
    # Room above the legend for the buttons of the figure, which would lie on it.
    return layout(figure, 460, **NEAREST_CLICK | {"hoverdistance": 20}).update_layout(margin={"t": 58})


def _above_zero(values: np.ndarray) -> tuple[np.ndarray, float | None]:
    """(values with zeros moved to where a log axis can show them, that place or None)."""
    positive = values[values > 0]
    if len(positive) == len(values):
        return values, None
    place = float(positive.min()) / 10**0.5 if len(positive) else 1e-3
    return np.where(values > 0, values, place), place


def _labels(table: pd.DataFrame, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Labels of positions: `position 17 after 'self'`, with the prompt in front if there are several."""
    several = table["prompt"].nunique() > 1
    labels = []
    for prompt, position in table[["prompt", "position"]].itertuples(index=False):
        front = f"prompt {prompt}, position {position}" if several else f"position {position}"
        known = position < len(texts[prompt])
        labels.append(f"{front} after {inert(visible(texts[prompt][position]))!r}" if known else front)
    return np.array(labels, object)


def _add_density(figure: go.Figure, x: np.ndarray, y: np.ndarray, ends: list[tuple[float, float]], color: str) -> None:
    """Add how many points lie in each cell of the plot, log shades; the lightest is of a single point."""
    edges = [np.geomspace(low, high, cells + 1) for (low, high), cells in zip(ends, _CELLS, strict=True)]
    counts, _, _ = np.histogram2d(x, y, bins=edges)
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    figure.add_heatmap(
        z=np.where(counts.T > 0, np.log10(np.maximum(counts.T, 1)), np.nan),
        x=edges[0],
        y=edges[1],
        colorscale=[[0.0, f"rgba({red},{green},{blue},0.28)"], [1.0, f"rgba({red},{green},{blue},1)"]],
        zmin=0,
        zmax=max(1.0, float(np.log10(max(counts.max(), 1)))),
        showscale=False,
        hoverinfo="skip",
        name="density",
    )


def margin_distribution(table: pd.DataFrame, threshold: float, dtype: str, unit: str = "ULPs") -> go.Figure:
    """Number of positions by margin, both sides, in doubling bins; the threshold as a line. unit: ULPs or logits."""
    ending = "margin_ulps" if unit == "ULPs" else "margin"
    sides = {side: table[f"{side}_{ending}"].dropna().to_numpy(float) for side in ("reference", "variant")}
    sides = {side: values[np.isfinite(values)] for side, values in sides.items()}
    positive = np.concatenate([values[values > 0] for values in sides.values()])
    lowest = 0 if unit == "ULPs" or not len(positive) else int(np.floor(np.log2(positive.min())))
    top = max(lowest, int(np.floor(np.log2(positive.max())))) if len(positive) else lowest
    edges = 2.0 ** np.arange(lowest, top + 2)  # bin n > 0 is from edges[n - 1] to before edges[n], bin 0 is of zeros
    labels = ["0", *(f"{edge:,.0f}" if unit == "ULPs" else f"{edge:.4g}" for edge in edges[:-1])]
    figure = go.Figure()
    for (side, values), color in zip(sides.items(), (REFERENCE, VARIANT), strict=True):
        figure.add_bar(
            x=labels,
            y=np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(labels)),
            name=side,
            marker_color=color,
            hovertemplate=f"%{{x}} {unit} and more: %{{y:,}} positions<extra>{side}</extra>",
        )
    end = threshold + (unit == "ULPs")  # whole numbers up to the threshold lie below the next one
    place = 0.5 if end <= edges[0] else min(np.log2(end) - lowest + 0.5, len(labels) - 0.5)
    figure.add_vline(x=float(place), line={"color": FLIP, "width": 2, "dash": "dash"})
    of = f"ULPs of {dtype}" if unit == "ULPs" else "logits"
    title = f"margin, {of}; a bar reaches from its label to twice that"
    figure.update_xaxes(title=title, type="category", categoryorder="array", categoryarray=labels)
    figure.update_yaxes(title="positions")
    return layout(figure, 300, barmode="group", bargap=0.15)
