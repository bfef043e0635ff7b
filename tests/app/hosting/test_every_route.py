"""No route of the dashboard is reached without credentials; the routes are read from the application itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute

from app.hosting.middleware import Gate
from core.hosting import tokens
from tests.app.hosting.every_route import OPEN, answered, paths_of
from tests.app.hosting.serving import echo, set_up, talk

ROOT = Path(__file__).resolve().parents[3]


def test_every_route_and_the_websocket_are_refused_with_nothing_and_with_anything_wrong(store):
    viewer, _ = tokens.add(store, "grace", "viewer", 1)
    environment = {**os.environ, "ULPSCOPE_SIGN_IN_TOKENS": "1", "ULPSCOPE_SIGN_IN_ATTEMPTS": "100000"}
    command = [sys.executable, "-m", "tests.app.hosting.every_route", viewer]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    paths = {path for _, path in found["paths"]}
    for expected in (
        "/files/x.duckdb",
        "/files/x.npz",
        "/_stcore/stream",
        "/_stcore/health",
        "/media/x",
        "/_stcore/upload_file/x/x",
        "/x.js",
    ):
        assert expected in paths, sorted(paths)
    assert not paths & OPEN
    assert found["answered"] == {kind: [] for kind in found["answered"]}
    assert found["changed"] == []  # a viewer, whatever the route behind asks
    # The twin: with a right token the same requests are answered, so that it is the gate that refused them.
    assert not {401, 303, 429, 500} & set(found["read"].values())
    assert found["read"]["/_stcore/health"] == 200


class _Leaky(Gate):
    """A gate that somebody has made an exception in."""

    async def __call__(self, scope, receive, send):
        if scope["type"] != "lifespan" and scope["path"].startswith("/planted"):
            await self._app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


@pytest.mark.parametrize(("gate", "is_leaky"), [(Gate, False), (_Leaky, True)])
def test_a_planted_way_past_the_gate_is_found(gate, is_leaky, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password="correct horse")
    routes = [
        Route("/planted/{name}", echo, methods=["GET"]),
        Route("/closed", echo),
        WebSocketRoute("/planted", talk),
        Mount("/planted-files", routes=[Route("/{path:path}", echo)]),
    ]
    paths = paths_of(routes)
    assert ("http", "/planted-files/x") in paths
    found = answered(Starlette(routes=routes, middleware=[Middleware(gate)]), paths, {})
    leaks = {entry.split(":")[0].removesuffix(" */*").removesuffix(" text/html") for entry in found}
    assert ({"websocket /planted", "GET /planted/x", "GET /planted-files/x"} <= leaks) is is_leaky
    assert not [entry for entry in found if "/closed" in entry]
    assert is_leaky or not found


def test_a_route_of_a_kind_that_is_not_looked_at_is_an_error():
    from starlette.routing import Host

    with pytest.raises(TypeError):
        paths_of([Host("example.org", PlainTextResponse("x"))])
