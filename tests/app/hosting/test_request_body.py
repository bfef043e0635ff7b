"""Bodies on their way in: whoever is not let in any more when the last byte comes has sent nothing, and who sends
nothing more is not waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.hosting import authentication, request_body
from app.hosting.middleware import Gate
from app.routes import ROUTES
from app.shell import store_changes
from app.shell.jobs import Jobs
from core.hosting import tokens
from core.hosting.sessions import Sessions
from core.runs.store import audit
from tests.app.api.test_taking import dump
from tests.app.hosting.serving import EDITOR, PROVEN, SECRET, client, form_of, set_up, sign_in
from tests.app.hosting.test_locked import FOR_EVER, locked
from tests.app.uploads.serving import OFFSET, TUS
from tests.waiting import until_beside

WAYS = ("token", "role", "session of a token", "signed out elsewhere", "password", "header")
PROXY = ("10.0.0.7", 40_000)


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ingests that are lined up and never begin: what is looked at is whether there are any."""
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    monkeypatch.setattr(Jobs, "_run", lambda *_: None)
    store_changes.jobs.clear()
    yield
    store_changes.jobs().stop()
    store_changes.jobs.clear()


def gated(*routes: Route) -> Starlette:
    return Starlette(routes=[*routes, *ROUTES], middleware=[Middleware(Gate)])


def ask(*requests: Callable[[httpx2.AsyncClient], Any], app: Starlette | None = None) -> list[Any]:
    """The answers to requests, one after the other, of an application whose bodies are read as they are made."""

    async def asked() -> list[Any]:
        transport = httpx2.ASGITransport(app or gated(), client=PROXY)
        async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as asking:
            return [await request(asking) for request in requests]

    return asyncio.run(asked())


