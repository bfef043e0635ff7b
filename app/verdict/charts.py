"""A pair compared with the noise floor: by position, and over the modules."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from app.components.chart_style import (
    CLICKABLE,
    MISMATCH,
    NEAREST_CLICK,
    QUIET,
    REFERENCE,
    add_flips,
    add_floor,
    add_lone,
    add_selected,
    every_few,
    gaps_at_zero,
    inert,
    layout,
    log_axis,
)


def floor_ratio(
    positions: np.ndarray, ratio: np.ndarray, threshold: float | None, selected: int, dtype: str, flips: np.ndarray
) -> go.Figure:
    """Pair over floor at each position of a prompt, log axis; the floor itself as a line at 1, the threshold dashed,
    what is beyond it red.
    """
    figure = go.Figure()
    figure.add_scatter(
        x=positions,
        y=gaps_at_zero(ratio),
        line={"color": REFERENCE, "width": 1.6},
        name="pair over floor",
        customdata=positions[:, None],
        hovertemplate="position %{x}: %{y:.3g} times the floor<extra></extra>",
        **CLICKABLE,
    )
    add_lone(figure, positions, gaps_at_zero(ratio), REFERENCE)
    add_flips(figure, positions, ratio, flips)
    figure.add_hline(y=1, line={"color": QUIET, "width": 1.2, "dash": "dot"})
    if threshold is not None:
        beyond = ratio > threshold
        figure.add_hline(y=threshold, line={"color": MISMATCH, "width": 1.4, "dash": "dash"})
        figure.add_annotation(
            x=1,
            xref="paper",
            xanchor="right",
            y=np.log10(threshold),
            yanchor="bottom",
            text=f"rounding stays below {threshold:.3g}",
            showarrow=False,
        )
        if beyond.any():
            figure.add_scatter(
                x=positions[beyond],
                y=ratio[beyond],
                mode="markers",
                name="stands out",
                customdata=positions[beyond][:, None],
                marker={"color": MISMATCH, "size": 7},
                hovertemplate="position %{x}: %{y:.4g} times the floor<extra></extra>",
            )
    add_selected(figure, selected)
    figure.update_xaxes(title="position")
    figure.update_yaxes(
        title=f"times the floor, {dtype}",
        **log_axis(np.append(ratio, [1.0] if threshold is None else [1.0, threshold])),
    )
    return layout(figure, 280, **NEAREST_CLICK)


def over_modules(
    names: list[str],
    pair: np.ndarray,
    floor: np.ndarray,
    first: str | None,
    called: tuple[str, str] = ("this pair", "noise floor"),
) -> go.Figure:
    """rms of a pair and of its rounding floor, or of two others that are `called` so, at the output of every module, in
    the order in which they run, log axis.

    Units are those of each module's output. first: the module at which the pair leaves the floor, marked. Blocks, which
    a name that ends in a number is, are labelled; their parts are told by hovering.
    """
    figure = go.Figure()
    places = np.arange(len(names))
    shown = [inert(name) for name in names]
    add_floor(figure, places, floor, name=called[1])
    figure.add_scatter(
        x=places,
        y=gaps_at_zero(pair),
        mode="lines+markers",
        line={"color": REFERENCE, "width": 1.6},
        marker={"size": 5},
        name=called[0],
        customdata=np.stack([np.array(shown, object), floor.astype(object)], axis=1),
        hovertemplate=(
            f"%{{customdata[0]}}<br>{called[0]} %{{y:.3g}}, {called[1]} %{{customdata[1]:.3g}}<extra></extra>"
        ),
    )
    if first in names:
        place = names.index(first)
        figure.add_vline(x=place, line={"color": MISMATCH, "width": 1.4, "dash": "dash"})
        figure.add_annotation(
            x=place,
            y=1,
            yref="paper",
            yanchor="top",
            xshift=5 if place < len(names) / 2 else -5,
            text=shown[place],
            showarrow=False,
            font={"color": MISMATCH},
            xanchor="left" if place < len(names) / 2 else "right",
        )
    blocks = every_few([place for place, name in enumerate(names) if name.rpartition(".")[2].isdigit()], 12)
    figure.update_xaxes(
        title="module, in the order in which they run; ticks are the ends of blocks",
        tickvals=blocks,
        ticktext=[names[place].rpartition(".")[2] for place in blocks],
    )
    figure.update_yaxes(title="rms of the difference", **log_axis(np.concatenate([pair, floor])))
    return layout(figure, 320)
