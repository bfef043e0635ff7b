"""The sign-in page: forged forms, open redirects, guessing, and what is written down of it."""

from __future__ import annotations

import concurrent.futures
import hashlib
import re
import sqlite3
import time
from urllib.parse import urlsplit

import pytest

from app.hosting import authentication, redirects, sign_in_page
from core.hosting import passwords, tokens
from core.runs.store import audit
from tests.app.hosting.serving import EDITOR, VIEWER, client, form_of, set_up, sign_in

ELSEWHERE = [
    "https://evil.org",
    "//evil.org",
    "///evil.org",
    "/\\evil.org",
    "\\\\evil.org",
    "/\t/evil.org",
    "/\n/evil.org",
    "/\r\nSet-Cookie: a=b",
    "javascript:alert(1)",
    "data:text/html,x",
    "evil.org",
    "",
    "?x",
    "/sign-in",
    "/sign-in?next=/x",
    "/sign-in/oidc",
    "/sign-out",
    "/\u2028/x",
    "/" + "x" * 5000,
    "http:evil.org",
    "/\x00",
]
HERE = [
    "/",
    "/overview?run=x&variant=decode%2Bbatch%3A8&position=3",
    "/files/x.npz",
    "/a//b",
    "/x?next=https://evil.org",
    "/signs?a=b",
    "/ü",
]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_no_address_leads_anywhere_else(address, passwords):
    assert redirects.safe(address) == "/"
    browser = client()
    answer = sign_in(browser, EDITOR, address)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    answer = browser.get("/sign-in", params={"next": address})  # who is signed in already goes on at once
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize("address", HERE)
def test_an_address_of_this_server_is_kept(address):
    parts = urlsplit(redirects.safe(address))
    assert not parts.netloc
    assert not parts.scheme
    assert redirects.safe(address).isascii()
    assert redirects.safe(address) == address.replace("ü", "%C3%BC")


@pytest.mark.usefixtures("passwords")
def test_a_session_that_ended_leads_back_to_the_page_the_browser_names_as_the_last():
    for referer, expected in (
        ("http://testserver/flips?run=x", 'value="/flips?run=x"'),
        ("http://evil.org/flips?run=x", 'value="/"'),
        ("http://testserver//evil.org", 'value="/"'),
        ("http://testserver/sign-out", 'value="/"'),
    ):
        assert f'name="next" {expected}' in client().get("/sign-in", headers={"referer": referer}).text


# Forged forms


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize(
    "forgery",
    ["none", "no token", "own token", "no cookie", "other origin", "cross-site", "same-site", "json", "get", "twice"],
)
def test_a_form_of_another_site_signs_nobody_in(forgery):
    browser, other = client(), client()
    token = form_of(browser.get("/sign-in").text)
    fields = {"form": token, "secret": EDITOR, "next": "/"}
    headers = {}
    if forgery == "no token":
        del fields["form"]
    elif forgery == "own token":  # the attacker's own form, in the victim's browser
        fields["form"] = form_of(other.get("/sign-in").text)
    elif forgery == "no cookie":
        browser.cookies.clear()
    elif forgery == "other origin":
        headers = {"origin": "http://evil.org"}
    elif forgery in ("cross-site", "same-site"):
        headers = {"sec-fetch-site": forgery}
    if forgery == "json":
        answer = browser.post("/sign-in", json=fields)
    elif forgery == "get":
        answer = browser.get("/sign-in", params=fields)
    elif forgery == "twice":
        answer = browser.post(
            "/sign-in",
            content=f"form={token}&form={token}&secret={EDITOR}&secret=x".encode(),
            headers={"content-type": "application/x-www-form-urlencoded"},
        )
    else:
        answer = browser.post("/sign-in", data=fields, headers=headers)
    assert (answer.status_code == 303) is (forgery == "none")
    assert (browser.get("/_stcore/health").status_code == 200) is (forgery == "none")


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize(("seconds", "status"), [(3500, 303), (3700, 403)])
def test_a_form_counts_for_an_hour(seconds, status, monkeypatch):
    browser = client()
    form = {"form": form_of(browser.get("/sign-in").text), "next": "/", "secret": EDITOR}
    (kept,) = [f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar]  # whatever the browser thinks of it
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)
    assert client().post("/sign-in", data=form, headers={"cookie": kept}).status_code == status


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize(
    "body",
    [b"secret=" + b"x" * 20_000, b"&".join(b"a%d=1" % n for n in range(100)), b"\xff\xfe", b"secret=%ff%fe", b""],
)
def test_a_form_that_is_none_of_ours_is_refused(body):
    browser = client()
    browser.get("/sign-in")
    answer = browser.post("/sign-in", content=body, headers={"content-type": "application/x-www-form-urlencoded"})
    assert answer.status_code in (400, 403)


