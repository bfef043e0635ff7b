"""Charts of the Near ties page: margins against differences, and the distribution of margins."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.components.chart_style import (
    FLIP,
    MISMATCH,
    QUIET,
    REFERENCE,
    VARIANT,
    above_zero,
    doubling_labels,
    layout,
    position_labels,
)

CROWDED = (
    2000  # positions of a figure from which on many of a kind are shaded by density: points would lie on each other
)
DENSE = 500  # and of a kind: fewer than these are points in any company
_CELLS = (96, 56)  # of the density, across and up: about 8 px at 800 x 430
_GUTTER = 10**0.25  # where a gutter ends, times the place of its zeros
_FADED = 0.15  # of what is not brushed


def near_tie_scatter(
    table: pd.DataFrame,
    texts: Sequence[tuple[str, ...]],
    selected: tuple[int, int],
    brushed: Collection[int] = (),
    dragging: str = "zoom",
) -> go.Figure:
    """Smaller margin against largest difference of every position, logits, log axes; the line beyond which no flip is
    possible.

    Zeros cannot stand on a log axis: they are drawn in a shaded gutter, half a decade below the smallest other value,
    on lines labelled 0; the line of the bound and the numbers of the axes end where the gutters begin. Where there are
    many positions the common kinds are shaded by density, and their points are there to be hovered, clicked and brushed
    only. texts: of every prompt's tokens, empty where unknown. selected: (prompt, position). brushed: labels of rows of
    `table`; the others fade. dragging: zoom, select (a box) or lasso. Custom data of a point: its row's label in
    `table`, prompt, position, difference, margin.
    """
    margin = table[["reference_margin", "variant_margin"]].min(axis=1)
    known = margin.notna()
    table, margin = table[known], margin[known].to_numpy(float)
    difference = table["max_abs"].to_numpy(float)
    y, y_zero = above_zero(margin)
    x, x_zero = above_zero(difference)
    figure = go.Figure()
    ends = [(v.min() / 2, v.max() * 2) if len(v) else (0.1, 10.0) for v in (x, y)]
    edges = [low if zero is None else zero * _GUTTER for (low, _), zero in zip(ends, (x_zero, y_zero), strict=True)]
    span = np.array([max(edges[0], edges[1] / 2), max(ends[0][1], ends[1][1] / 2)])
    figure.add_scatter(
        x=span,
        y=2 * span,
        mode="lines",
        line={"color": QUIET, "dash": "dash", "width": 1.5},
        name="margin = 2 × difference",
        hoverinfo="skip",
    )
    flips = table["is_flip"].to_numpy(bool)
    could = table["could_flip"].to_numpy(bool)
    odd = table["nonfinite_mismatch"].to_numpy() > 0  # the bound is a theorem about finite numbers
    labels = _labels(table, texts)
    prompts, positions, rows = table["prompt"].to_numpy(int), table["position"].to_numpy(int), table.index.to_numpy(int)
    is_brushed = np.isin(rows, list(brushed))
    is_crowded = len(table) > CROWDED
    for name, chosen, colour, symbol, size in (
        ("no flip possible", ~could & ~odd, QUIET, "circle", 6),
        ("could flip", could & ~flips & ~odd, REFERENCE, "circle", 7),
        ("flip", flips & ~odd, VARIANT, "x", 10),
        ("NaN or infinity on one side", odd, MISMATCH, "square", 10),
    ):
        count = int(chosen.sum())
        if not count:
            continue
        is_dense = is_crowded and count > DENSE
        if is_dense:
            _add_density(figure, x[chosen], y[chosen], ends, colour, _FADED if brushed else 1.0)
            figure.add_scatter(  # the legend: the points themselves are not drawn
                x=[None],
                y=[None],
                mode="markers",
                name=f"{name} ({count:,}), by density",
                marker={"color": colour, "symbol": "square", "size": 9},
            )
        how: dict = {"maxdisplayed": 1, "opacity": 0} if is_dense else {"opacity": 0.8}
        figure.add_scatter(
            x=x[chosen],
            y=y[chosen],
            mode="markers",
            name=f"{name} ({count:,})",
            showlegend=not is_dense,
            marker={"color": colour, "symbol": symbol, "size": size, "line": {"width": 0}, **how},
            customdata=np.stack(
                [rows[chosen], prompts[chosen], positions[chosen], difference[chosen], margin[chosen]], axis=1
            ),
            text=labels[chosen],
            selectedpoints=np.flatnonzero(is_brushed[chosen]) if brushed and not is_dense else None,
            selected={"marker": {"opacity": how["opacity"]}},
            unselected={"marker": {"opacity": 0 if is_dense else _FADED if brushed else 0.8}},
            hovertemplate=(
                "%{text}<br>smaller margin %{customdata[4]:.5g}<br>largest difference"
                " %{customdata[3]:.5g}<extra></extra>"
            ),
        )
        if is_dense and (is_brushed & chosen).any():
            figure.add_scatter(
                x=x[is_brushed & chosen],
                y=y[is_brushed & chosen],
                mode="markers",
                hoverinfo="skip",
                showlegend=False,
                marker={"color": colour, "size": 4},
                name="brushed",
            )
    here = (prompts == selected[0]) & (positions == selected[1])
    figure.add_scatter(
        x=x[here],
        y=y[here],
        mode="markers",
        name=f"position {selected[1]}",
        hoverinfo="skip",
        marker={"color": "rgba(0,0,0,0)", "size": 18, "line": {"color": FLIP, "width": 2.5}},
    )
    _add_gutters(figure, x_zero, y_zero, ends)
    titles = ("largest difference at the position, logits", "smaller margin of the two sides, logits")
    axes = (figure.update_xaxes, figure.update_yaxes)
    for update, title, (low, high), zero, edge in zip(axes, titles, ends, (x_zero, y_zero), edges, strict=True):
        is_plain = low >= 1e-4 and high < 1e5  # 0.02; else 2x10 to the power of -2
        update(
            type="log",
            title=title,
            exponentformat="none" if is_plain else "power",
            minorloglabels="complete",
            range=np.log10([low, high]).tolist(),
            labelalias=_blanks(low, high, 0.0 if zero is None else edge, is_plain),
        )
    # Room above the legend for the buttons of the figure, which would lie on it.
    return layout(figure, 460, clickmode="event+select", dragmode=dragging).update_layout(margin={"t": 58})


def _labels(table: pd.DataFrame, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Labels of positions: `position 17 after 'self'`, with the prompt in front where there are several."""
    labels = np.empty(len(table), object)
    several = table["prompt"].nunique() > 1
    for prompt, places in table.groupby("prompt").indices.items():
        of_prompt = position_labels(table["position"].iloc[places], texts[int(prompt)])
        labels[places] = [
            f"prompt {prompt}, position {label}" if several else f"position {label}" for label in of_prompt
        ]
    return labels


