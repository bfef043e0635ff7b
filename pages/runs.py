"""Runs: the gallery."""

from itertools import count

import streamlit as st

from app import gallery, state, uploading, widgets
from app.widgets import PAGES

head, drop = st.columns([1, 1], vertical_alignment="center")
head.title("Runs")
with drop:
    uploading.drop_zone()
cards, broken = state.cards()
labels, damaged = state.all_labels()
trash = state.discarded()

gallery.undo_line(trash)
gallery.first_visit(cards)
if not cards:
    gallery.trash_list(trash)
    widgets.empty()
asked = gallery.ask(cards, labels)
prompts = state.searchable() if asked.sought else {}
shown = gallery.matching(cards, asked, labels, prompts)
st.caption(f"{len(shown)} of {len(cards)} runs; click one to open it, tick some to tag or delete them.")
gallery.table(shown, labels)
if st.session_state.pop("opened", False):
    st.switch_page(PAGES / "overview.py")
st.caption("ULPs are counted in each run's own dtype; where a run has several pairs, figures are those of the worst.")
gallery.panel(cards, shown, labels)
gallery.trash_list(trash)
for sentence in [f"Not a readable run: {run.reason}" for run in broken] + damaged:
    st.warning(widgets.escaped(sentence))


rounds = count()


@st.fragment(run_every=3.0)
def watch() -> None:
    """A run that arrives or goes, and labels that change, while the page is open appear or disappear by themselves."""
    if not next(rounds):
        return  # drawn a moment ago
    if (state.cards(), state.all_labels(), state.discarded()) != ((cards, broken), (labels, damaged), trash):
        st.rerun()


watch()
