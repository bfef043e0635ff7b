"""The address bar: what it says is taken over, and the selection and every page's settings are written back, so it is
the share link.
"""

from __future__ import annotations

import time
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

_LATE_SECONDS = (
    10.0  # for which a browser may still name an address that was replaced; a busy one takes a second to hear of it
)
_MOST_REPLACED = 100


def adopt(page: str) -> None:
    """Take what the address says: at the start of a session, and whenever it is not what was written last (Back, a
    link).
    """
    names = (*link.LINKED, *navigation.SETTING_NAMES)
    said = {key: st.query_params[key] for key in names if key in st.query_params}
    written = st.session_state.get("written")
    if said and said != written and not _is_late(page, said):
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


def _is_late(page: str, said: dict[str, str]) -> bool:
    """Return whether the address is one written a moment ago: what is asked for in quick succession comes with an
    address that was replaced meanwhile.

    Back brings an older one too, and says so; a link leads to another page.
    """
    if is_back() or page != st.session_state.get("page"):
        return False
    now = time.monotonic()
    return any(said == old and now - moment < _LATE_SECONDS for old, moment in st.session_state.get("replaced", ()))


def is_back() -> bool:
    """Return whether this run was asked for by Back or Forward, or by a link of the list of pages, which is a step of
    the history too.
    """
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
        _settle(of.settings_with(st.session_state[of.tab.key]))
    else:
        _settle(of.settings)


def shown_tabs(page: Page, view: View | None) -> list[Page]:
    """Tabs that have something to show."""
    absent = store_cache.absent(view)
    return [tab for tab in page.tabs if tab.name not in absent and (view is not None or tab.shows == "store")]


def _settle(settings: Iterable[PageSetting]) -> None:
    kept = st.session_state.setdefault("settings", {})
    for setting in settings:
        asked = link.linked(setting.name)
        value = None if asked is None or asked == "" else setting.parsed(asked)
        if asked is not None:
            if asked and value is None:
                link.complain(
                    f"The link asks for {setting.name} '{shown(asked, 60)}'; there is {setting.expected}. Showing"
                    " the default."
                )
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
    """Write parameters into the address bar, in one step: every change of the address is an entry in the browser's
    history.
    """
    names = {*link.LINKED, *navigation.SETTING_NAMES}
    if {key: st.query_params.get(key) for key in said} != said or any(
        key in st.query_params for key in names - said.keys()
    ):
        st.query_params.from_dict(said)
    before = st.session_state.get("written")
    if before is not None and before != said:
        st.session_state["replaced"] = [(before, time.monotonic()), *st.session_state.get("replaced", ())][
            :_MOST_REPLACED
        ]
    st.session_state["written"] = said
