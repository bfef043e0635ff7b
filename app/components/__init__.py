"""Parts of several pages, with their JavaScript next to their Python."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st


def component(name: str, stem: Path, **options: Any) -> Callable[..., Any]:
    """Return the component of ours whose HTML, style sheet and script are the files `stem`.html,
    .css and .js.
    """
    html, css, js = (
        stem.with_suffix(f".{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    return st.components.v2.component(name, html=html, css=css, js=js, **options)
