"""Figures. Tables in, plotly figures out; no Streamlit, no files.

Every figure is deterministic for its input, because an unchanged figure is not drawn again. Colours: reference blue, variant
vermilion (Okabe-Ito), keys green, values violet, ULPs from blue to yellow; all read on white and on black.
"""

from __future__ import annotations

import html

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.words import MEASURES, visible
from core.runs.caches import HeadGrid, PositionGrid

REFERENCE = "#0072B2"
VARIANT = "#D55E00"
FLIP = "#CC79A7"
QUIET = "#8A93A0"
ARGMAX = "#009E73"
MISMATCH = "#E3000F"
KINDS = {"key": "#009E73", "value": "#9A6FD6"}  # keys and values are no sides: colours of their own
SPARSE_CELLS = 400
# Cividis without its darkest third: one ULP has to be seen on black as well as on white; lightness still only rises.
ULPS = [[0.0, "#3D6FB5"], [0.33, "#7C7B78"], [0.66, "#BCAF6F"], [1.0, "#FEE838"]]
_MARGINS = {"l": 8, "r": 8, "t": 28, "b": 8}


def _layout(figure: go.Figure, height: int, **options: object) -> go.Figure:
    figure.update_layout(
        height=height, margin=_MARGINS, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}, **options
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure


def _inert(text: str) -> str:
    """Token texts and side names are of others: plotly would take their angle brackets for markup."""
    return html.escape(text, quote=False)


def _labels(positions: pd.Series, texts: tuple[str, ...]) -> list[str]:
    """`17 after 'self'` where the token is known."""
    return [f"{p} after {_inert(visible(texts[p]))!r}" if p < len(texts) else str(p) for p in positions]


def near_tie_scatter(table: pd.DataFrame, texts: tuple[str, ...], selected: int) -> go.Figure:
    """Smaller margin against largest difference of every position, logits, log axes; the line beyond which no flip is possible.

    Zeros cannot stand on a log axis: they are drawn half a decade below the smallest other value, on lines labelled 0.
    """
    margin = table[["reference_margin", "variant_margin"]].min(axis=1)
    known = margin.notna()
    table, margin = table[known], margin[known].to_numpy(float)
    difference = table["max_abs"].to_numpy(float)
    y, y_zero = _above_zero(margin)
    x, x_zero = _above_zero(difference)
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
    labels = np.array(_labels(table["position"], texts), object)
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
    return _layout(figure, 430, clickmode="event+select")


def _above_zero(values: np.ndarray) -> tuple[np.ndarray, float | None]:
    """(values with zeros moved to where a log axis can show them, that place or None)."""
    positive = values[values > 0]
    if len(positive) == len(values):
        return values, None
    place = float(positive.min()) / 10**0.5 if len(positive) else 1e-3
    return np.where(values > 0, values, place), place


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
            x=_doubling_labels(len(counts)),
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
        title=f"margin, ULPs of {dtype}", type="category", categoryorder="array", categoryarray=_doubling_labels(top)
    )
    figure.update_yaxes(title="positions")
    return _layout(figure, 300, barmode="group", bargap=0.15)


def _doubling_labels(count: int) -> list[str]:
    """0, 1, 2-3, 4-7, ..."""
    labels = ["0"]
    for power in range(count - 1):
        low, high = 1 << power, (1 << (power + 1)) - 1
        labels.append(str(low) if low == high else f"{low:,}-{high:,}")
    return labels[:count]


