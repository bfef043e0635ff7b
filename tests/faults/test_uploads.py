"""Uploads that are cut, and servers that are killed while they receive or ingest: nothing half is visible, nothing is
left, and it goes on.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.browser.driving import Dashboard, start
from tests.core.runs.made_runs import copied
from tests.faults.whole import Watched
from tests.waiting import until

pytestmark = [pytest.mark.thorough]
KILLS = 8
TUS = {"Tus-Resumable": "1.0.0"}


def _ask(
    dashboard: Dashboard, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
):
    connection = http.client.HTTPConnection(dashboard.url.removeprefix("http://"), timeout=300)
    connection.request(method, path, body, headers or {})
    answer = connection.getresponse()
    return answer, answer.read()


def _send_half(dashboard: Dashboard, head: str, body: bytes, share: float, then: Callable[[], None]) -> None:
    """A request whose body breaks off; `then` happens before the connection goes."""
    host, port = dashboard.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(f"{head}\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        raw.sendall(body[: int(len(body) * share)])
        time.sleep(0.3)  # the moment at which it breaks off: of the bytes that came any number has been written
        then()


@pytest.fixture
def dump(tmp_path: Path) -> bytes:
    logits = np.random.default_rng(5).standard_normal((200, 8192)).astype(np.float32)
    np.savez(tmp_path / "dump.npz", reference=logits, variant=logits + np.float32(1e-4))
    return (tmp_path / "dump.npz").read_bytes()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    found = Watched(Store(tmp_path / "runs"))
    copied(found.store.directory / "mine.duckdb")
    found.check()
    return found


def _start(watched: Watched) -> Dashboard:
    return start(watched.store.directory, ULPSCOPE_SAMPLES="", ULPSCOPE_LIMITS_FREE_BYTES="0")


def _left_behind(watched: Watched) -> list[str]:
    """What lies in the store beside runs and what belongs to it for good."""
    kept = {".labels", ".trash", ".audit", ".hosting", ".uploads", ".ingests"}
    return [
        path.name for path in watched.store.directory.iterdir() if path.suffix != ".duckdb" and path.name not in kept
    ]


def test_a_body_that_breaks_off_leaves_nothing(watched: Watched, dump: bytes) -> None:
    dashboard = _start(watched)
    try:
        for share in (0.0, 0.01, 0.5, 0.999):
            _send_half(dashboard, "PUT /api/runs/cut HTTP/1.1", dump, share, lambda: None)
            until(lambda: _left_behind(watched) == [])
            watched.check()
        answer, said = _ask(dashboard, "PUT", "/api/runs/whole?wait=120", dump)
        assert answer.status in (200, 201), said
        watched.check()
        assert len(watched.known) == 2
    finally:
        dashboard.process.terminate()
        dashboard.process.wait(30)


def test_an_upload_goes_on_where_a_killed_server_broke_it_off(watched: Watched, dump: bytes) -> None:
    chance = random.Random(21)
    dashboard = _start(watched)
    announced, _ = _ask(dashboard, "POST", "/api/uploads", b"", {**TUS, "Upload-Length": str(len(dump))})
    assert announced.status == 201
    place = announced.headers["Location"]
    place = place[place.index("/api/") :]
    arrived = 0
    for _ in range(KILLS):
        share = chance.uniform(0.05, 0.6)
        head = (
            f"PATCH {place} HTTP/1.1\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: {arrived}\r\nContent-Type:"
            " application/offset+octet-stream"
        )
        _send_half(dashboard, head, dump[arrived:], share, partial(dashboard.process.send_signal, signal.SIGKILL))
        dashboard.process.wait(30)
        watched.check()
        dashboard = _start(watched)
        told, _ = _ask(dashboard, "HEAD", place, None, TUS)
        now = int(told.headers["Upload-Offset"])
        assert arrived <= now <= arrived + (len(dump) - arrived) * share
        arrived = now
    try:
        rest = {**TUS, "Upload-Offset": str(arrived), "Content-Type": "application/offset+octet-stream"}
        assert _ask(dashboard, "PATCH", place, dump[arrived:], rest)[0].status == 204
        answer, said = _ask(dashboard, "PUT", f"/api/runs/resumed?upload={place.rsplit('/', 1)[1]}&wait=120")
        assert answer.status in (200, 201), said
        run_id = json.loads(said)["run_id"]
        whole = np.random.default_rng(5).standard_normal((200, 8192)).astype(np.float32)
        with RunReader(watched.store.path_of(run_id)) as run:
            assert run.sides[0].sha256 == hashlib.sha256(whole.tobytes()).hexdigest()
    finally:
        dashboard.process.terminate()
        dashboard.process.wait(30)


def test_a_server_killed_while_it_ingests_leaves_whole_runs_or_none(watched: Watched, dump: bytes) -> None:
    chance = random.Random(22)
    for _ in range(KILLS):
        dashboard = _start(watched)
        began = threading.Event()

        def put(dashboard: Dashboard = dashboard, began: threading.Event = began) -> None:
            with suppress(OSError, http.client.HTTPException):
                _ask(dashboard, "PUT", "/api/runs/killed", dump)
            began.set()

        threading.Thread(target=put, daemon=True).start()
        began.wait(30)  # 202: the worker starts, reads, writes
        time.sleep(chance.uniform(0.0, 4.0))  # the moment at which it dies
        dashboard.process.send_signal(signal.SIGKILL)
        dashboard.process.wait(30)
        watched.check()
    dashboard = _start(watched)
    try:
        answer, said = _ask(dashboard, "PUT", "/api/runs/after-all?wait=120", dump)
        assert answer.status in (200, 201), said
        watched.check()
        until(lambda: _left_behind(watched) == [])
    finally:
        dashboard.process.terminate()
        dashboard.process.wait(30)
