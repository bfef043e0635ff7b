"""Actions on the ticked runs of the gallery, else on the run of the sidebar if it is listed: open,
download, label, compare, delete; undoing the last deletion, and the runs deleted within a week.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from urllib.parse import quote

import streamlit as st

from app.gallery import table
from app.hosting import members
from app.shell import address, selection, store_changes, widgets
from app.shell.widgets import PAGES
from core.runs.file.records import ALL
from core.runs.store import labels as labelling
from core.runs.store.cards import RunCard
from core.runs.store.labels import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, Labels
from core.runs.store.store import DeletedRun
from core.text import plural, size

_OF_DELETE = "It can be restored for a week."


def panel(
    cards: Sequence[RunCard],
    listing: Sequence[RunCard],
    labels: Mapping[str, Labels],
) -> None:
    """Draw the actions."""
    by_id = {card.run_id: card for card in cards}
    ticked = [by_id[run_id] for run_id in st.session_state.get("ticked", ()) if run_id in by_id]
    listed = {card.run_id for card in listing}
    hidden = len({card.run_id for card in ticked} - listed)
    view = selection.current_view()
    with st.container(border=True, key="actions"):
        if len(ticked) > 1:
            _several(ticked, hidden)
        elif ticked:
            state = "Ticked, not shown" if hidden else "Ticked"
            _one(ticked[0], labels, state, {"run": ticked[0].run_id})
        elif view is not None and view.run.run_id in listed:
            _one(by_id[view.run.run_id], labels, "Selected", address.of(view, "overview"))
        else:
            st.caption("Tick runs to tag, download or delete them.")


def _one(card: RunCard, labels: Mapping[str, Labels], state: str, address: dict[str, str]) -> None:
    attached = labels.get(card.run_id, Labels())
    st.markdown(f"{state}: **{widgets.escape(card.name)}** · `{widgets.code(card.run_id)}`")
    if attached.note:
        st.caption(widgets.escape(attached.note).replace("\n", "  \n"))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        page = "overview"
        # probes of operations have no sides
        if not card.sides:
            page, address = "machine", {"probes": card.run_id}
        st.page_link(PAGES / f"{page}.py", label="**Open** →", query_params=address)
        file = f"/files/{quote(card.run_id, safe='')}"
        st.markdown(f"[Run file]({file}.duckdb)", width="content")
        if card.sides and card.keep == ALL:
            st.markdown(f"[npz]({file}.npz)", width="content")
        if not members.may_change():
            st.caption(members.READ_ONLY, width="content")
            return
        popover = st.popover("Tags & note", key="labelling", on_change="rerun")
        if popover.open:
            with popover:
                _label_form(card, attached, {tag for each in labels.values() for tag in each.tags})
        else:
            st.session_state.pop("labels_seen", None)
        if attached.pinned:
            st.caption("pinned", width="content")
        if card.is_read_only:
            st.caption("sample, read-only", width="content")
        else:
            st.button("Delete", "delete", _OF_DELETE, _delete, args=([card],))


def _label_form(card: RunCard, labels: Labels, choices: set[str]) -> None:
    """Draw the form of labels, as stored when it was opened; the store merges what others save
    meanwhile.
    """
    # What another member saves while the form is open must not count as this one's change.
    original = st.session_state.setdefault("labels_seen", {}).setdefault(card.run_id, labels)
    with st.form(f"labels_{card.run_id}", border=False):
        tags = st.multiselect(
            "Tags",
            sorted({*choices, *original.tags}, key=str.casefold),
            list(original.tags),
            key=f"tags_{card.run_id}",
            max_selections=MOST_TAGS,
            accept_new_options=True,
            placeholder="choose, or type a new one",
            help=f"At most {MOST_TAGS}, of {LONGEST_TAG} characters each.",
        )
        note = st.text_area(
            "Note",
            original.note,
            key=f"note_{card.run_id}",
            max_chars=LONGEST_NOTE,
        )
        pinned = st.checkbox(
            "Pinned",
            original.pinned,
            key=f"pinned_{card.run_id}",
            help="Marks the run as one to keep.",
        )
        if widgets.button(
            st.form_submit_button,
            "Save",
            f"save_labels_{card.run_id}",
            type="primary",
        ):
            with widgets.report_errors():
                store_changes.label(card.run_id, original, labelling.labels_of(tags, note, pinned))
                st.session_state.pop("labels_seen", None)
            st.rerun()


def _several(ticked: list[RunCard], hidden: int) -> None:
    own = [card for card in ticked if not card.is_read_only]
    st.markdown(
        f"**{len(ticked)} runs ticked** · {size(sum(card.bytes for card in ticked))}"
        + (f" · {hidden} of them not shown" if hidden else ""),
    )
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        first, *others = [card.run_id for card in ticked if card.sides]
        if others:
            query = {"run": first, "with": ",".join(others)}
            st.page_link(PAGES / "compare.py", label="**Compare** →", query_params=query)
        if own and members.may_change():
            label = f"Delete {plural(len(own), 'run')}"
            st.button(label, "delete", _OF_DELETE, _delete, args=(own,))
        # The browser keeps the ticks of a table, so another table takes its place.
        serial = st.session_state.get("gallery_serial", 0) + 1
        untick = partial(st.session_state.update, ticked=[], gallery_serial=serial)
        st.button("Untick all", "untick", on_click=untick, type="tertiary")
        if not members.may_change():
            st.caption(members.READ_ONLY, width="content")
        elif len(own) < len(ticked):
            st.caption(
                f"{plural(len(ticked) - len(own), 'sample run')}, read-only",
                width="content",
            )


def _delete(cards: Sequence[RunCard]) -> None:
    gone = {}
    for card in cards:
        with widgets.report_errors():
            store_changes.delete(card.run_id)
            gone[card.run_id] = f"'{card.name}'"
    if not gone:
        return
    what = ", ".join(gone.values()) if len(gone) == 1 else plural(len(gone), "run")
    ticked = [run_id for run_id in st.session_state.get("ticked", ()) if run_id not in gone]
    st.session_state.update(undo=(list(gone), f"Deleted {what}."), ticked=ticked)
    # A second click must not find another run under the same button.
    selection.new_run()
    selection.select(run=None)


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
            undo = partial(_each, store_changes.restore, deleted)
            st.button("Undo", "undo_delete", on_click=undo)


def trash_list(trash: Sequence[DeletedRun]) -> None:
    """Draw the runs deleted within a week, to be restored or deleted for good; they are drawn when
    unfolded.
    """
    if not trash:
        return
    total = size(sum(run.bytes for run in trash))
    label = f"Recently deleted: {plural(len(trash), 'run')}, {total}"
    fold = st.expander(label, key="trash_fold", on_change="rerun", type="compact")
    if not fold.open:
        return
    ids = [run.run_id for run in trash]
    with fold:
        picked = st.dataframe(
            {
                "run": ids,
                "deleted": [run.deleted for run in trash],
                "size": [size(run.bytes) for run in trash],
            },
            # The browser knows rows by number: another list is another table.
            key=table.key_of("trash", ids),
            hide_index=True,
            on_select="rerun",
            selection_mode="multi-row",
            column_config={
                "deleted": st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm", help="UTC"),
            },
            height=widgets.table_height(len(trash), 6),
            alt="the deleted runs, one row each",
        )
        picks = [ids[row] for row in picked["selection"]["rows"] if row < len(ids)]
        with st.container(horizontal=True, vertical_alignment="center"):
            if not members.may_change():
                st.caption(members.READ_ONLY)
                return
            restore = partial(_each, store_changes.restore, picks)
            purge = partial(_each, store_changes.purge, picks)
            st.button("Restore", "restore", on_click=restore, disabled=not picks)
            st.button("Delete for good", "purge", on_click=purge, disabled=not picks)
            st.caption(
                "Tick runs to restore or delete. After a week they are deleted for good.",
                width="content",
            )
