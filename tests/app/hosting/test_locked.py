"""Sessions that cannot be looked up for a while: nothing else waits for them, and nobody is signed out by that."""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest
from starlette.websockets import WebSocketDisconnect

from app.hosting import authentication, middleware
from app.hosting.authentication import UnseenError
from core.hosting import tokens
from core.hosting.sessions import Sessions
from core.runs.store import audit
from tests.app.hosting.serving import EDITOR, client, gated, say, set_up, sign_in
from tests.app.hosting.test_gate import _websocket_ends, looks_at_sessions
from tests.waiting import until, until_beside

FOR_EVER = 600.0  # seconds; nobody waits so long: what holds them up lets go


@contextmanager
def locked(store: Path) -> Iterator[None]:
    """As by a process that was stopped in the middle of writing."""
    file = sqlite3.connect(store / ".hosting" / "sessions.sqlite", isolation_level=None)
    file.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        file.rollback()
        file.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.hosting.sessions._LOOK_SECONDS", 0.3)
    monkeypatch.setattr(authentication, "_KEPT_SECONDS", 0.0)
    monkeypatch.setattr(middleware, "LOOK_SECONDS", 0.05)


@pytest.mark.usefixtures("passwords", "impatient")
def test_while_nobody_can_look_the_answer_is_503_and_then_as_before(store):
    browser = client()
    sign_in(browser, EDITOR)
    with locked(store):
        for path in ("/", "/api/runs", "/sign-in", "/sign-out"):
            answer = browser.get(path)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
            assert "cannot be looked up" in answer.text
        with pytest.raises(WebSocketDisconnect), browser.websocket_connect("/_stcore/stream"):
            pass
        assert browser.get("/health").status_code == 200
    assert browser.get("/").json()["role"] == "editor"


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize("asks", ["session", "token"])
def test_nothing_else_waits_for_a_look(asks, store, monkeypatch):
    """Of requests at the same time, in one event loop: health and a right token are answered while those that have to
    look still wait.
    """
    monkeypatch.setattr("core.hosting.sessions._LOOK_SECONDS", FOR_EVER)
    monkeypatch.setattr("core.hosting.sessions._WRITE_SECONDS", FOR_EVER)
    set_up(monkeypatch, sign_in_tokens="1")
    right = {"authorization": f"Bearer {tokens.add(store, 'ada', 'editor', 1)[0]}"}
    browser = client()
    sign_in(browser, EDITOR)
    waiting = {"cookie": "; ".join(f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar)}
    if asks == "token":
        waiting = {"authorization": "Bearer ulp_" + "A" * 43}
    authentication.forget()
    begun, opened = [], Sessions._connected
    monkeypatch.setattr(Sessions, "_connected", lambda *asked: begun.append(asked) or opened(*asked))

    async def ask(release: Callable[[], None]) -> list[int]:
        transport = httpx2.ASGITransport(gated())
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as asking:
            slow = [asyncio.ensure_future(asking.get("/api/x", headers=waiting)) for _ in range(3)]
            await until_beside(lambda: len(begun) >= 2)  # all that look at once: two threads count attempts
            assert (await asking.get("/health")).status_code == 200
            assert (await asking.get("/api/x", headers=right)).status_code == 200
            assert not any(each.done() for each in slow)
            release()
            return [(await each).status_code for each in slow]

    with ExitStack() as held:
        held.enter_context(locked(store))
        assert asyncio.run(ask(held.close)) == [200 if asks == "session" else 401] * 3


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize("is_beside", [True, False])
def test_the_messages_of_a_websocket_do_not_wait_for_a_look(is_beside, store, monkeypatch):
    """The twin: where nothing is passed on beside a look, they do, until it is over."""
    looks = threading.Event()
    still = authentication.still

    async def seen(*asked: object) -> object:
        looks.set()
        return await still(*asked)

    monkeypatch.setattr(authentication, "still", seen)
    monkeypatch.setattr("core.hosting.sessions._LOOK_SECONDS", FOR_EVER)
    monkeypatch.setattr(middleware, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(middleware, "AHEAD_SECONDS", FOR_EVER if is_beside else 0.0)
    authentication.forget()
    monkeypatch.setattr(authentication, "_KEPT_SECONDS", 0.0)
    browser = client()
    sign_in(browser, EDITOR)
    told: list[str] = []
    with browser.websocket_connect("/_stcore/stream") as websocket:
        websocket.receive_json()
        receiving = threading.Thread(target=lambda: told.append(websocket.receive_text()), daemon=True)
        with locked(store):
            looks.clear()
            assert looks.wait(60)  # one has begun, and waits
            say(websocket, "a step")
            receiving.start()
            receiving.join(60 if is_beside else 0.3)
            assert told == (["a step"] if is_beside else [])
        receiving.join(60)
        assert told == ["a step"]


@pytest.mark.usefixtures("passwords", "impatient")
def test_a_websocket_goes_on_for_a_while_and_not_for_ever(store, monkeypatch):
    looks = looks_at_sessions(monkeypatch)
    browser = client()
    sign_in(browser, EDITOR)
    with browser.websocket_connect("/_stcore/stream") as websocket:
        websocket.receive_json()
        with locked(store):
            for number in range(3):
                until(lambda number=number: len(looks) > number)
                say(websocket, str(number))
                assert websocket.receive_text() == str(number)
        assert all(isinstance(look, UnseenError) for look in looks)
        until(lambda: not isinstance(looks[-1], UnseenError))
        say(websocket, "after")
        assert websocket.receive_text() == "after"
        monkeypatch.setattr(middleware, "UNSEEN_SECONDS", 0.2)
        with locked(store):
            assert _websocket_ends(websocket)


@pytest.mark.usefixtures("impatient")
def test_an_old_token_of_a_script_keeps_nobody_from_the_password(store, monkeypatch):
    set_up(monkeypatch, sign_in_tokens="1", sign_in_editor_password=EDITOR, sign_in_attempts="3")
    wrong = {"authorization": "Bearer ulp_" + "A" * 43}
    assert [client().get("/api/x", headers=wrong).status_code for _ in range(4)] == [401, 401, 401, 429]
    assert sign_in(client(), EDITOR).status_code == 303
    assert [sign_in(client(), "wrong").status_code for _ in range(4)] == [401, 401, 401, 429]


@pytest.mark.usefixtures("passwords", "impatient")
@pytest.mark.parametrize(("ahead", "status"), [(30, 200), (3600, 401), (365 * 86_400, 401)])
def test_a_cookie_that_a_clock_ahead_signed_is_none_when_the_clock_is_right(ahead, status, monkeypatch):
    """Unless it was ahead as little as the clocks of two machines may be."""
    real, shift = time.time, [ahead]
    monkeypatch.setattr(time, "time", lambda: real() + shift[0])
    browser = client()
    sign_in(browser, EDITOR)
    (cookie,) = [f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar]
    assert client().get("/x", headers={"cookie": cookie}).status_code == 200
    shift[0] = 0
    assert client().get("/x", headers={"cookie": cookie}).status_code == status


@pytest.mark.usefixtures("passwords", "impatient")
def test_shorter_sessions_end_those_that_are_longer(monkeypatch):
    browser = client()
    sign_in(browser, EDITOR)
    (cookie,) = [f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar]
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    assert client().get("/x", headers={"cookie": cookie}).status_code == 200
    set_up(monkeypatch, sign_in_session_hours="1.5")
    assert client().get("/x", headers={"cookie": cookie}).status_code == 401


@pytest.mark.parametrize("is_beside", [True, False])
def test_nothing_waits_for_the_lock_of_the_audit_log(is_beside, store, monkeypatch):
    """A wrong token is written down while another process holds the log. The twin: in the event loop, everybody waits
    with it.
    """
    is_told, is_free = threading.Event(), threading.Event()
    beside = middleware.tell

    async def told(*event: object, **figures: object) -> None:
        is_told.set()
        if is_beside:
            await beside(*event, **figures)
            return
        threading.Timer(0.2, release).start()
        audit.record(*event, **figures)

    def release() -> None:
        is_free.set()
        fcntl.flock(held, fcntl.LOCK_UN)

    monkeypatch.setattr(middleware, "tell", told)
    set_up(monkeypatch, sign_in_tokens="1")
    audit.record(store, "ada", "begins the log")

    async def ask() -> None:
        transport = httpx2.ASGITransport(gated())
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as asking:
            slow = asyncio.ensure_future(asking.get("/api/x", headers={"authorization": "Bearer ulp_" + "A" * 43}))
            await until_beside(is_told.is_set)
            assert (await asking.get("/health")).status_code == 200
            assert is_free.is_set() == (not is_beside)
            release()
            assert (await slow).status_code == 401

    with (store / audit.FOLDER / audit.FILE).open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        asyncio.run(ask())
    assert [event["what"] for event in audit.read(store, 9)] == ["begins the log", "failed sign-in"]
