"""Runs: the gallery."""

from itertools import count

import streamlit as st

from app import deleted, reading, uploading, widgets
from app.gallery import asking, listing, ticked
from app.widgets import PAGES

head, drop = st.columns([1, 1], vertical_alignment="center")
head.title("Runs")
with drop:
    uploading.drop_zone()
cards, broken = reading.cards()
labels, damaged = reading.all_labels()
trash = reading.discarded()

deleted.undo_line(trash)
listing.first_visit(cards)
if not cards:
    listing.unreadable(broken, damaged)
    deleted.trash_list(trash)
    widgets.empty()
asked = asking.ask(cards, labels)
prompts = reading.searchable() if asked.sought else {}
shown = asking.matching(cards, asked, labels, prompts)
listing.unreadable(broken, damaged)
listing.counted(cards, shown, labels)
listing.table(shown, labels)
if st.session_state.get("opened"):
    st.switch_page(PAGES / "overview.py")
st.caption(
    "Logits that differ are a share of all, flips are positions whose argmax differs; ULPs are counted in each run's own dtype. Where a run has several pairs, figures are those of the worst. "
    "Device, positions, sides, model, date, size and note stand further right."
)
ticked.panel(cards, shown, labels)
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
