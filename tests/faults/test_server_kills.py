"""A server that is killed while files arrive, captures run and people sign in: what it has answered stands when the
next one is started.

A failure prints the seed of the moments. The clients run in threads of this process, and note what they were told.
"""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest

from benchmarks.serving.viewer_session import Session
from core.hosting import tokens
from core.runs.store import audit, labels
from core.runs.store.store import Store
from tests.app.hosting.serving import EDITOR, form_of
from tests.browser.driving import Dashboard, start
from tests.core.runs.made_runs import copied
from tests.faults.nursery import dump_of
from tests.faults.whole import Watched

TUS = {"Tus-Resumable": "1.0.0"}
OFFSET = {"Content-Type": "application/offset+octet-stream"}
SETTINGS = {"ULPSCOPE_SAMPLES": "", "ULPSCOPE_SIGN_IN_TOKENS": "1", "ULPSCOPE_SIGN_IN_EDITOR_PASSWORD": EDITOR}
SETTINGS["ULPSCOPE_SIGN_IN_ATTEMPTS"] = SETTINGS["ULPSCOPE_SIGN_IN_SIGN_INS"] = "1000000"
LONGEST_SECONDS = 5.0
WITH_CAPTURE = 10  # one server in so many captures too: it takes torch some seconds to be there


@dataclass
class Told:
    """What servers have answered, whichever of them: none of it may be gone."""

    runs: set[str] = field(default_factory=set)  # stored, or seen in a list
    notes: dict[str, tuple[str, str]] = field(default_factory=dict)  # run id to the last note taken, and the last sent
    offsets: dict[str, int] = field(default_factory=dict)  # address of an upload to the bytes that had arrived
    leaving: set[str] = field(default_factory=set)  # addresses of uploads that were to be removed
    cookies: list[dict[str, str]] = field(default_factory=list)  # of sessions that had begun
    names: set[str] = field(default_factory=set)  # of runs whose upload was answered
    sign_ins: int = 0


def _upload(api: httpx2.Client, told: Told, chance: random.Random, body: bytes) -> None:
    name = f"sent {chance.getrandbits(40):x}"
    answer = api.put(f"/api/runs/{name}", params={"wait": 60}, content=body)
    assert answer.status_code in (201, 202), answer.text
    if answer.status_code == 201:
        told.runs.add(answer.json()["run_id"])
        told.names.add(name)


def _piece(api: httpx2.Client, told: Told, chance: random.Random, body: bytes) -> None:
    made = api.post("/api/uploads", headers=TUS | {"Upload-Length": str(len(body)), "Upload-Metadata": "filename eA=="})
    if made.status_code == 429:  # as many as there may be
        address, _ = told.offsets.popitem()
        told.leaving.add(address)  # a server that is killed before it answers may have removed it
        api.delete(address, headers=TUS)
        return
    assert made.status_code == 201, made.text
    address, offset = made.headers["Location"], 0
    told.offsets[address] = 0
    for _ in range(3):
        size = chance.randrange(1, len(body) // 4)
        headers = TUS | OFFSET | {"Upload-Offset": str(offset)}
        answer = api.patch(address, headers=headers, content=body[offset : offset + size])
        assert answer.status_code == 204, answer.text
        told.offsets[address] = offset = int(answer.headers["Upload-Offset"])


def _note(api: httpx2.Client, told: Told, chance: random.Random, body: bytes) -> None:
    run_id = chance.choice(("mine", "other"))
    note = f"note {chance.getrandbits(40):x}"
    told.notes[run_id] = told.notes.get(run_id, ("", ""))[0], note
    answer = api.put(f"/api/runs/{run_id}/labels", json={"note": note})
    assert answer.status_code == 200, answer.text
    told.notes[run_id] = note, note


def _list(api: httpx2.Client, told: Told, chance: random.Random, body: bytes) -> None:
    told.runs |= {run["run_id"] for run in api.get("/api/runs").raise_for_status().json()["runs"]}


def _sign_in(api: httpx2.Client, told: Told, chance: random.Random, body: bytes) -> None:
    with httpx2.Client(base_url=api.base_url, timeout=60) as browser:
        form = {"form": form_of(browser.get("/sign-in").text), "next": "/", "secret": EDITOR}
        assert browser.post("/sign-in", data=form).status_code == 303
        told.cookies.append(dict(browser.cookies.items()))
        told.sign_ins += 1


WORK: tuple[Callable[[httpx2.Client, Told, random.Random, bytes], None], ...] = (
    _upload,
    _piece,
    _note,
    _list,
    _sign_in,
)


@contextmanager
def _clients(dashboard: Dashboard, token: str, told: Told, seed: int, body: bytes) -> Iterator[list[BaseException]]:
    """Clients, each at its own kind of work, until the server is gone; what surprised them."""
    surprises: list[BaseException] = []

    def work(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        headers = {"Authorization": f"Bearer {token}"}
        with suppress(httpx2.TransportError), httpx2.Client(base_url=dashboard.url, headers=headers, timeout=60) as api:
            try:
                while True:
                    WORK[number](api, told, chance, body)
            except (AssertionError, ValueError, KeyError, httpx2.HTTPStatusError) as error:
                surprises.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(WORK))]
    for thread in threads:
        thread.start()
    yield surprises
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


