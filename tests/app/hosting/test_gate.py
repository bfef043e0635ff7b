"""The gate: who gets in by what, who does not, and that nobody tells it who they are."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import pytest
from starlette.websockets import WebSocketDisconnect

from app.hosting import authentication, middleware
from app.hosting.identity import HEADER, LOCAL, Identity, as_header, from_header
from core.hosting import tokens
from core.runs.store import audit
from tests.app.hosting.serving import (
    EDITOR,
    PROVEN,
    SECRET,
    VIEWER,
    client,
    forget,
    form_of,
    gated,
    say,
    set_up,
    sign_in,
)
from tests.waiting import until

HTML = {"accept": "text/html,application/xhtml+xml"}
ASSETS = [
    "/_stcore/health",
    "/_stcore/host-config",
    "/media/x.png",
    "/component/x/y.js",
    "/static/js/index.js",
    "/tiles/x",
    "/files/x.npz",
    "/api/runs",
    "/favicon.png",
]


@pytest.fixture
def ada(store: Path, monkeypatch) -> str:
    """An editor's token."""
    set_up(monkeypatch, sign_in_tokens="1")
    return tokens.add(store, "ada", "editor", 1)[0]


# Without credentials


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize("path", ["/", *ASSETS])
def test_nothing_is_answered_without_a_sign_in(path):
    answer = client().get(path, headers={"accept": "*/*"})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert "headers" not in answer.text
    if path.startswith("/api/"):
        assert set(answer.json()) == {"error"}


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize(
    ("path", "following"),
    [
        ("/overview?run=x&position=3", "/overview?run=x&position=3"),
        ("/flips?variant=decode%2Bbatch%3A8", "/flips?variant=decode%2Bbatch%3A8"),
        ("/files/x.duckdb", "/files/x.duckdb"),
        ("/", "/"),
    ],
)
def test_a_person_is_sent_to_the_sign_in_and_back_to_where_they_wanted_to_go(path, following):
    browser = client()
    answer = browser.get(path, headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/sign-in")
    assert "no-store" in answer.headers["cache-control"]
    page = browser.get(answer.headers["location"])
    fields = {"form": form_of(page.text), "next": following, "secret": EDITOR}
    assert following.replace("&", "&amp;") in page.text
    answer = browser.post("/sign-in", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, following)
    assert browser.get(path, headers=HTML).json()["role"] == "editor"


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize("headers", [{"sec-fetch-mode": "cors", **HTML}, {"accept": "*/*"}])
def test_what_is_no_navigation_gets_a_status(headers):
    assert client().get("/overview", headers=headers).status_code == 401
    assert client().get("/api/runs", headers=HTML).status_code == 401
    assert client().post("/change", headers=HTML).status_code == 401


@pytest.mark.usefixtures("passwords")
def test_a_websocket_is_refused_before_it_is_accepted():
    with pytest.raises(WebSocketDisconnect) as refused, client().websocket_connect("/_stcore/stream"):
        pass
    assert refused.value.code == middleware.ENDED


# Cookies


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize(("secret", "role"), [(EDITOR, "editor"), (VIEWER, "viewer")])
def test_a_password_gives_its_role_to_pages_and_websocket(secret, role):
    browser = client()
    assert sign_in(browser, secret).status_code == 303
    assert browser.get("/").json() | {"headers": 0} == {"name": role, "role": role, "way": "password", "headers": 0}
    with browser.websocket_connect("/_stcore/stream") as websocket:
        said = websocket.receive_json()
    assert said["role"] == role
    assert from_header(dict(said["headers"])[HEADER]) == Identity(role, role, "password")


@pytest.mark.usefixtures("passwords")
def test_the_cookie_is_closed_to_scripts_and_other_sites_and_secure_behind_https(monkeypatch):
    cookie = sign_in(client(), EDITOR).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Max-Age=43200" in cookie
    assert "Secure" not in cookie.split("ulpscope_form")[0]
    set_up(monkeypatch, hosting_public_url="https://testserver")
    cookie = sign_in(client(base_url="https://testserver"), EDITOR).headers["set-cookie"]
    assert cookie.startswith("__Host-ulpscope_session_")
    assert "Secure" in cookie.split("ulpscope_form")[0]


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize("change", ["signature", "time", "session", "nothing signed", "form", "another store's"])
def test_a_cookie_that_was_changed_is_none(change, store, monkeypatch, tmp_path):
    browser = client()
    sign_in(browser, EDITOR)
    name, value = next((cookie.name, cookie.value) for cookie in browser.cookies.jar)
    said, moment, signature = value.split(".")
    if change == "another store's":
        monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "other"))
        other = client()
        sign_in(other, EDITOR)
        value = next(cookie.value for cookie in other.cookies.jar)
        monkeypatch.setenv("ULPSCOPE_STORE", str(store))
    else:
        value = {
            "signature": f"{said}.{moment}.{'0' * 43}",
            "time": f"{said}.{'B' + moment[1:]}.{signature}",
            "session": f"{'A' * 43}.{moment}.{signature}",
            "form": form_of(client().get("/sign-in").text),
            "nothing signed": said,
        }[change]
    for sent, status in ((value, 401), (f"{said}.{moment}.{signature}", 200)):
        assert client().get("/_stcore/health", headers={"cookie": f"{name}={sent}"}).status_code == status