def _add_density(
    figure: go.Figure, x: np.ndarray, y: np.ndarray, ends: list[tuple[float, float]], colour: str, opacity: float
) -> None:
    """Draw how many points lie in each cell of the plot, log shades from a quarter of the colour on: a single point is
    seen.
    """
    edges = [np.geomspace(low, high, cells + 1) for (low, high), cells in zip(ends, _CELLS, strict=True)]
    counts, _, _ = np.histogram2d(x, y, bins=edges)
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    shades = [[0.0, f"rgba({red},{green},{blue},0.28)"], [1.0, f"rgba({red},{green},{blue},1)"]]
    figure.add_heatmap(
        z=np.where(counts.T > 0, np.log10(np.maximum(counts.T, 1)), np.nan).astype(np.float32),
        x=edges[0],
        y=edges[1],
        colorscale=shades,
        zmin=0,
        zmax=max(1.0, float(np.log10(max(counts.max(), 1)))),
        showscale=False,
        hoverinfo="skip",
        opacity=opacity,
        name="density",
    )


def _add_gutters(
    figure: go.Figure, x_zero: float | None, y_zero: float | None, ends: list[tuple[float, float]]
) -> None:
    """Draw the bands in which zeros stand, beside the log axes, with a line and a 0 on the axis."""
    line = {"color": QUIET, "width": 1, "dash": "dot"}
    band = {"fillcolor": QUIET, "opacity": 0.1, "line_width": 0, "layer": "below"}
    label = {"showarrow": False, "font": {"size": 13}}
    if y_zero is not None:  # annotations on a log axis are placed by logarithm, lines by value
        figure.add_hrect(y0=ends[1][0], y1=y_zero * _GUTTER, **band)
        figure.add_hline(y=y_zero, line=line)
        figure.add_annotation(
            xref="paper", x=1, y=np.log10(y_zero), yshift=9, text="tie: margin 0", showarrow=False, xanchor="right"
        )
        figure.add_annotation(
            xref="paper", x=0, y=np.log10(y_zero), xshift=-3, text="<b>0</b>", xanchor="right", **label
        )
    if x_zero is not None:
        figure.add_vrect(x0=ends[0][0], x1=x_zero * _GUTTER, **band)
        figure.add_vline(x=x_zero, line=line)
        figure.add_annotation(
            yref="paper", y=1, x=np.log10(x_zero), xshift=4, text="no difference", showarrow=False, xanchor="left"
        )
        figure.add_annotation(yref="paper", y=0, x=np.log10(x_zero), yshift=-6, text="<b>0</b>", yanchor="top", **label)


