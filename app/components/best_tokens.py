"""The top tokens at the selected position: a chart of the largest logits of every side, and tables
of both sides.
"""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pandas as pd
import streamlit as st

from app.components import plots, tables
from app.shell import exports, selection, store_cache, widgets
from core.numerics.arrays import Record
from core.plots.style import LAYOUT, QUIET, REFERENCE, VARIANT, every_few, inert, selected_line
from core.runs.queries.elements import top_of_sides
from core.runs.queries.flips import SIDES, Candidates, on_grid
from core.text import exact_decimals, opening

LARGEST = 3  # logits of each side in the chart
_APART = 0.17  # of a mark of a side, above or below its line
_SYMBOLS = (
    "triangle-down",
    "triangle-up",
    "circle",
    "square",
    "diamond",
    "cross",
    "star",
    "x",
    "pentagon",
    "hexagram",
)
_LABELLED = 5  # lines of the grid: as many as a phone has room for


def section(view: selection.View, *, is_charted: bool = True) -> None:
    """Draw the largest logits of every side of the run, and the table of the pair's top tokens with
    its download.
    """
    run = view.run
    top = store_cache.top(view)
    place = (view.prompt, view.position)
    if view.is_list:
        st.caption(f"What either side sent, {run.header.quantity}.")
    elif is_charted:
        sides = {side.name: index for index, side in enumerate(run.sides)}
        largest = store_cache.cached(run, top_of_sides, sides, *place, LARGEST)
        figure = plots.cached(
            run,
            ("sides", *place),
            grid_chart,
            on_grid(largest, sides, run.header.format),
            list(sides),
            widgets.table_texts(largest["token_id"], run),
            view.dtype,
        )
        plots.draw(figure, "top_tokens", "top-tokens", of=str(place), scope="position")
        st.caption(f"The {LARGEST} largest logits of each side, {view.dtype}.")
    table: dict = {"token": widgets.table_texts(top["token_id"], view.run)}
    columns: Record = {}
    logits = top[[f"{side}_logit" for side in SIDES]]
    number = st.column_config.NumberColumn
    forms = {
        "logit": (view.header.holds, number(format=tables.exact_format(logits.stack()))),
        "probability": ("probability", number(format="%.2f%%")),
        "rank": ("rank", number(format="localized", help="1 = argmax")),
    }
    # what is compared stands side by side
    for name, (title, column) in forms.items():
        for side in SIDES:
            values = top[f"{side}_{name}"]
            table[f"{title}, {side}"] = 100 * values if name == "probability" else values
            columns[f"{title}, {side}"] = column
    st.dataframe(table, hide_index=True, key="top_table", column_config=columns, placeholder="–")
    exports.download(
        {"top tokens": top},
        exports.file_stem(view, "top-tokens", at_position=True),
        "top",
        "Download this position",
    )


def short(view: selection.View) -> None:
    """Draw the top tokens of the selected position next to a prompt: logits on both sides, and
    Δ.
    """
    top = store_cache.top(view)
    logits = {side: top[f"{side}_logit"] for side in SIDES}
    tokens = widgets.table_texts(top["token_id"], view.run)
    table = {"token": tokens, **logits, "Δ": logits["variant"] - logits["reference"]}
    # as many decimals as all of them need, up to six
    places = exact_decimals(np.concatenate([*map(pd.Series.to_numpy, logits.values())]))
    form = f"%.{6 if places is None else min(places, 6)}f"
    columns = dict.fromkeys(list(table)[1:], st.column_config.NumberColumn(format=form))
    st.dataframe(table, hide_index=True, key="top_here", column_config=columns, placeholder="–")
    st.caption(f"{opening(view.header.quantity)}. Δ: variant minus reference.")


def grid_chart(
    candidates: Candidates,
    names: Sequence[str],
    texts: Sequence[str],
    dtype: str,
) -> Record:
    """Logits of the candidates on every side, a line of the grid for every value that the dtype has
    there; a plain dict, for plotly takes 20 ms to check it.

    names: of the sides, the reference first; texts: of the candidates. The first candidate points
    down on a side's line from above, the second up from below: where they meet is a tie.
    """
    sides = range(len(names))[::-1]
    grid = candidates.grid.tolist()
    # A line of the grid is as high as the plot, a side's line as wide.
    of_grid = {"layer": "below", "opacity": 0.45, "line": {"color": QUIET, "width": 1}}
    lines = [selected_line(value) | of_grid for value in grid]
    for height in sides:
        ends = {"x0": 0, "x1": 1, "y0": height, "y1": height, "xref": "x domain", "yref": "y"}
        look = {"layer": "below", "line": {"color": QUIET, "width": 1.2}}
        lines.append({"type": "line", **ends, **look})
    marks: list[Record] = []
    for candidate, (text, symbol) in enumerate(zip(texts, cycle(_SYMBOLS), strict=False)):
        offset = -_APART if candidate % 2 else _APART
        hover = (
            f"{inert(text).replace('%', '&#37;')}: %{{x:.9g}} logits on"
            " %{customdata}<extra></extra>"
        )
        mark = {"type": "scatter", "mode": "markers", "name": inert(text), "legendgroup": symbol}
        # colours are sides, so the legend's mark has none
        legend = {"symbol": symbol, "size": 11, "color": QUIET}
        marks.append({**mark, "x": [None], "y": [None], "marker": legend})
        marks.append(
            {
                **mark,
                "x": candidates.logits[:, candidate].tolist(),
                "y": [side + offset for side in sides],
                "showlegend": False,
                "marker": {
                    "symbol": symbol,
                    "size": 15,
                    "color": [REFERENCE, *[VARIANT] * (len(names) - 1)],
                },
                "customdata": [inert(name).replace("%", "&#37;") for name in names],
                "hovertemplate": hover,
            },
        )
    fixed = {"zeroline": False, "automargin": True}
    across: Record = {"title": {"text": "logit"}, **fixed}
    if grid:
        ticks = every_few(grid, _LABELLED)
        # a mark at an end is half as wide as this
        half = max(
            float(np.diff(candidates.grid).max(initial=0.0)) / 2, 0.04 * (grid[-1] - grid[0])
        )
        across |= {
            "title": {"text": f"logit (lines: {dtype} values)"},
            "showgrid": False,
            "tickvals": ticks,
            "ticktext": [f"{value:.9g}" for value in ticks],
            "range": [grid[0] - half, grid[-1] + half],
        }
    up = {
        "tickvals": [*sides],
        "ticktext": [*map(inert, names)],
        "range": [-0.6, len(names) - 0.4],
        **fixed,
    }
    of_all = {**LAYOUT, "height": 120 + 50 * len(names), "hovermode": "closest"}
    return {"data": marks, "layout": {**of_all, "shapes": lines, "xaxis": across, "yaxis": up}}
