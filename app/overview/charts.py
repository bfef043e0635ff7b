"""Chart of the Overview page: a pair's logits by ULP distance."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.components.chart_style import QUIET, REFERENCE, layout


def ulp_histogram(histogram: dict[int, int], dtype: str) -> go.Figure:
    """Elements by ULP distance, in doubling bins, log counts from a half on: a bar of one element is seen, and every
    bar has a length.
    """
    top = max(histogram, default=0).bit_length()
    counts = [0] * (top + 1)
    for distance, elements in histogram.items():
        counts[distance.bit_length()] += elements
    spans = [(1 << power, (2 << power) - 1) for power in range(top)]
    labels = ["0", *(str(low) if low == high else f"{low:,}-{high:,}" for low, high in spans)]
    figure = go.Figure(
        go.Bar(
            x=labels,
            y=counts,
            marker_color=[QUIET, *[REFERENCE] * top],
            hovertemplate="%{x} ULPs: %{y:,} elements<extra></extra>",
        )
    )
    figure.update_xaxes(title=f"distance, ULPs of {dtype}", type="category")
    most = float(np.log10(max(*counts, 10)))
    figure.update_yaxes(
        title="elements", type="log", exponentformat="power", dtick=1, range=[np.log10(0.5), most + 0.05 * (most + 0.3)]
    )
    return layout(figure, 300)
