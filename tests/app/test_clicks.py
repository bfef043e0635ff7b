"""A click is acted on although the run that it began was cut short by another."""

import pytest
from streamlit.testing.v1 import AppTest


def with_helper():
    # AppTest runs the source of this function alone
    import streamlit as st

    from app.shell import widgets

    widgets.forget_clicks(st.session_state.get("page", "one"))
    if st.session_state.pop("is_cut", False):
        st.rerun()  # as a key or another control does before the run gets to the button
    if st.session_state.get("page") != "two" and widgets.button(
        "Go",
        "go",
        disabled=st.session_state.get("is_off", False),
    ):
        st.session_state["went"] = st.session_state.get("went", 0) + 1


@pytest.fixture
def app():
    return AppTest.from_function(with_helper).run()


def test_a_click_outlives_the_run_that_it_began_and_is_acted_on_once(app):
    app.session_state["is_cut"] = True
    app.button(key="go").click().run()
    app.run()
    assert app.session_state["went"] == 1
    assert app.exception == []


def test_a_click_on_what_is_disabled_by_the_time_a_run_gets_to_it_is_none(app):
    """As Capture is, once the model's name is gone."""
    app.session_state["is_off"] = True
    app.button(key="go").click().run()
    app.session_state["is_off"] = False
    app.run()
    assert "went" not in app.session_state


def test_a_click_that_no_run_got_to_is_forgotten_on_another_page(app):
    app.session_state["clicks"] = {"go"}
    app.session_state["page"] = "two"
    app.run()
    app.session_state["page"] = "one"
    app.run()
    assert "went" not in app.session_state
