"""The top tokens at the selected position: a chart of the largest logits of every side, and tables of both sides."""

from __future__ import annotations

from functools import partial

import pandas as pd
import streamlit as st

from app.components import plots
from app.flips import charts
from app.shell import exports, selection, store_cache, widgets, wording
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
        read = partial(top_of_sides, run, sides, *place, LARGEST)
        largest = store_cache.cached("top of sides", store_cache.stamp_of(run), place, read)
        grid = on_grid(largest, sides, run.header.format)
        figure = plots.cached(run, ("sides", *place), charts.on_grid, grid, list(sides), _tokens(largest), view.dtype)
        plots.draw(figure, "top_tokens", exports.picture_of(view, "top-tokens", at_position=True), of=str(place))
        st.caption(f"The {LARGEST} largest logits of each side, {view.dtype}.")
    table: dict = {"token": _tokens(top)}
    for name in _COLUMNS:
        table[name.replace("logit", view.run.header.holds)] = top[name.removesuffix(" (1 = argmax)").replace(" ", "_")]
    st.dataframe(table, hide_index=True, key="top_table", column_config=_COLUMNS, placeholder="–")
    exports.download({"top tokens": top}, exports.file_stem(view, "top-tokens", at_position=True), "top")


def short(view: selection.View) -> None:
    """Draw the top tokens of the selected position next to a prompt: their logits on both sides, and the difference."""
    top, holds = store_cache.top(view), view.run.header.holds
    logits = {side: top[f"{side}_logit"] for side in SIDES}
    table = {"token": _tokens(top), **logits, "difference": logits["variant"] - logits["reference"]}
    columns = dict.fromkeys([*SIDES, "difference"], st.column_config.NumberColumn(format="%.6g"))
    st.dataframe(table, hide_index=True, key="top_here", column_config=columns, placeholder="–")
    st.caption(f"{holds.capitalize()}s{f' in {view.dtype}' if view.dtype else ''}.")


def _tokens(top: pd.DataFrame) -> list[str]:
    return [wording.token(i, t) for i, t in zip(top["token_id"], top["text"], strict=True)]
