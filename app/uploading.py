"""Dumps on their way in: chosen on the upload page, or dropped anywhere on the gallery and handed over to it."""

from __future__ import annotations

from pathlib import Path

import streamlit as st
from streamlit.typing import UploadedFile

from app import widgets, words
from app.widgets import PAGES

TYPES = ["npz", "npy", "safetensors"]
_HTML = '<div class="veil" hidden>Drop the dump to upload it</div>'
_CSS = """
.veil { position: fixed; inset: 0; z-index: 999; display: flex; align-items: center; justify-content: center; pointer-events: none;
  font-family: var(--st-font); font-size: 1.3rem; color: var(--st-primary-color); border: 3px dashed var(--st-primary-color);
  background-color: color-mix(in srgb, var(--st-background-color) 80%, transparent); }
.veil[hidden] { display: none; }
"""
_anywhere = st.components.v2.component(
    "ulpscope_drop_anywhere", html=_HTML, css=_CSS, js=(Path(__file__).parent / "drop_anywhere.js").read_text(encoding="utf-8")
)


def drop_zone() -> None:
    """A place to drop a dump, of which the whole page is part; what is dropped goes on to the upload page."""
    if st.session_state.pop("is_handed_over", False):
        st.switch_page(PAGES / "upload.py")
    st.session_state.pop("handed_over", None)  # back here without saving it: its memory is free
    key = f"drop_{st.session_state.get('uploads', 0)}"

    def hand_over() -> None:
        if files := st.session_state.get(key):
            st.session_state["handed_over"] = list(files)
            st.session_state["is_handed_over"] = True
            finished()

    with st.container(key="drop_zone"):
        st.file_uploader(
            "Upload a dump: drop it anywhere on this page", type=TYPES, accept_multiple_files=True, key=key, on_change=hand_over
        )
    _anywhere(key="drop_anywhere")


def chosen() -> list[UploadedFile]:
    """The files of the upload page: those handed over, and those chosen there."""
    handed = st.session_state.get("handed_over", [])
    if handed:
        with st.container(horizontal=True, vertical_alignment="center", key="handed_over_line"):
            listed = ", ".join(f"**{widgets.escaped(file.name)}** ({words.size(file.size)})" for file in handed)
            st.markdown(f"Dropped: {listed}", width="content")
            st.button("Remove", key="remove_handed_over", on_click=st.session_state.pop, args=("handed_over", None))
    files = st.file_uploader(
        "Another file" if handed else "Dump",
        type=TYPES,
        accept_multiple_files=True,
        key=f"dump_{st.session_state.get('uploads', 0)}",
    )
    return [*handed, *files]


def finished() -> None:
    """The files have gone where they were to go: the next uploader is an empty one."""
    st.session_state["uploads"] = st.session_state.get("uploads", 0) + 1
