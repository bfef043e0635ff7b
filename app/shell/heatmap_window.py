"""The heatmap's window and its selected token: kept in the session, said in the link; they belong to their run."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.page import whole
from app.shell import link
from app.shell.selection import View
from core.runs.queries.heatmap import MEASURES, ORDERS, Measure, Order, is_offered
from core.text import shown


@dataclass(frozen=True)
class HeatmapWindow:
    """Window of the heatmap: its rows and columns, half open, what the columns are, and what the cells hold."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    order: Order = "id"
    measure: Measure = MEASURES[0]


def extent(view: View) -> dict[str, tuple[int, int]]:
    """The whole run as the heatmap's axes, half open; the address and the session know the columns as tokens."""
    return {"rows": (0, view.run.header.rows), "tokens": (0, view.run.header.vocab)}


def current(view: View) -> HeatmapWindow:
    """The heatmap's window of this session."""
    full = extent(view)
    kept = st.session_state
    return HeatmapWindow(
        kept.get("heatmap_rows", full["rows"]),
        kept.get("heatmap_tokens", full["tokens"]),
        kept.get("heatmap_order", "id"),
        kept.get("heatmap_cells", MEASURES[0]),
    )


def keep(view: View, window: HeatmapWindow) -> None:
    """Remember a window, moved into the run."""
    for axis, (first, last) in extent(view).items():
        span = window.rows if axis == "rows" else window.columns
        start = min(max(span[0], first), last - 1)
        st.session_state[f"heatmap_{axis}"] = (start, min(max(span[1], start + 1), last))
    st.session_state["heatmap_order"] = window.order
    st.session_state["heatmap_cells"] = window.measure


def selected_token(view: View) -> int | None:
    """The token selected on the heatmap, if one is."""
    token = st.session_state.get("heatmap_token")
    return token if token is not None and token < view.run.header.vocab else None


def address(view: View) -> dict[str, str]:
    """Parameters of the address for the heatmap: nothing of what is at its default."""
    window = current(view)
    full = extent(view)
    spans = {"rows": window.rows, "tokens": window.columns}
    said = {axis: f"{span[0]}:{span[1]}" for axis, span in spans.items() if span != full[axis]}
    if window.order != "id":
        said["order"] = window.order
    if window.measure != MEASURES[0]:
        said["cells"] = window.measure
    token = selected_token(view)
    return said if token is None else said | {"token": str(token)}


def settle(view: View) -> None:
    """Take the heatmap's window and token out of the link if they are there; they belong to their run."""
    is_new_run = st.session_state.get("heatmap_run") != view.run.run_id
    st.session_state["heatmap_run"] = view.run.run_id
    is_linked = False
    for axis, full in extent(view).items():
        said = link.linked_range(axis, full)
        if said is not None or is_new_run:
            st.session_state[f"heatmap_{axis}"] = said or full
            is_linked = True
    for name, known in (("order", ORDERS), ("cells", MEASURES)):
        text = link.linked(name)
        if text is not None or is_new_run:
            st.session_state[f"heatmap_{name}"] = text if text in known else known[0]
            is_linked = True
    window = current(view)
    if not is_offered(view.run, window.order, window.measure):
        measure = MEASURES[0] if is_offered(view.run, "id", MEASURES[0]) else "ulps"
        keep(view, HeatmapWindow(window.rows, window.columns, measure=measure))
    if is_linked:
        st.session_state["heatmap_serial"] = ""  # the browser follows; see app/heatmap/canvas.py
    token = link.linked("token")
    if token is not None or is_new_run:
        number = whole(token or "")
        st.session_state["heatmap_token"] = (
            number if number is not None and 0 <= number < view.run.header.vocab else None
        )
        if token and st.session_state["heatmap_token"] is None:
            link.complain(
                f"The link asks for token '{shown(token, 60)}'; this run has 0 to {view.run.header.vocab - 1}. None"
                " is selected."
            )
