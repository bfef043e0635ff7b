"""Who gets in by which sign-in, what ends a session, and what members find behind the gate."""

import asyncio
import time
from threading import Event

import httpx2
import pytest

from core.hosting import credentials, tokens
from tests.app.hosting.serving import PASSWORD, SECRET, URL, browser, sign_in

PROXY = {"header": "X-Forwarded-User", "members": ("@example.org",)}
PROVEN = {"X-ULPscope-Proxy-Secret": SECRET}


def member(client, **headers):
    """The member that the server takes a client for, None if it has none."""
    answer = client.get("/x", headers=headers)
    assert answer.status_code in (200, 401), answer.text
    return answer.json()["member"] if answer.status_code == 200 else None


def opens_websocket(client, **headers):
    try:
        with client.websocket_connect(
            str(client.base_url).replace("http", "ws", 1) + "/_stcore/stream",
            headers=headers,
        ) as websocket:
            return websocket.receive_text() == "hello"
    except Exception:
        return False


@pytest.mark.parametrize(
    "configured",
    [PASSWORD, credentials.hash_password(PASSWORD)],
    ids=["plain", "hashed"],
)
def test_a_password_signs_in_and_out(configured):
    client = browser(password=configured)
    assert member(client) is None
    assert not opens_websocket(client)
    for secret in ("", "wrong password", "ulp_" + "A" * 43, "x" * 2000):
        refused = sign_in(client, secret)
        assert refused.status_code == 401
        assert "set-cookie" not in refused.headers
    entered = sign_in(client, PASSWORD, "/flips?run=a&position=3")
    assert entered.status_code == 303
    assert entered.headers["location"] == "/flips?run=a&position=3"
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert member(client) == "member"
    assert opens_websocket(client)
    assert client.get("/sign-in").headers["location"] == "/"
    assert client.get("/sign-out").status_code == 200  # asks first
    assert member(client) == "member"
    assert client.post("/sign-out").status_code == 200
    assert member(client) is None
    assert not opens_websocket(client)


def test_a_person_is_sent_to_the_sign_in_and_back_and_a_program_gets_401():
    client = browser(password=PASSWORD)
    sent = client.get("/flips?run=a&x=%20", headers={"accept": "text/html"})
    assert sent.status_code == 303
    # the query is quoted once more, as a value of another query
    assert sent.headers["location"] == "/sign-in?next=%2Fflips%3Frun%3Da%26x%3D%2520"
    assert 'value="/flips?run=a&amp;x=%20"' in client.get(sent.headers["location"]).text
    assert client.get("/api/runs").json()["error"].startswith("Sign in first")


def test_the_cookie_is_secure_behind_https():
    entered = sign_in(
        browser("https://ulpscope.example.org", password=PASSWORD, public_url="https://h"),
        PASSWORD,
    )
    assert "; secure" in entered.headers["set-cookie"].lower()


def test_a_token_signs_in_programs_and_people_until_it_is_revoked(store):
    token = tokens.add(store, "ada")
    client = browser(tokens=True)
    program = browser(tokens=True)
    bearer = {"authorization": f"Bearer {token}"}
    assert sign_in(client, token).status_code == 303
    assert member(client) == "ada"
    assert member(program, **bearer) == "ada"
    assert opens_websocket(client)
    tokens.revoke(store, "ada")
    assert member(client) is None
    assert member(program, **bearer) is None
    assert not opens_websocket(client)
    tokens.add(store, "ada")  # another one under the same name revives no session
    assert member(client) is None


def test_a_changed_password_ends_sessions_and_a_cookie_of_another_store_is_none(
    tmp_path,
    monkeypatch,
):
    client = browser(password=PASSWORD)
    sign_in(client, PASSWORD)
    same = browser(password=PASSWORD)
    changed = browser(password="another horse")
    for other in (same, changed):
        other.cookies.update(client.cookies)
    assert member(same) == "member"
    assert member(changed) is None
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "other"))
    other = browser(password=PASSWORD)
    ((name, value),) = client.cookies.items()
    other.cookies.set(
        sign_in(browser(password=PASSWORD), PASSWORD).headers["set-cookie"].partition("=")[0],
        value,
    )
    assert member(other) is None
    client.cookies.clear()
    # a cookie ends in its signature
    client.cookies.set(name, value[:-3] + "AAA")
    assert member(client) is None


def test_a_session_expires(monkeypatch):
    client = browser(password=PASSWORD, session_hours=1)
    sign_in(client, PASSWORD)
    # the patch replaces time.time for everybody, so the moment is taken first
    moment = time.time()
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: moment + 3590)
    assert member(client) == "member"
    monkeypatch.setattr("itsdangerous.timed.time.time", lambda: moment + 3610)
    assert member(client) is None