@pytest.mark.usefixtures("passwords")
def test_a_session_ends_when_its_time_is_over(monkeypatch):
    set_up(monkeypatch, sign_in_session_hours="1")
    browser = client()
    sign_in(browser, EDITOR)
    (cookie,) = [f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar]
    moment = time.time() + 3601
    monkeypatch.setattr("app.hosting.authentication.time.time", lambda: moment)
    assert client().get("/", headers={"cookie": cookie}).status_code == 401


# Tokens


def test_a_token_lets_a_program_in_and_a_wrong_one_does_not(ada):
    for text, status in ((ada, 200), (ada[:-1], 401), (ada[:-1] + ("A" if ada[-1] != "A" else "B"), 401), ("", 401)):
        assert client().get("/api/runs", headers={"authorization": f"Bearer {text}"}).status_code == status
    assert client().get("/api/runs", headers={"authorization": f"Basic {ada}"}).status_code == 401
    assert client().get(f"/api/runs?token={ada}").status_code == 401  # never in an address, which is logged
    said = client().get("/api/runs", headers={"authorization": f"bearer {ada}"}).json()
    assert (said["name"], said["role"], said["way"]) == ("ada", "editor", "token")
    with client().websocket_connect("/_stcore/stream", headers={"authorization": f"Bearer {ada}"}) as websocket:
        assert websocket.receive_json()["role"] == "editor"


def test_a_person_signs_in_with_a_token_too(ada):
    browser = client()
    assert sign_in(browser, ada).status_code == 303
    assert browser.get("/").json()["name"] == "ada"


def test_tokens_count_only_where_they_are_switched_on(ada, monkeypatch):
    set_up(monkeypatch, sign_in_tokens="0", sign_in_editor_password=EDITOR)
    assert client().get("/api/runs", headers={"authorization": f"Bearer {ada}"}).status_code == 401
    assert sign_in(client(), ada).status_code == 401


def test_wrong_tokens_are_refused_after_a_while_and_right_ones_never(ada, monkeypatch, store):
    set_up(monkeypatch, sign_in_attempts="3")
    wrong = {"authorization": "Bearer ulp_" + "A" * 43}
    assert [client().get("/api/runs", headers=wrong).status_code for _ in range(5)] == [401, 401, 401, 429, 429]
    assert int(client().get("/api/runs", headers=wrong).headers["retry-after"]) > 0
    assert client().get("/api/runs", headers={"authorization": f"Bearer {ada}"}).status_code == 200
    assert sum(event["what"] == "failed sign-in" for event in audit.read(store, 99)) == 3


# What ends a session


def _websocket_ends(websocket) -> bool:
    """Wait until it is closed: whether that is with the code of an ended session, after the message that sends
    Streamlit's page to the sign-in.
    """

    def closed_with() -> int | None:
        say(websocket, "still there")  # so that one that is not closed answers, and is not waited for
        message = websocket.receive()
        if message["type"] == "websocket.close":
            return message["code"]
        assert message.get("text") == "still there" or b"/sign-in" in message["bytes"]
        return None

    return until(closed_with) == middleware.ENDED


def looks_at_sessions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What every look at a websocket's session has found since, or the error that it ended in."""
    found: list[object] = []
    still = authentication.still

    async def seen(*asked: object) -> object:
        try:
            found.append(await still(*asked))
        except Exception as error:
            found.append(error)
            raise
        return found[-1]

    monkeypatch.setattr(authentication, "still", seen)
    return found


