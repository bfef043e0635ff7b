"""Charts of modules and caches: maps by position and by head, growth over depth, one module along
the prompt.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..numerics.arrays import Array, DataFrame, Record
from ..runs.queries.layers import BEYOND_FLOOR, RESIDUAL, first_beyond
from ..text import multiple, on_axis, visible
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
    "ratio": "{}x the noise floor",
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

    LINEAR measures from 0, the others logarithmic; a ratio has the same color in every run.
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
    if measure == "ratio":
        # 1x is gray, the limit midway
        low = 0.1
        high = 100.0
    elif high <= 1.5 * low:
        high *= 1.6
    bottom, top = np.log10([low, high])
    powers = range(int(np.floor(bottom)), int(np.ceil(top)) + 1)
    digits: tuple[int, ...] = (1, 2, 5)
    if len(powers) > 5:
        digits = (1,)
    elif len(powers) > 3:
        digits = (1, 3)
    steps = [digit * 10.0**power for power in powers for digit in digits]
    if measure == "ratio":
        steps = [low, 1.0, BEYOND_FLOOR, 10.0, high]
    labels = on_axis(steps)
    # the ends of the others are those of the values
    if measure == "ratio" and (shade < low).any():
        labels[0] = f"≤ {labels[0]}"
    if measure == "ratio" and (shade > high).any():
        labels[-1] = f"≥ {labels[-1]}"
    bar |= {"tickvals": np.log10(steps).tolist(), "ticktext": labels}
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
    every: Array | None = None,
) -> go.Figure:
    """Rows x positions of one prompt, the selected position marked. A click gives the row and the
    first position of the cell.

    cells: of core.runs.queries.layers.cells or caches.cells; names: of every row, for the hover;
    ticks: of some; every: values that share the color scale.
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
    if every is not None:
        figure.update_layout(coloraxis=_color_scale(every, measure)[1])
    # A heatmap takes no click; points do.
    texts = np.array([inert(names[row]) for row in rows], object)
    is_infinite = np.isinf(values)
    for name, mask, about in (
        ("cells", ~np.isnan(values) & ~is_infinite, _hover_text(measure, values)),
        ("noise floor of 0", is_infinite, "the noise floor is 0"),
    ):
        i, j = np.nonzero(mask)
        figure.add_scatter(
            x=((borders[:-1] + borders[1:]) / 2)[j],
            y=i,
            name=name,
            text=texts[i],
            customdata=np.stack([rows[i], first[j], values[i, j]], axis=1),
            hovertemplate=(
                f"%{{text}}<br>from position %{{customdata[1]:,.0f}}: {about}<extra></extra>"
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


def head_maps(table: DataFrame, measure: str, every: Array) -> go.Figure:
    """Draw layers x heads, keys next to values on one color scale. table: by layer, kind and head;
    every: values that share the scale.
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
    """rms over the noise floor of every module, log axis: a line after every block, points of other
    modules. Over a floor of 0 it is on top. Without noise floors it is rms, in units of each
    module.

    The stretch before the first module that differs is shaded, the first one beyond its floor is
    named. A click gives the ordinal.
    """
    figure = go.Figure()
    places = np.arange(len(modules))
    texts = [inert(name) for name in modules["module"]]
    sizes = modules[["rms", "floor_rms"]].to_numpy(float)
    about = f"RMS {hover(sizes, 'customdata[1]')}"
    has_floor = modules["floor_rms"].notna().any()
    measure = "ratio" if has_floor else "rms"
    pair = gaps_at_zero(modules[measure].to_numpy(float))
    every = pair
    if has_floor:
        about += f", noise floor {hover(sizes, 'customdata[2]')}: %{{customdata[4]}}"
        every = np.append(pair, [1.0, BEYOND_FLOOR])
        for limit, color in ((1.0, QUIET), (BEYOND_FLOOR, MISMATCH)):
            figure.add_hline(y=limit, line={"color": color, "width": 1.2, "dash": "dash"})
    low, high = span(every)
    pair = np.minimum(pair, 2 * high)
    bottom, top = np.log10([low, np.nanmax(pair, initial=high)])
    # of a name above the ring, and of a name below the points
    room = 0.1 * (top - bottom) + 0.05
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
            y=0,
            yref="paper",
            yanchor="bottom",
            text="equal",
            showarrow=False,
            font={"color": QUIET},
        )
    streams = np.flatnonzero(modules["kind"] == RESIDUAL)
    columns = modules[["ordinal", "rms", "floor_rms", "neq_share"]].to_numpy(object)
    figure.add_scatter(
        x=places,
        y=pair,
        name="other modules",
        mode="markers",
        marker={"color": REFERENCE, "size": 5, "opacity": 0.35},
        customdata=np.column_stack([columns, modules["ratio"].map(multiple)]),
        text=texts,
        hovertemplate=(
            f"%{{text}}<br>{about}<br>%{{customdata[3]:.1%}} of its elements differ<extra></extra>"
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
        figure.add_scatter(
            x=[place],
            y=[pair[place]],
            name="first beyond noise",
            showlegend=False,
            cliponaxis=False,
            mode="markers",
            hoverinfo="skip",
            marker={"color": MISMATCH, "size": 13, "symbol": "circle-open", "line": {"width": 2}},
        )
        # above all points
        figure.add_annotation(
            x=place,
            y=np.log10(pair[place]),
            ax=place,
            ay=top + 1.2 * room,
            axref="x",
            ayref="y",
            xanchor="left" if place < len(modules) / 2 else "right",
            text=inert(names[place]),
            font={"color": MISMATCH},
            arrowcolor=MISMATCH,
            arrowhead=0,
            standoff=8,
            borderpad=6,
        )
    # the first, the last and ends of layers, as many as fit
    last = len(modules) - 1
    width = len(modules) / 9  # of a short name on a phone
    ends = every_few(streams.tolist(), _NAMES_ALONG)
    named = sorted({0, last, *(place for place in ends if width < place < last - width)})
    figure.update_xaxes(
        tickvals=named,
        # of several lines, for a narrow tick
        ticktext=[inert(names[place]).replace("_", "_ ").replace(" ", "<br>") for place in named],
        # turned names would take the height of a phone's chart
        tickangle=0,
        range=[-0.5, len(modules) - 0.5],
        showgrid=False,
    )
    title = MEASURES["ratio"] if has_floor else _OUTPUT_UNITS
    layout(
        figure,
        370,
        "module in execution order, a layer at its end",
        title,
        every,
        # half of the last name needs room on the right
        margin={"r": 30},
        **NEAREST_CLICK,
    )
    return figure.update_yaxes(range=[bottom - room, top + 2 * room])


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
    # a lone point lies on the line
    figure.add_shape(selected_line(selected), layer="below")
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
