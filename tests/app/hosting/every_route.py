"""Asks every route of the real dashboard with credentials of every wrong kind; run as a process of its own, prints what
it found as JSON.

The routes are read from the application, so that a new one cannot be forgotten. Streamlit's server is one a process.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OPEN = {"/sign-in", "/sign-out", "/health", "/sign-in/oidc", "/sign-in/callback"}  # the gate's own


def paths_of(routes: Iterable[BaseRoute], before: str = "") -> list[tuple[str, str]]:
    """(http or websocket, a path that leads to it) of every route, those of mounts too."""
    found = []
    for route in routes:
        path = before + re.sub(r"\{\w+(:\w+)?\}", "x", getattr(route, "path", ""))
        if isinstance(route, WebSocketRoute):
            found.append(("websocket", path))
        elif isinstance(route, Route):
            found.append(("http", path))
        elif isinstance(route, Mount):
            found += [("http", f"{path}/x.js"), *paths_of(route.routes or [], path)]
        else:
            raise TypeError(f"a route of a kind that is not looked at: {route!r}")
    return found


def answered(
    app: Any, paths: Iterable[tuple[str, str]], headers: dict[str, str], methods: Iterable[str] = METHODS
) -> list[str]:
    """Every way in that is answered with more than a refusal or the sign-in."""
    browser = TestClient(app, follow_redirects=False, raise_server_exceptions=False)
    found = []
    for kind, path in paths:
        if kind == "websocket":
            try:
                with browser.websocket_connect(path, headers=headers):
                    found.append(f"websocket {path}")
            except WebSocketDisconnect:
                pass
            continue
        for method in methods:
            for accept in ("*/*", "text/html") if method == "GET" else ("*/*",):
                answer = browser.request(method, path, headers={"accept": accept, **headers})
                is_to_sign_in = answer.status_code == 303 and answer.headers["location"].startswith("/sign-in")
                if answer.status_code not in (401, 403, 429) and not is_to_sign_in:
                    found.append(f"{method} {path} {accept}: {answer.status_code}")
    return found


def main() -> None:
    """Wrong credentials of every kind, then a viewer's token for what changes something, then that token for
    reading.
    """
    from app.hosting.live_settings import auth_store
    from app.main import app

    viewer, name = sys.argv[1], auth_store().cookie("session", False)
    paths = paths_of(app._build_starlette_app().routes)
    wrong = {
        "nothing": {},
        "cookie": {"cookie": f"{name}=x.ZZZZZZ.{'0' * 43}; _streamlit_user=x"},
        "token": {"authorization": "Bearer ulp_" + "A" * 43},
        "identity": {"x-ulpscope-identity": "eyJuYW1lIjoiYSIsInJvbGUiOiJlZGl0b3IiLCJ3YXkiOiJ0b2tlbiJ9"},
        "user": {"x-forwarded-user": "ada@example.org", "x-forwarded-for": "127.0.0.1"},
    }
    right = {"authorization": f"Bearer {viewer}"}
    browser = TestClient(app, follow_redirects=False, raise_server_exceptions=False)
    changed = [
        f"{method} {path}: {status}"
        for kind, path in paths
        for method in ("POST", "PUT", "PATCH", "DELETE")
        if kind == "http" and (status := browser.request(method, path, headers=right).status_code) != 403
    ]
    read = {path: browser.get(path, headers=right).status_code for kind, path in paths if kind == "http"}
    said = {
        "paths": paths,
        "answered": {
            kind: answered(app, paths, headers, ("GET", "DELETE") if headers else METHODS)
            for kind, headers in wrong.items()
        },
        "changed": changed,
        "read": read,
    }
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