async def halves(body: bytes, between: Callable[[], object]) -> AsyncIterator[bytes]:
    yield body[: len(body) // 2]
    between()
    yield body[len(body) // 2 :]


def let_in(way: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, str], Callable[[], object]]:
    """The headers of an editor who is let in by `way`, and what ends that."""
    if way == "header":
        named = {"sign_in_header": "X-Forwarded-User", "hosting_trusted_proxies": PROXY[0]}
        named["hosting_proxy_secret"] = SECRET
        set_up(monkeypatch, **named, sign_in_editors="ada@example.org,grace@example.org")
        return {"x-forwarded-user": "ada@example.org", **PROVEN}, lambda: set_up(
            monkeypatch, **named, sign_in_editors="grace@example.org"
        )
    set_up(monkeypatch, sign_in_tokens="1", sign_in_editor_password=EDITOR)
    text, _ = tokens.add(store, "ada", "editor", 1)
    if way in ("token", "role"):
        path = store / ".hosting" / "tokens.json"
        ends = {
            "token": lambda: tokens.revoke(store, "ada"),
            "role": lambda: path.write_text(path.read_text().replace("editor", "viewer")),
        }
        return {"authorization": f"Bearer {text}"}, ends[way]
    browser = client()
    sign_in(browser, text if way == "session of a token" else EDITOR)
    cookie = next(cookie for cookie in browser.cookies.jar if "session" in cookie.name)
    end = {
        "session of a token": lambda: tokens.revoke(store, "ada"),
        "signed out elsewhere": lambda: Sessions(store).end(cookie.value.split(".")[0]),
        "password": lambda: set_up(monkeypatch, sign_in_editor_password="another horse"),
    }
    return {"cookie": f"{cookie.name}={cookie.value}", "origin": "http://testserver"}, end[way]


def stored(store: Path) -> list[str]:
    """What lies in the store beside the log and what signing in needs."""
    return sorted(path.name for path in store.iterdir() if path.name not in (".audit", ".hosting", ".ingests"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ends", [True, False])
def test_who_is_let_in_no_more_at_the_last_byte_has_sent_no_run(way, ends, store, monkeypatch):
    """The twin: who still is has begun one."""
    headers, end = let_in(way, store, monkeypatch)
    body = halves(dump(), end if ends else lambda: None)
    (answer,) = ask(lambda asking: asking.put("/api/runs/x", content=body, headers=headers))
    events = [event for event in audit.read(store, 9) if event["what"] == "refused at its end"]
    if ends:
        assert (answer.status_code, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
        assert "not carried out" in answer.json()["error"]
        assert store_changes.jobs().ingests() == []
        assert stored(store) == []
        assert [(event["method"], event["path"]) for event in events] == [("PUT", "/api/runs/x")]
        assert events[0]["who"] in ("ada", "editor", "ada@example.org")
    else:
        assert answer.status_code == 202, answer.text
        assert [job.title for job in store_changes.jobs().ingests()] == ["x"]
        assert events == []


def test_a_gate_that_does_not_look_at_the_end_would_have_begun_it(store, monkeypatch):
    """The planted fault: what the test above must catch."""
    headers, end = let_in("token", store, monkeypatch)

    async def as_before(at: authentication.Recognition, *_: object, **__: object) -> object:
        return at.identity

    monkeypatch.setattr(authentication, "still", as_before)
    (answer,) = ask(lambda asking: asking.put("/api/runs/x", content=halves(dump(), end), headers=headers))
    assert answer.status_code == 202
    assert store_changes.jobs().ingests() != []


@pytest.mark.parametrize("ends", [True, False])
def test_the_last_bytes_of_an_upload_whose_token_was_revoked_are_not_kept(ends, store, monkeypatch):
    monkeypatch.setattr(request_body, "LOOK_SECONDS", 0.0)
    headers, end = let_in("token", store, monkeypatch)
    body, announced = dump(), TUS | headers | {"upload-length": str(len(dump()))}
    (answer,) = ask(lambda asking: asking.post("/api/uploads", headers=announced))
    sent = halves(body, end if ends else lambda: None)
    piece = TUS | OFFSET | headers | {"upload-offset": "0"}
    (patched,) = ask(lambda asking: asking.patch(answer.headers["location"], content=sent, headers=piece))
    (file,) = (store / ".uploads").glob("*/file/*")
    assert (patched.status_code, file.stat().st_size) == ((401, len(body) // 2) if ends else (204, len(body)))


@pytest.mark.parametrize("ends", [True, False])
def test_a_body_that_goes_on_and_on_ends_soon_after_its_token(ends, store, monkeypatch):
    monkeypatch.setattr(request_body, "LOOK_SECONDS", 0.0)
    headers, end = let_in("token", store, monkeypatch)
    asked_for: list[int] = []

    async def parts() -> AsyncIterator[bytes]:
        for number in range(20):
            if number == 5 and ends:
                end()
            asked_for.append(number)
            yield b"PK\x03\x04" if number == 0 else bytes(1000)

    (answer,) = ask(lambda asking: asking.put("/api/runs/x", content=parts(), headers=headers))
    assert (answer.status_code, len(asked_for)) == ((401, 6) if ends else (202, 20))


def test_while_nobody_can_look_a_body_comes_to_no_end(store, monkeypatch):
    """It is answered 503, to be sent again; the twin below it: while somebody can, it is taken."""
    monkeypatch.setattr("core.hosting.sessions._LOOK_SECONDS", 0.1)
    headers, _ = let_in("password", store, monkeypatch)
    held = locked(store)
    body = halves(dump(), held.__enter__)
    (answer,) = ask(lambda asking: asking.put("/api/runs/x", content=body, headers=headers))
    held.__exit__(None, None, None)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "cannot be looked up" in answer.json()["error"]
    assert store_changes.jobs().ingests() == []
    authentication.forget()
    (answer,) = ask(lambda asking: asking.put("/api/runs/x", content=dump(), headers=headers))
    assert answer.status_code == 202


@pytest.mark.parametrize("ends", [True, False])
def test_an_answer_that_was_long_in_coming_is_for_who_is_let_in_still(ends, store, monkeypatch):
    monkeypatch.setattr(request_body, "LOOK_SECONDS", 0.0)
    headers, end = let_in("token", store, monkeypatch)

    async def slow(_: Request) -> Response:
        if ends:
            end()
        return JSONResponse({"found": "something"})

    (answer,) = ask(lambda asking: asking.get("/api/slow", headers=headers), app=gated(Route("/api/slow", slow)))
    assert (answer.status_code, "found" in answer.json()) == ((401, False) if ends else (200, True))


# Bodies that stall


async def stalls(after: bytes) -> AsyncIterator[bytes]:
    yield after
    await asyncio.Event().wait()


def test_a_body_of_which_nothing_more_comes_is_not_waited_for(store, monkeypatch):
    monkeypatch.setattr(request_body, "IDLE_SECONDS", 0.2)
    headers, _ = let_in("token", store, monkeypatch)
    (answer,) = ask(lambda asking: asking.put("/api/runs/x", content=stalls(dump()[:50]), headers=headers))
    assert answer.status_code == 408
    assert "did not come in time" in answer.json()["error"]
    assert stored(store) == []


def test_a_body_that_comes_slowly_is_waited_for(store, monkeypatch):
    """The twin: it is the pause that is counted, not the whole."""
    monkeypatch.setattr(request_body, "FORM_SECONDS", 0.0)
    headers, _ = let_in("token", store, monkeypatch)
    body = dump()

    async def slowly() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 100):
            began = time.monotonic()
            await until_beside(lambda began=began: time.monotonic() > began)
            yield body[start : start + 100]

    (answer,) = ask(lambda asking: asking.put("/api/runs/x", content=slowly(), headers=headers))
    assert answer.status_code == 202


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize("seconds", [0.2, 60.0])
def test_a_form_that_anybody_may_send_has_so_long_in_all(seconds, monkeypatch):
    """A byte now and then is no way around it. The twin: within that time it is taken."""
    monkeypatch.setattr(request_body, "FORM_SECONDS", seconds)
    browser = client()
    form = f"next=%2F&secret={EDITOR.replace(' ', '+')}&form={form_of(browser.get('/sign-in').text)}".encode()
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar)
    headers = {"cookie": cookies, "content-type": "application/x-www-form-urlencoded", "origin": "http://testserver"}
    is_over: list[bool] = []

    async def dripping() -> AsyncIterator[bytes]:
        for byte in form:
            yield bytes([byte])
        began = time.monotonic()
        while seconds < 1 and time.monotonic() < began + FOR_EVER:
            yield b""
        is_over.append(True)

    (answer,) = ask(lambda asking: asking.post("/sign-in", content=dripping(), headers=headers))
    assert (answer.status_code, is_over) == ((408, []) if seconds < 1 else (303, [True]))
