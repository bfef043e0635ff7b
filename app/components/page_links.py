"""The list of pages in the sidebar, as one element: fourteen of Streamlit's own cost a third of what the browser does
in a rerun.

The links carry the selection. Streamlit's own navigation drops it, and to put it back would cost a step of the
browser's history.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from app.shell import address
from app.shell.selection import View

_CSS = """
nav { display: grid; grid-template-columns: 1fr 1fr; gap: 0.1rem 0.25rem; font-family: var(--st-font);
  font-size: 0.93rem; }
a { color: var(--st-text-color); text-decoration: none; border-radius: var(--st-base-radius); padding: 0.28rem 0.5rem;
  line-height: 1.4;
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
a:hover { background-color: color-mix(in srgb, var(--st-text-color) 8%, transparent); }
a[aria-current] { background-color: color-mix(in srgb, var(--st-text-color) 12%, transparent); font-weight: 600; }
a:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: -2px; }
"""
_links = st.components.v2.component(
    "ulpscope_page_links",
    html='<nav aria-label="Pages"></nav>',
    css=_CSS,
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


def page_links(pages: Sequence[StreamlitPage], here: str, view: View | None) -> None:
    """Draw the list. here: the name of the open page; view: what the links carry."""
    listed = [
        {"page": _name(page), "title": page.title, "query": urlencode(address.of(view, _name(page)))} for page in pages
    ]
    data = {"pages": listed, "here": here, "first": _name(pages[0]), "base": _base()}
    _links(key="page_links", data=data)


def _name(page: StreamlitPage) -> str:
    return page.url_path or "runs"


def _base() -> str:
    """Path of the dashboard on its server, with a slash at either end."""
    path = st.get_option("server.baseUrlPath").strip("/")
    return f"/{path}/" if path else "/"
