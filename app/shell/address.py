"""The address bar as the share link: read into the selection and the pages' settings, and written
back.
"""

from collections.abc import Iterable

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app import navigation
from app.page import Page, PageSetting
from app.shell import selection, store_cache
from app.shell.selection import View, preset_widget
from core.configuration import configuration
from core.runs.reports.markdown import report_address
from core.text import clean

_NAMES = {*selection.LINKED, *navigation.SETTING_NAMES}  # in the address; others are not ours


def adopt(page: str) -> None:
    """Read the address when a session begins, another page opens, or Back or Forward leads to an
    older view.

    Any other run has the address of the browser at the moment of a click or key, which may be older
    than the session.
    """
    state = st.session_state
    query = _query()
    last_query = state.get("written")
    is_new = last_query is None or is_back() or page != state.get("page")
    if query and query != last_query and is_new:
        for key in query:
            if len(st.query_params.get_all(key)) > 1:
                selection.complain(f"The link names {key} more than once; the last one counts.")
        defaults = {}
        if last_query is not None:
            # Back: a setting that the older address does not name is at its default.
            defaults = dict.fromkeys(navigation.SETTING_NAMES, "")
        state["linked"] = defaults | query
    state["page"] = page


def _query() -> dict[str, str]:
    return {key: value for key, value in st.query_params.items() if key in _NAMES}


def is_back() -> bool:
    """Return whether Back or Forward caused this script run."""
    # Streamlit has no public way to ask.
    context = get_script_run_ctx(suppress_warning=True)
    return context is not None and context.is_history_navigation


def settle_settings(page: str, view: View | None) -> None:
    """Give the controls of the page and of its open tab the values of the link, else those that
    they had before.
    """
    of = navigation.PAGE_OF[page]
    # The open tab first: it says which settings follow.
    if of.tabs:
        is_linked = selection.is_linked(of.tab.name)
        _settle([of.tab])
        if titles := [tab.title for tab in shown_tabs(of, view)]:
            asked = st.session_state[of.tab.key]
            # '' if the link names no tab, or none that there is
            if is_linked and asked and asked not in titles:
                selection.complain(f"This run has no data for {asked}; {titles[0]} is open.")
            selection.settle(of.tab.key, titles)
    _settle(of.settings_with(st.session_state.get(of.tab.key)))


def shown_tabs(page: Page, view: View | None) -> list[Page]:
    """Tabs that have something to show."""
    absent = store_cache.absent(view)
    return [
        tab
        for tab in page.tabs
        if tab.name not in absent and (view is not None or tab.shows == "store")
    ]


def _settle(settings: Iterable[PageSetting]) -> None:
    state = st.session_state
    values = state.setdefault("settings", {})
    for setting in settings:
        key = setting.key
        word = selection.take(setting.name)
        value = setting.parse(word) if word else None
        if word and value is None:
            allowed = ", ".join(setting.words)
            if setting.span is not None:
                allowed = "{} to {}".format(*setting.span)
            selection.complain(
                f"The link asks for {setting.name} '{clean(word, 60)}'; there is {allowed}. Showing"
                " the default.",
            )
        if value is not None:
            state[key] = value
        elif word is not None:
            state[key] = setting.default
        elif key not in state:
            # the widget was not on the last page
            state[key] = values.get(key, setting.default)
        values[key] = state[key]
        # what is being typed stays
        if setting.words or setting.span is not None:
            preset_widget(key)


def of(view: View | None, part: str | None = None) -> dict[str, str]:
    """Parameters of the address for a view on a page or tab (the open one if none is named): the
    share link.
    """
    query: dict[str, str] = {}
    if view is not None:
        query = {"run": view.run.run_id, "variant": view.pair.variant}
        if view.header.has_several_prompts:
            query["prompt"] = str(view.prompt)
        query["position"] = str(view.position)
    values = st.session_state.get("settings", {})
    part = part or st.session_state.get("page", "overview")
    page = navigation.PAGE_OF[part]
    if part != page.name:
        values = values | {page.tab.key: navigation.PARTS[part].title}
    for setting in page.settings_with(values.get(page.tab.key)):
        word = setting.word(values.get(setting.key, setting.default))
        if word is not None:
            query[setting.name] = word
    return query


def absolute(view: View | None) -> str:
    """Return the absolute link of a view: at the configured public URL, else at the address in this
    browser.
    """
    return report_address(of(view), configuration().hosting.public_url, st.context.url or "")


def write(query: dict[str, str]) -> None:
    """Write parameters into the address bar, in one step: key by key would be an entry each in the
    browser's history.
    """
    if _query() != query:
        st.query_params.from_dict(query)
    st.session_state["written"] = query
