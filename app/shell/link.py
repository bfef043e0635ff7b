"""Values that a link asks for, taken out of the session once, and the sentences on what of it is not there."""

from __future__ import annotations

import streamlit as st

from app.page import whole
from core.text import shown

# rows, tokens (a range of columns), order and cells: the heatmap's window; token: the logit selected there
LINKED = ("run", "variant", "prompt", "position", "rows", "tokens", "order", "cells", "token")


def linked(key: str) -> str | None:
    """Value that the link gives for `key`, handed out once."""
    return st.session_state.pop(f"linked_{key}", None)


def is_linked(key: str) -> bool:
    """Return whether the link gives a value for `key` that nothing has taken yet."""
    return f"linked_{key}" in st.session_state


def linked_number(key: str, lowest: int, highest: int) -> int | None:
    """A number out of the link; if it is none or lies outside, the nearest, and the viewer goes to the gallery with a
    sentence.
    """
    text = linked(key)
    if text is None:
        return None
    value = whole(text)
    if value is None:
        report_bad_link(
            f"The link asks for {key} '{shown(text, 60)}', which is no number that a {key} can be; {key} {lowest} is"
            " selected."
        )
        return lowest
    if not lowest <= value <= highest:
        nearest = min(max(value, lowest), highest)
        report_bad_link(
            f"The link asks for {key} {value}; this run has {lowest} to {highest}, and {nearest} is selected."
        )
        return nearest
    return value


def report_bad_link(sentence: str) -> None:
    """Report that what was asked for is not there, and show the gallery instead of another view under the old link."""
    complain(sentence)
    st.session_state["astray"] = True


def linked_range(key: str, full: tuple[int, int]) -> tuple[int, int] | None:
    """Range out of the link, `12:40` as (12, 40); None if the link says nothing of it, `full` and a word to the viewer
    if nothing of use.
    """
    text = linked(key)
    if text is None:
        return None
    try:
        start, stop = (int(part) for part in text.split(":"))
        is_inside = full[0] <= start < stop <= full[1]
    except ValueError:
        is_inside = False
    if text and not is_inside:
        complain(f"The link asks for {key} '{shown(text, 40)}'; this run has {full[0]} to {full[1]}. Showing all.")
    return (start, stop) if is_inside else full


def complain(sentence: str) -> None:
    """Keep a sentence for the top of the page. It is shown as plain text, so it may quote a link."""
    st.session_state.setdefault("complaints", []).append(sentence)


def complaints() -> list[str]:
    return st.session_state.pop("complaints", [])
