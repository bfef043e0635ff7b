"""Parts of the Matrix page: the choice of a sweep, its axes and filters, the table, and the cell that is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from app.components import plots
from app.matrix import charts
from app.shell import exports, selection, store_cache, widgets
from core.sweeps.history import CellChange, change_of
from core.sweeps.ledger import FAILED, Ledger, StoredPlan
from core.sweeps.matrix import FIGURES, Matrix, filtered, varying
from core.sweeps.plan import AXES, in_short
from core.text import number, percent, plural, shown

ANY = "any"
MOST_PANELS = (8, 6)  # rows and columns of small multiples
_MOST_ROWS = 16  # of the table before it scrolls
_PICKED = "matrix_picked"  # digest of the cell that was picked in a panel after the table's last selection


def ledger() -> Ledger:
    """The sweeps of the store, kept between reruns because it reads each card once."""
    store = store_cache.store()
    kept = st.session_state.get("matrix_ledger")
    if kept is None or kept.store.directory != store.directory:
        kept = st.session_state["matrix_ledger"] = Ledger(store)
    return kept


def pick(plans: Sequence[StoredPlan]) -> StoredPlan:
    """Draw the choice of a sweep, where there are several."""
    names = {plan.name: plan for plan in plans}
    if st.session_state.get("matrix_plan") not in names:
        st.session_state["matrix_plan"] = max(plans, key=lambda plan: plan.begun).name
    if len(names) == 1:
        return plans[0]
    name = st.selectbox("Sweep", list(names), key="matrix_plan", format_func=lambda name: shown(name, 60))
    return names[str(name)]


def changes_of(found: Ledger, plan: StoredPlan) -> list[CellChange]:
    """Every cell of a plan with its change since its last good run."""
    return [change_of(state) for state in found.states(plan.cells)]


def axes_of(changes: Sequence[CellChange]) -> tuple[str, str]:
    """Draw the choice of the two axes and of the figure."""
    known = varying(changes) + [axis for axis in AXES if axis not in varying(changes)]
    first = {"matrix_rows": known[0], "matrix_columns": known[1]}
    for key, axis in first.items():
        if st.session_state.get(key) not in known:
            st.session_state[key] = axis
    if st.session_state["matrix_rows"] == st.session_state["matrix_columns"]:
        other = next(axis for axis in known if axis != st.session_state["matrix_rows"])
        st.session_state["matrix_columns"] = other
    rows, columns, figure = st.columns(3)
    rows.selectbox("Rows", known, key="matrix_rows")
    columns.selectbox("Columns", known, key="matrix_columns")
    figure.selectbox("Figure", list(FIGURES), key="matrix_figure", format_func=FIGURES.__getitem__)
    return str(st.session_state["matrix_rows"]), str(st.session_state["matrix_columns"])


def filters(changes: Sequence[CellChange], axes: tuple[str, str]) -> list[CellChange]:
    """Draw a filter for each other axis that varies, and return the cells that are left."""
    others = [axis for axis in varying(changes) if axis not in axes]
    wanted = {}
    for axis, column in zip(others, st.columns(len(others)) if others else (), strict=True):
        values = [ANY, *dict.fromkeys(change.state.axes[axis] for change in changes)]
        key = f"matrix_of_{axis}"
        if st.session_state.get(key) not in values:
            st.session_state[key] = ANY
        value = column.selectbox(axis, values, key=key, format_func=partial(_named, axis))
        if value != ANY:
            wanted[axis] = str(value)
    return filtered(changes, wanted)


def _named(axis: str, value: str) -> str:
    return value if value == ANY else shown(in_short(axis, value), 60) or "-"


def table(found: Matrix) -> CellChange | None:
    """Draw the table; return the cell that is selected, there or in a panel."""
    columns = [shown(name, 60) for name in found.columns]
    names = [name if columns.count(name) == 1 else f"{name} ({place})" for place, name in enumerate(columns)]
    rows = [
        [shown(name, 60), *(entry.text for entry in row)] for name, row in zip(found.rows, found.entries, strict=True)
    ]
    height = widgets.table_height(len(rows), _MOST_ROWS)
    picked = widgets.room("matrix", height).dataframe(
        pd.DataFrame(rows, columns=["", *names]),
        key="matrix",
        hide_index=True,
        on_select=_forget_picked,
        selection_mode="single-cell",
        height=height,
        placeholder="",
        column_config={"": st.column_config.TextColumn(pinned=True)},
    )
    if (cell := st.session_state.get(_PICKED)) is not None:
        shown_now = (entry.change for row in found.entries for entry in row if entry.change is not None)
        return next((change for change in shown_now if change.state.cell == cell), None)
    for row, column in picked["selection"]["cells"]:
        if column in names and row < len(found.entries):
            return found.entries[row][names.index(column)].change
    return None


def _forget_picked() -> None:
    st.session_state.pop(_PICKED, None)


def growth(found: Matrix) -> None:
    """Draw how the difference grows over the blocks, a panel a place, where modules were compared."""
    grown = found.grown
    if not grown.rows:
        return
    small = grown.first(*MOST_PANELS)

    def pick() -> None:
        row, column = (plots.chosen("matrix_growth", place) for place in (0, 1))
        if row is not None and column is not None and row < len(small.rows) and column < len(small.columns):
            change = small.entries[row][column].change
            st.session_state[_PICKED] = None if change is None else change.state.cell

    st.subheader("Growth over layers")
    plots.draw(
        charts.growth_panels(small),
        key="matrix_growth",
        on_pick=pick,
        picture=exports.picture("matrix-growth", ["rms of the difference after each block, row ULPs"]),
    )
    more = "" if small == grown else " Only the first rows and columns: filters choose others."
    st.caption(
        f"rms of the difference after each block, row ULPs; orange: a bug suspected, or bits that do not"
        f" repeat; dotted: the last good run.{more}"
    )


def cell(change: CellChange) -> None:
    """Draw one cell: what it is, what became of it, and the way to its run."""
    axes, now = change.state.axes, change.now
    where = ", ".join(f"{axis} {in_short(axis, value)}" for axis, value in axes.items() if value)
    st.markdown(f"**{widgets.escaped(shown(where, 300))}**")
    if change.state.state == FAILED:
        st.markdown(f"failed: {widgets.escaped(change.state.says)}")
    if now is None:
        st.markdown("It has no run yet.")
        return
    flips = plural(now.flips, "flip")
    floors = "" if now.noise_ratio is None else f", {number(now.noise_ratio, 3)} x the rounding floor"
    st.markdown(
        f"{widgets.escaped(now.verdict)}{floors}; {flips}, {percent(now.neq_share)} of logits differ. It"
        f" {widgets.escaped(change.in_words)}"
    )
    with st.container(horizontal=True):
        st.button("Open the run", on_click=_open, args=(now.run_id,), key="matrix_open", type="primary")
        if change.before is not None:
            st.button(
                "Compare with the last good run",
                on_click=_compare,
                args=(now.run_id, change.before.run_id),
                key="matrix_compare",
            )


def _open(run_id: str) -> None:
    selection.select(run=run_id)
    selection.new_run()
    st.session_state["matrix_to"] = "overview"


def _compare(run_id: str, other: str) -> None:
    selection.select(run=run_id)
    selection.new_run()
    st.session_state["compare_with"] = other
    st.session_state["matrix_to"] = "compare"


def exported(changes: Sequence[CellChange]) -> pd.DataFrame:
    """Every cell that is shown, with its figures: a row each."""
    rows = []
    for change in changes:
        told = change.as_json()
        rows.append(
            {
                **told["axes"],
                **{name: told[name] for name in ("state", "verdict", "noise_ratio", "flips", "neq_share", "run")},
                "changed": ", ".join(told["changed"]),
                "says": told["says"],
            }
        )
    return pd.DataFrame(rows)


def empty() -> None:
    st.info("No sweeps yet. Start one:")
    widgets.code_block("ulpscope sweep sample_runs/sweep.toml")
