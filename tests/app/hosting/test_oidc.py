"""Signing in through a provider: who is in the lists with a verified address, and nobody by a forged, late or borrowed
answer.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from starlette.testclient import TestClient

from app.hosting import oidc
from core.runs.store import audit
from tests.app.hosting.provider import CLIENT, SECRET, Provider, running
from tests.app.hosting.serving import client, set_up, sign_in

PUBLIC = "http://localhost:8501"
ADA = {"email": "Ada@Example.org", "email_verified": True}


@pytest.fixture(scope="module")
def shared() -> Iterator[Provider]:
    with running() as provider:
        yield provider


@pytest.fixture
def provider(shared: Provider, monkeypatch) -> Provider:
    shared.claims, shared.faults, shared.asked = dict(ADA), set(), []
    oidc._registered.cache_clear()
    set_up(
        monkeypatch,
        sign_in_oidc_issuer=shared.url,
        sign_in_oidc_client_id=CLIENT,
        sign_in_oidc_client_secret=SECRET,
        sign_in_editors="ada@example.org",
        sign_in_viewers="@example.org",
        hosting_public_url=PUBLIC,
    )
    return shared


def browser() -> TestClient:
    return client(base_url=PUBLIC)


def sent_back(viewer: TestClient, following: str = "/overview?run=x") -> str:
    """To the provider and to the address with which it sends the viewer back."""
    answer = viewer.get("/sign-in/oidc", params={"next": following})
    assert answer.status_code == 302
    back = httpx2.get(answer.headers["location"], follow_redirects=False)
    return back.headers["location"].removeprefix(PUBLIC)


def test_who_is_in_a_list_gets_in_with_its_role_and_back_to_the_link(provider, store):
    viewer = browser()
    page = viewer.get("/sign-in", params={"next": "/overview?run=x"})
    assert 'href="/sign-in/oidc?next=%2Foverview%3Frun%3Dx"' in page.text
    answer = viewer.get(sent_back(viewer))
    assert (answer.status_code, answer.headers["location"]) == (303, "/overview?run=x")
    said = viewer.get("/").json()
    assert (said["name"], said["role"], said["way"]) == ("Ada@Example.org", "editor", "oidc")
    asked = provider.asked[0]
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == f"{PUBLIC}/sign-in/callback"
    assert {"state", "nonce", "code_challenge"} <= asked.keys()
    assert SECRET not in str(asked)
    assert audit.read(store, 9)[-1]["who"] == "Ada@Example.org"


def test_the_lists_are_asked_again_at_every_use(provider, monkeypatch):
    viewer = browser()
    viewer.get(sent_back(viewer))
    assert viewer.get("/").json()["role"] == "editor"
    set_up(monkeypatch, sign_in_editors="grace@example.org")
    assert viewer.get("/").json()["role"] == "viewer"
    set_up(monkeypatch, sign_in_viewers="@example.com")
    assert viewer.get("/").status_code == 401


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"email": "grace@example.org"}, 303),
        ({"email": "eve@example.com"}, 403),
        ({"email": "eve@notexample.org"}, 403),
        ({"email": "eve@evil.com@example.org"}, 403),
        ({"email": None}, 403),
        ({"email_verified": False}, 403),
        ({"email_verified": None}, 403),
        ({"email_verified": "yes"}, 403),
        ({"aud": "another client"}, 400),
        ({"iss": "https://evil.example.org"}, 400),
        ({"nonce": "of another sign-in"}, 400),
        ({"nonce": None}, 400),
        ({"exp": 1_000_000_000}, 400),
        ({"iat": int(time.time()) + 3600}, 400),
        ({"email": ["ada@example.org"]}, 403),
    ],
)
def test_who_is_not_or_not_surely_stays_out(provider, store, claims, status):
    provider.claims |= claims
    viewer = browser()
    assert viewer.get(sent_back(viewer)).status_code == status
    assert viewer.get("/x").status_code == (200 if status == 303 else 401)
    assert (audit.read(store, 9)[-1]["what"] == "sign-in") is (status == 303)


@pytest.mark.parametrize("fault", ["other key", "client's secret", "unsigned", "no token"])
def test_a_token_that_the_provider_did_not_sign_lets_nobody_in(provider, fault):
    provider.faults = {fault}
    viewer = browser()
    assert viewer.get(sent_back(viewer)).status_code == 400
    assert viewer.get("/x").status_code == 401


def test_an_answer_counts_once_in_the_browser_that_asked_and_in_time(provider, monkeypatch):
    viewer, other = browser(), browser()
    back = sent_back(viewer)
    assert other.get(back).status_code == 400  # whoever is sent the link of another's sign-in
    state = parse_qs(urlsplit(back).query)["state"][0]
    assert viewer.get(back.replace(state, state[::-1])).status_code == 400
    viewer = browser()
    back = sent_back(viewer)
    assert viewer.get(back).status_code == 303
    assert viewer.get(back).status_code == 400
    late = browser()
    back = sent_back(late)
    later = int(time.time()) + 700
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: later)
    assert late.get(back).status_code == 400


def test_who_did_not_leave_for_the_provider_from_here_asks_and_writes_nothing(provider, store, monkeypatch):
    viewer, other = browser(), browser()
    back = sent_back(viewer)
    monkeypatch.setattr(oidc, "_provider", lambda *_: pytest.fail("the provider was asked"))
    for query in ("", "?code=x&state=y", back.partition("/callback")[2], "?error=access_denied", "?error=x&state="):
        for _ in range(12):
            assert other.get(f"/sign-in/callback{query}").status_code == 400
    set_up(monkeypatch, sign_in_oidc_issuer="", sign_in_tokens="1")
    assert viewer.get(back).status_code == 400  # on the way while the provider was taken out of the configuration
    assert audit.read(store, 9) == []
    with sqlite3.connect(store / ".hosting" / "sessions.sqlite") as file:
        assert file.execute("SELECT count(*) FROM attempt").fetchone() == (0,)


def test_failures_at_the_provider_are_counted_with_those_here_and_a_success_is_not(provider, store, monkeypatch):
    set_up(monkeypatch, sign_in_attempts="2", sign_in_editor_password="correct horse")
    for _ in range(3):
        viewer = browser()
        assert viewer.get(sent_back(viewer)).status_code == 303
    for status in (400, 400, 429, 429):
        viewer = browser()
        back = sent_back(viewer)
        answer = viewer.get(back.replace("code=", "code=x"))
        assert answer.status_code == status
    assert int(answer.headers["retry-after"]) > 0
    assert sign_in(browser(), "correct horse").status_code == 429
    assert [event["what"] for event in audit.read(store, 9)] == ["sign-in"] * 3 + ["failed sign-in"] * 2


def test_sign_ins_that_succeed_are_counted_with_those_here(provider, store, monkeypatch):
    set_up(monkeypatch, sign_in_sign_ins="2", sign_in_editor_password="correct horse")
    for status in (303, 303, 429):
        viewer = browser()
        answer = viewer.get(sent_back(viewer))
        assert answer.status_code == status
    assert "sign-ins from your address" in answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert sign_in(browser(), "correct horse").status_code == 429
    assert [event["what"] for event in audit.read(store, 9)] == ["sign-in"] * 2


def test_a_disk_that_cannot_be_written_is_said_to_who_comes_back(provider, monkeypatch):
    viewer = browser()
    back = sent_back(viewer)
    monkeypatch.setattr(
        "core.hosting.sessions.Sessions.begin", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("full"))
    )
    answer = viewer.get(back)
    assert (answer.status_code, "disk" in answer.text) == (503, True)


@pytest.mark.parametrize("moved", [-3600, -30, 700])
def test_the_way_to_the_provider_and_back_is_over_whichever_way_the_clock_is_put(provider, moved, monkeypatch):
    viewer = browser()
    back = sent_back(viewer)
    moment = int(time.time()) + moved
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: moment)
    assert viewer.get(back).status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?error=access_denied&error_description=<script>",
        "?code=x&state=y",
        "?" + "a=1&" * 50,
        "?state=" + "x" * 9000,
    ],
)
def test_an_answer_that_is_none_is_a_sentence(provider, query):
    answer = browser().get(f"/sign-in/callback{query}")
    assert answer.status_code == 400
    assert "<script>" not in answer.text


def test_a_provider_that_calls_itself_another_or_does_not_answer_is_a_sentence(provider, monkeypatch):
    provider.faults = {"issuer"}
    assert browser().get("/sign-in/oidc").status_code == 502
    set_up(monkeypatch, sign_in_oidc_issuer="http://127.0.0.1:9")
    assert browser().get("/sign-in/oidc").status_code == 502


def test_the_way_back_leads_nowhere_else(provider):
    viewer = browser()
    assert viewer.get(sent_back(viewer, "//evil.org/")).headers["location"] == "/"
