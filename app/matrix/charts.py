"""Small multiples of a sweep: how the difference grows over the model's blocks, a panel an entry of the matrix."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from app.components.chart_style import CLICKABLE, NEAREST_CLICK, QUIET, REFERENCE, VARIANT, inert, layout
from core.runs.file.records import FAILING
from core.sweeps.matrix import Matrix
from core.text import shown

_PANEL = 112  # pixels
_BETWEEN_COLUMNS, _BETWEEN_ROWS = 0.1, 0.25  # of a panel
_MOST_TICKS = 3  # of a panel


def growth_panels(matrix: Matrix) -> go.Figure:
    """rms in row ULPs after each block, log, axes in common: of the gravest cell of each entry, and dotted of its last
    good run. A click gives the row and the column of the entry.

    All panels lie side by side on one pair of axes: 48 pairs took a browser a second to draw.
    """
    cells = [
        (row, column, entry.change)
        for row, entries in enumerate(matrix.entries)
        for column, entry in enumerate(entries)
        if entry.change is not None and entry.change.growth
    ]
    grown = [*(one.growth for *_, one in cells), *(one.before.growth for *_, one in cells if one.before is not None)]
    known = [value for growth in grown for value in growth if value]
    low = int(np.floor(np.log10(min(known, default=1.0))))
    decades = max(1, int(np.ceil(np.log10(max(known, default=10.0)))) - low)
    blocks = max(2, *(len(growth) for growth in grown))
    wide, high = (blocks - 1) * (1 + _BETWEEN_COLUMNS), decades * (1 + _BETWEEN_ROWS)
    rows, columns = len(matrix.rows), len(matrix.columns)
    floors = [high * (rows - 1 - row) for row in range(rows)]

    def points(row: int, column: int, growth: tuple[float | None, ...]) -> tuple[NDArray, NDArray]:
        """Places of a cell's blocks on the axes; NaN where the difference is unknown, or 0, which no log axis has."""
        values = np.array([value or np.nan for value in growth], float)
        return np.arange(len(values)) + column * wide, np.log10(values) - low + floors[row]

    figure = go.Figure()
    edges = [(column * wide, column * wide + blocks - 1, floor) for column in range(columns) for floor in floors]
    figure.add_scatter(
        x=[x for start, stop, _ in edges for x in (start, stop, None)],
        y=[y for *_, floor in edges for y in (floor, floor, None)],
        mode="lines",
        line={"color": QUIET, "width": 0.7},
        hoverinfo="skip",
    )
    before = [points(row, column, one.before.growth) for row, column, one in cells if one.before is not None]
    figure.add_scatter(
        x=_apart([x for x, _ in before]),
        y=_apart([y for _, y in before]),
        mode="lines",
        line={"color": QUIET, "width": 1.4, "dash": "dot"},
        hoverinfo="skip",
    )
    for colour, is_failing in ((REFERENCE, False), (VARIANT, True)):
        own = [cell for cell in cells if cell[2].now is not None and (cell[2].now.verdict in FAILING) == is_failing]
        placed = [points(row, column, one.growth) for row, column, one in own]
        told = [
            [row, column, block, "equal" if not value else f"{value:.3g} row ULPs", inert(shown(one.now.verdict, 40))]
            for row, column, one in own
            if one.now is not None
            for block, value in [*enumerate(one.growth), (0, None)]
        ]
        figure.add_scatter(
            x=_apart([x for x, _ in placed]),
            y=_apart([y for _, y in placed]),
            line={"color": colour, "width": 2},
            **CLICKABLE,
            customdata=told,
            hovertemplate="block %{customdata[2]}: %{customdata[3]}<br>%{customdata[4]}<extra></extra>",
        )
    step = -(-decades // (_MOST_TICKS - 1))
    ticks = [
        (floor + power, f"10<sup>{low + power}</sup>") for floor in floors for power in range(0, decades + 1, step)
    ]
    figure.update_yaxes(
        tickvals=[place for place, _ in ticks],
        ticktext=[text for _, text in ticks],
        range=[-0.1 * decades, rows * high - 0.05 * decades],
        showgrid=False,
        zeroline=False,
    )
    figure.update_xaxes(
        title="block",
        tickvals=[column * wide + end for column in range(columns) for end in (0, blocks - 1)],
        ticktext=["0", str(blocks - 1)] * columns,
        range=[-0.02 * columns * wide, columns * wide],
        showgrid=False,
        zeroline=False,
    )
    for column, name in enumerate(matrix.columns):
        at = {"x": column * wide, "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom"}
        figure.add_annotation(text=f"<b>{inert(shown(name, 24))}</b>", showarrow=False, **at)
    for floor, name in zip(floors, matrix.rows, strict=True):
        at = {"x": 0, "xanchor": "left", "y": floor + decades, "yanchor": "bottom"}
        figure.add_annotation(text=inert(shown(name, 40)), showarrow=False, **at)
    return layout(figure, 80 + _PANEL * rows, showlegend=False, **NEAREST_CLICK)


def _apart(lines: list[NDArray]) -> NDArray:
    """Lines one after another, with a gap behind each."""
    return np.concatenate([part for line in lines for part in (line, [np.nan])]) if lines else np.zeros(0)