@pytest.mark.parametrize("end", ["sign-out", "another process", "revoked", "password", "way", "secret"])
def test_what_ends_a_session_ends_its_requests_and_its_websocket(end, ada, store, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=EDITOR)
    monkeypatch.setattr(middleware, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr("app.hosting.live_settings._FRESH_SECONDS", 0.0)
    monkeypatch.setattr("app.hosting.authentication._KEPT_SECONDS", 0.0)
    browser = client()
    sign_in(browser, ada if end in ("revoked", "way") else EDITOR)
    with browser.websocket_connect("/_stcore/stream") as websocket:
        websocket.receive_json()
        say(websocket, "still there")
        assert websocket.receive_text() == "still there"
        if end == "sign-out":
            assert browser.get("/sign-out", headers={"sec-fetch-site": "same-origin"}).status_code == 200
        elif end == "another process":
            from core.hosting.sessions import Sessions

            Sessions(store).end(next(cookie.value for cookie in browser.cookies.jar).split(".")[0])
        elif end == "revoked":
            tokens.revoke(store, "ada")
        elif end == "password":
            set_up(monkeypatch, sign_in_editor_password="another horse")
        elif end == "way":
            set_up(monkeypatch, sign_in_tokens="0")
        else:
            (store / ".hosting" / "sessions.sqlite").unlink()
        assert _websocket_ends(websocket)
    assert browser.get("/_stcore/health").status_code == 401


def test_a_websocket_of_a_session_that_stands_goes_on(ada, monkeypatch):
    """The twin: the looks themselves end nothing."""
    monkeypatch.setattr(middleware, "LOOK_SECONDS", 0.02)
    looks = looks_at_sessions(monkeypatch)
    browser = client()
    sign_in(browser, ada)
    with browser.websocket_connect("/_stcore/stream") as websocket:
        websocket.receive_json()
        for number in range(10):
            until(lambda number=number: len(looks) > number)
            say(websocket, str(number))
            assert websocket.receive_text() == str(number)


def test_a_token_of_another_role_is_another_session(ada, store, monkeypatch):
    """Somebody takes a right away by making the token anew: the open page is not left with the old role."""
    monkeypatch.setattr(middleware, "LOOK_SECONDS", 0.05)
    with client().websocket_connect("/_stcore/stream", headers={"authorization": f"Bearer {ada}"}) as websocket:
        websocket.receive_json()
        path = store / ".hosting" / "tokens.json"
        path.write_text(path.read_text().replace("editor", "viewer"))
        assert _websocket_ends(websocket)


# A proxy's header


@pytest.fixture
def proxied(monkeypatch) -> None:
    set_up(
        monkeypatch,
        sign_in_header="X-Forwarded-User",
        sign_in_editors="ada@example.org",
        sign_in_viewers="@example.org",
        hosting_trusted_proxies="10.0.0.0/24",
        hosting_proxy_secret=SECRET,
    )


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize(
    ("peer", "headers", "role"),
    [
        (("10.0.0.7", 40000), {"X-Forwarded-User": "ada@example.org"}, "editor"),
        (("10.0.0.7", 40000), {"X-Forwarded-User": "grace@example.org"}, "viewer"),
        (("10.0.0.7", 40000), {"X-Forwarded-User": "eve@example.com"}, None),
        (("10.0.0.7", 40000), {"X-Forwarded-User": ""}, None),
        (("10.0.0.7", 40000), {"X_Forwarded_User": "ada@example.org"}, None),
        (("10.0.0.7", 40000), {}, None),
        (("10.0.1.7", 40000), {"X-Forwarded-User": "ada@example.org"}, None),
        (("127.0.0.1", 40000), {"X-Forwarded-User": "ada@example.org"}, None),
        (("::ffff:10.0.0.7", 40000), {"X-Forwarded-User": "ada@example.org"}, "editor"),
        # uvicorn writes what a loopback peer says over the peer's address; a port of 0 gives that away, a named port is
        # ambiguous
        (("10.0.0.7", 0), {"X-Forwarded-User": "ada@example.org", "X-Forwarded-For": "10.0.0.7"}, None),
        (("10.0.0.7", 443), {"X-Forwarded-User": "ada@example.org", "X-Forwarded-For": "10.0.0.7:443"}, None),
        (
            ("10.0.0.7", 40000),
            {"X-Forwarded-User": "ada@example.org", "X-Forwarded-For": "198.51.100.1, 10.0.0.9"},
            "editor",
        ),
        (None, {"X-Forwarded-User": "ada@example.org"}, None),
    ],
)
def test_a_header_counts_from_trusted_proxies_alone(peer, headers, role):
    answer = client(client=peer).get("/api/x", headers=headers | PROVEN)
    assert answer.status_code == (200 if role else 401)
    if role:
        assert answer.json()["role"] == role


@pytest.mark.usefixtures("proxied")
def test_a_name_that_comes_twice_counts_not_at_all():
    headers = [("X-Forwarded-User", "eve@example.com"), ("X-Forwarded-User", "ada@example.org")]
    for both in (headers, headers[::-1]):
        assert client(client=("10.0.0.7", 4)).get("/api/x", headers=[*both, *PROVEN.items()]).status_code == 401
    assert client(client=("10.0.0.7", 4)).get("/api/x", headers=[headers[1], *PROVEN.items()]).status_code == 200


def test_the_proxys_header_is_removed_from_everybody_else(proxied, ada):
    headers = {"authorization": f"Bearer {ada}", "X-Forwarded-User": "eve", "x_forwarded_user": "eve"}
    assert not [
        name
        for name in client().get("/api/x", headers=headers).json()["headers"]
        if "user" in name.replace("user-agent", "")
    ]


@pytest.mark.usefixtures("proxied")
def test_without_its_proxy_the_server_says_so():
    answer = client().get("/sign-in")
    assert answer.status_code == 403
    assert "proxy" in answer.text
    assert "<form" not in answer.text


# Our own header


@pytest.mark.parametrize("name", [HEADER, HEADER.upper(), HEADER.replace("-", "_"), "X-Ulpscope-Anything"])
@pytest.mark.parametrize("mode", ["local", "hosted"])
def test_an_identity_that_comes_from_outside_is_removed(name, mode, ada, monkeypatch):
    forged = as_header(Identity("eve", "editor", "token")).decode()
    if mode == "local":
        set_up(monkeypatch, sign_in_tokens="0")
    headers = {name: forged} | ({} if mode == "local" else {"authorization": f"Bearer {ada}"})
    said = client().get("/x", headers=headers).json()
    assert said["name"] == ("local" if mode == "local" else "ada")
    assert forged not in json.dumps(said["headers"])
    assert client().get("/api/x", headers={name: forged}).status_code == (200 if mode == "local" else 401)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "e30=",
        base64.b64encode(b'{"name": 1, "role": "editor", "way": ""}').decode(),
        base64.b64encode(b'{"name": "a", "role": "root", "way": ""}').decode(),
        "é",
    ],
)
def test_a_header_that_is_no_identity_is_none(text):
    assert from_header(text) is None


