"""Deleted runs in the gallery: undoing the last deletion, and the list of those of the last week."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pandas as pd
import streamlit as st

from app.hosting import members
from app.shell import store_changes, widgets
from core.runs.store.store import DeletedRun
from core.text import plural, size


def _each(change: Callable[[str], None], run_ids: Iterable[str]) -> None:
    for run_id in run_ids:
        with widgets.report_errors():
            change(run_id)


def undo_line(trash: Sequence[DeletedRun]) -> None:
    """Draw the last deletion of this viewer, as long as it can be undone."""
    run_ids, sentence = st.session_state.get("undo", ([], ""))
    deleted = [run.run_id for run in trash if run.run_id in run_ids]
    if deleted:
        with st.container(horizontal=True, vertical_alignment="center", key="undo_line"):
            st.markdown(widgets.escape(sentence), width="content")
            st.button("Undo", key="undo_delete", on_click=partial(_each, store_changes.restore, deleted))


def trash_list(trash: Sequence[DeletedRun]) -> None:
    """Draw the runs deleted within a week, to be restored or deleted for good; they are drawn when unfolded."""
    if not trash:
        return
    label = f"Recently deleted: {plural(len(trash), 'run')}, {size(sum(run.bytes for run in trash))}"
    fold = st.expander(label, key="trash_fold", on_change="rerun", type="compact")
    if not fold.open:
        return
    ids = [run.run_id for run in trash]
    with fold:
        picked = st.dataframe(
            pd.DataFrame([{"run": run.run_id, "deleted": run.deleted, "size": size(run.bytes)} for run in trash]),
            key=f"trash_{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:16]}",
            hide_index=True,
            on_select="rerun",
            selection_mode="multi-row",
            column_config={"deleted": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC")},
            height=widgets.table_height(len(trash), 6),
            alt="the deleted runs, one row each",
        )
        picks = [ids[row] for row in picked["selection"]["rows"] if row < len(ids)]
        with st.container(horizontal=True, vertical_alignment="center"):
            if not members.may_change():
                st.caption(members.READ_ONLY)
                return
            restore, purge = (partial(_each, change, picks) for change in (store_changes.restore, store_changes.purge))
            st.button("Restore", key="restore", on_click=restore, disabled=not picks)
            st.button("Delete for good", key="purge", on_click=purge, disabled=not picks)
            st.caption("Tick runs to restore or delete. After a week they are deleted for good.", width="content")
