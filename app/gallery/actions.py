"""Actions on the ticked runs: open, download, label, delete."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import streamlit as st

from app.hosting import members
from app.shell import address, selection, store_cache, store_changes, widgets
from app.shell.widgets import PAGES
from core.runs.sparse_run import KIND as SPARSE
from core.runs.store import labels as labelling
from core.runs.store.cards import RunCard
from core.runs.store.labels import LONGEST_NOTE, LONGEST_TAG, MOST_TAGS, Labels
from core.text import plural, size

_OF_DELETE = "It can be restored for a week."


def panel(cards: Sequence[RunCard], shown: Sequence[RunCard], labels: Mapping[str, Labels]) -> None:
    """Draw the actions on the ticked runs; where none is ticked, on the run of the sidebar."""
    by_id = {card.run_id: card for card in cards}
    ticked = [by_id[run_id] for run_id in st.session_state.get("ticked", ()) if run_id in by_id]
    hidden = len({card.run_id for card in ticked} - {card.run_id for card in shown})
    view = selection.current_view()
    with st.container(border=True, key="actions"):
        if len(ticked) > 1:
            _several(ticked, hidden, labels)
        elif ticked:
            _one(ticked[0], labels, "Ticked, not shown" if hidden else "Ticked", {"run": ticked[0].run_id})
        elif view is not None and view.run.run_id in by_id:
            _one(by_id[view.run.run_id], labels, "Selected", address.of(view, "overview"))
        else:
            st.caption("Tick runs to tag, download or delete them.")


def _one(card: RunCard, labels: Mapping[str, Labels], how: str, address: dict[str, str]) -> None:
    attached = labels.get(card.run_id, Labels())
    st.markdown(f"{how}: **{widgets.escaped(card.name)}** · `{widgets.code(card.run_id)}`")
    if attached.note:
        st.caption(widgets.escaped(attached.note).replace("\n", "  \n"))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        page = ("overview", address) if card.sides else ("ops", {"machines": card.run_id})
        st.page_link(PAGES / f"{page[0]}.py", label="**Open** →", query_params=page[1])
        st.markdown(f"[Run file](/files/{_quoted(card.run_id)}.duckdb)", width="content")
        if card.sides and card.kind != SPARSE:
            st.markdown(f"[npz](/files/{_quoted(card.run_id)}.npz)", width="content")
        if not members.may_change():
            st.caption(members.READ_ONLY, width="content")
            return
        popover = st.popover("Tags & note", key="labelling", on_change="rerun")
        forms = st.session_state.setdefault("label_forms", {})
        if popover.open:
            with popover:
                _label_form(card, attached, labels, forms)
        else:
            forms.clear()  # what is opened next shows what is stored then
        if attached.pinned:
            st.caption("pinned", width="content")
        if card.is_read_only:
            st.caption("sample, read-only", width="content")
        else:
            st.button("Delete", key="delete", on_click=_delete, args=([card],), help=_OF_DELETE)


def _quoted(run_id: str) -> str:
    """A run's id within a link in markdown."""
    return quote(run_id, safe="")


def _label_form(
    card: RunCard, stored: Labels, labels: Mapping[str, Labels], forms: dict[str, tuple[str, Labels]]
) -> None:
    """Draw the form of labels. It shows what is stored when it is opened, and from then on what is typed until it is
    saved, whatever others save meanwhile.
    """
    key, seen = forms.setdefault(card.run_id, (secrets.token_hex(6), stored))
    if seen != stored:
        st.caption(
            "Somebody else has changed these labels since they were shown here. What you change is added to theirs."
        )
        st.button("Show theirs", key=f"theirs_{key}", on_click=forms.clear, help="What was typed here is dropped.")
    with st.form(f"labels_{key}", border=False):
        known = sorted({tag for each in (*labels.values(), seen) for tag in each.tags}, key=str.casefold)
        tags = st.multiselect(
            "Tags",
            known,
            default=list(seen.tags),
            key=f"tags_{key}",
            accept_new_options=True,
            max_selections=MOST_TAGS,
            placeholder="choose, or type a new one",
            help=f"At most {MOST_TAGS}, of {LONGEST_TAG} characters each.",
        )
        note = st.text_area("Note", seen.note, key=f"note_{key}", max_chars=LONGEST_NOTE)
        pinned = st.checkbox("Pinned", seen.pinned, key=f"pinned_{key}", help="Marks the run as one to keep.")
        st.caption("Stored beside the run file, which does not change.")
        if widgets.pressed(st.form_submit_button, "Save", f"save_labels_{key}", type="primary"):
            with widgets.said():
                store_changes.label(card.run_id, seen, labelling.labels_of(tags, note, pinned))
                forms.clear()
            st.rerun()


def _several(ticked: list[RunCard], hidden: int, labels: Mapping[str, Labels]) -> None:
    own = [card for card in ticked if not card.is_read_only]
    st.markdown(
        f"**{len(ticked)} runs ticked** · {size(sum(card.bytes for card in ticked))}"
        + (f" · {hidden} of them not shown" if hidden else "")
    )
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        if not members.may_change():
            st.button("Untick all", key="untick", type="tertiary", on_click=_untick)
            st.caption(members.READ_ONLY, width="content")
            return
        known = sorted({tag for each in labels.values() for tag in each.tags}, key=str.casefold)
        tag = st.selectbox(
            "Tag",
            known,
            index=None,
            key="tag_of_several",
            accept_new_options=True,
            placeholder="choose or type",
            width=200,
        )
        st.button("Add tag", key="add_tag", on_click=_tag, args=(ticked, tag, True), disabled=not tag)
        st.button("Remove tag", key="remove_tag", on_click=_tag, args=(ticked, tag, False), disabled=not tag)
        if own:
            st.button(f"Delete {plural(len(own), 'run')}", key="delete", on_click=_delete, args=(own,), help=_OF_DELETE)
        st.button("Untick all", key="untick", type="tertiary", on_click=_untick)
        if len(own) < len(ticked):
            st.caption(f"{plural(len(ticked) - len(own), 'sample run')}, read-only", width="content")


def _untick() -> None:
    st.session_state["ticked"] = []
    st.session_state["gallery_serial"] = (
        st.session_state.get("gallery_serial", 0) + 1
    )  # the browser's ticks go with its table


def _tag(cards: Sequence[RunCard], tag: str, is_wanted: bool) -> None:
    """Add a tag to every run, or take it away. The labels are read anew: another viewer may have changed them."""
    labels, _ = store_cache.all_labels()
    for card in cards:
        attached = labels.get(card.run_id, Labels())
        with widgets.said():
            (wanted,) = labelling.labels_of([tag], "").tags or ("",)
            tags = [*attached.tags, wanted] if is_wanted else [each for each in attached.tags if each != wanted]
            store_changes.label(card.run_id, attached, labelling.labels_of(tags, attached.note, attached.pinned))


def _delete(cards: Sequence[RunCard]) -> None:
    gone = []
    for card in cards:
        with widgets.said():
            store_changes.delete(card.run_id)
            gone.append(card)
    if gone:
        what = f"'{gone[0].name}'" if len(gone) == 1 else plural(len(gone), "run")
        st.session_state["undo"] = ([card.run_id for card in gone], f"Deleted {what}.")
    ids = {card.run_id for card in gone}
    st.session_state["ticked"] = [run_id for run_id in st.session_state.get("ticked", ()) if run_id not in ids]
    if st.session_state.get("run") in ids:  # or the sidebar would call it deleted by somebody
        st.session_state.pop("run")
        selection.new_run()
