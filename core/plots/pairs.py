"""Charts of the Overview: a pair by ULP distance, compared with the noise floor by position, and
over the modules.
"""

import numpy as np
import plotly.graph_objects as go

from ..checks.modules_alone import AloneFigures
from ..numerics.arrays import Array, DataFrame
from .style import (
    CLICKABLE,
    MISMATCH,
    NEAREST_CLICK,
    QUIET,
    REFERENCE,
    VARIANT,
    add_floor,
    add_lone,
    every_few,
    gaps_at_zero,
    hover,
    inert,
    layout,
)

# A color is a run, not a side. Okabe-Ito without vermilion, in which flips are marked.
RUNS = ("#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#9A6FD6", "#E69F00")
_DASHED = {"color": MISMATCH, "width": 1.4, "dash": "dash"}


def floor_ratio(
    ratios: DataFrame,
    threshold: float | None,
    dtype: str,
    flips: Array,
) -> go.Figure:
    """Pair over floor at each position of a prompt, log axis; the floor itself as a line at 1, the
    threshold dashed, what is beyond it red. ratios: of
    `core.runs.queries.by_position`.
    """
    figure = go.Figure()
    positions = ratios["position"].to_numpy(int)
    ratio = gaps_at_zero(ratios["ratio"].to_numpy(float))
    written = hover(ratio)
    figure.add_scatter(
        x=positions,
        y=ratio,
        line={"color": REFERENCE, "width": 1.6},
        name="RMS / noise floor",
        hovertemplate=f"position %{{x}}: {written}x the noise floor<extra></extra>",
        **CLICKABLE,
    )
    add_lone(figure, positions, ratio, REFERENCE)
    figure.add_hline(y=1, line={"color": QUIET, "width": 1.2, "dash": "dot"})
    if threshold is not None:
        figure.add_hline(y=threshold, line=_DASHED)
    for name, mask, marker in (
        (
            "flip",
            np.isin(positions, flips) & ~np.isnan(ratio),
            {"color": VARIANT, "symbol": "x", "size": 9},
        ),
        ("outlier", ratio > (threshold or np.inf), {"color": MISMATCH, "size": 7}),
    ):
        if mask.any():
            figure.add_scatter(
                x=positions[mask],
                y=ratio[mask],
                mode="markers",
                name=name,
                marker=marker,
                hovertemplate=f"{name} at %{{x}}: {written}x the noise floor<extra></extra>",
            )
    return layout(
        figure,
        280,
        "position",
        f"RMS / noise floor, {dtype}",
        np.append(ratio, threshold or 1),
        **NEAREST_CLICK,
    )


def runs_by_position(
    runs: list[tuple[str, DataFrame]],
    prompt: int,
    by: str,
    title: str,
) -> go.Figure:
    """Plot a figure by position of a prompt, one line per run, flips marked. runs: name, figures by
    position.
    """
    runs = [(name, table[table["prompt"] == prompt]) for name, table in runs]
    figure = go.Figure()
    every = np.concatenate([table[by].to_numpy(float) for _, table in runs])
    written = hover(every)
    flips = []
    for place, ((name, table), color) in enumerate(zip(runs, RUNS, strict=False)):
        at = table["position"].to_numpy(int)
        values = gaps_at_zero(table[by].to_numpy(float))
        text = f"position %{{x}}: {written}<extra>{inert(name)}</extra>"
        figure.add_scatter(
            x=at,
            y=values,
            mode="lines",
            line={"color": color, "width": 1.6},
            name=inert(name),
            legendgroup=str(place),
            hovertemplate=text,
        )
        add_lone(figure, at, values, color, 4)
        is_marked = table["is_flip"].to_numpy(bool) & ~np.isnan(values)
        flips.append((at[is_marked], values[is_marked], color, text))
    flips = [one for one in flips if len(one[0])]
    # flips come after every line, so that none is drawn over them
    for at, values, color, text in flips:
        figure.add_scatter(
            x=at,
            y=values,
            mode="markers",
            name="flip",
            legendgroup="flip",
            marker={
                "color": VARIANT,
                "size": 10,
                "symbol": "x",
                "line": {"color": color, "width": 1},
            },
            showlegend=at is flips[0][0],
            hovertemplate=f"flip at {text}",
        )
    return layout(
        figure,
        320,
        "position",
        title,
        every,
        legend_tracegroupgap=0,
        showlegend=True,
    )


def over_modules(figures: AloneFigures) -> go.Figure:
    """rms error of every module of a side and of the model's own rounding, in the order in which
    they run, log axis.

    Units are those of each module's output. The module that differs first is marked. Blocks, which
    a name that ends in a number is, are labelled.
    """
    figure = go.Figure()
    names = figures.modules
    side = np.array(figures.alone_rms, float)
    own = np.array(figures.own_rounding_rms, float)
    places = np.arange(len(names))
    labels = [inert(name) for name in names]
    every = np.concatenate([side, own])
    written = hover(every)
    add_floor(figure, places, own, name="model in float32")
    figure.add_scatter(
        x=places,
        y=gaps_at_zero(side),
        mode="lines+markers",
        line={"color": REFERENCE, "width": 1.6},
        marker={"size": 5},
        name="this side",
        customdata=np.stack([np.array(labels, object), own.astype(object)], axis=1),
        hovertemplate=(
            f"%{{customdata[0]}}<br>this side {written}, model in float32"
            f" {written.replace('%{y', '%{customdata[1]')}<extra></extra>"
        ),
    )
    for first in figures.modules_beyond[:1]:
        place = names.index(first)
        side_of_line = "right" if place < len(names) / 2 else "left"
        figure.add_vline(
            x=place,
            line=_DASHED,
            annotation={"text": labels[place], "font": {"color": MISMATCH}},
            annotation_position=f"top {side_of_line}",
        )
    endings = [name.rpartition(".")[2] for name in names]
    blocks = [place for place, ending in enumerate(endings) if ending.isdigit()]
    blocks = every_few(blocks, 12)
    figure.update_xaxes(tickvals=blocks, ticktext=[endings[place] for place in blocks])
    return layout(
        figure,
        320,
        "module in execution order (tick: end of a layer)",
        "RMS error vs. float64",
        every,
    )


def ulp_histogram(histogram: dict[int, int], dtype: str) -> go.Figure:
    """Elements by ULP distance, in doubling bins, log counts from a half on: a bar of one element
    is seen, and every bar has a length.
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
        ),
    )
    figure.update_xaxes(type="category")
    most = float(np.log10(max(*counts, 10)))
    figure.update_yaxes(range=[np.log10(0.5), most + 0.05 * (most + 0.3)])
    return layout(figure, 300, f"distance, ULPs of {dtype}", "elements", np.array([1, *counts]))
