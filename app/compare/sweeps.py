"""Sweeps: cells of a sweep as a table of two of its axes, live while it runs; a cell leads to its run."""

import time

import streamlit as st

from app.compare import matrix as parts
from app.shell import exports, selection, store_cache, widgets
from app.shell.widgets import PAGES
from core.sweeps.ledger import RUNNING
from core.sweeps.matrix import matrix_of, sentence
from core.text import file_name


def draw(_: selection.View | None) -> None:
    """Draw the tab."""
    if st.session_state.get("opened"):
        st.switch_page(PAGES / "overview.py")
    ledger = store_cache.ledger()
    plan = parts.pick(ledger.plans())
    changes = parts.changes_of(ledger, plan)
    st.markdown(f"**{widgets.escape(plan.name)}**: {widgets.escape(sentence(changes))}")
    axes = parts.axes_of(changes)
    visible = parts.filters(changes, axes)
    matrix = matrix_of(visible, *axes, str(st.session_state["matrix_figure"]))
    selected = parts.table(matrix)
    st.caption(
        "Several cells at a place: the worst verdict and its count, or the largest figure. Δ: bits, flips or verdict of"
        " one changed since its last good run."
    )
    if selected is not None:
        parts.cell(selected)
    parts.growth(matrix)
    exports.download({"cells": lambda: parts.export_cells(visible)}, f"{file_name(plan.name)}-matrix", "matrix")

    is_live = any(change.state.state == RUNNING for change in changes)
    began = st.session_state["matrix_drawn"] = time.monotonic()

    @st.fragment(run_every=2.0 if is_live else None)
    def watch() -> None:
        """Draw the page anew while cells are being computed."""
        if is_live and time.monotonic() - began > 1.0:
            st.rerun()

    watch()
