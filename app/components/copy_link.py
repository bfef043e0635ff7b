"""Copy link: the address bar's text, which is the whole view, into the clipboard."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

_CSS = """
div.link { font-family: var(--st-font); font-size: 0.87rem; color: var(--st-text-color); }
button { font: inherit; color: inherit; background-color: var(--st-background-color);
  border: 1px solid var(--st-border-color); cursor: pointer;
  border-radius: var(--st-button-radius); padding: 0.35rem 0.5rem; width: 100%; min-height: 2.5rem; }
button:hover { border-color: var(--st-primary-color); color: var(--st-primary-color); }
button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
.says:empty { display: none; }
.says { display: block; margin-top: 0.3rem; }
input { width: 100%; box-sizing: border-box; margin-top: 0.3rem; font-family: var(--st-code-font, monospace);
  font-size: 0.8rem; color: inherit;
  background-color: var(--st-background-color); border: 1px solid var(--st-border-color);
    border-radius: var(--st-base-radius); padding: 0.3rem; }
input[hidden] { display: none; }
"""
_HTML = """
<div class="link">
  <button type="button" title="a link to exactly this view">Copy link</button>
  <span class="says" role="status"></span>
  <input readonly hidden aria-label="Link to this view">
</div>
"""
_link = st.components.v2.component(
    "ulpscope_copy_link", html=_HTML, css=_CSS, js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


def copy_link() -> None:
    """Draw the button."""
    _link(key="copy_link")