def top_bars(top: pd.DataFrame, reference: str, variant: str) -> go.Figure:
    """Logits of the best tokens, both sides beside each other, each side's argmax outlined in green. The axis does not start at 0."""
    names = [_inert(visible(text)) if text is not None else "" for text in top["text"]]
    labels = [
        f"{name}<br><span style='font-size:10px'>{token}</span>" for name, token in zip(names, top["token_id"], strict=True)
    ]
    figure = go.Figure()
    for side, name, colour in (("reference", _inert(reference), REFERENCE), ("variant", _inert(variant), VARIANT)):
        logits = top[f"{side}_logit"].to_numpy(float)
        is_argmax = top[f"{side}_rank"].to_numpy() == 0
        figure.add_bar(
            x=list(range(len(top))), y=logits, name=name, showlegend=False, marker={
                "color": colour,
                "line": {"color": [ARGMAX if best else "rgba(0,0,0,0)" for best in is_argmax], "width": [4 if best else 0 for best in is_argmax]},
            },
            customdata=np.stack([top[f"{side}_rank"] + 1, top[f"{side}_probability"]], axis=1),
            text=[f"{'▲ ' if best else ''}{value:.9g}" for best, value in zip(is_argmax, logits, strict=True)], textposition="outside",
            textangle=-90, cliponaxis=False, textfont={"size": 11}, constraintext="none", hovertemplate=f"{name.replace('%', '&#37;')}: logit %{{y}}, rank %{{customdata[0]}}, probability %{{customdata[1]:.3%}}<extra></extra>",
        )  # fmt: skip
        figure.add_bar(x=[None], y=[None], name=name, marker_color=colour)  # the legend, without the outline
    finite = top[["reference_logit", "variant_logit"]].to_numpy(float)
    finite = finite[np.isfinite(finite)]
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        pad = max((high - low) * 0.12, 1e-6 * max(abs(high), 1.0))
        figure.update_yaxes(range=[low - pad, high + 4.5 * pad])
    figure.update_xaxes(tickvals=list(range(len(top))), ticktext=labels, title=None)
    figure.update_yaxes(title="logit")
    return _layout(figure, 380, barmode="group", bargap=0.25, bargroupgap=0.06)


def ulp_histogram(histogram: dict[int, int], dtype: str) -> go.Figure:
    """Elements by ULP distance, in doubling bins, log counts."""
    top = max(histogram, default=0).bit_length()
    counts = [0] * (top + 1)
    for distance, elements in histogram.items():
        counts[distance.bit_length()] += elements
    labels = _doubling_labels(top + 1)
    figure = go.Figure(
        go.Bar(
            x=labels,
            y=counts,
            marker_color=[QUIET, *[REFERENCE] * top],
            hovertemplate="%{x} ULPs: %{y:,} elements<extra></extra>",
        )
    )
    figure.update_xaxes(title=f"distance, ULPs of {dtype}", type="category")
    figure.update_yaxes(title="elements", type="log", exponentformat="power", dtick=1)
    return _layout(figure, 300)


def over_positions(table: pd.DataFrame, column: str, title: str, selected: int) -> go.Figure:
    """One figure along the prompt, flips marked."""
    figure = go.Figure()
    values = table[column].to_numpy(float)
    positions = table["position"].to_numpy(int)
    figure.add_scatter(
        x=positions,
        y=values,
        mode="lines",
        line={"color": REFERENCE, "width": 1.4},
        name=title,
        hovertemplate="position %{x}: %{y:.5g}<extra></extra>",
    )
    flips = table["is_flip"].to_numpy(bool)
    if flips.any():
        figure.add_scatter(
            x=positions[flips],
            y=values[flips],
            mode="markers",
            marker={"color": VARIANT, "symbol": "x", "size": 9},
            name="flip",
            hovertemplate="flip at %{x}: %{y:.5g}<extra></extra>",
        )
    figure.add_vline(x=selected, line={"color": FLIP, "width": 1.5})
    figure.update_xaxes(title="position")
    figure.update_yaxes(title=title, exponentformat="power")
    return _layout(figure, 260)


def pair_and_floor(table: pd.DataFrame, selected: int, marked_dtype: str, flips: np.ndarray) -> go.Figure:
    """rms of a pair and of its rounding floor at each position of a prompt, logits, log axis, in each dtype they were measured in.

    `table`: compute_dtype, position, pair_rms, floor_rms of one prompt; flips: positions, marked on the pair in `marked_dtype`. A log
    axis has no 0: where nothing differs there is a gap.
    """
    figure = go.Figure()
    for dtype, rows in table.groupby("compute_dtype", sort=False):
        positions = rows["position"].to_numpy(int)
        pair, floor = (rows[name].to_numpy(float) for name in ("pair_rms", "floor_rms"))
        is_first = not figure.data
        figure.add_scatter(
            x=positions, y=_positive(floor), mode="lines", line={"color": QUIET, "width": 1.6, "dash": "dot"}, name="rounding floor",
            legendgroup="floor", showlegend=is_first, hoverinfo="skip",
        )  # fmt: skip
        figure.add_scatter(
            x=positions, y=_positive(pair), line={"color": REFERENCE, "width": 1.6}, name="this pair", legendgroup="pair", showlegend=is_first,
            customdata=np.stack([positions, floor], axis=1), **_CLICKABLE,
            hovertemplate=f"position %{{x}}, {dtype}<br>pair %{{y:.3g}}, floor %{{customdata[1]:.3g}} logits<extra></extra>",
        )  # fmt: skip
        _add_flips(figure, positions, pair, flips if dtype == marked_dtype else flips[:0])
        if (floor > 0).any():  # at the end of its lines, where nothing is drawn over it
            figure.add_annotation(
                x=1, xref="paper", xanchor="left", y=np.log10(np.median(floor[floor > 0])), text=str(dtype), showarrow=False,
                font={"color": QUIET},
            )  # fmt: skip
    figure.add_vline(x=selected, line={"color": FLIP, "width": 1.5})
    figure.update_xaxes(title="position")
    figure.update_yaxes(title="rms of the difference, logits", type="log", exponentformat="power", dtick=1)
    return _layout(figure, 320, **_NEAREST_CLICK).update_layout(margin={"r": 62})