async def _capture(dashboard: Dashboard, token: str) -> None:
    async with Session(dashboard.url, {"Authorization": f"Bearer {token}"}) as viewer:
        await viewer.open("capture")
        await viewer.press(next(key for key in viewer.drawn.widgets if key.endswith("capture_start")))


def _check(dashboard: Dashboard, token: str, told: Told, store: Store) -> None:
    """Ask the next server for all that those before it have answered."""
    with httpx2.Client(base_url=dashboard.url, headers={"Authorization": f"Bearer {token}"}, timeout=120) as api:
        there = {run["run_id"] for run in api.get("/api/runs").raise_for_status().json()["runs"]}
        assert told.runs <= there, f"runs are lost: {told.runs - there}"
        for address, offset in told.offsets.items():
            arrived = api.head(address, headers=TUS)
            assert arrived.status_code == 200, f"the upload {address} is lost"
            assert int(arrived.headers["Upload-Offset"]) >= offset, f"bytes of {address} are lost"
        for address in list(told.offsets):  # room for others
            assert api.delete(address, headers=TUS).status_code == 204
            del told.offsets[address]
        for address in told.leaving:
            assert api.delete(address, headers=TUS).status_code in (204, 404)
        told.leaving.clear()
    for cookies in told.cookies:
        answer = httpx2.get(f"{dashboard.url}/_stcore/health", cookies=cookies, timeout=60)
        assert answer.status_code == 200, "a session is lost"
    told.cookies[:-1] = []
    for run_id, notes in told.notes.items():
        note = labels.read(store.directory, run_id).note
        assert note in notes, f"the note of {run_id} is lost"
        told.notes[run_id] = note, note
    signed_in = [line for line in audit.read(store.directory, 1_000_000) if line["what"] == "sign-in"]
    assert len(signed_in) >= told.sign_ins, "sign-ins are not in the audit log"


def _killed(
    tmp_path: Path, kills: int, seed: int, loses: Callable[[Told, Store], None] = lambda told, store: None
) -> Told:
    """Told by `kills` servers, one after another, of which each was killed at work and the next was asked. loses: what
    a fault does between two servers.
    """
    store = Store(tmp_path / "runs")
    for run_id in ("mine", "other"):
        copied(store.directory / f"{run_id}.duckdb")
    token, _ = tokens.add(store.directory, "ada", "editor", 1)
    body, told, chance, watched = dump_of(tmp_path).read_bytes(), Told(), random.Random(seed), Watched(store)
    for number in range(kills):
        dashboard = start(store.directory, **SETTINGS)
        try:
            _check(dashboard, token, told, store)
            with _clients(dashboard, token, told, seed + number, body) as surprises:
                captures = number % WITH_CAPTURE == WITH_CAPTURE - 1
                if captures:
                    with suppress(ConnectionError, TimeoutError):
                        asyncio.run(_capture(dashboard, token))
                time.sleep(chance.uniform(0, LONGEST_SECONDS * (4 if captures else 1)))  # the moment at which it dies
                dashboard.process.send_signal(signal.SIGKILL)
            assert dashboard.process.wait(30) == -signal.SIGKILL
        finally:
            dashboard.process.kill()
        assert not surprises, f"seed {seed}, kill {number}: {surprises[0]!r}"
        watched.check()
        loses(told, store)
    dashboard = start(store.directory, **SETTINGS)
    try:
        _check(dashboard, token, told, store)
    finally:
        dashboard.process.terminate()
        dashboard.process.wait(30)
    watched.check_that_it_goes_on()
    return told


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.timeout(3600)
def test_a_server_killed_a_hundred_times_at_work_loses_nothing_it_has_answered(tmp_path: Path) -> None:
    told = _killed(tmp_path, 100, 17)
    assert told.names
    assert told.sign_ins
    assert told.notes.keys() == {"mine", "other"}


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["runs", "sessions", "uploads", "audit"])
def test_what_a_server_would_lose_is_noticed(lost: str, tmp_path: Path) -> None:
    def lose(told: Told, store: Store) -> None:
        if lost == "runs":
            for run_id in told.runs:
                (store.directory / f"{run_id}.duckdb").unlink(missing_ok=True)
        elif lost == "sessions":
            (store.directory / ".hosting" / "sessions.sqlite").unlink()
        elif lost == "uploads":
            for path in (store.directory / ".uploads").rglob("*"):
                path.is_file() and path.unlink()
        else:
            (store.directory / audit.FOLDER / audit.FILE).write_text("")

    with pytest.raises(AssertionError, match=r"lost|not in the audit log"):
        _killed(tmp_path, 2, 3, lose)
