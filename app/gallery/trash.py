"""Deleted runs in the gallery: undoing the last deletion, and the list of those of the last week."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import pandas as pd
import streamlit as st

from app.hosting import members
from app.shell import store_cache, store_changes, widgets
from core.runs.store.trash import Discarded
from core.text import plural, size

_COLUMNS = {"deleted": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC")}


def _restore(entries: Iterable[str]) -> None:
    for entry in entries:
        with widgets.said():
            store_changes.restore(entry)
    st.session_state.pop("undo", None)


def _purge(entries: Iterable[str]) -> None:
    for entry in entries:
        with widgets.said():
            store_changes.purge(entry)


def undo_line(trash: Sequence[Discarded]) -> None:
    """Draw the last deletion of this viewer, as long as it can be undone."""
    entries, sentence = st.session_state.get("undo", ([], ""))
    there = {run.entry for run in trash}
    if not any(entry in there for entry in entries):
        return
    with st.container(horizontal=True, vertical_alignment="center", key="undo_line"):
        st.markdown(widgets.escaped(sentence), width="content")
        st.button("Undo", key="undo_delete", on_click=_restore, args=([entry for entry in entries if entry in there],))


def trash_list(trash: Sequence[Discarded]) -> None:
    """Draw the runs deleted within a week, to be put back or deleted for good. They are drawn when the list is
    unfolded.
    """
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
        key = f"trash_{hashlib.sha256(' '.join(run.entry for run in trash).encode()).hexdigest()[:16]}"
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
        entries = [trash[row].entry for row in rows if row < len(trash)]
        with st.container(horizontal=True, vertical_alignment="center"):
            if not members.may_change():
                st.caption(members.READ_ONLY)
                return
            st.button("Restore", key="restore", on_click=_restore, args=(entries,), disabled=not entries)
            st.button("Delete for good", key="purge", on_click=_purge, args=(entries,), disabled=not entries)
            st.caption(
                "Tick some. A run that was deleted a week ago goes for good when the next run is written.",
                width="content",
            )
