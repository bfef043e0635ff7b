"""The member that a page or a route works for, and whether anything may be changed."""

from __future__ import annotations

from urllib.parse import unquote

import streamlit as st
from starlette.requests import Request

from app.hosting.access import LOCAL
from core.configuration import configuration
from core.errors import AccessError

HEADER = "x-ulpscope-member"  # in which the gate passes the name on; removed from what comes from outside
READ_ONLY = "This server is read-only."
_SIGN_OUT = '<a href="/sign-out" target="_self">Sign out</a>'  # Streamlit's own links open another tab


def member_of(request: Request) -> str:
    """Return the name of the member that a request is from."""
    return unquote(request.headers.get(HEADER, LOCAL))


def current_member() -> str:
    """Return the name of the member who looks at the page that this script draws."""
    return unquote(st.context.headers.get(HEADER, LOCAL))


def may_change() -> bool:
    """Return whether to draw controls that change something."""
    return not configuration().hosting.read_only


def changing_member() -> str:
    """Return the name of the member who changes something on a page; AccessError on a read-only server."""
    if not may_change():
        raise AccessError(READ_ONLY)
    return current_member()


def sidebar() -> None:
    """Draw name and sign-out at the foot of the sidebar; nothing without a sign-in."""
    if not configuration().sign_in.is_configured:
        return
    with st.sidebar, st.container(key="signed_in"):
        st.divider()
        st.text(f"Signed in: {current_member()}")
        if not configuration().sign_in.header:  # the proxy would sign the member in again
            st.markdown(_SIGN_OUT, unsafe_allow_html=True)
