"""Runs: the gallery."""

from contextlib import suppress
from itertools import count

import streamlit as st

from app.gallery import actions, filters, table
from app.navigation import RUNS
from app.shell import store_cache, widgets
from core.errors import StoreError

widgets.title(RUNS)
is_whole = bool(st.session_state.get("gallery_hidden"))
cards, unreadable = store_cache.cards(is_whole=is_whole)
hidden = store_cache.hidden()
labels, damaged = store_cache.all_labels()
deleted = store_cache.store().deleted()
actions.first_line(cards, deleted)
if cards:
    query = filters.ask(hidden)
    prompts = store_cache.searchable(card.run_id for card in cards) if query.words else {}
    matches = filters.matching(cards, query, labels, prompts)
table.unreadable(unreadable, damaged)
if not cards:
    actions.trash_list(deleted)
    widgets.empty()
if matches:
    table.table(matches, labels, actions.of_row)
    table.count_line(cards, matches, labels)
else:
    filters.nothing_found(len(cards))
actions.panel(matches, labels)
if all(card.is_read_only for card in cards) and not hidden:
    table.first_visit(cards)
actions.trash_list(deleted)

# The first round is drawn with the page, which has just read all of it.
rounds = count()


@st.fragment(run_every=3.0)
def watch() -> None:
    """Draw the page anew when a run arrives or goes, or labels change, while it is open."""
    with suppress(StoreError):
        now = (
            store_cache.cards(is_whole=is_whole),
            store_cache.all_labels(),
            store_cache.store().deleted(),
        )
        if next(rounds) and now != ((cards, unreadable), (labels, damaged), deleted):
            st.rerun()


watch()
