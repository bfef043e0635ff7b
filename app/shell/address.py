"""The address bar as the share link: read into the selection and the pages' settings, and written back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app import navigation
from app.page import Page, PageSetting
from app.shell import link, store_cache
from app.shell.selection import View, preset_widget
from core.configuration import configuration
from core.runs.reports.markdown import report_address
from core.text import shown

_LATE_SECONDS = 10.0  # a browser may name a replaced address for so long; a busy one takes a second to hear of it
_MOST_REPLACED = 100


def adopt(page: str) -> None:
    """Read the address at the start of a session, and if it is not what was written last (Back, a link)."""
    names = (*link.LINKED, *navigation.SETTING_NAMES)
    said = {key: st.query_params[key] for key in names if key in st.query_params}
    written = st.session_state.get("written")
    if said and said != written and not _is_late(page, said):
        for key in said:
            if len(st.query_params.get_all(key)) > 1:
                link.complain(f"The link names {key} more than once; the last one counts.")
        # Back within the session: a setting that the older address does not name is at its default.
        defaults = {} if written is None else dict.fromkeys(navigation.SETTING_NAMES, "")
        st.session_state.update(linked=defaults | said, written=said)
    st.session_state["page"] = page


def _is_late(page: str, said: dict[str, str]) -> bool:
    """Return whether the address was replaced a moment ago, as of keys pressed in quick succession.

    Back brings an older one too, and says so; a link leads to another page.
    """
    if is_back() or page != st.session_state.get("page"):
        return False
    now = time.monotonic()
    return any(said == old and now - moment < _LATE_SECONDS for old, moment in st.session_state.get("replaced", ()))


def is_back() -> bool:
    """Return whether Back, Forward or a link of the list of pages asked for this run."""
    context = get_script_run_ctx(suppress_warning=True)
    return context is not None and context.is_history_navigation


def settle_settings(page: str, view: View | None) -> None:
    """Give the controls of the page and of its open tab the values of the link, else those that they had before."""
    of = navigation.PAGE_OF[page]
    if of.tabs:
        _settle([of.tab])
        shown = [tab.title for tab in shown_tabs(of, view)]
        if shown and st.session_state[of.tab.key] not in shown:
            st.session_state[of.tab.key] = shown[0]
    _settle(of.settings_with(st.session_state.get(of.tab.key)))


def shown_tabs(page: Page, view: View | None) -> list[Page]:
    """Tabs that have something to show."""
    absent = store_cache.absent(view)
    return [tab for tab in page.tabs if tab.name not in absent and (view is not None or tab.shows == "store")]


def _settle(settings: Iterable[PageSetting]) -> None:
    kept = st.session_state.setdefault("settings", {})
    for setting in settings:
        asked = link.linked(setting.name)
        value = setting.parsed(asked) if asked else None
        if asked is not None:
            if asked and value is None:
                about = f"there is {setting.expected}. Showing the default."
                link.complain(f"The link asks for {setting.name} '{shown(asked, 60)}'; {about}")
            st.session_state[setting.key] = setting.default if value is None else value
        elif setting.key not in st.session_state:  # the widget was not on the last page
            st.session_state[setting.key] = kept.get(setting.key, setting.default)
        kept[setting.key] = st.session_state[setting.key]
        if setting.options or setting.span is not None:  # what is being typed stays
            preset_widget(setting.key)


def of(view: View | None, part: str | None = None) -> dict[str, str]:
    """Parameters of the address for a view on a page or tab (the open one if none is named): the share link."""
    said: dict[str, str] = {}
    if view is not None:
        place = {"prompt": str(view.prompt)} if len(view.run.header.prompts) > 1 else {}
        said = {"run": view.run.run_id, "variant": view.pair.variant, **place, "position": str(view.position)}
    kept = st.session_state.get("settings", {})
    part = part or st.session_state.get("page", "overview")
    page = navigation.PAGE_OF[part]
    if part != page.name:
        kept = kept | {page.tab.key: navigation.PARTS[part].title}
    for setting in page.settings_with(kept.get(page.tab.key)):
        word = setting.said(kept.get(setting.key, setting.default))
        if word is not None:
            said[setting.name] = word
    return said


def absolute(view: View | None) -> str:
    """The link of a view, absolute: at the configured public URL, else as this browser reached the page."""
    return report_address(of(view), configuration().hosting.public_url, st.context.url or "")


def write(said: dict[str, str]) -> None:
    """Write parameters into the address bar, in one step: each is an entry in the browser's history."""
    names = {*link.LINKED, *navigation.SETTING_NAMES}
    if {key: value for key, value in st.query_params.items() if key in names} != said:
        st.query_params.from_dict(said)
    before = st.session_state.get("written")
    if before is not None and before != said:
        st.session_state.setdefault("replaced", deque(maxlen=_MOST_REPLACED)).append((before, time.monotonic()))
    st.session_state["written"] = said