def test_any_name_survives_the_header():
    who = Identity("ädä 🦉\n", "viewer", "oidc")
    assert from_header(as_header(who).decode("ascii")) == who


# Without a sign-in


@pytest.mark.parametrize(
    "base", ["http://127.0.0.1:8501", "http://localhost:8501", "http://[::1]:8501", "http://ulpscope.localhost"]
)
def test_without_a_sign_in_this_machine_is_let_in_as_an_editor(base):
    said = client(base_url=base).get("/").json()
    assert (said["name"], said["role"]) == (LOCAL.name, "editor")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org",
        "127.0.0.1.example.org",
        "localhost.example.org",
        "10.0.0.5:8501",
        "",
        "localhost@evil.org",
        "[::1",
    ],
)
def test_without_a_sign_in_another_name_for_this_machine_is_refused(host):
    """A page of anybody's may let its own name point to 127.0.0.1 (DNS rebinding); the browser then takes us for its
    origin.
    """
    local = client(base_url="http://127.0.0.1:8501")
    assert local.get("/", headers={"host": host}).status_code == (403 if host else 200)
    with pytest.raises(WebSocketDisconnect), local.websocket_connect("/_stcore/stream", headers={"host": host or "x"}):
        pass


def test_without_a_sign_in_nothing_that_comes_in_from_elsewhere_is_answered():
    """uvicorn was started by hand with another address: the connection itself tells."""

    class From:
        def __init__(self, server):
            self._app, self._server = gated(), server

        async def __call__(self, scope, receive, send):
            await self._app(scope if scope["type"] == "lifespan" else {**scope, "server": self._server}, receive, send)

    for server, status in (
        (("10.0.0.5", 8501), 403),
        (("::", 8501), 403),
        (("127.0.0.1", 8501), 200),
        (("/run/x.sock", None), 200),
    ):
        assert client(From(server), base_url="http://localhost").get("/").status_code == status


# Other sites


