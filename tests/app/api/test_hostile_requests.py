"""Whatever stands in an address, a query, a header or a body: every route answers, if with a refusal in a sentence, and
says nothing of where things lie on the server.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from app.api import openapi
from app.hosting.error_details import Unforeseen
from app.routes import ROUTES
from tests.core.runs.made_runs import copied

ROOT = Path(__file__).resolve().parents[3]
PATHS = openapi.document("http://here")["paths"]
BODIES = (
    b"",
    b"{",
    b"[" * 9999,
    b'{"tags": [1], "note": 1e999}',
    b'{"note": "\\ud800\\u0000"}',
    b"\x93NUMPY" + b"\xff" * 40,
)
VALUES = (
    *("x" * length for length in (300, 151, 256, 5000)),
    *(".", "..", "../..", "..%2f..", "-", "~", "*", "%", "%00", "{run_id}", ".hidden", "mine/", "mine.duckdb", "C:\\x"),
    *("\0", "mine\0", "\x1b[31m", "\r\nx: y", "\u202e", "\ufffd", "\U0010ffff", "٣", "1e9", "-1", "9" * 4999, "NaN"),
)
RAW = ("%FF%FE", "%ED%A0%80", "%C0%AE%C0%AE", "%2e%2e", "%252e%252e%252f")  # bytes that are no text
HEADERS = ("range", "if-none-match", "content-type", "repr-digest", "upload-metadata", "upload-length", "upload-offset")
_PART = re.compile(r"\{(\w+)(?::\w+)?\}")


def operations(value: str) -> Iterator[tuple[str, str]]:
    """(method, address) of every operation of the description and of every route beside them, with `value`, which is
    quoted, for each part of its path that can be anything.
    """
    for path, methods in PATHS.items():
        yield from ((method.upper(), _PART.sub(lambda _: value, path)) for method in methods)
    for route in ROUTES:
        if isinstance(route, Route) and not route.path.startswith("/api/"):
            yield "GET", _PART.sub(lambda _: value, route.path)


def parameters(value: str) -> Iterator[tuple[str, str]]:
    """(method, address) of every parameter of every operation, with `value` for it."""
    for path, methods in PATHS.items():
        plain = _PART.sub("mine", path)
        for method, about in methods.items():
            names = [part["name"] for part in about.get("parameters", ()) if part["in"] == "query"]
            yield from ((method.upper(), f"{plain}?{name}={value}") for name in names if name != "wait")
    for name in ("order", "measure", "level", "tile", "rows", "columns"):
        known = {"order": "id", "measure": "ulps", "level": "0,0", "tile": "0,0", "rows": "0:1", "columns": "0:1"}
        query = "&".join(f"{key}={each}" for key, each in (known | {name: value}).items())
        yield from (("GET", f"/tiles/mine/0{rest}?{query}") for rest in ("", "/largest"))


def wrong(method: str, address: str, answer, places: tuple[str, ...]) -> list[str]:
    """Faults of an answer: it failed, or tells where something lies or how the server is made."""
    about = f"{method} {address[:200]}: {answer.status_code}"
    found = [about] if answer.status_code >= 500 else []
    text = f"{answer.text} {dict(answer.headers)}"
    found += [f"{about} tells {place}" for place in places if place in text]
    is_ours = answer.text != "Not Found"  # the router's, of an address that is no route's
    if answer.status_code >= 400 and address.startswith("/api/") and method != "HEAD" and is_ours:
        found += [] if isinstance(json.loads(answer.content).get("error"), str) else [f"{about} is no sentence"]
    return found


@pytest.fixture
def browser(store: Path) -> Iterator[TestClient]:
    copied(store / "mine.duckdb")
    with TestClient(
        Starlette(routes=ROUTES, middleware=[Middleware(Unforeseen)]),
        raise_server_exceptions=False,
        follow_redirects=False,
    ) as made:
        yield made


@pytest.fixture
def places(store: Path) -> tuple[str, ...]:
    return (str(store), str(ROOT), sys.prefix, "/home/", "Traceback", 'File "')


@pytest.mark.spread(5)
@pytest.mark.parametrize("value", [*(quote(value, safe="") for value in VALUES), *RAW], ids=lambda value: value[:20])
def test_no_value_in_an_address_makes_a_route_fail_or_tell_a_place(browser, places, value):
    found = []
    for method, address in (*operations(value), *parameters(value)):
        answer = browser.request(method, address, headers={"tus-resumable": "1.0.0"})
        found += wrong(method, address, answer, places)
    assert found == []


@pytest.mark.spread(1)
@pytest.mark.parametrize("header", HEADERS)
def test_no_header_makes_a_route_fail_or_tell_a_place(browser, places, header):
    found = []
    for method, address in operations("mine"):
        for value in ("x" * 300, "\x80\xff", "bytes=9-1", "-1", "99999999999999999999", "sha-256=:A:", "filename ="):
            headers = {"tus-resumable": "1.0.0", header: value.encode("latin-1")}
            found += wrong(method, address, browser.request(method, address, headers=headers), places)
    assert found == []


@pytest.mark.spread(1)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
def test_no_body_makes_a_route_fail_or_tell_a_place(browser, places, body):
    found = []
    for method, address in operations("mine"):
        found += wrong(method, address, browser.request(method, address, content=body), places)
    assert found == []


@pytest.mark.thorough
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.one_of(st.text(max_size=400), st.binary(max_size=300).map(lambda raw: raw.decode("latin-1"))))
def test_no_text_at_all_makes_a_route_fail_or_tell_a_place(browser, places, value):
    for method, address in operations(quote(value, safe="")):
        assert wrong(method, address, browser.request(method, address), places) == []


def test_a_route_that_fails_and_one_that_tells_would_be_found(store, places):
    """The twins."""

    async def fails(_):
        raise OSError(36, "File name too long", str(store))

    async def tells(_):
        raise HTTPException(404, f"no run in {store}")

    async def says(_):
        return PlainTextResponse("not there", 404)

    routes = [Route(f"/api/{route.__name__}", route) for route in (fails, tells, says)]
    with TestClient(Starlette(routes=routes), raise_server_exceptions=False) as bare:
        assert wrong("GET", "/fails", bare.get("/api/fails"), places) == ["GET /fails: 500"]
        assert wrong("GET", "/tells", bare.get("/api/tells"), places) == [f"GET /tells: 404 tells {store}"]
        with pytest.raises(ValueError, match="Expecting value"):
            wrong("GET", "/api/says", bare.get("/api/says"), places)


def test_a_run_that_is_not_there_is_told_without_the_stores_place(browser, store):
    for address in ("/api/runs/none", "/api/runs/none/file", "/api/runs/none/npz", "/files/none.npz", "/tiles/none/0"):
        answer = browser.get(address)
        assert answer.status_code == 404
        assert "no run 'none' in the store" in answer.text
        assert str(store) not in answer.text
