"""A gate with nothing but an echo behind it, and how a browser signs in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg

from app.hosting import authentication, live_settings
from app.hosting.identity import identity_of, require_editor
from app.hosting.middleware import Gate

EDITOR, VIEWER = "correct horse", "battery staple"
SECRET = "shared-with-the-proxy"
PROVEN = {"X-ULPscope-Proxy-Secret": SECRET}  # what a proxy sends along


async def echo(request: Request) -> Response:
    """Who the gate says it is, and the headers that came through."""
    who = identity_of(request.scope)
    return JSONResponse({"name": who.name, "role": who.role, "way": who.way, "headers": dict(request.headers.items())})


async def change(request: Request) -> Response:
    return require_editor(request) or JSONResponse({"changed": True})


async def talk(websocket: WebSocket) -> None:
    """Says who it is, then sends back what comes."""
    await websocket.accept()
    await websocket.send_json(
        {"role": identity_of(websocket.scope).role, "headers": list(map(list, websocket.headers.items()))}
    )
    async for order in websocket.iter_bytes():
        await websocket.send_text(BackMsg.FromString(order).rerun_script.query_string)


def say(websocket: WebSocketTestSession, text: str) -> None:
    """Say something that comes back: in an order that every role may give."""
    order = BackMsg()
    order.rerun_script.query_string = text
    websocket.send_bytes(order.SerializeToString())


def gated(gate: Callable[..., Any] = Gate) -> Starlette:
    return Starlette(
        routes=[
            Route("/api/change", change, methods=["PUT", "POST", "DELETE"]),
            Route("/change", change, methods=["POST"]),
            WebSocketRoute("/_stcore/stream", talk),
            Route("/{path:path}", echo),
        ],
        middleware=[Middleware(gate)],
    )


def client(app: Any = None, **options: Any) -> TestClient:
    return TestClient(app or gated(), follow_redirects=False, **options)


def set_up(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    """The environment's settings, read anew: `sign_in_tokens="1"`."""
    for name, value in values.items():
        monkeypatch.setenv(f"ULPSCOPE_{name.upper()}", value)
    live_settings.forget()


def forget() -> None:
    live_settings.forget()
    authentication.forget()


def form_of(page: str) -> str:
    found = re.search(r'name="form" value="([^"]+)"', page)
    assert found, page[-500:]
    return found[1]


def sign_in(viewer: TestClient, secret: str, following: str = "/", **headers: str) -> Any:
    """As a browser does it: the form, then its answer."""
    page = viewer.get("/sign-in", params={"next": following}, headers=headers)
    fields = {"form": form_of(page.text), "next": following, "secret": secret}
    return viewer.post("/sign-in", data=fields, headers={"origin": str(viewer.base_url), **headers})
