"""Deleted runs in the gallery: undoing the last deletion, and the list of those of the last week."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import pandas as pd
import streamlit as st

from app.hosting import members
from app.shell import store_cache, store_changes, widgets
from core.runs.store.store import DeletedRun
from core.text import plural, size

_COLUMNS = {"deleted": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC")}


def _restore(run_ids: Iterable[str]) -> None:
    for run_id in run_ids:
        with widgets.said():
            store_changes.restore(run_id)
    st.session_state.pop("undo", None)


def _purge(run_ids: Iterable[str]) -> None:
    for run_id in run_ids:
        with widgets.said():
            store_changes.purge(run_id)


def undo_line(trash: Sequence[DeletedRun]) -> None:
    """Draw the last deletion of this viewer, as long as it can be undone."""
    run_ids, sentence = st.session_state.get("undo", ([], ""))
    deleted = [run.run_id for run in trash if run.run_id in run_ids]
    if not deleted:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="undo_line"):
        st.markdown(widgets.escaped(sentence), width="content")
        st.button("Undo", key="undo_delete", on_click=_restore, args=(deleted,))


def trash_list(trash: Sequence[DeletedRun]) -> None:
    """Draw the runs deleted within a week, to be restored or deleted for good; they are drawn when unfolded."""
    if not trash:
        return
    fold = st.expander(
        f"Recently deleted: {plural(len(trash), 'run')}, {size(sum(run.bytes for run in trash))}",
        key="trash_fold",
        on_change="rerun",
        type="compact",
    )
    if not fold.open:
        return
    with fold:
        names = store_cache.names_of(list(trash))
        key = f"trash_{hashlib.sha256(' '.join(run.run_id for run in trash).encode()).hexdigest()[:16]}"
        st.dataframe(
            pd.DataFrame(
                {
                    "name": [names.get(run.path, run.run_id) for run in trash],
                    "deleted": [run.deleted for run in trash],
                    "size": [size(run.bytes) for run in trash],
                    "run": [run.run_id for run in trash],
                }
            ),
            key=key,
            hide_index=True,
            on_select="rerun",
            selection_mode="multi-row",
            column_config=_COLUMNS,
            height=widgets.table_height(len(trash), 6),
            alt="the deleted runs, one row each",
        )
        rows = (st.session_state.get(key) or {}).get("selection", {}).get("rows", [])
        run_ids = [trash[row].run_id for row in rows if row < len(trash)]
        with st.container(horizontal=True, vertical_alignment="center"):
            if not members.may_change():
                st.caption(members.READ_ONLY)
                return
            st.button("Restore", key="restore", on_click=_restore, args=(run_ids,), disabled=not run_ids)
            st.button("Delete for good", key="purge", on_click=_purge, args=(run_ids,), disabled=not run_ids)
            st.caption("Tick some. A week after its deletion a run goes for good.", width="content")