@pytest.mark.parametrize(
    ("headers", "who"),
    [
        ({"X-Forwarded-User": "ada@example.org", **PROVEN}, "ada@example.org"),
        (
            {
                "X-Forwarded-User": "ada@example.org",
                "Authorization": "Bearer of-the-proxy",
                **PROVEN,
            },
            "ada@example.org",
        ),
        ({"X-Forwarded-User": "eve@example.com", **PROVEN}, None),
        ({"X-Forwarded-User": "ada@example.org"}, None),
        (
            {
                "X-Forwarded-User": "ada@example.org",
                "X-ULPscope-Proxy-Secret": "guessed-secret-of-proxy",
            },
            None,
        ),
        # some servers read underscores in header names as dashes
        ({"X_Forwarded_User": "ada@example.org", **PROVEN}, None),
        (PROVEN, None),
    ],
)
def test_a_proxys_header_counts_with_its_secret_and_for_members(headers, who):
    assert member(browser(**PROXY), **headers) == who


def test_a_header_that_comes_twice_is_nobodys():
    twice = [
        ("X-Forwarded-User", "ada@example.org"),
        ("X-Forwarded-User", "eve@example.org"),
        *PROVEN.items(),
    ]
    assert browser(**PROXY).get("/x", headers=twice).status_code == 401


def test_no_secret_and_no_forged_name_is_passed_on():
    sent = {"X-Forwarded-User": "ada@example.org", "X-ULPscope-Member": "eve", **PROVEN}
    headers = browser(**PROXY).get("/x", headers=sent).json()["headers"]
    assert headers["x-ulpscope-member"] == "ada%40example.org"
    assert not {"x-forwarded-user", "x-ulpscope-proxy-secret"} & set(headers)


def test_a_read_only_server_changes_nothing(store):
    client = browser(password=PASSWORD, read_only=True)
    sign_in(client, PASSWORD)
    for method, status in {
        "GET": 200,
        "POST": 403,
        "PUT": 403,
        "PATCH": 403,
        "DELETE": 403,
    }.items():
        assert client.request(method, "/api/runs/x").status_code == status
    assert browser("http://127.0.0.1:8501", read_only=True).delete("/api/runs/x").status_code == 403


def test_on_loopback_nobody_is_asked():
    for url in ("http://127.0.0.1:8501", "http://localhost:8501", "http://[::1]:8501"):
        client = browser(url)
        assert member(client) == "local"
        assert opens_websocket(client)


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "/\t/evil.example",
        "evil",
        "/sign-out",
        "",
    ],
)
def test_the_sign_in_leads_nowhere_else(target):
    assert sign_in(browser(password=PASSWORD), PASSWORD, target).headers["location"] == "/"


@pytest.mark.parametrize("damage", ["text", "folder"])
def test_an_unreadable_list_of_tokens_is_503_for_a_token_and_the_password_still_signs_in(
    damage,
    store,
    caplog,
):
    client = browser(tokens=True, password=PASSWORD)
    path = store / tokens.FOLDER / "tokens.json"
    path.mkdir() if damage == "folder" else path.write_text("{")
    for answer in (
        client.get("/api/runs", headers={"Authorization": f"Bearer {tokens.PREFIX}x"}),
        client.get("/", headers={"Authorization": f"Bearer {tokens.PREFIX}x"}),
        sign_in(client, f"{tokens.PREFIX}x"),
    ):
        assert answer.status_code == 503
        assert "list of tokens" in answer.text
        assert str(store) not in answer.text
    assert str(path) in caplog.text
    assert sign_in(client, PASSWORD).status_code == 303


def test_wrong_guesses_of_one_address_delay_no_other(monkeypatch):
    """While a guess is checked, more of its address are refused at once; others wait for that one
    alone.
    """
    may_go_on = Event()
    checked = []

    def is_password(configured, typed):
        may_go_on.wait(30)
        checked.append(typed)
        return configured == typed

    monkeypatch.setattr(credentials, "is_password", is_password)
    app = browser(password=PASSWORD).app

    async def attempt(address, secret):
        transport = httpx2.ASGITransport(app, client=(address, 1))
        async with httpx2.AsyncClient(transport=transport, base_url=URL) as client:
            return (await client.post("/sign-in", data={"secret": secret})).status_code

    async def attack():
        guesses = [
            asyncio.create_task(attempt("192.0.2.1", f"wrong {number}")) for number in range(60)
        ]
        await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
        right = asyncio.create_task(attempt("192.0.2.2", PASSWORD))
        many = [
            asyncio.create_task(attempt(f"198.51.100.{number}", "wrong")) for number in range(20)
        ]
        await asyncio.wait(many, return_when=asyncio.FIRST_COMPLETED)
        may_go_on.set()
        return await asyncio.gather(*guesses), await right, await asyncio.gather(*many)

    guesses, right, many = asyncio.run(attack())
    assert sorted(guesses) == [401] + 59 * [429]
    assert right == 303
    assert checked[:2] == ["wrong 0", PASSWORD]
    assert sorted(many) == 6 * [401] + 14 * [429]  # eight in all wait
