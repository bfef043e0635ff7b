"""The heatmap's window and its selected token, out of the page's settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import streamlit as st

from app.page import whole
from app.shell.selection import View
from core.runs.queries.heatmap import MEASURES, MOST_READ, RANKS, Measure, Order, Span, element, is_offered

_NEIGHBOURS = 12  # columns on either side of a token that was looked for


@dataclass(frozen=True)
class HeatmapWindow:
    """Window of the heatmap: its rows and columns, half open, what the columns are, and what the cells hold."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    order: Order = "rank"
    measure: Measure = MEASURES[0]


def current(view: View) -> HeatmapWindow:
    """Return the heatmap's window of this session, clipped to the run."""
    run, state = view.run, st.session_state
    # A link that names a window and no order is of a time when columns were token ids.
    order: Order = state["heatmap_order"] or ("id" if state["heatmap_rows"] or state["heatmap_tokens"] else "rank")
    measure = state["heatmap_cells"]
    if not is_offered(run, order, measure):
        order, measure = "id", MEASURES[0] if is_offered(run, "id", MEASURES[0]) else "ulps"
    rows, columns = _first_look(view, order)
    rows = _span(state["heatmap_rows"], run.header.rows) or rows
    return HeatmapWindow(rows, _span(state["heatmap_tokens"], run.header.vocab) or columns, order, measure)


def _first_look(view: View, order: Order) -> tuple[Span, Span]:
    """Return rows and columns of the first view: everything by token id, the first ranks of as many rows as are read at
    once.
    """
    header = view.run.header
    if order == "id":
        return (0, header.rows), (0, header.vocab)
    height = min(header.rows, MOST_READ // header.vocab)
    first = min(max(view.row - height // 2, 0), header.rows - height)
    return (first, first + height), (0, min(RANKS, header.vocab))


def _span(text: str, stop: int) -> Span | None:
    """`12:40` as (12, 40); None if it is no span of what there is."""
    first, last = (whole(part) for part in text.split(":")) if text.count(":") == 1 else (None, None)
    return (first, last) if first is not None and last is not None and 0 <= first < last <= stop else None


def keep(view: View, window: HeatmapWindow) -> None:
    """Store a window; of the first view nothing, or rows by number if another position would move them."""
    rows, columns = _first_look(view, window.order)
    is_still = window.rows == rows == (0, view.run.header.rows)
    st.session_state.update(
        heatmap_rows="" if is_still else "{}:{}".format(*window.rows),
        heatmap_tokens="" if window.columns == columns else "{}:{}".format(*window.columns),
        heatmap_order=window.order,
        heatmap_cells=window.measure,
    )


def selected_token(view: View) -> int | None:
    """Return the token selected on the heatmap or typed: by id, text, or text without its leading blank."""
    typed = st.session_state["heatmap_token"]
    token = whole(typed)
    if token is not None or not typed:
        return token if token in range(view.run.header.vocab) else None
    forms = (typed, typed.replace("·", " ").replace("↵", "\n"), f" {typed}")
    ids = {text: token for token, text in reversed(view.run.vocabulary.items()) if text in forms}
    return next((ids[form] for form in forms if form in ids), None)


def show_token(view: View) -> None:
    """Move the window to the column of the selected token; by rank, to its rank at the selected position."""
    token, window = selected_token(view), current(view)
    if token is None:
        return
    by_rank = window.order == "rank"
    column = element(view.run, view.pair.index, view.row, token).reference_rank - 1 if by_rank else token
    first, last = window.columns
    if not first <= column < last or last - first > RANKS:
        first = min(max(column - _NEIGHBOURS, 0), max(0, view.run.header.vocab - 2 * _NEIGHBOURS))
        last = min(first + 2 * _NEIGHBOURS, view.run.header.vocab)
    keep(view, replace(window, columns=(first, last)))
