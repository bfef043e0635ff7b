"""Sweeps: cells of a sweep as a table of two of its axes, live while it runs; a cell leads to its
run.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from app.components import plots
from app.navigation import COMPARE, SIDE_BY_SIDE
from app.shell import exports, selection, store_cache, widgets
from core.plots import style
from core.sweeps.history import CellChange, change_of
from core.sweeps.ledger import FAILED, RUNNING, StoredPlan
from core.sweeps.matrix import FIGURES, Matrix, matrix_of, sentence, varying
from core.sweeps.plan import AXES, in_short
from core.text import clean, file_name, number, percent, plural
from core.verdict import FAILING

ANY = "any"
# of the chart of growth: more take a browser a second
_MOST_LINES = 48
# digest of the cell that was picked in the chart after the table's last selection
_PICKED = "matrix_picked"


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    ledger = store_cache.ledger()
    plan = pick(ledger.plans())
    changes = [change_of(state) for state in ledger.states(plan.cells)]
    st.markdown(f"**{widgets.escape(plan.name)}**: {widgets.escape(sentence(changes))}")
    axes = axes_of(changes)
    visible = filters(changes, axes)
    matrix = matrix_of(visible, *axes, st.session_state["matrix_figure"])
    shown = [each.change for row in matrix.entries for each in row if each.change is not None]
    selected = table(matrix, shown)
    st.caption(
        "Several cells at a place: the worst verdict and its count, or the largest figure. Δ: bits,"
        " flips or verdict of one changed since its last good run.",
    )
    if selected is not None:
        cell(selected)
    growth([change for change in shown if change.growth])
    stem = f"{file_name(plan.name)}-matrix"
    exports.download({"cells": partial(export_cells, visible)}, stem, "matrix")
    if not any(change.state == RUNNING for change in changes):
        return
    began = time.monotonic()

    @st.fragment(run_every=2.0)
    def watch() -> None:
        """Draw the page anew while cells are being computed."""
        # A fragment runs with its page too, and would draw it anew without an end.
        if time.monotonic() - began > 1.0:
            st.rerun()

    watch()


def _choice(label: str, options: Mapping[str, str], key: str) -> str:
    """Draw a choice by words, whose value the session holds; the first if it holds none of them."""
    selection.settle(key, options)
    return str(widgets.select(label, options, key))


def pick(plans: Sequence[StoredPlan]) -> StoredPlan:
    """Draw the choice of a sweep, the newest first unless a link names another."""
    # of two of one name the last
    by_name = {plan.name: plan for plan in plans}
    if st.session_state["matrix_plan"] not in by_name:
        newest = max(plans, key=lambda plan: plan.begun)
        st.session_state["matrix_plan"] = newest.name
    words = {name: clean(name, 60) for name in by_name}
    return by_name[_choice("Sweep", words, "matrix_plan")]


def axes_of(changes: Sequence[CellChange]) -> tuple[str, str]:
    """Draw the choice of the two axes and of the figure."""
    axes = {axis: axis for axis in [*varying(changes), *AXES]}
    with st.container(horizontal=True):
        rows = _choice("Rows", axes, "matrix_rows")
        del axes[rows]
        across = _choice("Columns", axes, "matrix_columns")
        _choice("Figure", FIGURES, "matrix_figure")
    return rows, across


def filters(changes: Sequence[CellChange], axes: tuple[str, str]) -> list[CellChange]:
    """Draw a filter for each other axis that varies; return the cells that pass."""
    chosen = {}
    with st.container(horizontal=True):
        for axis in varying(changes):
            if axis in axes:
                continue
            words = {ANY: ANY}
            for change in changes:
                value = change.axes[axis]
                words[value] = clean(in_short(axis, value), 60) or "-"
            value = _choice(axis, words, f"matrix_of_{axis}")
            if value != ANY:
                chosen[axis] = value
    return [change for change in changes if chosen.items() <= change.axes.items()]


def table(matrix: Matrix, shown: Sequence[CellChange]) -> CellChange | None:
    """Draw the table; return the cell that is selected, there or in the chart."""
    columns = [clean(name, 60) for name in matrix.columns]
    names = [
        name if columns.count(name) == 1 else f"{name} ({place})"
        for place, name in enumerate(columns)
    ]
    rows = []
    for name, entries in zip(matrix.rows, matrix.entries, strict=True):
        rows.append([clean(name, 60), *(entry.text for entry in entries)])
    height = widgets.table_height(len(rows), 16)
    picked = widgets.room("matrix", height).dataframe(
        pd.DataFrame(rows, columns=["", *names]),
        key="matrix",
        hide_index=True,
        on_select=lambda: st.session_state.pop(_PICKED, None),
        selection_mode="single-cell",
        height=height,
        placeholder="",
        column_config={"": st.column_config.TextColumn(pinned=True)},
    )
    # A selection outlives the filters, so its cell may be gone.
    cell = st.session_state.get(_PICKED)
    if cell is not None:
        return {change.cell: change for change in shown}.get(cell)
    for row, column in picked["selection"]["cells"]:
        if column in names and row < len(matrix.entries):
            return matrix.entries[row][names.index(column)].change
    return None


def growth_chart(changes: Sequence[CellChange]) -> go.Figure:
    """Draw rms in row ULPs after each block, log, one line per cell; dotted: its last good run. A
    click gives its number.
    """
    figure = go.Figure()
    every = []
    for place, change in enumerate(changes):
        if change.now is None:
            continue
        axes = change.axes.items()
        values = [in_short(axis, value) for axis, value in axes if value]
        name = style.inert(clean(", ".join(values), 60))
        if change.baseline is not None and change.baseline.growth:
            figure.add_scatter(
                y=style.gaps_at_zero(np.array(change.baseline.growth, float)),
                mode="lines",
                line={"color": style.QUIET, "width": 1.4, "dash": "dot"},
                hoverinfo="skip",
            )
        color = style.VARIANT if change.now.verdict in FAILING else style.REFERENCE
        rms = style.gaps_at_zero(np.array(change.growth, float))
        every.append(rms)
        figure.add_scatter(
            y=rms,
            line={"color": color, "width": 2},
            **style.CLICKABLE,
            customdata=[[place]] * len(rms),
            hovertemplate=(
                f"{name}<br>block %{{x}}: {style.hover(rms)} row ULPs<br>"
                f"{style.inert(change.now.verdict)}<extra></extra>"
            ),
        )
    return style.layout(
        figure,
        360,
        "block",
        "RMS after the block, row ULPs",
        np.concatenate(every),
        showlegend=False,
        **style.NEAREST_CLICK,
    )


def growth(changes: Sequence[CellChange]) -> None:
    """Draw how the difference grows over the blocks of the model, if modules were compared."""
    if not changes:
        return
    lines = changes[:_MOST_LINES]

    def pick(key: str) -> None:
        place = plots.clicked_value(key, 0)
        if place is not None and 0 <= place < len(lines):
            st.session_state[_PICKED] = lines[place].cell

    st.subheader("Growth over layers")
    picture = exports.picture("matrix-growth", ["RMS difference after each block, row ULPs"])
    plots.draw(growth_chart(lines), "matrix_growth", picture, pick)
    more = ""
    if lines != changes:
        more = f" The first {len(lines)} of {len(changes)} cells; use filters for others."
    st.caption(
        f"Orange: a bug suspected, or bits that do not repeat; dotted: the last good run.{more}",
    )


def cell(change: CellChange) -> None:
    """Draw one cell: its axes, its result, and links to its runs."""
    now = change.now
    axes = change.axes.items()
    places = [f"{axis} {in_short(axis, value)}" for axis, value in axes if value]
    st.markdown(f"**{widgets.escape(clean(', '.join(places), 300))}**")
    if change.state == FAILED:
        st.markdown(f"failed: {widgets.escape(change.says)}")
    if now is None:
        st.markdown("It has no run yet.")
        return
    floors = ""
    if now.noise_ratio is not None:
        floors = f", {number(now.noise_ratio)} x the noise floor"
    st.markdown(
        f"{widgets.escape(now.verdict)}{floors}; {plural(now.flips, 'flip')},"
        f" {percent(now.neq_share)} of logits differ. It {widgets.escape(change.in_words)}",
    )
    with st.container(horizontal=True):
        opening = partial(selection.open_run, now.run_id)
        st.button(
            "Open the run",
            "matrix_open",
            on_click=opening,
            type="primary",
        )
        if change.baseline is not None:
            st.button(
                "Compare with the last good run",
                "matrix_compare",
                on_click=partial(compare, now.run_id, change.baseline.run_id),
            )


def compare(run_id: str, other: str) -> None:
    """Select a run and leave for the tab that compares it with another one."""
    selection.new_run(run_id)
    st.session_state.update({"compare_with": other, COMPARE.tab.key: SIDE_BY_SIDE.title})


def export_cells(changes: Sequence[CellChange]) -> pd.DataFrame:
    """Return the visible cells with their figures, one row each."""
    columns = [
        "state",
        "verdict",
        "noise_ratio",
        "flips",
        "neq_share",
        "run",
        "changed",
        "says",
    ]
    entries = [change.as_json() for change in changes]
    # a column of lists is no text of a spreadsheet
    axes = pd.DataFrame([entry["axes"] for entry in entries])
    table = pd.DataFrame(entries, columns=columns)
    return axes.join(table.assign(changed=table["changed"].str.join(", ")))