def floor_ratio(
    positions: np.ndarray, ratio: np.ndarray, threshold: float | None, selected: int, dtype: str, flips: np.ndarray
) -> go.Figure:
    """Pair over floor at each position of a prompt, log axis; the floor itself as a line at 1, the threshold dashed, what is beyond it red."""
    figure = go.Figure()
    figure.add_scatter(
        x=positions, y=_positive(ratio), line={"color": REFERENCE, "width": 1.6}, name="pair over floor", customdata=positions[:, None],
        hovertemplate="position %{x}: %{y:.3g} times the floor<extra></extra>", **_CLICKABLE,
    )  # fmt: skip
    _add_flips(figure, positions, ratio, flips)
    figure.add_hline(y=1, line={"color": QUIET, "width": 1.2, "dash": "dot"})
    if threshold is not None:
        beyond = ratio > threshold
        figure.add_hline(y=threshold, line={"color": MISMATCH, "width": 1.4, "dash": "dash"})
        figure.add_annotation(
            x=1, xref="paper", xanchor="right", y=np.log10(threshold), yanchor="bottom", text=f"rounding stays below {threshold:.3g}", showarrow=False
        )  # fmt: skip
        if beyond.any():
            figure.add_scatter(
                x=positions[beyond], y=ratio[beyond], mode="markers", name="stands out", customdata=positions[beyond][:, None],
                marker={"color": MISMATCH, "size": 7}, hovertemplate="position %{x}: %{y:.4g} times the floor<extra></extra>",
            )  # fmt: skip
    figure.add_vline(x=selected, line={"color": FLIP, "width": 1.5})
    figure.update_xaxes(title="position")
    known = ratio[ratio > 0]
    is_wide = len(known) > 0 and known.max() > 30 * known.min()
    figure.update_yaxes(title=f"times the floor, {dtype}", type="log", exponentformat="power", dtick=1 if is_wide else "D2")
    return _layout(figure, 280, **_NEAREST_CLICK)


