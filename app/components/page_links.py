"""The list of pages in the sidebar, as one element: fourteen of Streamlit's own cost a third of what the browser does
in a rerun.

The links carry the selection. Streamlit's own navigation drops it, and to put it back would cost a step of the
browser's history.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st

from app.navigation import Group
from app.shell import address
from app.shell.selection import SparseView, View

_CSS = """
nav { display: grid; gap: 0.45rem; font-family: var(--st-font); font-size: 0.93rem; color: var(--st-text-color); }
p { margin: 0; padding: 0 0.5rem; font-size: 0.78rem; line-height: 1.5; }
p b { font-weight: 600; margin-right: 0.25rem; }
.links { display: grid; grid-template-columns: 1fr 1fr; gap: 0 0.25rem; }
a.wide { grid-column: span 2; }
a { color: var(--st-text-color); text-decoration: none; border-radius: var(--st-base-radius); padding: 0.18rem 0.5rem;
  line-height: 1.4;
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
a.absent { color: color-mix(in srgb, var(--st-text-color) 72%, transparent); }
a small { font-size: 0.72rem; }
a:hover { background-color: color-mix(in srgb, var(--st-text-color) 8%, transparent); }
a[aria-current] { background-color: color-mix(in srgb, var(--st-text-color) 12%, transparent); font-weight: 600; }
a[aria-current] small { font-weight: 400; }
a:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: -2px; }
"""
_links = st.components.v2.component(
    "ulpscope_page_links",
    html='<nav aria-label="Pages"></nav>',
    css=_CSS,
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
)


def page_links(
    groups: Sequence[Group],
    first: str,
    here: str,
    view: View | SparseView | None,
    absent: Mapping[str, str] | None = None,
) -> None:
    """Draw the list. first: the page at the root; here: the open page; view: what the links carry; absent: a word for
    each page of which the pair has nothing.
    """
    notes = absent or {}
    listed = [
        {
            "name": group.name,
            "line": group.line,
            "pages": [
                {
                    "page": page.name,
                    "title": page.title,
                    "note": notes.get(page.name, ""),
                    "query": urlencode(address.of(view, page.name)),
                }
                for page in group.pages
            ],
        }
        for group in groups
    ]
    _links(key="page_links", data={"groups": listed, "here": here, "first": first, "base": _base()})


def _base() -> str:
    """Path of the dashboard on its server, with a slash at either end."""
    path = st.get_option("server.baseUrlPath").strip("/")
    return f"/{path}/" if path else "/"
