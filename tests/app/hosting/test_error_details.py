"""What answers and pages say of errors: a sentence with an id, and never where things lie on the server."""

from __future__ import annotations

import re
import tomllib

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from streamlit.testing.v1 import AppTest

from app import main
from app.hosting import error_details
from app.hosting.error_details import ROOT, Unforeseen, without_places
from core.errors import StoreError
from tests.app.hosting.test_roles import ADA, GRACE, sits
from tests.app.opening import opened, said
from tests.core.runs.made_runs import copied

_SENTENCE = re.compile(r"The server failed at this; whoever runs it finds the reason in its log, under ([0-9a-f]{8})\.")

pytestmark = pytest.mark.usefixtures("own_store")


async def fails(_: Request):
    raise OSError(36, "File name too long", "/srv/secret/place")


async def fails_late(_: Request):
    async def parts():
        yield b"so far"
        raise OSError("/srv/secret/place")

    return StreamingResponse(parts())


def asked(path: str, middleware: tuple = (Middleware(Unforeseen),)):
    routes = [Route("/api/fails", fails), Route("/fails", fails), Route("/late", fails_late)]
    return TestClient(Starlette(routes=routes, middleware=list(middleware)), raise_server_exceptions=False).get(path)


@pytest.mark.parametrize("path", ["/api/fails", "/fails"])
def test_an_exception_that_nobody_foresaw_is_a_sentence_and_its_traceback_is_in_the_log(path, caplog):
    answer = asked(path)
    assert answer.status_code == 500
    text = answer.json()["error"] if path.startswith("/api") else answer.text.rstrip("\n")
    found = _SENTENCE.fullmatch(text)
    assert found
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    (record,) = caplog.records
    assert record.getMessage() == f"{found[1]}: GET {path} failed"
    assert "/srv/secret/place" in str(record.exc_info[1])
    assert not _SENTENCE.search(asked(path, ()).text)  # the twin: without it nothing says where to look


def test_an_answer_that_has_begun_is_not_made_longer():
    assert "failed" not in asked("/late").text


def test_it_stands_before_everything_and_pages_ask_it_too():
    assert [each.cls.__name__ for each in main.app._user_middleware] == ["Unforeseen", "Gate"]
    assert main.app._on_script_error is error_details.on_page


def broken_page() -> None:
    from streamlit.error_util import handle_user_script_exception

    from app.hosting import error_details

    handle_user_script_exception(ValueError("at /srv/secret/place"), error_details.on_page)


@pytest.mark.parametrize("who", [GRACE, ADA])
def test_a_page_that_fails_tells_an_editor_why_and_a_viewer_where_it_is_written(who, monkeypatch, caplog):
    sits(monkeypatch, who)
    app = AppTest.from_function(broken_page).run()
    if who is ADA:
        assert [error.value for error in app.exception] == ["at /srv/secret/place"]
        assert not app.error
        return
    assert not app.exception
    found = _SENTENCE.fullmatch(app.error[0].value)
    assert found
    assert any(record.getMessage() == f"{found[1]}: a page failed" and record.exc_info for record in caplog.records)


def test_streamlit_itself_tells_no_browser_a_traceback_of_what_no_page_began():
    """A message that it cannot take is answered by its own words, whoever sent it."""
    settings = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
    assert settings["client"]["showErrorDetails"] in ("type", "none")


def test_a_sentence_calls_the_servers_places_by_what_they_are(own_store, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/home-of-it")
    monkeypatch.setenv("ULPSCOPE_SAMPLES", str(ROOT / "sample_runs"))
    said_of = {
        f"no run 'x' in {own_store.directory}; `list` shows": "no run 'x' in the store; `list` shows",
        f"no run 'x' in {own_store.directory}.": "no run 'x' in the store.",
        f"{own_store.directory}/.npz/x.npz: cannot be written": "the store/.npz/x.npz: cannot be written",
        f"'{ROOT / 'sample_runs'}/a.duckdb'": "'the sample runs/a.duckdb'",
        f"{ROOT}/app/main.py": "the program/app/main.py",
        "/srv/home-of-it/.cache/x": "~/.cache/x",
        f"{own_store.directory}-of-another/x, /srv/home-of-its/x": None,
        "1/2 of a/b": None,
    }
    for sentence, expected in said_of.items():
        assert without_places(sentence).replace("a temporary folder", "/tmp") == (expected or sentence)


@pytest.mark.parametrize("who", [GRACE, ADA])
def test_a_page_that_is_refused_names_the_store_to_a_viewer_and_its_place_to_an_editor(who, own_store, monkeypatch):
    def refuses(_: str) -> None:
        raise StoreError(f"{own_store.directory}/x.duckdb: cannot be opened")

    copied(own_store.directory / "mine.duckdb")
    monkeypatch.setattr("app.shell.store_cache.open_run", refuses)
    sits(monkeypatch, who)
    told = said(opened("overview", run="mine")).replace("\\", "")
    assert ("the store/x.duckdb: cannot be opened" in told) == (who is GRACE)
    assert (str(own_store.directory) in told) == (who is ADA)
