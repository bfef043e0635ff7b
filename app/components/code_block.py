"""A text to copy: a command, a piece of code, a prompt's tokens as they stand.

Streamlit's own block loads 1.5 MB to colour it, half a second of every page that shows a command.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from core.text import legible

_CSS = """
div { position: relative; }
pre { margin: 0; padding: 0.75rem 4.2rem 0.75rem 0.9rem; overflow: auto;
  color: var(--st-code-text-color, var(--st-text-color));
  background-color: var(--st-code-background-color, var(--st-secondary-background-color));
    border-radius: var(--st-base-radius);
  font-family: var(--st-code-font, monospace); font-size: 0.8125rem; line-height: 1.5; tab-size: 4; max-height: 31rem; }
pre:focus-visible, button:focus-visible { outline: 2px solid var(--st-primary-color); outline-offset: 1px; }
pre.wraps { white-space: pre-wrap; overflow-wrap: anywhere; }
code { font: inherit; }
button { position: absolute; top: 0.4rem; right: 0.4rem; font-family: var(--st-font); font-size: 0.8rem;
  padding: 0.15rem 0.5rem; cursor: pointer;
  color: var(--st-text-color); background-color: var(--st-background-color); border: 1px solid var(--st-border-color);
  border-radius: var(--st-button-radius); }
button:hover { border-color: var(--st-primary-color); color: var(--st-primary-color); }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
@media (max-width: 640px) { pre { white-space: pre-wrap; overflow-wrap: anywhere; } }
"""
_HTML = """
<div>
  <pre tabindex="0"><code></code></pre>
  <button type="button">Copy<span class="unseen"> to clipboard</span></button>
  <span class="unseen" role="status"></span>
</div>
"""
CLIPBOARD = Path(__file__).with_name("clipboard.js").read_text(encoding="utf-8")
_block = st.components.v2.component(
    "ulpscope_code", html=_HTML, css=_CSS, js=CLIPBOARD + Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
)


def code_block(text: str, key: str | None = None, wraps: bool = False) -> None:
    """Draw the text with a button that copies it. key: where the same text may stand on the page twice; wraps: long
    lines do not scroll. What cannot be seen is shown, and copied, as escapes, whoever wrote the text: nobody would know
    what is in the clipboard. A command is made by `core.command_name.shell_command`.
    """
    _block(data={"text": legible(text), "wraps": wraps}, key=key)
