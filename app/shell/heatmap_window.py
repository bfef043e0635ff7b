"""The heatmap's window and its selected token, out of the page's settings."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.page import whole
from app.shell.selection import View
from core.runs.queries.heatmap import MEASURES, Measure, Order, is_offered


@dataclass(frozen=True)
class HeatmapWindow:
    """Window of the heatmap: its rows and columns, half open, what the columns are, and what the cells hold."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    order: Order = "id"
    measure: Measure = MEASURES[0]


def current(view: View) -> HeatmapWindow:
    """The heatmap's window of this session, moved into the run."""
    run, asked = view.run, st.session_state
    order, measure = asked["heatmap_order"], asked["heatmap_cells"]
    if not is_offered(run, order, measure):
        order, measure = "id", MEASURES[0] if is_offered(run, "id", MEASURES[0]) else "ulps"
    rows, columns = _span(asked["heatmap_rows"], run.header.rows), _span(asked["heatmap_tokens"], run.header.vocab)
    return HeatmapWindow(rows, columns, order, measure)


def _span(text: str, stop: int) -> tuple[int, int]:
    """`12:40` as (12, 40); everything up to `stop` if it is no span of that."""
    first, last = (whole(part) for part in text.split(":")) if text.count(":") == 1 else (None, None)
    return (first, last) if first is not None and last is not None and 0 <= first < last <= stop else (0, stop)


def keep(view: View, window: HeatmapWindow) -> None:
    """Remember a window."""
    header = view.run.header
    for key, (first, last), stop in (("rows", window.rows, header.rows), ("tokens", window.columns, header.vocab)):
        st.session_state[f"heatmap_{key}"] = "" if (first, last) == (0, stop) else f"{first}:{last}"
    st.session_state.update(heatmap_order=window.order, heatmap_cells=window.measure)


def selected_token(view: View) -> int | None:
    """The token selected on the heatmap, if one is."""
    token = whole(st.session_state["heatmap_token"])
    return token if token is not None and 0 <= token < view.run.header.vocab else None