@pytest.mark.parametrize("mode", ["local", "hosted"])
@pytest.mark.parametrize(
    ("headers", "is_ours"),
    [
        ({}, True),
        ({"origin": "http://testserver"}, True),
        ({"origin": "http://testserver", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://testserver:81"}, False),
        ({"origin": "http://evil.org"}, False),
        ({"origin": "http://testserver.evil.org"}, False),
        ({"origin": "null"}, False),
        ({"origin": "", "sec-fetch-site": "none"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"origin": "http://testserver", "sec-fetch-site": "cross-site"}, False),
    ],
)
def test_a_page_of_another_site_changes_nothing_and_opens_no_websocket(mode, headers, is_ours, monkeypatch):
    browser = client()
    if mode == "hosted":
        set_up(monkeypatch, sign_in_editor_password=EDITOR)
        sign_in(browser, EDITOR)
    for method in ("PUT", "POST", "DELETE"):
        assert browser.request(method, "/api/change", headers=headers).status_code == (200 if is_ours else 403)
    if is_ours:
        with browser.websocket_connect("/_stcore/stream", headers=headers) as websocket:
            assert websocket.receive_json()["role"] == "editor"
    else:
        with pytest.raises(WebSocketDisconnect), browser.websocket_connect("/_stcore/stream", headers=headers):
            pass
    assert browser.get("/", headers=headers).status_code == 200  # to read across sites the browser refuses by itself


@pytest.mark.usefixtures("passwords")
def test_behind_a_proxy_the_public_address_is_ours(monkeypatch):
    set_up(monkeypatch, hosting_public_url="https://ulpscope.example.org")
    browser = client(base_url="https://testserver")
    assert sign_in(browser, EDITOR, origin="https://ulpscope.example.org").status_code == 303
    for origin, status in (
        ("https://ulpscope.example.org", 200),
        ("http://ulpscope.example.org", 403),
        ("https://example.org", 403),
    ):
        assert browser.put("/api/change", headers={"origin": origin}).status_code == status


# Roles


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize(("secret", "status"), [(EDITOR, 200), (VIEWER, 403)])
def test_a_viewer_changes_nothing_whatever_the_route_forgets_to_ask(secret, status):
    browser = client()
    sign_in(browser, secret)
    for method in ("PUT", "POST", "DELETE"):
        answer = browser.request(method, "/api/change")
        assert answer.status_code == status
        assert status == 200 or "viewer" in answer.json()["error"]
    assert browser.put("/_stcore/upload_file/a/b").status_code == (405 if status == 200 else 403)
    assert browser.get("/").status_code == 200


# Headers


@pytest.mark.parametrize("mode", ["local", "hosted"])
def test_headers_that_are_too_large_are_refused(mode, monkeypatch):
    if mode == "hosted":
        set_up(monkeypatch, sign_in_editor_password=EDITOR)
    for headers in (
        {"x-large": "x" * 40_000},
        {f"x-{number}": "x" * 100 for number in range(400)},
        {"cookie": "a=" + "b" * 40_000},
    ):
        assert client().get("/", headers=headers).status_code == 431
        with pytest.raises(WebSocketDisconnect), client().websocket_connect("/_stcore/stream", headers=headers):
            pass
    assert client().get("/health" if mode == "hosted" else "/", headers={"x-fine": "x" * 20_000}).status_code == 200


def test_every_answer_tells_the_browser_what_a_page_may_do(ada, monkeypatch):
    for headers in ({}, {"authorization": f"Bearer {ada}"}):
        answer = client().get("/x", headers=headers)
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'self'" in policy
        assert "object-src 'none'" in policy
        assert "http" not in policy.replace(
            "https://spaces.example.org", ""
        )  # no other host is ever asked for anything
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "Cookie" in answer.headers["vary"]
        assert "private" in answer.headers["cache-control"] or "no-store" in answer.headers["cache-control"]
    set_up(monkeypatch, hosting_frame_ancestors="https://spaces.example.org")
    assert "frame-ancestors 'self' https://spaces.example.org" in client().get("/x").headers["content-security-policy"]


# The configuration


def test_a_configuration_that_is_being_written_leaves_the_one_before(passwords, monkeypatch, tmp_path):
    assert client().get("/").status_code == 401
    path = tmp_path / "ulpscope.toml"
    path.write_text("[sign_in\n")
    monkeypatch.setenv("ULPSCOPE_CONFIG", str(path))
    from app.hosting import live_settings

    live_settings._LastRead.until = 0.0
    assert client().get("/").status_code == 401
    forget()  # one that never could be read lets nobody in
    assert client().get("/").status_code == 503
    with pytest.raises(WebSocketDisconnect), client().websocket_connect("/_stcore/stream"):
        pass
