"""The best tokens of both sides at the selected position: grouped bars of logits, or a slope chart of ranks."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from app.components import best_token_charts, plots
from app.shell import exports, selection, store_cache
from core.text import plural

COUNT = 8  # of either side


def section(view: selection.View) -> pd.DataFrame:
    """Draw the chosen figure with its caption and its table to download; returns what it shows, see
    core.runs.views.elements.top_of_both.
    """
    top = store_cache.top(view)
    # A widget of the same key on another page is another widget; written like this, it takes over the value.
    st.session_state["top_form"] = st.session_state["top_form"] or "logits"
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        form = st.segmented_control(
            "Best tokens as", ["logits", "ranks"], required=True, key="top_form", label_visibility="collapsed"
        )
        exports.download({"best tokens": top}, exports.file_stem(view, "best-tokens", at_position=True), "top")
    picture = exports.picture_of(view, f"best-tokens-{form}", at_position=True)
    place = (view.pair.index, view.prompt, view.position)
    if form == "ranks":
        figure = plots.cached(
            view.run, place, best_token_charts.rank_slopes, top, view.pair.reference, view.pair.variant, COUNT
        )
        plots.draw(figure, key="rank_slopes", picture=picture, of=str(view.position))
        st.caption(f"Ranks of the {COUNT} largest logits of either side. {moves(top)}")
    else:
        plots.draw(
            plots.cached(view.run, place, best_token_charts.top_bars, top, view.pair.reference, view.pair.variant),
            key="top_bars",
            picture=picture,
            of=str(view.position),
        )
        st.caption(f"The {COUNT} largest logits of either side, {view.dtype}; a green ▲ marks each argmax.")
    return top


def moves(top: pd.DataFrame, count: int = COUNT) -> str:
    """Sentence on how many tokens change places, and how many enter or leave the best `count` from the reference to the
    variant.
    """
    entering = int(((top["reference_rank"] > count) & (top["variant_rank"] <= count)).sum())
    leaving = int(((top["reference_rank"] <= count) & (top["variant_rank"] > count)).sum())
    crossing = int(best_token_charts.crossing(top).sum())
    if not crossing and not entering and not leaving:
        return "Both sides order them alike."
    said = f"{plural(crossing, 'token')} of {len(top)} change{'s' if crossing == 1 else ''} places with another"
    if entering or leaving:
        said += (
            f"; {entering} enter{'s' if entering == 1 else ''} the best {count} and {leaving}"
            f" leave{'s' if leaving == 1 else ''} them"
        )
    return f"{said}."
