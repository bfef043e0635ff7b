"""The top tokens at the selected position: a chart of the largest logits of every side, and tables of both sides."""

from __future__ import annotations

import streamlit as st

from app.components import plots
from app.flips import charts
from app.shell import exports, selection, store_cache, widgets
from core.runs.queries.elements import top_of_sides
from core.runs.queries.flips import SIDES, on_grid

LARGEST = 3  # logits of each side in the chart
_COLUMNS = {
    f"{side} {what}": column
    for side in SIDES
    for what, column in (
        ("logit", st.column_config.NumberColumn(format="%.9g")),
        ("rank (1 = argmax)", widgets.GROUPED),
        ("probability", st.column_config.NumberColumn(format="percent")),
    )
}


def section(view: selection.View, *, is_charted: bool = True) -> None:
    """Draw the largest logits of every side of the run, and the table of the pair's top tokens with its download."""
    run, top, place = view.run, store_cache.top(view), (view.prompt, view.position)
    if view.is_list:
        st.caption(f"What either side sent, {run.header.quantity}.")
    elif is_charted:
        sides = {side.name: index for index, side in enumerate(run.sides)}
        largest = store_cache.cached(run, top_of_sides, sides, *place, LARGEST)
        grid = on_grid(largest, sides, run.header.format)
        texts = widgets.table_texts(largest["token_id"], run)
        figure = plots.cached(run, ("sides", *place), charts.on_grid, grid, list(sides), texts, view.dtype)
        plots.draw(figure, "top_tokens", exports.picture_of(view, "top-tokens", at_position=True), of=str(place))
        st.caption(f"The {LARGEST} largest logits of each side, {view.dtype}.")
    table: dict = {"token": widgets.table_texts(top["token_id"], view.run)}
    for name in _COLUMNS:
        table[name.replace("logit", view.run.header.holds)] = top[name.removesuffix(" (1 = argmax)").replace(" ", "_")]
    st.dataframe(table, hide_index=True, key="top_table", column_config=_COLUMNS, placeholder="–")
    stem = exports.file_stem(view, "top-tokens", at_position=True)
    exports.download({"top tokens": top}, stem, "top", "Download this position")


def short(view: selection.View) -> None:
    """Draw the top tokens of the selected position next to a prompt: their logits on both sides, and the difference."""
    top, holds = store_cache.top(view), view.run.header.holds
    logits = {side: top[f"{side}_logit"] for side in SIDES}
    tokens = widgets.table_texts(top["token_id"], view.run)
    table = {"token": tokens, **logits, "difference": logits["variant"] - logits["reference"]}
    columns = dict.fromkeys([*SIDES, "difference"], st.column_config.NumberColumn(format="%.6g"))
    st.dataframe(table, hide_index=True, key="top_here", column_config=columns, placeholder="–")
    st.caption(f"{holds.capitalize()}s{f' in {view.dtype}' if view.dtype else ''}.")
