"""Two key/value caches: by layer and head, along the prompt, by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.components.chart_style import KINDS, MISMATCH, NEAREST_CLICK, ULPS, layout, log_axis
from app.components.map_cells import add_equal, add_map
from app.shell.wording import MEASURES
from core.runs.views.kv_cache import HeadGrid, PositionGrid


def cache_heads(grids: list[HeadGrid], measure: str, dtype: str) -> go.Figure:
    """Layers x heads, keys beside values on one colour scale; cells in which nothing differs are faint grey."""
    most = max(len(grid.layers) for grid in grids)
    shades, bar = _shades([grid.cells for grid in grids], measure, dtype, most)
    figure = make_subplots(
        rows=1,
        cols=len(grids),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[f"{grid.kind}s" for grid in grids],
    )
    for column, (grid, shade) in enumerate(zip(grids, shades, strict=True), start=1):
        heads, layers = _names(grid.heads), _names(grid.layers)
        place = {"row": 1, "col": column}
        add_equal(figure, grid.cells, heads, layers, **place)
        figure.add_heatmap(
            z=shade,
            x=heads,
            y=layers,
            coloraxis="coloraxis",
            customdata=grid.cells.astype(np.float32),
            hovertemplate=f"layer %{{y}}, head %{{x}}: {_HOVER[measure]}<extra>{grid.kind}s</extra>",
            xgap=1,
            ygap=1 if most <= 40 else 0,
            **place,
        )
        _add_mismatch(figure, grid.is_mismatch, heads, layers, **place)
        figure.update_xaxes(title="head", **_named(heads, 16), range=[-0.5, len(heads) - 0.5], **place)
        figure.update_yaxes(**_named(layers, 16), range=[len(layers) - 0.5, -0.5], **place)
    figure.update_yaxes(title="layer", row=1, col=1)
    figure.update_layout(coloraxis={**bar, "colorscale": ULPS})
    return layout(figure, 130 + int(np.clip(26 * most, 130, 520)), showlegend=False)


def cache_positions(grid: PositionGrid, measure: str, dtype: str, selected: int) -> go.Figure:
    """Layers x positions of keys or of values; faint grey where nothing differs, empty where the caches hold
    nothing.
    """
    cells = getattr(grid, measure)
    (shade,), bar = _shades([cells], measure, dtype, len(grid.layers))
    layers = _names(grid.layers)
    borders = grid.edges - 0.5  # the last cell may be narrower
    where = "position %{x}" if grid.edges[1] - grid.edges[0] == 1 else "positions around %{x:.0f}"
    told = _HOVER[measure].replace("customdata", "customdata[1]")
    figure = go.Figure()
    add_map(
        figure,
        borders,
        cells,
        shade,
        bar,
        is_mismatch=grid.is_mismatch,
        names=layers,
        about=lambda i, j: np.stack([grid.edges[j], cells[i, j]], axis=1),
        hovertemplate=f"layer %{{text}}, {where}: {told}<extra></extra>",
        position=selected,
    )
    figure.update_xaxes(title="position", showgrid=False, zeroline=False, range=[float(borders[0]), float(borders[-1])])
    rows = {name: value for name, value in _named(layers, 16).items() if not name.startswith("categor")} | {
        "type": "linear"
    }
    figure.update_yaxes(title="layer", **rows, range=[len(layers) - 0.5, -0.5])
    return layout(figure, 120 + int(np.clip(22 * len(layers), 130, 480)), showlegend=False, **NEAREST_CLICK)


def over_layers(table: pd.DataFrame, measure: str, dtype: str) -> go.Figure:
    """A measure of keys and of values by layer. On a log axis (all but the share) a layer in which nothing differs has
    no point.
    """
    figure = go.Figure()
    is_log = measure not in LINEAR
    for kind, colour in KINDS.items():
        rows = table[table["kind"] == kind]
        values = rows[measure].to_numpy(float)
        figure.add_scatter(
            x=rows["layer"].to_numpy(int),
            y=np.where(values > 0, values, np.nan) if is_log else values,
            name=f"{kind}s",
            mode="lines+markers",
            line={"color": colour, "width": 1.6, "dash": "solid" if kind == "key" else "dot"},
            marker={"size": 6, "symbol": "circle" if kind == "key" else "diamond"},
            customdata=values,
            hovertemplate=f"layer %{{x}}: {_HOVER[measure]}<extra>{kind}s</extra>",
        )
    figure.update_xaxes(title="layer", dtick=1 if table["layer"].nunique() <= 24 else None)
    title = f"{MEASURES[measure]}{f' of {dtype}' if measure.endswith('ulps') else ''}"
    axis = {"rangemode": "tozero"} | ({"tickformat": ".2~p"} if measure == "neq_share" else {})
    axis = log_axis(table[measure].to_numpy(float)) if is_log else axis
    figure.update_yaxes(title=title, **axis)
    return layout(figure, 280)


LINEAR = ("neq_share", "max_row_ulps")  # measures that do not spread over decades
_HOVER = {
    "neq_share": "%{customdata:.4~p} of its elements differ",
    "max_row_ulps": "at most %{customdata:.4g} row ULPs",
    "max_ulps": "at most %{customdata:,} ULPs",
    "rms": "rms %{customdata:.4g}",
}


def _shades(arrays: list[np.ndarray], measure: str, dtype: str, layers: int) -> tuple[list[np.ndarray], dict]:
    """(values to colour by, NaN where nothing differs; the colour axis). One scale for all arrays: LINEAR measures from
    0, the others logarithmic.
    """
    positive = np.concatenate([array[array > 0].ravel() for array in arrays])
    if not len(positive):
        positive = np.ones(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        shown = [
            np.where(array > 0, array if measure in LINEAR else np.log2(array), np.nan).astype(np.float32)
            for array in arrays
        ]
    low, high = (float(np.log2(end)) for end in (positive.min(), positive.max()))
    bar: dict = {"thickness": 14, "len": 1.0, "title": {"text": MEASURES[measure], "side": "right"}}
    most = 4 if layers < 10 else 8  # labels that fit the height
    if measure in LINEAR:
        if measure == "neq_share":
            bar["tickformat"] = ".2~p"
        else:
            bar["title"] = {"text": f"{MEASURES[measure]} of<br>{dtype}", "side": "right"}
        return shown, {"cmin": 0, "cmax": float(positive.max()), "colorbar": {**bar, "nticks": most}}
    if measure == "max_ulps":
        low, high = 0.0, max(high, 1.0)
        steps = [float(1 << p) for p in range(0, int(high) + 1, -(-(int(high) + 1) // most))]
        bar["title"] = {"text": f"max ULPs of<br>{dtype}", "side": "right"}
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
    """Names of layers and heads, as categories: a model may keep caches in some of its layers only, and a gap would
    read as equal.
    """
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


def _add_mismatch(figure: go.Figure, is_mismatch: np.ndarray, x: np.ndarray, y: np.ndarray, **place: int) -> None:
    if is_mismatch.any():
        i, j = np.nonzero(is_mismatch)
        figure.add_scatter(
            x=x[j],
            y=y[i],
            mode="markers",
            marker={"color": MISMATCH, "symbol": "square", "size": 6},
            name="NaN or infinity on one side",
            hovertemplate="NaN or infinity on one side<extra></extra>",
            **place,
        )
