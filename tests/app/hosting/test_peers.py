"""Where a request comes from: what a client says of itself makes nobody local, a proxy, or somebody new."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.hosting import client_address
from core.configuration import Hosting, SignIn
from core.hosting.people import role_of
from tests.app.hosting.serving import EDITOR, PROVEN, SECRET, client, gated, set_up, sign_in

PROXY = "10.9.9.9"
SPELLINGS = (
    f"{PROXY}:80",
    f"{PROXY}:080",
    f"{PROXY}: 80",
    f"{PROXY}:80 ",
    f"{PROXY}:+80",
    f"{PROXY}:8_0",
    f"{PROXY}:-80",
    f"{PROXY}:0",
    PROXY,
    f"[{PROXY}]:80",
    f"[{PROXY}]:8_0",
    f"[{PROXY}]",
    f"[{PROXY}]: +8_0",
    f"{PROXY} :80",
    f"{PROXY}:80, {PROXY}:99",
    f"127.0.0.1, {PROXY}:080",
    f"\xa0{PROXY}:80",
    f"[{PROXY}",
)


def behind_uvicorn(app: Starlette) -> ProxyHeadersMiddleware:
    """As `streamlit run` starts it: X-Forwarded-For of a loopback peer is written over the peer."""
    return ProxyHeadersMiddleware(app, trusted_hosts="127.0.0.1")  # type: ignore[arg-type]


@pytest.mark.parametrize("said", SPELLINGS)
def test_no_spelling_of_a_port_makes_a_client_a_proxy(said, monkeypatch):
    set_up(
        monkeypatch,
        sign_in_header="X-Forwarded-User",
        sign_in_editors="*",
        hosting_trusted_proxies=PROXY,
        hosting_proxy_secret=SECRET,
    )
    headers = {"x-forwarded-user": "eve", "x-forwarded-for": said.encode("latin-1"), **PROVEN}
    local = client(behind_uvicorn(gated()), client=("127.0.0.1", 40_000))
    assert local.get("/api/x", headers=headers).status_code == 401
    # The twin: the proxy itself is believed, whatever it says of its clients.
    true = client(behind_uvicorn(gated()), client=(PROXY, 40_000))
    assert (
        true.get(
            "/api/x", headers={"x-forwarded-user": "ada", "x-forwarded-for": "198.51.100.1:80", **PROVEN}
        ).status_code
        == 200
    )


@pytest.mark.parametrize("port", ["", ":80", ":080", " :80", ": 80"])
def test_no_spelling_of_a_port_gives_more_guesses(port, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=EDITOR, sign_in_attempts="3")
    app = gated()
    found = []
    for number in range(5):
        guessing = client(behind_uvicorn(app), client=("127.0.0.1", 40_000))
        found.append(sign_in(guessing, "wrong", **{"x-forwarded-for": f"198.51.100.{number}{port}"}).status_code)
    assert found == [401, 401, 401, 429, 429]


@pytest.mark.parametrize(
    "name",
    [
        "Forwarded",
        "X-Forwarded-For",
        "X-Forwarded-Proto",
        "X-Forwarded-Host",
        "X_Forwarded_For",
        "X-Real-IP",
        "X-Forwarded-Anything",
    ],
)
def test_without_a_sign_in_what_a_proxy_passed_on_is_not_local(name):
    local = client(base_url="http://127.0.0.1:8501")
    assert local.get("/").status_code == 200
    answer = local.get("/", headers={name: "127.0.0.1"})
    assert answer.status_code == 403
    assert "proxy" in answer.text


@pytest.mark.parametrize(
    "text", ["http://[", "http://[::1", "//[", "http://\u2100.example.org".encode().decode("latin-1")]
)
def test_an_origin_or_referer_that_is_no_address_is_not_ours(text, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=EDITOR)
    browser = client()
    assert browser.get("/sign-in", headers={"referer": text.encode("latin-1")}).status_code == 200
    sign_in(browser, EDITOR)
    assert browser.put("/api/change", headers={"origin": text.encode("latin-1")}).status_code == 403


def test_an_address_of_ipv6_is_found_in_its_brackets():
    scope = {"client": ("2001:db8::1", 80), "headers": [(b"x-forwarded-for", b"[2001:db8::1]:080")]}
    assert client_address.peer_of(scope) == client_address.UNKNOWN
    assert not client_address.is_trusted(client_address.peer_of(scope), Hosting(trusted_proxies=("2001:db8::/32",)))
    assert client_address.peer_of(scope | {"headers": []}) == "2001:db8::1"


@pytest.mark.parametrize(
    ("name", "entry", "is_in"),
    [
        ("mallory@straße.de", "@strasse.de", False),
        ("straße@x.de", "strasse@x.de", False),
        ("ada@lin\u212a.org", "@link.org", False),  # the sign of Kelvin
        ("\u0130da@x.org", "i\u0307da@x.org", False),
        ("Ada@Straße.de", "@sTRAße.de", True),
        ("ADA@X.ORG", "ada@x.org", True),
    ],
)
def test_only_the_letters_a_to_z_are_the_same_large_and_small(name, entry, is_in):
    assert role_of(name, SignIn(editors=(entry,))) == ("editor" if is_in else None)
