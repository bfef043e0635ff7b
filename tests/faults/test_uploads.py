"""Uploads that break off, and servers that are killed while they import: nothing half is visible, and it goes on."""

from __future__ import annotations

import http.client
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from core.runs.store.store import Store
from tests.browser.driving import Dashboard, start
from tests.core.runs.made_runs import copied
from tests.faults.whole import Watched

pytestmark = pytest.mark.thorough


@contextmanager
def running(watched: Watched) -> Iterator[Dashboard]:
    dashboard = start(watched.store.directory, ULPSCOPE_SAMPLES="", ULPSCOPE_LIMITS_FREE_BYTES="0")
    try:
        yield dashboard
    finally:
        dashboard.process.terminate()
        dashboard.process.wait(30)


def put(dashboard: Dashboard, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(dashboard.url.removeprefix("http://"), timeout=300)
    connection.request("PUT", path, body)
    return connection.getresponse().status


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    found = Watched(Store(tmp_path / "runs"))
    copied(found.store.directory / "mine.duckdb")
    found.check()
    return found


@pytest.fixture
def dump(tmp_path: Path) -> bytes:
    logits = np.random.default_rng(5).standard_normal((200, 8192)).astype(np.float32)
    np.savez(tmp_path / "dump.npz", reference=logits, variant=logits + np.float32(1e-4))
    return (tmp_path / "dump.npz").read_bytes()


def test_a_body_that_breaks_off_leaves_nothing(watched: Watched, dump: bytes) -> None:
    with running(watched) as dashboard:
        host, port = dashboard.url.removeprefix("http://").split(":")
        for share in (0.0, 0.01, 0.5, 0.999):
            head = f"PUT /api/runs/cut HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(dump)}\r\n\r\n"
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(head.encode() + dump[: int(len(dump) * share)])
                time.sleep(0.3)  # the moment at which it breaks off
            watched.check()
        assert put(dashboard, "/api/runs/whole?wait=120", dump) in (200, 201)
        watched.check()
        assert len(watched.known) == 2


def test_a_server_killed_while_it_imports_leaves_whole_runs_or_none(watched: Watched, dump: bytes) -> None:
    chance = random.Random(22)
    for _ in range(4):
        with running(watched) as dashboard:

            def send(dashboard: Dashboard = dashboard) -> None:
                with suppress(OSError, http.client.HTTPException):
                    put(dashboard, "/api/runs/killed", dump)

            threading.Thread(target=send, daemon=True).start()
            time.sleep(chance.uniform(0.0, 4.0))  # the moment at which it dies
            dashboard.process.send_signal(signal.SIGKILL)
        watched.check()
    with running(watched) as dashboard:
        assert put(dashboard, "/api/runs/after-all?wait=120", dump) in (200, 201)
        watched.check()
