"""The address bar: what it says is taken over, and the selection and every page's settings are written back, so it is the share link."""

from __future__ import annotations

import streamlit as st

from app import heatmap_window, link, page_settings
from app.state import View


def adopt(page: str) -> None:
    """Take what the address says: at the start of a session, and whenever it is not what was written last (Back)."""
    names = (*link.LINKED, *(setting.name for setting in page_settings.of_page(page)))
    said = {key: st.query_params[key] for key in names if key in st.query_params}
    written = st.session_state.get("written")
    if said and said != written:
        for key in names:
            st.session_state.pop(f"linked_{key}", None)
        for key, value in said.items():
            st.session_state[f"linked_{key}"] = value
            if len(st.query_params.get_all(key)) > 1:
                link.complain(f"The link names {key} more than once; the last one counts.")
        st.session_state["written"] = said
        if written is not None:  # Back within the session: what the older address does not name is at its default
            for key in names:
                if key not in ("run", "variant", "prompt", "position"):
                    st.session_state.setdefault(f"linked_{key}", "")
    st.session_state["page"] = page


def settle_settings(page: str) -> None:
    """Give the page's own controls the values of the link, else those they had when the page was left."""
    kept = st.session_state.setdefault("settings", {})
    for setting in page_settings.of_page(page):
        asked = link.linked(setting.name)
        value = None if asked is None or asked == "" else setting.parsed(asked)
        if asked is not None:
            if asked and value is None:
                link.complain(
                    f"The link asks for {setting.name} '{link.clipped(asked)}'; there is {setting.expected}. Showing the default."
                )
            st.session_state[setting.key] = setting.default if value is None else value
        elif setting.key not in st.session_state:  # the widget was not on the last page
            st.session_state[setting.key] = kept.get(setting.key, setting.default)
        kept[setting.key] = st.session_state[setting.key]


def of(view: View | None, page: str | None = None) -> dict[str, str]:
    """What the address bar says of a view on a page (the open one where none is named): the share link."""
    said = {} if view is None else _selection_address(view)
    kept = st.session_state.get("settings", {})
    for setting in page_settings.of_page(page or st.session_state.get("page", "overview")):
        word = setting.said(kept.get(setting.key, setting.default))
        if word is not None:
            said[setting.name] = word
    return said


def _selection_address(view: View) -> dict[str, str]:
    said = {"run": view.run.run_id, "variant": view.pair.variant, "prompt": str(view.prompt), "position": str(view.position)}
    if len(view.run.header.prompts) == 1:
        del said["prompt"]
    return said | heatmap_window.address(view)


def write(said: dict[str, str]) -> None:
    """Make the address bar say it, in one step: every change of the address is an entry in the browser's history."""
    names = {*link.LINKED, *(setting.name for setting in page_settings.SETTINGS)}
    if {key: st.query_params.get(key) for key in said} != said or any(key in st.query_params for key in names - said.keys()):
        st.query_params.from_dict(said)
    st.session_state["written"] = said