# Guessing


@pytest.mark.usefixtures("passwords")
def test_guessing_is_stopped_and_even_the_right_one_is_refused_then(store, monkeypatch):
    set_up(monkeypatch, sign_in_attempts="3", sign_in_attempt_minutes="10")
    browser = client()
    assert [sign_in(browser, guess).status_code for guess in ("a", "b", "c", "d")] == [401, 401, 401, 429]
    answer = sign_in(browser, EDITOR)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["retry-after"]) <= 600
    assert "10 minutes" in answer.text
    assert sign_in(client(client=("198.51.100.9", 1)), EDITOR).status_code == 303  # another address
    with sqlite3.connect(store / ".hosting" / "sessions.sqlite") as file:
        file.execute("UPDATE attempt SET moment = moment - 601")
    assert sign_in(browser, EDITOR).status_code == 303


@pytest.mark.usefixtures("passwords")
def test_guesses_at_the_same_time_are_counted_too(monkeypatch):
    set_up(monkeypatch, sign_in_attempts="3")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda guess: sign_in(client(), guess).status_code, "abcdefgh"))
    assert sorted(found) == [401] * 3 + [429] * 5


@pytest.mark.usefixtures("passwords")
def test_right_passwords_are_counted_too(store, monkeypatch):
    """A flood of them fills neither the sessions nor the log, and asks for no more looks at a password than wrong ones
    do. The twin: from another address, and with less of them, there is no limit to be met.
    """
    set_up(monkeypatch, sign_in_sign_ins="4", sign_in_attempts="3")
    looked: list[object] = []
    real = authentication.with_secret
    monkeypatch.setattr(authentication, "with_secret", lambda *asked: looked.append(asked) or real(*asked))
    answers = [sign_in(client(), EDITOR) for _ in range(10)]
    assert [answer.status_code for answer in answers] == [303] * 4 + [429] * 6
    assert "sign-ins from your address" in answers[4].text
    assert 0 < int(answers[4].headers["retry-after"]) <= 600
    assert len(looked) == 7
    assert [event["what"] for event in audit.read(store, 99)] == ["sign-in"] * 4
    with sqlite3.connect(store / ".hosting" / "sessions.sqlite") as file:
        assert file.execute("SELECT count(*) FROM session").fetchone() == (4,)
    assert sign_in(client(client=("198.51.100.9", 1)), EDITOR).status_code == 303


@pytest.mark.usefixtures("passwords")
def test_a_credential_that_is_used_from_many_addresses_leaves_the_others_alone(monkeypatch):
    set_up(monkeypatch, sign_in_sign_ins="2")
    from_many = [sign_in(client(client=(f"198.51.100.{n}", 1)), VIEWER).status_code for n in range(12)]
    assert from_many == [303] * 10 + [429] * 2
    assert sign_in(client(client=("198.51.100.99", 1)), EDITOR).status_code == 303


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize(("trusted", "is_let"), [("", False), ("10.0.0.1", True)])
def test_the_address_of_the_client_is_taken_from_trusted_proxies_alone(monkeypatch, trusted, is_let):
    """Else whoever guesses would be somebody new with every try; and behind a proxy all would be one."""
    set_up(monkeypatch, sign_in_attempts="1", hosting_trusted_proxies=trusted)
    proxied = client(client=("10.0.0.1", 4))
    assert sign_in(proxied, "wrong", **{"x-forwarded-for": "198.51.100.1"}).status_code == 401
    assert sign_in(proxied, EDITOR, **{"x-forwarded-for": "198.51.100.2"}).status_code == (303 if is_let else 429)
    # what the client itself wrote stands further left, and changes nothing
    proxied = client(client=("10.0.0.1", 4))
    assert sign_in(proxied, EDITOR, **{"x-forwarded-for": "203.0.113.9, 198.51.100.1"}).status_code == 429


