"""Uploads that break off: a socket that is cut, a connection that goes dead, a server that is killed; each goes on
where it was.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.uploads.serving import OFFSET, TUS, Server, head, serve
from tests.waiting import until

SMALL = 4 << 20


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    running = serve(tmp_path / "runs", ULPSCOPE_LIMITS_FREE_BYTES="0")
    yield running
    running.kill()


def announced(server: Server, length: int) -> str:
    status, headers, _ = server.ask("POST", "/api/uploads", TUS | {"Upload-Length": str(length)})
    assert status == 201
    return headers["location"]


def arrived(server: Server, address: str) -> int:
    status, headers, _ = server.ask("HEAD", address, TUS)
    assert status == 200
    return int(headers["upload-offset"])


def begun(server: Server, address: str, offset: int, length: int, body: bytes) -> socket.socket:
    """A request that says it will send `length` bytes and has sent `body`."""
    line = server.connect()
    line.sendall(
        head("PATCH", address, TUS | OFFSET | {"Upload-Offset": str(offset), "Content-Length": str(length)}) + body
    )
    return line


def waited(find: Callable[[], int], least: int) -> int:
    """The first number found that is at least so large, and above 0."""
    return until(lambda: found if (found := find()) >= least else 0)


def rest(server: Server, address: str, body: bytes) -> None:
    """Go on as a client does that knows nothing: ask how far it is, send what is lacking, until all of it is there."""

    def is_over() -> bool:
        offset = arrived(server, address)
        status, _, said = server.ask("PATCH", address, TUS | OFFSET | {"Upload-Offset": str(offset)}, body[offset:])
        assert status in (204, 409, 423), said
        return status == 204

    until(is_over, every=0.3)


def content(store: Path) -> bytes:
    (path,) = store.glob(".uploads/*/file/*")
    return path.read_bytes()


def test_a_socket_cut_in_the_middle_keeps_every_byte_that_arrived(server, tmp_path):
    body = os.urandom(SMALL)
    address = announced(server, len(body))
    line = begun(server, address, 0, len(body), body[: SMALL // 2 + 777])
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    waited(lambda: arrived(server, address), SMALL // 2 - (1 << 20))
    line.close()  # a reset, not a farewell
    assert waited(lambda: arrived(server, address), SMALL // 2 + 777) == SMALL // 2 + 777
    rest(server, address, body)
    assert content(tmp_path / "runs") == body


@pytest.mark.thorough
def test_a_server_killed_in_the_middle_is_gone_on_with_by_the_next(server, tmp_path):
    body = os.urandom(SMALL)
    address = announced(server, len(body))
    begun(server, address, 0, len(body), body[: SMALL - 1])
    before = waited(lambda: arrived(server, address), 2 << 20)
    assert 2 << 20 <= before < SMALL
    server.kill()
    second = serve(tmp_path / "runs", ULPSCOPE_LIMITS_FREE_BYTES="0")
    try:
        assert before <= arrived(second, address) < SMALL
        rest(second, address, body)
    finally:
        second.kill()
    assert content(tmp_path / "runs") == body


def test_another_process_waits_while_one_receives_and_goes_on_afterwards(server, tmp_path):
    body = os.urandom(SMALL)
    address = announced(server, len(body))
    line = begun(server, address, 0, len(body), body[: 2 << 20])
    offset = waited(lambda: arrived(server, address), 1 << 20)
    other = serve(tmp_path / "runs", ULPSCOPE_LIMITS_FREE_BYTES="0")
    try:
        status, headers, _ = other.ask("PATCH", address, TUS | OFFSET | {"Upload-Offset": str(offset)}, body[offset:])
        assert (status, headers["retry-after"]) == (423, "2")
        line.close()
        waited(lambda: arrived(other, address), 2 << 20)
        rest(other, address, body)
    finally:
        other.kill()
    assert content(tmp_path / "runs") == body


@pytest.mark.thorough
def test_a_connection_that_went_dead_does_not_keep_its_sender_out(server, tmp_path):
    """Nothing comes of it and nothing ends it: as when a laptop was closed. Its owner comes back over another
    connection.
    """
    body = os.urandom(SMALL)
    address = announced(server, len(body))
    line = begun(server, address, 0, len(body), body[: 1 << 20])
    waited(lambda: arrived(server, address), 1 << 20)
    began = time.monotonic()
    rest(server, address, body)
    assert time.monotonic() - began < 15
    assert content(tmp_path / "runs") == body
    line.close()


@pytest.mark.thorough
def test_three_hundred_megabytes_pass_through_a_server_that_does_not_grow(server, tmp_path):
    size, piece = 300 << 20, os.urandom(1 << 20)
    address = announced(server, size)
    before = server.memory_bytes()
    line = begun(server, address, 0, size, b"")
    for _ in range(size // len(piece)):
        line.sendall(piece)
    assert line.recv(100).startswith(b"HTTP/1.1 204")
    assert arrived(server, address) == size
    assert server.memory_bytes("VmHWM") - before < 24 << 20
