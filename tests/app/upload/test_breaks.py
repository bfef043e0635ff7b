"""A real server on a real socket: connections that break, and a server that is killed with
SIGKILL.
"""

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from tests.serving import dump, serving
from tests.waiting import until

BODY = dump(64, 4096)


def begun(server, count):
    """A request that says it will send the file as one part, and has sent `count` bytes of it."""
    line = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    head = (
        f"PUT /api/uploads/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(BODY)}\r\n"
        f"Content-Range: bytes 0-{len(BODY) - 1}/{len(BODY)}\r\n\r\n"
    )
    line.sendall(head.encode() + BODY[:count])
    return line


def received(server):
    return httpx2.get(f"{server.url}/api/uploads/x").json().get("received", 0)


def has_arrived_whole(server):
    """Ask for the offset and send what is missing, as a client does that knows nothing; whether the
    file is what was sent.
    """

    def is_sent():
        first = received(server)
        answer = httpx2.put(
            f"{server.url}/api/uploads/x?keep=1",
            content=BODY[first:],
            headers={"Content-Range": f"bytes {first}-{len(BODY) - 1}/{len(BODY)}"},
            timeout=150,
        )
        # until the server lets go of the request before
        return answer.status_code != 409

    until(is_sent, every=0.2)
    (path,) = server.store.glob(".uploads/*/data/*")
    return path.read_bytes() == BODY


def test_a_socket_that_is_reset_keeps_every_byte_that_arrived(tmp_path):
    with serving(tmp_path / "runs") as server:
        line = begun(server, 1_300_777)
        until(lambda: received(server) >= 1 << 20)
        # a reset drops what the kernel has not delivered
        until(lambda: fcntl.ioctl(line, termios.TIOCOUTQ, bytes(4)) == bytes(4))
        # with a linger of 0 seconds, close sends a reset
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()
        until(lambda: received(server) == 1_300_777)
        assert has_arrived_whole(server)


def test_an_upload_goes_on_after_the_server_was_killed(tmp_path):
    with serving(tmp_path / "runs") as server:
        begun(server, len(BODY) - 1)
        arrived = until(lambda: received(server) if received(server) >= 1 << 20 else 0)
        server.process.kill()
        server.process.wait()
    with serving(tmp_path / "runs") as server:
        assert arrived <= received(server) < len(BODY)
        assert has_arrived_whole(server)


def test_one_request_that_breaks_off_leaves_nothing(tmp_path):
    with serving(tmp_path / "runs") as server:
        with socket.create_connection(("127.0.0.1", server.port)) as line, suppress(OSError):
            line.sendall(
                "PUT /api/uploads/cut HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length:"
                f" {len(BODY)}\r\n\r\n".encode(),
            )
            line.sendall(BODY[: len(BODY) // 2])
            until(lambda: list(server.store.glob(".uploads/*/data/*")))
        until(lambda: not list(server.store.glob(".uploads/*")))
    assert not list(server.store.glob("*.duckdb"))


def resident_bytes(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) << 10


@pytest.mark.thorough
def test_three_hundred_megabytes_pass_through_a_server_that_does_not_grow(tmp_path):
    size = 300 << 20
    with serving(tmp_path / "runs") as server:
        httpx2.get(f"{server.url}/api/runs")
        before = highest = resident_bytes(server)

        def parts():
            nonlocal highest
            for _ in range(size >> 20):
                yield bytes(1 << 20)
                highest = max(highest, resident_bytes(server))

        answer = httpx2.put(f"{server.url}/api/uploads/large?keep=1", content=parts(), timeout=120)
        assert answer.json()["received"] == size
    assert highest - before < 32 << 20