def residues(outliers: np.ndarray, starts: np.ndarray, block: int) -> go.Figure:
    """How many positions stand out at each place within a block of `block` positions; those at which a stretch of them begins in red."""
    figure = go.Figure()
    begin = np.bincount(starts % block, minlength=block)
    every = np.bincount(outliers % block, minlength=block)
    for name, counts, colour in (("begins", begin, MISMATCH), ("goes on", every - begin, QUIET)):
        figure.add_bar(
            x=np.arange(block), y=counts, name=name, marker_color=colour,
            hovertemplate=f"position mod {block} = %{{x}}: {name} %{{y}} times<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(title=f"position mod {block}", dtick=max(1, block // 16))
    figure.update_yaxes(title="positions that stand out")
    return _layout(figure, 260, barmode="stack", bargap=0.15)


# A line takes no click, its markers do; these are not drawn, and the nearest one takes the click wherever it lands.
_CLICKABLE: dict = {
    "mode": "lines+markers",
    "marker": {"size": 6, "opacity": 0},
    "selected": {"marker": {"opacity": 0}},
    "unselected": {"marker": {"opacity": 0}},
}
_NEAREST_CLICK: dict = {"hovermode": "closest", "hoverdistance": -1, "clickmode": "event+select", "dragmode": "zoom"}


def over_modules(names: list[str], pair: np.ndarray, floor: np.ndarray, first: str | None) -> go.Figure:
    """rms of a pair and of its rounding floor at the output of every module, in the order in which they run, log axis.

    Units are those of each module's output. first: the module at which the pair leaves the floor, marked. Blocks, which a name that
    ends in a number is, are labelled; their parts are told by hovering.
    """
    figure = go.Figure()
    places = np.arange(len(names))
    shown = [_inert(name) for name in names]
    figure.add_scatter(
        x=places, y=_positive(floor), mode="lines", line={"color": QUIET, "width": 1.6, "dash": "dot"}, name="rounding floor", hoverinfo="skip",
    )  # fmt: skip
    figure.add_scatter(
        x=places, y=_positive(pair), mode="lines+markers", line={"color": REFERENCE, "width": 1.6}, marker={"size": 5}, name="this pair",
        customdata=np.stack([np.array(shown, object), floor.astype(object)], axis=1),
        hovertemplate="%{customdata[0]}<br>pair %{y:.3g}, floor %{customdata[1]:.3g}<extra></extra>",
    )  # fmt: skip
    if first in names:
        place = names.index(first)
        figure.add_vline(x=place, line={"color": MISMATCH, "width": 1.4, "dash": "dash"})
        figure.add_annotation(
            x=place, y=1, yref="paper", yanchor="bottom", text=shown[place], showarrow=False, font={"color": MISMATCH},
            xanchor="left" if place < len(names) / 2 else "right",
        )  # fmt: skip
    blocks = [place for place, name in enumerate(names) if name.rpartition(".")[2].isdigit()]
    step = max(1, -(-len(blocks) // 12))
    figure.update_xaxes(
        title="module, in the order in which they run; ticks are the ends of blocks", tickvals=blocks[::step],
        ticktext=[names[place].rpartition(".")[2] for place in blocks[::step]],
    )  # fmt: skip
    figure.update_yaxes(title="rms of the difference", type="log", exponentformat="power", dtick=1)
    return _layout(figure, 320)


def _positive(values: np.ndarray) -> np.ndarray:
    return np.where(values > 0, values, np.nan)


def _add_flips(figure: go.Figure, positions: np.ndarray, values: np.ndarray, flips: np.ndarray) -> None:
    """Flips on a line, where it has a point there."""
    at = np.isin(positions, flips) & (values > 0)
    if at.any():
        figure.add_scatter(
            x=positions[at], y=values[at], mode="markers", name="flip", customdata=positions[at][:, None],
            marker={"color": VARIANT, "symbol": "x", "size": 9}, hovertemplate="flip at %{x}: %{y:.3g}<extra></extra>",
        )  # fmt: skip


def cache_heads(grids: list[HeadGrid], measure: str, dtype: str) -> go.Figure:
    """Layers x heads, keys beside values on one colour scale; cells in which nothing differs are faint grey."""
    most = max(len(grid.layers) for grid in grids)
    shades, bar = _shades([grid.cells for grid in grids], measure, dtype, most)
    figure = make_subplots(
        rows=1, cols=len(grids), shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=[f"{grid.kind}s" for grid in grids]
    )
    for column, (grid, shade) in enumerate(zip(grids, shades, strict=True), start=1):
        heads, layers = _names(grid.heads), _names(grid.layers)
        place = {"row": 1, "col": column}
        _add_equal(figure, grid.cells, heads, layers, **place)
        figure.add_heatmap(
            z=shade, x=heads, y=layers, coloraxis="coloraxis", customdata=grid.cells.astype(np.float32),
            hovertemplate=f"layer %{{y}}, head %{{x}}: {_HOVER[measure]}<extra>{grid.kind}s</extra>", xgap=1, ygap=1 if most <= 40 else 0, **place,
        )  # fmt: skip
        _add_mismatch(figure, grid.is_mismatch, heads, layers, **place)
        figure.update_xaxes(title="head", **_named(heads, 16), range=[-0.5, len(heads) - 0.5], **place)
        figure.update_yaxes(**_named(layers, 16), range=[len(layers) - 0.5, -0.5], **place)
    figure.update_yaxes(title="layer", row=1, col=1)
    figure.update_layout(coloraxis={**bar, "colorscale": ULPS})
    return _layout(figure, 130 + int(np.clip(26 * most, 130, 520)), showlegend=False)


def cache_positions(grid: PositionGrid, measure: str, dtype: str, selected: int) -> go.Figure:
    """Layers x positions of keys or of values; faint grey where nothing differs, empty where the caches hold nothing."""
    cells = grid.neq_share if measure == "neq_share" else grid.max_ulps
    (shade,), bar = _shades([cells], measure, dtype, len(grid.layers))
    positions = (grid.edges[:-1] + grid.edges[1:] - 1) / 2
    layers = _names(grid.layers)
    figure = go.Figure()
    borders = grid.edges - 0.5  # the last cell may be narrower
    _add_equal(figure, cells, borders, layers)
    figure.add_heatmap(z=shade, x=borders, y=layers, coloraxis="coloraxis", hoverinfo="skip")
    i, j = np.nonzero(~np.isnan(cells))
    where = "position %{x}" if grid.edges[1] - grid.edges[0] == 1 else "positions around %{x:.0f}"
    # A heatmap takes no click; points do, and a point that is not drawn costs nothing. All cells have one, one of them is drawn.
    figure.add_scatter(
        x=positions[j], y=grid.layers[i], mode="markers", name="cells", customdata=np.stack([grid.edges[j], cells[i, j]], axis=1),
        marker={"opacity": 0, "maxdisplayed": 1}, selected={"marker": {"opacity": 0}}, unselected={"marker": {"opacity": 0}},
        hovertemplate=f"layer %{{y}}, {where}: {_HOVER[measure].replace('customdata', 'customdata[1]')}<extra></extra>",
    )  # fmt: skip
    _add_mismatch(figure, grid.is_mismatch, positions, layers, hoverinfo="skip", hovertemplate=None)
    if 0 < (cells > 0).sum() <= SPARSE_CELLS:
        i, j = np.nonzero(cells > 0)
        _add_points(figure, positions[j], layers[i], {"color": shade[i, j], "coloraxis": "coloraxis"})
    figure.add_annotation(  # above the map, not on it: it would cover the first layers
        x=selected, y=1, yref="paper", yanchor="bottom", text="▼", showarrow=False, font={"color": FLIP, "size": 16}, yshift=-3
    )
    figure.update_xaxes(
        title="position", showgrid=False, zeroline=False, range=[float(grid.edges[0]) - 0.5, float(grid.edges[-1]) - 0.5]
    )
    figure.update_yaxes(title="layer", **_named(layers, 16), range=[len(layers) - 0.5, -0.5])
    figure.update_layout(coloraxis={**bar, "colorscale": ULPS})
    # A click is not told while dragging draws a box, so dragging zooms. The nearest point is that of the cell under the pointer.
    how = {"hovermode": "closest", "hoverdistance": -1, "clickmode": "event+select", "dragmode": "zoom"}
    return _layout(figure, 120 + int(np.clip(22 * len(layers), 130, 480)), showlegend=False, **how)


def over_layers(table: pd.DataFrame, measure: str, dtype: str) -> go.Figure:
    """A measure of keys and of values by layer. On a log axis (all but the share) a layer in which nothing differs has no point."""
    figure = go.Figure()
    is_log = measure != "neq_share"
    for kind, colour in KINDS.items():
        rows = table[table["kind"] == kind]
        values = rows[measure].to_numpy(float)
        figure.add_scatter(
            x=rows["layer"].to_numpy(int), y=np.where(values > 0, values, np.nan) if is_log else values, name=f"{kind}s",
            mode="lines+markers", line={"color": colour, "width": 1.6, "dash": "solid" if kind == "key" else "dot"},
            marker={"size": 6, "symbol": "circle" if kind == "key" else "diamond"}, customdata=values,
            hovertemplate=f"layer %{{x}}: {_HOVER[measure]}<extra>{kind}s</extra>",
        )  # fmt: skip
    figure.update_xaxes(title="layer", dtick=1 if table["layer"].nunique() <= 24 else None)
    figure.update_yaxes(
        title=f"{MEASURES[measure]}{f' of {dtype}' if measure == 'max_ulps' else ''}", type="log" if is_log else "linear",
        exponentformat="power", tickformat=".2~p" if measure == "neq_share" else None, rangemode="tozero",
    )  # fmt: skip
    return _layout(figure, 280)


_HOVER = {
    "neq_share": "%{customdata:.4~p} of its elements differ",
    "max_ulps": "at most %{customdata:,} ULPs",
    "rms": "rms %{customdata:.4g}",
}


def _shades(arrays: list[np.ndarray], measure: str, dtype: str, layers: int) -> tuple[list[np.ndarray], dict]:
    """(what to colour by, NaN where nothing differs; the colour axis). One scale for all arrays: shares linear, the others logarithmic."""
    positive = np.concatenate([array[array > 0].ravel() for array in arrays])
    if not len(positive):
        positive = np.ones(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = [
            np.where(array > 0, array if measure == "neq_share" else np.log2(array), np.nan).astype(np.float32)
            for array in arrays
        ]
    low, high = (float(np.log2(end)) for end in (positive.min(), positive.max()))
    bar: dict = {"thickness": 14, "len": 1.0, "title": {"text": MEASURES[measure]}}
    most = 4 if layers < 10 else 8  # labels that fit the height
    if measure == "neq_share":
        return shown, {"cmin": 0, "cmax": float(positive.max()), "colorbar": {**bar, "tickformat": ".2~p", "nticks": most}}
    if measure == "max_ulps":
        low, high = 0.0, max(high, 1.0)
        steps = [float(1 << p) for p in range(0, int(high) + 1, -(-(int(high) + 1) // most))]
        bar["title"] = {"text": f"max ULPs of<br>{dtype}"}
    else:
        low, high = (low, high) if high > low else (low - 0.5, high + 0.5)
        steps = _round_steps(low * np.log10(2), high * np.log10(2), most)
    bar |= {
        "tickvals": [float(np.log2(step)) for step in steps],
        "ticktext": [f"{step:,.4g}" if step < 1e4 else f"{step:,.0f}" for step in steps],
    }
    return shown, {"cmin": low, "cmax": high, "colorbar": bar}


def _round_steps(low: float, high: float, most: int) -> list[float]:
    """Round numbers between two powers of ten, given as exponents: 1, 2, 5 a decade while there are few, else fewer."""
    decades = range(int(np.floor(low)), int(np.ceil(high)) + 1)
    for of_a_decade in ((1, 2, 5), (1,)):
        steps = [d * 10.0**power for power in decades for d in of_a_decade if low <= power + np.log10(d) <= high]
        if len(steps) <= most:
            break
    return steps[:: -(-len(steps) // most)] if steps else [float(f"{10.0**high:.2g}")]


def _names(numbers: np.ndarray) -> np.ndarray:
    """Layers and heads as categories: a model may keep caches in some of its layers only, and a gap would read as equal."""
    return numbers.astype(str).astype(object)


def _named(names: np.ndarray, most: int) -> dict:
    """An axis of categories with at most that many labels, evenly spaced."""
    step = next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 100, 1 << 31) if len(names) <= step * most)
    order = {"type": "category", "categoryorder": "array", "categoryarray": names}
    return {
        **order,
        "tickvals": list(range(0, len(names), step)),
        "ticktext": names[::step],
        "showgrid": False,
        "zeroline": False,
    }


def _add_equal(figure: go.Figure, cells: np.ndarray, x: np.ndarray, y: np.ndarray, **place: int) -> None:
    """A faint ground under the cells that were compared and found equal, so that they are not taken for missing."""
    ground = [[0, QUIET], [1, QUIET]]
    figure.add_heatmap(
        z=np.where(cells == 0, 1.0, np.nan).astype(np.float32),
        x=x,
        y=y,
        colorscale=ground,
        showscale=False,
        opacity=0.22,
        hoverinfo="skip",
        **place,
    )


def _add_mismatch(figure: go.Figure, is_mismatch: np.ndarray, x: np.ndarray, y: np.ndarray, **how: object) -> None:
    if is_mismatch.any():
        i, j = np.nonzero(is_mismatch)
        options = {"hovertemplate": "NaN or infinity on one side<extra></extra>", **how}
        marker = {"color": MISMATCH, "symbol": "square", "size": 6}
        figure.add_scatter(x=x[j], y=y[i], mode="markers", marker=marker, name="NaN or infinity on one side", **options)


def _add_points(figure: go.Figure, x: np.ndarray, y: np.ndarray, marker: dict) -> None:
    """Cells that may be less than a pixel wide, as points: what differs alone stays visible."""
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers",
        name="differs",
        showlegend=False,
        hoverinfo="skip",
        marker={"symbol": "square", "size": 6, **marker},
    )
