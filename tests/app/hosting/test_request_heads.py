"""Heads of requests that do not come to their end, and the rests of bodies, on real sockets of a server with nothing in
front; and a body on its way in while its token is revoked.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
import uvicorn
from starlette.websockets import WebSocket
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.sync.client import connect

from app.hosting import request_heads
from core.hosting import tokens
from core.runs.store import audit
from tests.app.api.test_taking import dump
from tests.app.hosting.servers import ROOT, free_port
from tests.app.hosting.test_locked import FOR_EVER
from tests.waiting import PATIENCE_SECONDS, throughout, until

SECONDS = 0.3
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
_SERVER = """
import sys
from app.hosting import request_body, request_heads
from streamlit.web.cli import main
request_heads.HEAD_SECONDS, request_body.IDLE_SECONDS = 5.0, 15.0
main(["run", "app/main.py", "--server.headless=true", "--server.address=127.0.0.1", f"--server.port={sys.argv[1]}"])
"""


class Limited(H11Protocol):
    """Uvicorn's protocol with the limit, so that uvicorn's own stays as it is for other tests."""

    made: ClassVar[list[H11Protocol]] = []

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.made.append(self)
        super().connection_made(transport)


class Unlimited(H11Protocol):
    """Uvicorn's protocol as it is, whether or not this process has loaded the dashboard: the planted fault."""

    connection_made = inspect.unwrap(H11Protocol.connection_made)
    data_received = inspect.unwrap(H11Protocol.data_received)


async def answers(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, whatever is still to come; send back what a websocket says."""
    if scope["type"] == "websocket":
        websocket = WebSocket(scope, receive, send)
        await websocket.accept()
        async for text in websocket.iter_text():
            await websocket.send_text(text)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def served(protocol: type[H11Protocol]) -> Iterator[int]:
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(answers, http=protocol, ws="websockets-sansio", port=port, lifespan="off", log_level="error")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield port
    server.should_exit = True
    thread.join(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(request_heads, "HEAD_SECONDS", SECONDS)
        patched.setattr(request_heads, "REST_SECONDS", SECONDS)
        request_heads.limit(Limited)
        yield from served(Limited)


@pytest.fixture(scope="module")
def unlimited_port() -> Iterator[int]:
    yield from served(Unlimited)


def opened(port: int, sent: bytes) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), timeout=0.02)
    line.sendall(sent)
    return line


def is_over(line: socket.socket, drop: bytes = b"") -> bool:
    """Whether the server has hung up; sends another drop, and reads what came until now."""
    try:
        if drop:
            line.sendall(drop)
        while line.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize(
    ("sent", "drop"),
    [
        (b"", b""),
        (HEAD, b""),
        (HEAD, b"X: y\r\n"),
        (HEAD + b"\r\n", b"G"),  # one that is answered, and then another
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n", b"x"),  # its answer did not wait
    ],
    ids=["nothing", "half", "line by line", "the second", "the rest of a body"],
)
def test_what_is_half_sent_is_not_waited_for(sent, drop, port):
    with closing(opened(port, sent)) as line:
        until(lambda: is_over(line, drop))


def test_a_server_without_the_limit_waits_on(unlimited_port):
    """The planted fault: what the test above must catch."""
    with closing(opened(unlimited_port, HEAD)) as line:
        throughout(2 * SECONDS, lambda: not is_over(line, b"X: y\r\n"))


@pytest.mark.parametrize(
    "asked",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 2\r\n",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n",
    ],
)
def test_a_websocket_that_is_none_is_refused_at_once_and_would_be_held_open_for_ever(asked, port, unlimited_port):
    sent = asked + b"Host: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n[]"
    with closing(opened(port, sent)) as line:
        line.settimeout(PATIENCE_SECONDS)
        assert line.recv(4096).startswith(b"HTTP/1.1 400 ")
        assert is_over(line)
    with closing(opened(unlimited_port, sent)) as line:  # the planted fault
        throughout(SECONDS, lambda: not is_over(line))


def test_what_was_answered_and_websockets_are_not_timed(port, monkeypatch):
    """While nothing is half sent, no timer runs that could end them."""
    monkeypatch.setattr(request_heads, "HEAD_SECONDS", FOR_EVER)
    Limited.made.clear()
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client, connect(f"ws://127.0.0.1:{port}/") as websocket:
        for _ in range(2):
            websocket.send("still there")
            assert (client.get("/").text, websocket.recv()) == ("ok", "still there")
            assert [getattr(connection, request_heads._TIMER) for connection in Limited.made] == [None, None]
        with closing(opened(port, HEAD)):
            # The twin: of one that is, one does.
            until(lambda: [getattr(each, request_heads._TIMER) is not None for each in Limited.made[2:]] == [True])


def test_the_limit_is_put_once(monkeypatch):
    class Another(H11Protocol):
        pass

    request_heads.limit(Another)
    made = Another.connection_made
    assert made is not H11Protocol.connection_made
    request_heads.limit(Another)
    assert Another.connection_made is made


# `streamlit run`, with shorter limits


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of the dashboard with tokens, and its store."""
    store, port = tmp_path_factory.mktemp("hosted") / "runs", free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ULPSCOPE_")}
    settings = {"ULPSCOPE_STORE": str(store), "ULPSCOPE_SIGN_IN_TOKENS": "1", "ULPSCOPE_SAMPLES": ""}
    process = subprocess.Popen([sys.executable, "-c", _SERVER, str(port)], cwd=ROOT, env=kept | settings)

    def is_there() -> bool:
        assert process.poll() is None
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"http://127.0.0.1:{port}/health", timeout=1).status_code == 200
        return False

    try:
        until(is_there)
        yield port, store
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def begun(port: int, token: str, body: bytes, length: int) -> socket.socket:
    """A request that has said it sends `length` bytes, and sent `body`."""
    line = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS)
    line.sendall(
        f"PUT /api/runs/x?wait=600 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {length}\r\n\r\n".encode()
        + body
    )
    return line


def status(line: socket.socket) -> int:
    return int(line.recv(4096).split()[1])


@pytest.mark.thorough
@pytest.mark.parametrize("ends", [True, False])
def test_a_real_server_makes_no_run_of_a_body_whose_token_was_revoked_half_way(ends, hosted):
    port, store = hosted
    name, body, before = f"ada {ends}", dump(), len(list(store.glob("*.duckdb")))
    token, _ = tokens.add(store, name, "editor", 1)
    with closing(begun(port, token, body[:2000], len(body))) as line:
        until(lambda: list(store.glob(".partial-incoming-*/0/*")))
        if ends:
            tokens.revoke(store, name)
        line.sendall(body[2000:])
        assert status(line) == (401 if ends else 201)
    until(lambda: not list(store.glob(".partial-*")))
    assert len(list(store.glob("*.duckdb"))) == (before if ends else before + 1)
    assert [event["what"] for event in audit.read(store, 9) if event["who"] == name] == (
        ["refused at its end"] if ends else ["upload"]
    )


@pytest.mark.thorough
def test_a_real_server_waits_neither_for_a_head_nor_for_a_body(hosted):
    port, store = hosted
    token, _ = tokens.add(store, "grace", "editor", 1)
    with closing(opened(port, HEAD)) as line:
        until(lambda: is_over(line, b"X: y\r\n"))
    with closing(begun(port, token, dump()[:2000], len(dump()))) as line:
        assert status(line) == 408
    until(lambda: not list(store.glob(".partial-*")))
