"""Pages of tabs: one tab is open and drawn, those without data are not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from app.page import Page
from app.shell import address, selection, widgets


def draw(page: Page, view: selection.View | None, parts: Mapping[str, Callable[[Any], None]]) -> list[Page]:
    """Draw the head of a page and its open tab; return the tabs that are shown. parts: draws a tab, by its name."""
    if page.shows == "run" and view is not None:
        widgets.head(page, view)
    else:
        widgets.title(page)
    visible = address.shown_tabs(page, view)
    if visible:
        places = st.tabs([tab.title for tab in visible], key=page.tab.key, on_change="rerun")
        for tab, place in zip(visible, places, strict=True):
            if place.open:
                with place:
                    parts[tab.name](view)
    elif view is None:
        widgets.empty()
    return visible
