"""The Probe page: what it would take is said first, a job is lined up, and the key stands in none
of its words.
"""

import pytest

from app.shell import store_changes
from tests.app.opening import click, enter, open_page, page_text
from tests.core.probing import odd_server as odd
from tests.core.responses.made_sides import run_of
from tests.waiting import until


@pytest.fixture
def store(own_jobs):
    return own_jobs


def test_what_it_takes_is_said_and_the_key_is_in_no_argument(store, submitted):
    app = open_page("probe")
    enter(app, "text_input", "probe_url", "http://127.0.0.1:9/v1")
    assert "most 23 requests" in page_text(app)
    enter(app, "text_input", "probe_key", "sk-secret")
    enter(app, "text_area", "probe_prompts", "one\n---\ntwo")
    enter(app, "multiselect", "probe_tests", ["load", "rerun"])
    enter(app, "number_input", "probe_load", 3)
    enter(app, "number_input", "probe_top", 5)
    enter(app, "text_input", "probe_against", "http://127.0.0.1:10/v1")
    enter(app, "text_input", "probe_name", "-odd")
    click(app, "probe_start")
    (job,) = submitted
    assert job["arguments"] == [
        "probe",
        "http://127.0.0.1:9",
        "--tests",
        "rerun,load:3",
        "--against",
        "http://127.0.0.1:10",
        "--top",
        "5",
        "--name=-odd",
    ]
    assert job["prompts"].content == b'{"text": "one"}\n{"text": "two"}\n'
    assert job["secrets"] == {"ULPSCOPE_PROBE_KEY": "sk-secret"}
    assert "sk-secret" not in job["title"]


@pytest.mark.usefixtures("store", "submitted")
def test_an_address_that_is_none_is_a_sentence():
    app = open_page("probe")
    enter(app, "text_input", "probe_url", "localhost:8000")
    assert "not a server address" in app.warning[0].value.replace("\\", "")
    assert app.button(key="probe_start").disabled


def test_a_probe_becomes_a_run_that_opens(store):
    with odd.serving(odd.good) as (address, seen):
        app = open_page("probe")
        enter(app, "text_input", "probe_url", address)
        enter(app, "text_input", "probe_key", "sk-secret")
        enter(app, "multiselect", "probe_tests", ["rerun"])
        click(app, "probe_start")
        until(lambda: [job.state for job in store_changes.jobs().all("probe")] == ["done"])
        assert seen.keys[0] == "Bearer sk-secret"
    (path,) = store.directory.glob("*.duckdb")
    run = run_of(path)
    assert str(store.directory) not in run.header.command
    assert "sk-secret" not in f"{run.header} {store_changes.jobs().all('probe')}"
    app.run()
    click(app, "open_1")
    assert app.title[0].value == "Overview"
    assert "identical" in "".join(str(one.value) for one in app.markdown)
