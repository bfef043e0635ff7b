"""Outputs of the modules: growth over depth beside the rounding floor, modules x positions, one module along the
prompt.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.components.chart_style import (
    CLICKABLE,
    FLIP,
    NEAREST_CLICK,
    QUIET,
    REFERENCE,
    add_floor,
    add_lone,
    add_selected,
    every_few,
    gaps_at_zero,
    inert,
    layout,
    log_axis,
)
from app.components.map_cells import add_map
from core.runs.views.layers import HEAD, RESIDUAL, LayerGrid, ModuleFigures

MOST_NAMED = 60  # modules whose names fit beside a map


def short_name(each: ModuleFigures) -> str:
    """Short name of a module: `block 3` for the stream after a block, else the last part of the name. Inert."""
    return f"block {each.block}" if each.kind == RESIDUAL else inert(each.module.rpartition(".")[2])


def module_growth(modules: list[ModuleFigures], selected: str) -> go.Figure:
    """rms of the pair and of its floor at the output of every module, in the order in which they run, log axis.

    The streams after the blocks are joined by a line of their own: other modules put out other units. Where nothing
    differs there is no point; the stretch before the first module that differs is shaded. A click gives the place among
    `modules`.
    """
    figure = go.Figure()
    places = np.arange(len(modules))
    pair = np.array([each.rms for each in modules])
    floor = np.array([np.nan if each.floor_rms is None else each.floor_rms for each in modules])
    first = next((place for place, each in enumerate(modules) if each.neq), len(modules))
    names = np.array([inert(each.module) for each in modules], object)
    if first:
        figure.add_vrect(x0=-0.5, x1=first - 0.5, fillcolor=QUIET, opacity=0.13, line_width=0, layer="below")
        if first > len(modules) / 12:
            figure.add_annotation(
                x=(first - 1) / 2, y=0.5, yref="paper", text="equal", showarrow=False, font={"color": QUIET}
            )
    add_floor(figure, places, floor)
    figure.add_scatter(
        x=places,
        y=gaps_at_zero(pair),
        name="this pair",
        line={"color": REFERENCE, "width": 1.2},
        **CLICKABLE,
        customdata=_told(modules, names),
        hovertemplate=(
            "%{customdata[1]}<br>rms %{y:.3g}, floor %{customdata[2]}<br>%{customdata[3]} of its elements"
            " differ<extra></extra>"
        ),
    )
    add_lone(figure, places, gaps_at_zero(pair), REFERENCE)
    streams = np.array([place for place, each in enumerate(modules) if each.kind in (RESIDUAL, HEAD)], int)
    if len(streams):
        figure.add_scatter(
            x=streams,
            y=gaps_at_zero(pair)[streams],
            name="after each block, and the logits",
            mode="lines+markers",
            hoverinfo="skip",
            line={"color": REFERENCE, "width": 3},
            marker={"size": 8, "symbol": "diamond"},
            opacity=0.85,
        )
    here = next((place for place, each in enumerate(modules) if each.module == selected), None)
    if here is not None:
        add_selected(figure, here)
    ends = every_few([place for place, each in enumerate(modules) if each.kind == RESIDUAL], 12)
    figure.update_xaxes(
        title="module, as they run; ticks: ends of blocks",
        tickvals=ends,
        ticktext=[str(modules[place].block) for place in ends],
        range=[-0.5, len(modules) - 0.5],
        showgrid=False,
    )
    figure.update_yaxes(title="rms of the difference", **log_axis(np.concatenate([pair, floor])))
    return layout(figure, 340, **NEAREST_CLICK)


def _told(modules: list[ModuleFigures], names: np.ndarray) -> np.ndarray:
    """Custom data of the modules for what is shown under the pointer. [modules, (place, name, floor, share)]"""
    floors = ["not run" if each.floor_rms is None else f"{each.floor_rms:.3g}" for each in modules]
    shares = [f"{100 * each.neq_share:.3g}%" for each in modules]
    return np.stack(
        [np.arange(len(modules)).astype(object), names, np.array(floors, object), np.array(shares, object)], axis=1
    )


def module_map(grid: LayerGrid, selected: str, position: int) -> go.Figure:
    """Modules x positions of one prompt, log colour (shares linear); faint grey where nothing differs, empty where
    there is no figure.

    A click gives the place among the grid's modules and the first position of the cell.
    """
    cells, count = grid.cells, len(grid.modules)
    shade, bar = _shade(cells, grid.measure)
    figure = go.Figure()
    borders = _borders(grid)
    starts = grid.positions[grid.edges[:-1]] if len(grid.positions) else np.zeros(0, np.int64)
    add_map(
        figure,
        borders,
        cells,
        shade,
        bar,
        is_mismatch=grid.is_mismatch,
        names=np.array([inert(each.module) for each in grid.modules], object),
        about=lambda i, j: np.stack([i, starts[j], np.where(np.isinf(cells[i, j]), -1, cells[i, j])], axis=1),
        hovertemplate=f"%{{text}}<br>from position %{{customdata[1]:.0f}}: {_HOVER[grid.measure]}<extra></extra>",
        position=position,
    )
    here = next((place for place, each in enumerate(grid.modules) if each.module == selected), None)
    if here is not None:
        figure.add_annotation(
            x=1,
            xref="paper",
            xanchor="left",
            y=here,
            text="◀",
            showarrow=False,
            font={"color": FLIP, "size": 13},
            xshift=-2,
        )
    named = [place for place, each in enumerate(grid.modules) if count <= MOST_NAMED or each.kind == RESIDUAL]
    named = every_few(named, MOST_NAMED)
    figure.update_xaxes(title="position", showgrid=False, zeroline=False, range=[borders[0], borders[-1]])
    figure.update_yaxes(
        showgrid=False,
        zeroline=False,
        range=[count - 0.5, -0.5],
        tickvals=named,
        tickfont={"size": 10},
        ticktext=[
            (
                f"<b>{short_name(grid.modules[place])}</b>"
                if grid.modules[place].kind in (RESIDUAL, HEAD)
                else short_name(grid.modules[place])
            )
            for place in named
        ],
    )
    return layout(figure, 110 + int(np.clip(15 * count, 150, 900)), showlegend=False, **NEAREST_CLICK).update_layout(
        margin={"t": 46}
    )


def _borders(grid: LayerGrid) -> np.ndarray:
    """Borders between cells, in positions: half way between the last of one and the first of the next. [cells + 1]"""
    at = grid.positions.astype(float)
    inner = [(at[edge - 1] + at[edge]) / 2 for edge in grid.edges[1:-1]]
    return np.array([at[0] - 0.5, *inner, at[-1] + 0.5]) if len(at) else np.array([-0.5, 0.5])


_HOVER = {
    "ratio": "%{customdata[2]:.3g} times the floor (-1: the floor is 0)",
    "neq_share": "%{customdata[2]:.4~p} of its elements differ",
    "max_row_ulps": "at most %{customdata[2]:.4g} row ULPs",
    "max_ulps": "at most %{customdata[2]:,} ULPs",
}
_TITLES = {
    "ratio": "times the floor",
    "neq_share": "share that differs",
    "max_row_ulps": "max row ULPs",
    "max_ulps": "max ULPs",
}


def _shade(cells: np.ndarray, measure: str) -> tuple[np.ndarray, dict]:
    """(values to colour by, NaN where nothing differs; the colour axis). Infinite ratios have the colour of the
    largest.
    """
    known = cells[np.isfinite(cells) & (cells > 0)]
    known = known if len(known) else np.ones(1)
    bar: dict = {"thickness": 12, "len": 1.0, "title": {"text": _TITLES[measure], "side": "right"}}
    if measure in ("neq_share", "max_row_ulps"):
        shade = np.where(cells > 0, cells, np.nan).astype(np.float32)
        percent = {"tickformat": ".2~p"} if measure == "neq_share" else {}
        return shade, {"cmin": 0, "cmax": float(known.max()), "colorbar": bar | percent}
    low, high = np.log2(float(known.min())), np.log2(float(known.max()))
    low, high = (0.0, max(high, 1.0)) if measure == "max_ulps" else (min(max(low, -6.0), -1.0), max(high, 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        shade = np.where(cells > 0, np.clip(np.log2(cells), low, high), np.nan).astype(np.float32)
    powers = range(int(np.ceil(low)), int(high) + 1)
    steps = [power for power in powers if power % max(1, -(-len(powers) // 8)) == 0]
    labels = [f"{2.0**power:,.0f}" if power >= 0 else f"1/{2**-power:,}" for power in steps]
    return shade, {"cmin": low, "cmax": high, "colorbar": {**bar, "tickvals": steps, "ticktext": labels}}


def module_positions(positions: np.ndarray, rms: np.ndarray, floor: np.ndarray, selected: int) -> go.Figure:
    """rms of one module's difference and of its floor at each position looked at, log axis; gaps where nothing
    differs.
    """
    figure = go.Figure()
    add_floor(figure, positions, floor)
    figure.add_scatter(
        x=positions,
        y=gaps_at_zero(rms),
        name="this pair",
        line={"color": REFERENCE, "width": 1.6},
        customdata=np.stack([positions, floor], axis=1),
        hovertemplate="position %{x}<br>pair %{y:.3g}, floor %{customdata[1]:.3g}<extra></extra>",
        mode="lines+markers",
        marker={"size": 4},
    )
    add_lone(figure, positions, gaps_at_zero(rms), REFERENCE, 7)
    add_selected(figure, selected)
    figure.update_xaxes(title="position")
    figure.update_yaxes(title="rms of the difference", **log_axis(np.concatenate([rms, floor])))
    return layout(figure, 260, **NEAREST_CLICK)
