"""Runs: the gallery."""

from itertools import count

import streamlit as st

from app.gallery import actions, filters, table
from app.gallery import trash as deleted
from app.shell import store_cache, widgets
from app.shell.widgets import PAGES
from app.upload import drop_anywhere

head, drop = st.columns([1, 1], vertical_alignment="center")
head.title("Runs")
with drop:
    drop_anywhere.drop_zone()
cards, broken = store_cache.cards()
labels, damaged = store_cache.all_labels()
trash = store_cache.discarded()

deleted.undo_line(trash)
table.first_visit(cards)
if not cards:
    table.unreadable(broken, damaged)
    deleted.trash_list(trash)
    widgets.empty()
asked = filters.ask(cards, labels)
prompts = store_cache.searchable() if asked.sought else {}
shown = filters.matching(cards, asked, labels, prompts)
table.unreadable(broken, damaged)
table.counted(cards, shown, labels)
table.table(shown, labels)
if st.session_state.get("opened"):
    st.switch_page(PAGES / "overview.py")
st.caption(
    "Logits that differ are a share of all, flips are positions whose argmax differs; ULPs are counted in each run's"
    " own dtype. Where a run has several pairs, figures are those of the worst. Device, positions, sides, model, date,"
    " size and note stand further right."
)
actions.panel(cards, shown, labels)
deleted.trash_list(trash)

rounds = count()


@st.fragment(run_every=3.0)
def watch() -> None:
    """Draw the page anew when a run arrives or goes, or labels change, while it is open."""
    if not next(rounds):
        return  # drawn a moment ago
    if (store_cache.cards(), store_cache.all_labels(), store_cache.discarded()) != (
        (cards, broken),
        (labels, damaged),
        trash,
    ):
        st.rerun()


watch()
