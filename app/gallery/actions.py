"""Actions on a row of the gallery and on the ticked runs that are shown: open, rename, tag,
download, compare, delete; undoing the last deletion, and the runs deleted within a week.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from urllib.parse import quote

import streamlit as st

from app.gallery import table
from app.hosting import members
from app.shell import selection, store_changes, widgets
from app.shell.widgets import PAGES
from core.runs.file.records import ALL
from core.runs.store import labels as labelling
from core.runs.store.cards import RunCard, count_verdicts
from core.runs.store.labels import LONGEST_NAME, LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, Labels
from core.runs.store.store import DeletedRun
from core.text import plural, size

_OF_DELETE = "It can be restored for a week."
UNDO_SECONDS = 10


def of_row(card: RunCard, action: str) -> None:
    """Do what was chosen in the row of a run, one of `table.ACTIONS`."""
    if action == table.OPEN:
        table.open_run(card)
    elif action == table.DELETE:
        _delete([card])
    else:
        st.session_state["edited"] = card.run_id


def panel(matches: Sequence[RunCard], labels: Mapping[str, Labels]) -> None:
    """Draw the actions on the ticked runs; the filters rule them: no run that is not shown."""
    ticked = set(st.session_state.get("ticked", ()))
    cards = [card for card in matches if card.run_id in ticked]
    if cards:
        with st.container(border=True, key="actions"):
            _ticked(cards)
    for card in matches:
        if card.run_id == st.session_state.get("edited"):
            known = {tag for each in labels.values() for tag in each.tags}
            _about(card, labels.get(card.run_id, Labels()), known)


def _close() -> None:
    for key in ("edited", "labels_seen"):
        st.session_state.pop(key, None)


@st.dialog(table.EDIT, on_dismiss=_close)
def _about(card: RunCard, labels: Labels, choices: set[str]) -> None:
    """Draw a run's files and labels. The form has the labels as stored when it was opened; the
    store merges what others save meanwhile.
    """
    run_id = card.run_id
    file = f"/files/{quote(run_id, safe='')}"
    st.markdown(f"**{widgets.escape(card.name)}**")
    links = f"`{widgets.code(run_id)}` · [Run file]({file}.duckdb)"
    if card.sides and card.keep == ALL:
        links += f" · [npz]({file}.npz)"
    st.markdown(links)
    if not members.may_change():
        st.caption(members.READ_ONLY)
        return
    # What another member saves while the form is open must not count as this one's change.
    original = st.session_state.setdefault("labels_seen", {}).setdefault(run_id, labels)
    shown_name = card.name[:LONGEST_NAME]
    with st.form(f"labels_{run_id}", border=False):
        name = st.text_input(
            "Name",
            shown_name,
            key=f"name_{run_id}",
            max_chars=LONGEST_NAME,
            help="Empty: the name that the run file has.",
        )
        tags = st.multiselect(
            "Tags",
            sorted({*choices, *original.tags}, key=str.casefold),
            list(original.tags),
            key=f"tags_{run_id}",
            max_selections=MOST_TAGS,
            accept_new_options=True,
            placeholder="choose, or type a new one",
            help=f"At most {MOST_TAGS}, of {LONGEST_TAG} characters each.",
        )
        note = st.text_area(
            "Note",
            original.note,
            key=f"note_{run_id}",
            max_chars=LONGEST_NOTE,
        )
        pinned = st.checkbox(
            "Pinned",
            original.pinned,
            key=f"pinned_{run_id}",
            help="Marks the run as one to keep.",
        )
        save = f"save_labels_{run_id}"
        if widgets.button("Save", save, st.form_submit_button, type="primary"):
            with widgets.report_errors():
                new_name = original.name if name == shown_name else name
                store_changes.label(
                    run_id, original, labelling.labels_of(tags, note, pinned, new_name)
                )
            _close()
            st.rerun()


def _ticked(cards: list[RunCard]) -> None:
    own = [card for card in cards if not card.is_read_only]
    with st.container(horizontal=True, vertical_alignment="center"):
        total = size(sum(card.bytes for card in cards))
        st.markdown(f"**{plural(len(cards), 'run')} ticked** · {total}", width="content")
        with_sides = [card.run_id for card in cards if card.sides]
        if len(with_sides) > 1:
            query = {"run": with_sides[0], "with": ",".join(with_sides[1:])}
            for page in ("compare", "machine"):
                label = f"**{page.title()}** →"
                st.page_link(PAGES / f"{page}.py", label=label, query_params=query)
        if len(cards) == 1:
            st.button(table.EDIT, "edit", on_click=partial(of_row, cards[0], table.EDIT))
        if own and members.may_change():
            label = f"Delete {plural(len(own), 'run')}"
            st.button(label, "delete", _OF_DELETE, _delete, args=(own,))
        st.button("Untick all", "untick", on_click=_untick, type="tertiary")
        if not members.may_change():
            st.caption(members.READ_ONLY, width="content")
        elif len(own) < len(cards):
            samples = plural(len(cards) - len(own), "sample run")
            st.caption(f"{samples}, read-only", width="content")


def _untick() -> None:
    # The browser keeps the ticks of a table, so another table takes its place.
    serial = st.session_state.get("gallery_serial", 0) + 1
    st.session_state.update(ticked=[], gallery_serial=serial)


def _delete(cards: Sequence[RunCard]) -> None:
    gone = {}
    for card in cards:
        with widgets.report_errors():
            store_changes.delete(card.run_id)
            gone[card.run_id] = f"'{card.name}'"
    if not gone:
        return
    what = ", ".join(gone.values()) if len(gone) == 1 else plural(len(gone), "run")
    until = time.monotonic() + UNDO_SECONDS
    opened = st.session_state.get("run")
    st.session_state["undo"] = list(gone), f"Deleted {what}.", until, opened
    # A second click must not find another run under the same button.
    _untick()
    selection.new_run()
    selection.select(run=None)


def _each(change: Callable[[str], None], run_ids: Iterable[str]) -> None:
    for run_id in run_ids:
        with widgets.report_errors():
            change(run_id)


def _restore(run_ids: Sequence[str], opened: str | None) -> None:
    """Restore deleted runs and select the one that was open before the deletion."""
    _each(store_changes.restore, run_ids)
    selection.new_run(opened)


def first_line(cards: Sequence[RunCard], trash: Sequence[DeletedRun]) -> None:
    """Draw the number of runs by verdict; in its place, for ten seconds, the last deletion of this
    viewer with a button that undoes it.
    """
    run_ids, sentence, until, opened = st.session_state.get("undo", ([], "", 0.0, None))
    deleted = [run.run_id for run in trash if run.run_id in run_ids]

    def undo() -> None:
        if time.monotonic() > until:
            st.rerun()
        back = partial(_restore, deleted, opened)
        with st.container(horizontal=True, vertical_alignment="center", key="undo_line"):
            st.markdown(widgets.escape(sentence), width="content")
            # a click in a fragment draws the fragment alone
            if st.button("Undo", "undo_delete", on_click=back, type="primary"):
                st.rerun()

    if deleted and time.monotonic() < until:
        st.fragment(undo, run_every=1.0)()
    elif cards:
        st.markdown(widgets.escape(count_verdicts(cards)))


def trash_list(trash: Sequence[DeletedRun]) -> None:
    """Draw the runs deleted within a week, to be restored or deleted for good; they are drawn when
    unfolded.
    """
    if not trash:
        return
    total = size(sum(run.bytes for run in trash))
    fold = st.expander(
        f"Recently deleted: {plural(len(trash), 'run')}, {total}",
        key="trash_fold",
        on_change="rerun",
        type="compact",
    )
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
