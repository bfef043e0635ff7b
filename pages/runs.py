"""Runs: the gallery."""

from itertools import count

import streamlit as st

from app import deleted, gallery, reading, uploading, widgets
from app.widgets import PAGES

head, drop = st.columns([1, 1], vertical_alignment="center")
head.title("Runs")
with drop:
    uploading.drop_zone()
cards, broken = reading.cards()
labels, damaged = reading.all_labels()
trash = reading.discarded()

deleted.undo_line(trash)
gallery.first_visit(cards)
if not cards:
    gallery.unreadable(broken, damaged)
    deleted.trash_list(trash)
    widgets.empty()
asked = gallery.ask(cards, labels)
prompts = reading.searchable() if asked.sought else {}
shown = gallery.matching(cards, asked, labels, prompts)
gallery.unreadable(broken, damaged)
gallery.counted(cards, shown, labels)
gallery.table(shown, labels)
if st.session_state.get("opened"):
    st.switch_page(PAGES / "overview.py")
st.caption(
    "Flips are positions whose argmax differs; ULPs are counted in each run's own dtype. Where a run has several pairs, figures are those of the worst. "
    "Device, positions, sides, model, date, size and note stand further right."
)
gallery.panel(cards, shown, labels)
deleted.trash_list(trash)

rounds = count()


@st.fragment(run_every=3.0)
def watch() -> None:
    """A run that arrives or goes, and labels that change, while the page is open appear or disappear by themselves."""
    if not next(rounds):
        return  # drawn a moment ago
    if (reading.cards(), reading.all_labels(), reading.discarded()) != ((cards, broken), (labels, damaged), trash):
        st.rerun()


watch()
