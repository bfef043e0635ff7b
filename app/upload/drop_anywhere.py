"""The gallery's place for dumps: chosen there, or dropped anywhere on it, they go on to the upload page."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from app.hosting import members
from app.shell.widgets import PAGES
from app.upload.panel import ZONE_CSS

_HTML = """
<div class="root">
  <div class="zone">
    <button type="button" class="choose">Choose files</button>
    <span>Upload a dump or a run file: drop it anywhere on this page</span>
    <input type="file" multiple hidden aria-label="Files to upload">
  </div>
  <div class="veil" hidden>Drop the files to upload them</div>
</div>
"""
_CSS = (
    ZONE_CSS
    + """
.veil { position: fixed; inset: 0; z-index: 999; display: flex; align-items: center; justify-content: center;
  pointer-events: none;
  font-size: 1.3rem; color: var(--st-primary-color); border: 3px dashed var(--st-primary-color);
  background-color: color-mix(in srgb, var(--st-background-color) 80%, transparent); }
.veil[hidden] { display: none; }
"""
)
_anywhere = st.components.v2.component(
    "ulpscope_drop_anywhere",
    html=_HTML,
    css=_CSS,
    js=(Path(__file__).parent / "drop_anywhere.js").read_text(encoding="utf-8"),
)


def drop_zone() -> None:
    """Draw a place to drop files, of which the whole page is part; who may only look has none. The files themselves
    stay in the browser.
    """
    if not members.may_change():
        return
    _anywhere(key="drop_zone", on_dropped_change=_drop)
    if st.session_state.get("dropped"):  # until the upload page is there: a rerun that comes meanwhile does not lose it
        st.switch_page(PAGES / "upload.py")


def _drop() -> None:
    st.session_state["dropped"] = True