def test_no_secret_is_written_anywhere(store, monkeypatch, caplog, capfd):
    set_up(
        monkeypatch,
        sign_in_editor_password=EDITOR,
        sign_in_viewer_password=passwords.hashed(VIEWER),
        sign_in_tokens="1",
    )
    token, _ = tokens.add(store, "ada", "editor", 1)
    secrets = [EDITOR, VIEWER, token, "a wrong one", "ulp_" + "B" * 43]
    for secret in list(secrets):
        browser = client()
        answer = sign_in(browser, secret)
        assert secret not in str(answer.headers) + answer.text
        browser.get("/x", headers={"authorization": f"Bearer {secret}"})
        secrets += [cookie.value.split(".")[0] for cookie in browser.cookies.jar if "session" in cookie.name]
    assert len(secrets) == 8
    browser.get("/sign-out", headers={"sec-fetch-site": "same-origin"})
    written = b"".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
    said = written.decode("latin-1") + caplog.text + "".join(capfd.readouterr())
    assert not [secret for secret in secrets if secret in said]
    assert "failed sign-in" in said  # the twin: what is written is looked at


@pytest.mark.usefixtures("passwords")
def test_who_came_and_went_is_recorded(store):
    browser = client()
    sign_in(browser, "wrong")
    sign_in(browser, VIEWER)
    browser.get("/sign-out", headers={"sec-fetch-site": "same-origin"})
    found = audit.read(store, 9)
    assert [(event["who"], event["what"]) for event in found] == [
        ("nobody", "failed sign-in"),
        ("viewer", "sign-in"),
        ("viewer", "sign-out"),
    ]
    assert found[0]["address"] == "testclient"


def test_a_hashed_password_works_and_a_disk_that_cannot_be_written_is_said(store, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=passwords.hashed(EDITOR))
    browser = client()
    assert sign_in(browser, EDITOR).status_code == 303
    monkeypatch.setattr(
        "core.hosting.sessions.Sessions.attempt", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("full"))
    )
    answer = sign_in(client(), EDITOR)
    assert answer.status_code == 503
    assert "disk" in answer.text
    assert browser.get("/x").status_code == 200  # who is in stays in


# Signing out


@pytest.mark.usefixtures("passwords")
@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", None])
def test_another_site_signs_nobody_out(site):
    browser = client()
    sign_in(browser, EDITOR)
    headers = {"sec-fetch-site": site} if site else {}
    answer = browser.get("/sign-out", headers=headers)
    assert "Sign out?" in answer.text
    assert browser.post("/sign-out", data={"form": "x"}, headers={"origin": "http://testserver"}).status_code == 403
    assert browser.get("/x").status_code == 200
    assert browser.post("/sign-out", data={"form": form_of(answer.text)}).status_code == 200
    assert browser.get("/x").status_code == 401


@pytest.mark.usefixtures("passwords")
def test_a_link_that_is_fetched_ahead_signs_nobody_out():
    browser = client()
    sign_in(browser, EDITOR)
    browser.get("/sign-out", headers={"sec-fetch-site": "same-origin", "sec-purpose": "prefetch;prerender"})
    assert browser.get("/x").status_code == 200


@pytest.mark.usefixtures("passwords")
def test_signing_in_anew_ends_the_session_before():
    browser = client()
    sign_in(browser, VIEWER)
    (before,) = [f"{cookie.name}={cookie.value}" for cookie in browser.cookies.jar]
    page = client().get("/sign-in")
    form = {"form": form_of(page.text), "next": "/", "secret": EDITOR}
    cookies = f"{before}; " + page.headers["set-cookie"].partition(";")[0]
    assert client().post("/sign-in", data=form, headers={"cookie": cookies}).status_code == 303
    assert client().get("/x", headers={"cookie": before}).status_code == 401


# The page itself


@pytest.mark.usefixtures("passwords")
def test_the_page_has_no_script_loads_nothing_and_renders_what_it_is_given_inert(monkeypatch):
    answer = client().get("/sign-in", params={"next": '/"><script>alert(1)</script>'})
    assert "<script" not in answer.text
    assert "alert(1)</" not in answer.text
    assert not re.findall(r'(?:src|href)="(?!data:,|/)', answer.text)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "script-src" not in policy
    style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)[1]
    digest = hashlib.sha256(style.encode()).digest()
    assert __import__("base64").b64encode(digest).decode() in policy
    page = sign_in_page.sentence("<b>", "<img src=x onerror=y>", 403, "'self'", ('"><b>', "<i>")).body.decode()
    assert not re.findall(r"<(b|i|img)[ >]", page)


@pytest.mark.usefixtures("passwords")
def test_what_the_gate_answers_itself_is_no_more_than_it_says():
    for path in ("/sign-in/x", "/sign-in/", "/health/x", "/sign-outx"):
        assert client().get(path).status_code in (401, 404)
    assert client().get("/health").text == "ok"
    assert client().delete("/sign-in").status_code == 405
    assert client().get("/sign-in/oidc").status_code == 404
