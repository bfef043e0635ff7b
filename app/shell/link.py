"""Values of a link, each read once, and sentences on those that do not exist."""

from __future__ import annotations

import streamlit as st

LINKED = ("run", "variant", "prompt", "position")


def take(key: str) -> str | None:
    """Return the value that the link gives for `key`, once."""
    return st.session_state.get("linked", {}).pop(key, None)


def is_linked(key: str) -> bool:
    """Return whether the link gives a value for `key` that nothing has taken yet."""
    return key in st.session_state.get("linked", {})


def report_bad_link(sentence: str) -> None:
    """Report that a link leads nowhere, and show the gallery instead of another view under the old link."""
    complain(sentence)
    st.session_state["astray"] = True


def complain(sentence: str) -> None:
    """Keep a sentence for the top of the page. It is shown as plain text, so it may quote a link."""
    st.session_state.setdefault("complaints", []).append(sentence)


def complaints() -> list[str]:
    return st.session_state.pop("complaints", [])
