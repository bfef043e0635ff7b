"""Lines of the overview on what other pages show of the pair. Only of what the run holds."""

from __future__ import annotations

import streamlit as st

from app import navigation
from app.page import Page
from app.shell import address, selection, store_cache, widgets


def lines(view: selection.View) -> None:
    """Draw the lines, each with a link that keeps the selection."""
    for said, page in _found(store_cache.stamp_of(view.run), view.pair.index, view):
        left, right = st.columns([5, 1], vertical_alignment="center")
        left.markdown(said)
        query = address.of(view, page.name)
        right.page_link(widgets.PAGES / f"{page.name}.py", label=f"{page.title} →", query_params=query)


@st.cache_resource(max_entries=32, show_spinner=False)
def _found(file: tuple[str, int, int], pair: int, _view: selection.View) -> list[tuple[str, Page]]:  # noqa: ARG001  (a key of the cache)
    asked = ((page.line(_view.run, _view.pair), page) for page in navigation.PAGES if page.line is not None)
    return [(said, page) for said, page in asked if said is not None]
