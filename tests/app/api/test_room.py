"""Bodies that arrive at once never fill the store beyond its limit: room is reserved before anything is written."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Message

from app.api import ingest
from core.configuration import Limits
from core.errors import LimitError
from core.runs.store.quotas import taken_bytes
from core.runs.store.store import Store
from tests.app.api.test_taking import dump, left

PIECE = 1000
BODY = 20 * PIECE
TUS = {"Tus-Resumable": "1.0.0"}


def on_disk(store: Path) -> int:
    """Bytes of all bodies that lie in the store."""
    return sum(path.stat().st_size for path in store.glob(".partial-*/0/*"))


def _sender(store: Path, seen: list[int], *, is_announced: bool) -> Request:
    """A request whose body comes in pieces, with a look at the disk before each."""
    left_to_send = BODY

    async def receive() -> Message:
        nonlocal left_to_send
        await anyio.lowlevel.checkpoint()  # the others go on
        seen.append(on_disk(store))
        body = b"PK\x03\x04" + bytes(PIECE - 4) if left_to_send == BODY else bytes(PIECE)
        left_to_send -= PIECE
        return {"type": "http.request", "body": body, "more_body": left_to_send > 0}

    headers = [(b"content-length", str(BODY).encode())] if is_announced else [(b"transfer-encoding", b"chunked")]
    return Request({"type": "http", "method": "PUT", "path": "/", "headers": headers, "query_string": b""}, receive)


def _sent_at_once(store: Path, limits: Limits, *, is_announced: bool) -> tuple[list[int], list[int], int]:
    """(statuses of five refused or taken bodies, bytes on the disk at every piece, bytes there once all came)"""
    statuses: list[int] = []
    seen: list[int] = []
    places = []

    async def send() -> None:
        request = _sender(store, seen, is_announced=is_announced)
        try:
            place = ingest._place(Store(store), "x", ingest._declared(request), limits)
        except LimitError as refused:
            statuses.append(refused.status)
            return
        try:
            await ingest._received(request, place, "x", Store(store), limits)
        except LimitError as refused:
            statuses.append(refused.status)
            place.remove()
        else:
            statuses.append(202)
            places.append(place)

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(send)

    anyio.run(all_of_them)
    there = on_disk(store)
    for place in places:
        place.remove()
    return statuses, seen, there


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("is_announced", [True, False])
def test_bodies_that_arrive_at_once_stay_within_the_limit(
    is_announced: bool, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_PIECE_BYTES", PIECE)
    limits = Limits(store_bytes=2 * BODY + PIECE, free_bytes=0)
    statuses, seen, there = _sent_at_once(store, limits, is_announced=is_announced)
    assert max(seen) <= limits.store_bytes
    assert set(statuses) <= {202, 507}
    assert 507 in statuses
    if is_announced:
        assert (sorted(statuses), there) == ([202, 202, 507, 507, 507], 2 * BODY)
    assert sum(taken_bytes(Store(store))) == 0  # those that were cancelled freed what they held


@pytest.mark.usefixtures("client")
def test_without_reservations_the_same_bodies_would_overshoot(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_PIECE_BYTES", PIECE)
    monkeypatch.setattr("core.runs.store.quotas._incomplete", lambda _: [])  # the planted fault
    limits = Limits(store_bytes=2 * BODY + PIECE, free_bytes=0)
    there = _sent_at_once(store, limits, is_announced=True)[2]
    assert there == 5 * BODY > limits.store_bytes


def test_bodies_uploads_and_downloads_see_each_others_reservations(
    client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = dump()
    assert client.put("/api/runs/a%20run?wait=60", content=body).status_code == 201
    run_id = client.get("/api/runs").json()["runs"][0]["run_id"]
    held = sum(taken_bytes(Store(store)))
    monkeypatch.setenv("ULPSCOPE_LIMITS_STORE_BYTES", str(held + 10_000))
    announced = client.post("/api/uploads", headers=TUS | {"Upload-Length": "9000"})
    assert announced.status_code == 201
    assert client.post("/api/uploads", headers=TUS | {"Upload-Length": "1001"}).status_code == 507
    assert client.put("/api/runs/x", content=body).status_code == 507
    assert client.get(f"/api/runs/{run_id}/npz").status_code == 507
    assert sum(taken_bytes(Store(store))) == held + 9000
    assert client.delete(announced.headers["location"], headers=TUS).status_code == 204
    assert sum(taken_bytes(Store(store))) == held
    assert [name for name in left(store) if name.startswith(".partial")] == []
    made = client.get(f"/api/runs/{run_id}/npz")
    assert (made.status_code, sum(taken_bytes(Store(store)))) == (200, held + len(made.content))
    place = ingest._place(Store(store), "x", 9500, Limits(store_bytes=held + 10_000, free_bytes=0))
    assert client.post("/api/uploads", headers=TUS | {"Upload-Length": "501"}).status_code == 507
    place.remove()
    assert client.post("/api/uploads", headers=TUS | {"Upload-Length": "501"}).status_code == 201
