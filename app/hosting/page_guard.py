"""The line in the sidebar on who is signed in, and the sentence that a viewer sees instead of a form."""

from __future__ import annotations

import streamlit as st

from app.hosting.identity import current

# A link of our own making: Streamlit's own links open another tab, and there would be two of which one is signed out.
_SIGN_OUT = '<a href="/sign-out" target="_self">Sign out</a>'


def sidebar() -> None:
    """Draw name, role and the way out, at the foot of the sidebar; nothing where nobody is asked."""
    who = current()
    if who.is_local:
        return
    with st.sidebar, st.container(key="signed_in"):
        st.divider()
        named = "" if who.name == who.role else f"{who.name}, "
        st.text(f"Signed in: {named}{who.role}")
        if who.way != "header":  # the proxy in front would sign the viewer in again at once
            st.markdown(_SIGN_OUT, unsafe_allow_html=True)


def may_edit() -> bool:
    """Return whether to draw controls that change something. What they call asks again."""
    return current().may_edit


def only_editors(what: str) -> None:
    """Draw a sentence instead of the rest of the page, for a viewer. what: 'capture runs'."""
    if not may_edit():
        st.info(
            f"Signed in as a viewer, who sees and downloads; editors {what}. Whoever runs this server can give you that"
            " role."
        )
        st.stop()
