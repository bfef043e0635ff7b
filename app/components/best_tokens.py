"""The top tokens of both sides at the selected position: a chart of their logits and a table."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.components import plots
from app.components.chart_style import QUIET, REFERENCE, VARIANT, inert, layout
from app.shell import exports, selection, store_cache, widgets, wording
from core.text import clipped

COUNT = 8  # of either side
_SIDES = ("reference", "variant")
_COLUMNS = {
    f"{side} {what}": column
    for side in _SIDES
    for what, column in (
        ("logit", st.column_config.NumberColumn(format="%.9g")),
        ("rank (1 = argmax)", widgets.GROUPED),
        ("probability", st.column_config.NumberColumn(format="percent")),
    )
}


def section(view: selection.View) -> pd.DataFrame:
    """Draw chart, table and download; return what they show, see core.runs.queries.elements.top_of_both."""
    top = store_cache.top(view)
    place = (view.pair.index, view.prompt, view.position)
    if view.is_list:
        st.caption(f"What either side sent, {view.run.header.measured}.")
    else:
        figure = plots.cached(view.run, place, top_dots, top, view.pair.reference, view.pair.variant)
        picture = exports.picture_of(view, "top-tokens", at_position=True)
        plots.draw(figure, key="top_tokens", picture=picture, of=str(view.position))
        st.caption(f"The {COUNT} largest logits of either side, {view.dtype}; a star marks each argmax.")
    shown: dict = {"token": _tokens(top)}
    for name in _COLUMNS:
        shown[name.replace("logit", view.run.header.holds)] = top[name.removesuffix(" (1 = argmax)").replace(" ", "_")]
    st.dataframe(shown, hide_index=True, key="top_table", column_config=_COLUMNS, placeholder="–")
    exports.download({"top tokens": top}, exports.file_stem(view, "top-tokens", at_position=True), "top")
    return top


def short(view: selection.View) -> None:
    """Draw the top tokens of the selected position beside a prompt: their logits on both sides, and the difference."""
    top, holds = store_cache.top(view), view.run.header.holds
    logits = {side: top[f"{side}_logit"] for side in _SIDES}
    shown = {"token": _tokens(top), **logits, "difference": logits["variant"] - logits["reference"]}
    columns = dict.fromkeys([*_SIDES, "difference"], st.column_config.NumberColumn(format="%.6g"))
    st.dataframe(shown, hide_index=True, key="top_here", column_config=columns, placeholder="–")
    st.caption(f"{holds.capitalize()}s{f' in {view.dtype}' if view.dtype else ''}.")


def _tokens(top: pd.DataFrame) -> list[str]:
    return [wording.token(i, t) for i, t in zip(top["token_id"], top["text"], strict=True)]


def top_dots(top: pd.DataFrame, reference: str, variant: str) -> go.Figure:
    """Logits of the top tokens, a row a token, both sides as dots joined by a line; a star marks a side's argmax."""
    rows = np.arange(len(top))
    logits = {side: top[f"{side}_logit"].to_numpy(float) for side in _SIDES}
    joined = np.stack([*logits.values(), np.full(len(top), np.nan)], axis=1).ravel()
    figure, line = go.Figure(), {"color": QUIET, "width": 1.5}
    figure.add_scatter(x=joined, y=np.repeat(rows, 3), mode="lines", line=line, hoverinfo="skip", showlegend=False)
    for side, name, colour in (("reference", inert(reference), REFERENCE), ("variant", inert(variant), VARIANT)):
        ranks = top[f"{side}_rank"]
        figure.add_scatter(
            x=logits[side],
            y=rows,
            mode="markers",
            name=name,
            marker={"color": colour, "size": 11, "symbol": np.where(ranks == 1, "star", "circle"), "opacity": 0.85},
            customdata=np.stack([ranks, top[f"{side}_probability"]], axis=1),
            hovertemplate=(
                f"{name.replace('%', '&#37;')}: logit %{{x:.9g}}, rank %{{customdata[0]}} (1 = argmax), probability"
                " %{customdata[1]:.3%}<extra></extra>"
            ),
        )
    texts = [inert(clipped(token, 24)) for token in _tokens(top)]
    figure.update_xaxes(title="logit", showgrid=True)
    figure.update_yaxes(tickvals=rows, ticktext=texts, range=[len(top) - 0.4, -0.6], title=None)
    return layout(figure, 90 + 24 * len(top), hovermode="closest")
