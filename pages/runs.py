"""Runs: the gallery."""

from itertools import count

import streamlit as st

from app.gallery import PAGE, actions, filters, table
from app.gallery import trash as deleted
from app.shell import store_cache, widgets
from app.shell.widgets import PAGES
from core.runs.store.cards import counted

widgets.title(PAGE)
has_cells = bool(st.session_state.get("gallery_cells"))
has_replaced = bool(st.session_state.get("gallery_replaced"))
everything, broken = store_cache.cards(of_cells=has_cells, of_replaced=True)
shortened, _ = store_cache.cards(of_cells=has_cells)
cards = everything if has_replaced else shortened
if outage := store_cache.store().outage:
    st.warning(widgets.escaped(outage))
labels, damaged = store_cache.all_labels()
trash = store_cache.deleted_runs()

deleted.undo_line(trash)
if cards:
    st.markdown(widgets.escaped(counted(cards)))
filters.ask_cells(store_cache.unlisted_cells())
filters.ask_replaced(len(everything) - len(shortened))
table.first_visit(cards)
if not cards:
    table.unreadable(broken, damaged)
    deleted.trash_list(trash)
    widgets.empty()
asked = filters.ask(cards, labels)
prompts = store_cache.searchable(card.run_id for card in cards) if asked.sought else {}
shown = filters.matching(cards, asked, labels, prompts)
table.unreadable(broken, damaged)
table.counted(cards, shown, labels)
table.table(shown, labels)
if st.session_state.get("opened"):
    st.switch_page(PAGES / "overview.py")
st.caption("Worst pair per run. Scroll right for more columns.")
actions.panel(cards, shown, labels)
deleted.trash_list(trash)

rounds = count()


@st.fragment(run_every=3.0)
def watch() -> None:
    """Draw the page anew when a run arrives or goes, or labels change, while it is open."""
    if not next(rounds):
        return  # drawn a moment ago
    runs = store_cache.cards(of_cells=has_cells, of_replaced=True)
    now = runs, store_cache.all_labels(), store_cache.deleted_runs()
    if now != ((everything, broken), (labels, damaged), trash):
        st.rerun()


watch()
