"""Charts of modules and caches: maps by position and by head, growth over depth, one module along
the prompt.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..numerics.arrays import Array, DataFrame, Record
from ..runs.queries.layers import RESIDUAL, first_beyond
from ..text import on_axis, visible
from .style import (
    CLICKABLE,
    FLIP,
    MISMATCH,
    NEAREST_CLICK,
    QUIET,
    REFERENCE,
    ULPS,
    UNDRAWN,
    add_floor,
    every_few,
    gaps_at_zero,
    hover,
    inert,
    layout,
    selected_line,
    span,
)

MEASURES = {
    "ratio": "RMS / noise floor",
    "neq_share": "share that differs",
    "max_row_ulps": "max row ULPs",
    "max_ulps": "max ULPs",
    "rms": "RMS difference",
    "state": "choice",
}
LINEAR = ("neq_share", "max_row_ulps")  # measures that do not spread over decades
_HOVER = {
    "ratio": "{}x the noise floor (-1: the noise floor is 0)",
    "neq_share": "%{{customdata[2]:.1%}} of its elements differ",
    "max_row_ulps": "at most {} row ULPs",
    "max_ulps": "at most %{{customdata[2]:,}} ULPs",
    "rms": "RMS {}",
    "state": "%{{customdata[2]}} (0: the same choice, 1: near tie, 2: beyond)",
}
_MOST_NAMED = 20  # rows whose names fit next to a map
_BELOW_MARK: dict = {"margin": {"t": 46}}  # room for the selected position
_NAMES_ALONG = 7  # modules whose names fit below a chart
_OUTPUT_UNITS = "RMS difference, output units"


def _short_names(modules: DataFrame) -> dict[int, str]:
    """`layer 3` by ordinal; of a module in it the last part of its name too, `layer 3 o_proj`."""
    names = {}
    for row in modules.itertuples():
        name = "" if pd.isna(row.block) else f"layer {row.block}"
        if row.kind != RESIDUAL:
            name += f" {visible(row.module.rpartition('.')[2])}"
        names[row.ordinal] = name.strip()
    return names


def _hover_text(measure: str, values: Array) -> str:
    return _HOVER[measure].format(hover(values, "customdata[2]"))


def _color_scale(values: Array, measure: str) -> tuple[Array, Record]:
    """(values to color by, NaN if nothing differs; the color axis).

    LINEAR measures from 0, the others logarithmic.
    """
    low, high = span(values)
    shade = gaps_at_zero(values)
    title = {"text": MEASURES[measure], "side": "right"}
    bar: Record = {"thickness": 12, "len": 1.0, "title": title}
    axis = {"colorscale": ULPS, "colorbar": bar}
    if measure == "state":
        bar |= {"tickvals": [1, 2], "ticktext": ["near tie", "beyond"]}
        near, far = REFERENCE, MISMATCH
        axis["colorscale"] = [[0, near], [0.5, near], [0.5, far], [1, far]]
        return shade, {"cmin": 0.5, "cmax": 2.5, **axis}
    if measure in LINEAR:
        if measure == "neq_share":
            bar["tickformat"] = ".0%"
        return shade, {"cmin": 0, "cmax": high, **axis}
    top = np.log10(high) if high > 1.5 * low else np.log10(high) + 0.2
    bottom = np.log10(low)
    # rounding is midway on the scale, and far below the floor says nothing
    if measure == "ratio":
        top = max(top, 1.0)
        bottom = max(bottom, top - 2)
    powers = range(int(np.floor(bottom)), int(np.ceil(top)) + 1)
    digits: tuple[int, ...] = (1, 2, 5)
    if len(powers) > 5:
        digits = (1,)
    elif len(powers) > 3:
        digits = (1, 3)
    steps = [digit * 10.0**power for power in powers for digit in digits]
    bar |= {"tickvals": np.log10(steps).tolist(), "ticktext": on_axis(steps)}
    return np.clip(np.log10(shade), bottom, top), {"cmin": bottom, "cmax": top, **axis}


def _add_cells(
    figure: go.Figure,
    values: Array,
    is_mismatch: Array,
    measure: str,
    hover: Record,
    **place: object,
) -> None:
    """Add cells in the color of their value, faint grey if equal, red if NaN or infinity is on one
    side, empty if there is no figure.
    """
    shade, axis = _color_scale(values, measure)

    def add_flat(mask: Array, color: str, **more: object) -> None:
        figure.add_heatmap(
            z=np.where(mask, 1.0, np.nan),
            colorscale=[[0, color], [1, color]],
            showscale=False,
            hoverinfo="skip",
            **more,
            **place,
        )

    add_flat(values == 0, QUIET, opacity=0.22)
    figure.add_heatmap(z=shade, coloraxis="coloraxis", **hover, **place)
    if is_mismatch.any():
        add_flat(is_mismatch, MISMATCH, name="NaN or infinity on one side")
    figure.update_layout(coloraxis=axis)


def position_map(
    cells: DataFrame,
    names: Mapping[int, str],
    ticks: Mapping[int, str],
    measure: str,
    position: int,
) -> go.Figure:
    """Rows x positions of one prompt, the selected position marked. A click gives the row and the
    first position of the cell.

    cells: of core.runs.queries.layers.cells or caches.cells; names: of every row, for the hover;
    ticks: of some.
    """
    grid = cells.pivot(index="row", columns="cell")
    values = grid["value"].to_numpy(float)
    is_mismatch = grid["is_mismatch"].fillna(False).to_numpy(bool)
    rows = grid.index.to_numpy(int)
    of_cell = cells.groupby("cell")
    first = of_cell["first_position"].min().to_numpy(float)
    last = of_cell["last_position"].max().to_numpy(float)
    between = (last[:-1] + first[1:]) / 2
    borders = np.array([first[0] - 0.5, *between, last[-1] + 0.5])
    figure = go.Figure()
    _add_cells(
        figure,
        values,
        is_mismatch,
        measure,
        {"hoverinfo": "skip"},
        x=borders,
        y=np.arange(len(rows)),
    )
    # A heatmap takes no click; points do.
    i, j = np.nonzero(~np.isnan(values))
    shown = np.where(np.isinf(values[i, j]), -1, values[i, j])
    figure.add_scatter(
        x=((borders[:-1] + borders[1:]) / 2)[j],
        y=i,
        name="cells",
        text=np.array([inert(names[row]) for row in rows], object)[i],
        customdata=np.stack([rows[i], first[j], shown], axis=1),
        hovertemplate=(
            f"%{{text}}<br>from position %{{customdata[1]:,.0f}}: {_hover_text(measure, values)}"
            "<extra></extra>"
        ),
        **CLICKABLE | {"mode": "markers", "marker": UNDRAWN},
    )
    # above the map: on it, it would cover the first rows
    figure.add_annotation(
        x=position,
        y=1,
        yref="paper",
        yanchor="bottom",
        text="▼",
        showarrow=False,
        font={"color": FLIP, "size": 16},
    )
    label_rows = every_few([place for place, row in enumerate(rows) if row in ticks], _MOST_NAMED)
    figure.update_xaxes(showgrid=False, zeroline=False, range=[borders[0], borders[-1]])
    figure.update_yaxes(
        showgrid=False,
        zeroline=False,
        range=[len(rows) - 0.5, -0.5],
        tickvals=label_rows,
        ticktext=[inert(ticks[rows[place]]) for place in label_rows],
        tickfont={"size": 10},
    )
    height = _map_height(len(rows))
    return layout(figure, height, "position", showlegend=False, **NEAREST_CLICK, **_BELOW_MARK)


def _map_height(rows: int) -> int:
    """Pixels of a map: with all else on its tab, it fits a screen of 900."""
    return 110 + int(np.clip(12 * rows, 120, 240))


def head_maps(table: DataFrame, measure: str) -> go.Figure:
    """Draw layers x heads, keys next to values on one color scale. table: by layer, kind and
    head.
    """
    kinds = list(dict.fromkeys(table["kind"]))
    figure = make_subplots(
        rows=1,
        cols=len(kinds),
        shared_yaxes=True,
        horizontal_spacing=0.04,
        subplot_titles=[f"{k}s" for k in kinds],
    )
    layers = table["layer"].drop_duplicates().sort_values()
    every = table[measure].to_numpy(float)
    for column, kind in enumerate(kinds, start=1):
        rows = table[table["kind"] == kind]
        grid = rows.pivot(index="layer", columns="head").reindex(layers)
        values = grid[measure]
        cells = values.to_numpy(float)
        is_mismatch = grid["nonfinite_mismatch"].fillna(0).to_numpy(int) > 0
        # As categories: a model may keep caches in some of its layers only, and a gap would read as
        # equal.
        axes = {
            "x": [str(head) for head in values.columns],
            "y": [str(layer) for layer in layers],
            "row": 1,
            "col": column,
            "xgap": 1,
            "ygap": 1,
        }
        of_cell = {
            "customdata": np.stack([cells] * 3, axis=2),
            "hovertemplate": (
                f"layer %{{y}}, head %{{x}}: {_hover_text(measure, every)}<extra>{kind}s</extra>"
            ),
        }
        _add_cells(figure, cells, is_mismatch, measure, of_cell, **axes)
    look: Record = {"type": "category", "showgrid": False, "zeroline": False}
    figure.update_xaxes(nticks=16, **look)
    figure.update_yaxes(nticks=24, autorange="reversed", **look)
    layout(figure, _map_height(len(layers)), "head", showlegend=False)
    figure.update_yaxes(title="layer", col=1)
    return figure.update_layout(_BELOW_MARK, coloraxis=_color_scale(every, measure)[1])


def module_growth(modules: DataFrame) -> go.Figure:
    """rms of the pair and of its floor after every block, as lines on a log axis; of other modules,
    which have other units, points. The stretch before the first module that differs is shaded, the
    first one beyond its floor is named. A click gives the ordinal.
    """
    figure = go.Figure()
    places = np.arange(len(modules))
    pair = gaps_at_zero(modules["rms"].to_numpy(float))
    floor = modules["floor_rms"].to_numpy(float)
    differs = np.flatnonzero(modules["neq"].to_numpy(int) > 0)
    first = int(differs[0]) if len(differs) else len(modules)
    if first:
        figure.add_vrect(
            x0=-0.5,
            x1=first - 0.5,
            fillcolor=QUIET,
            opacity=0.13,
            line_width=0,
            layer="below",
        )
    if first > len(modules) / 12:
        figure.add_annotation(
            x=(first - 1) / 2,
            y=0.5,
            yref="paper",
            text="equal",
            showarrow=False,
            font={"color": QUIET},
        )
    streams = np.flatnonzero(modules["kind"] == RESIDUAL)
    add_floor(figure, streams, floor[streams])
    every = np.concatenate([pair, floor])
    written = hover(every)
    of_floor = written.replace("%{y", "%{customdata[1]")
    figure.add_scatter(
        x=places,
        y=pair,
        name="other modules",
        mode="markers",
        marker={"color": REFERENCE, "size": 5, "opacity": 0.35},
        customdata=np.stack([modules["ordinal"], floor, modules["neq_share"]], axis=1),
        text=[inert(name) for name in modules["module"]],
        hovertemplate=(
            f"%{{text}}<br>RMS {written}, noise floor {of_floor}<br>%{{customdata[2]:.1%}} of its"
            " elements differ<extra></extra>"
        ),
    )
    figure.add_scatter(
        x=streams,
        y=pair[streams],
        name="residual stream",
        mode="lines+markers",
        hoverinfo="skip",
        line={"color": REFERENCE, "width": 2},
        marker={"size": 6, "symbol": "diamond"},
        opacity=0.85,
    )
    names = [*_short_names(modules).values()]
    beyond = first_beyond(modules)
    if beyond is not None:
        place = int(np.flatnonzero(modules["ordinal"] == beyond.ordinal)[0])
        is_left = place < len(modules) / 2
        figure.add_scatter(
            x=[place],
            y=[pair[place]],
            name="first beyond noise",
            showlegend=False,
            mode="markers+text",
            text=[inert(names[place])],
            textposition="middle right" if is_left else "middle left",
            textfont={"color": MISMATCH},
            hoverinfo="skip",
            marker={"color": MISMATCH, "size": 13, "symbol": "circle-open", "line": {"width": 2}},
        )
    # the first, the last and ends of layers, as many as fit
    last = len(modules) - 1
    room = len(modules) / _NAMES_ALONG
    ends = every_few(streams.tolist(), _NAMES_ALONG)
    named = sorted({0, last, *(place for place in ends if room < place < last - room)})
    figure.update_xaxes(
        tickvals=named,
        # of several lines, for a narrow tick
        ticktext=[inert(names[place]).replace("_", "_ ").replace(" ", "<br>") for place in named],
        # turned names would take the height of a phone's chart
        tickangle=0,
        range=[-0.5, len(modules) - 0.5],
        showgrid=False,
    )
    return layout(
        figure,
        220,
        "module in execution order, a layer at its end",
        _OUTPUT_UNITS,
        every,
        # half of the last name needs room on the right
        margin={"r": 30},
        **NEAREST_CLICK,
    )


def module_positions(along: DataFrame, selected: int) -> go.Figure:
    """rms of one module's difference and of its floor at each position, log axis; gaps if nothing
    differs.
    """
    figure = go.Figure()
    positions = along["position"].to_numpy(int)
    rms = gaps_at_zero(along["rms"].to_numpy(float))
    floor = along["floor_rms"].to_numpy(float)
    every = np.concatenate([rms, floor])
    written = hover(every)
    of_floor = written.replace("%{y", "%{customdata[0]")
    add_floor(figure, positions, floor)
    figure.add_scatter(
        x=positions,
        y=rms,
        name="this pair",
        line={"color": REFERENCE, "width": 1.6},
        customdata=np.stack([floor, positions], axis=1),
        hovertemplate=f"position %{{x}}<br>pair {written}, noise floor {of_floor}<extra></extra>",
        mode="lines+markers",
        marker={"size": 4},
    )
    figure.add_shape(selected_line(selected))
    return layout(figure, 220, "position", _OUTPUT_UNITS, every, **NEAREST_CLICK)


def names_of(modules: DataFrame) -> tuple[dict[int, str], dict[int, str]]:
    """(names by ordinal for the hover; short names for ticks: of all if they fit, else of the ends
    of blocks).
    """
    names = dict(zip(modules["ordinal"], modules["module"], strict=True))
    ticked = modules
    if len(modules) > _MOST_NAMED:
        ticked = modules[modules["kind"] == RESIDUAL]
    return names, _short_names(ticked)