def _blanks(low: float, high: float, edge: float, is_plain: bool) -> dict[str, str]:
    """Map from labels of a log axis, as plotly writes them, to blanks: below `edge`, as in a gutter there is no number
    but 0, and those that would lie on each other: 7 to 9 before 10, of long labels all but 1, 2 and 5.

    A zoomed axis still chooses its own ticks, which it would not do with a list of them.
    """
    powers = range(int(np.floor(np.log10(low))) - 2, int(np.ceil(np.log10(high))) + 1)
    label, crowded = (_plain_label, (7, 8, 9)) if is_plain else (_power_label, (3, 4, 6, 7, 8, 9))
    return {label(n, p): " " for p in powers for n in range(1, 10) if n in crowded or float(f"{n}e{p}") < edge}


def _plain_label(digit: int, power: int) -> str:
    return f"{digit * 10.0**power:.{max(0, -power)}f}"


def _power_label(digit: int, power: int) -> str:
    if power == 0:
        return str(digit)
    sign = "\N{MINUS SIGN}" if power < 0 else ""
    return ("10" if digit == 1 else f"{digit}x10") + (f"<sup>{sign}{abs(power)}</sup>" if power != 1 else "")


def margin_distribution(table: pd.DataFrame, threshold: float, dtype: str, unit: str = "ULPs") -> go.Figure:
    """Number of positions by margin, both sides, in doubling bins; the threshold as a line. unit: ULPs or logits."""
    names = ("reference", "variant")
    if unit == "logits":
        margins = [table[f"{name}_margin"].dropna().to_numpy(float) for name in names]
        margins = [values[np.isfinite(values)] for values in margins]
        positive = np.concatenate([values[values > 0] for values in margins])
        lowest = int(np.floor(np.log2(positive.min()))) if len(positive) else 0
        bins = [np.where(values > 0, _exponents(values) - lowest + 1, 0) for values in margins]
    else:
        margins = [table[f"{name}_margin_ulps"].dropna().to_numpy(np.int64) for name in names]
        lowest = 0
        bins = [np.where(values > 0, _exponents(values) + 1, 0) for values in margins]
    top = max([1, *(int(of_side.max()) + 1 for of_side in bins if len(of_side))])
    labels = (
        doubling_labels(top) if unit == "ULPs" else ["0", *(f"{2.0 ** (lowest + step):.4g}" for step in range(top - 1))]
    )
    said = "%{customdata} ULPs" if unit == "ULPs" else "%{customdata} logits"
    spans = (
        labels
        if unit == "ULPs"
        else ["0", *(f"{label} up to {2.0 ** (lowest + step + 1):.4g}" for step, label in enumerate(labels[1:]))]
    )
    figure = go.Figure()
    for name, of_side, colour in zip(names, bins, (REFERENCE, VARIANT), strict=True):
        figure.add_bar(
            x=labels,
            y=np.bincount(of_side, minlength=top),
            name=name,
            marker_color=colour,
            customdata=spans,
            hovertemplate=f"{said}: %{{y:,}} positions<extra>{name}</extra>",
        )
    place = _threshold_place(threshold, lowest, unit)
    if place <= top - 0.5:
        figure.add_vline(x=place, line={"color": FLIP, "width": 2, "dash": "dash"})
    title = (
        f"margin, ULPs of {dtype}"
        if unit == "ULPs"
        else "margin, logits; a bar reaches from its label up to twice that"
    )
    figure.update_xaxes(title=title, type="category", categoryorder="array", categoryarray=labels)
    figure.update_yaxes(title="positions")
    return layout(figure, 300, barmode="group", bargap=0.15)


def _exponents(values: np.ndarray) -> np.ndarray:
    return np.floor(np.log2(np.where(values > 0, values, 1))).astype(int)


def _threshold_place(threshold: float, lowest: int, unit: str) -> float:
    """Place of the threshold on the axis of bins: within its bin, whose number n covers n - 0.5 to n + 0.5."""
    if threshold <= 0:
        return 0.5
    exponent = int(np.floor(np.log2(threshold)))
    if unit == "ULPs":  # whole numbers: a bin of 4 to 7 with a threshold of 7 is full
        return exponent + 0.5 + (threshold - 2**exponent + 1) / 2**exponent
    return max(exponent - lowest + 0.5 + (threshold / 2.0**exponent - 1), 0.5)
