"""Where a request comes from: what a client says of itself makes nobody local, a proxy, or somebody new."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from httpx2 import Response
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from app.hosting import client_address, middleware
from app.hosting.middleware import Gate
from core.configuration import Hosting, SignIn
from core.hosting.people import role_of
from tests.app.hosting.serving import EDITOR, PROVEN, SECRET, client, form_of, gated, set_up, sign_in
from tests.waiting import until

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


def signed_in_by_another_header(monkeypatch) -> None:
    """A server that signs in by X-Other-User, which the proxy vouches for with its secret."""
    set_up(
        monkeypatch,
        sign_in_header="X-Other-User",
        sign_in_editors="*",
        hosting_trusted_proxies=PROXY,
        hosting_proxy_secret=SECRET,
    )


def behind_uvicorn(app: Starlette) -> ProxyHeadersMiddleware:
    """As `streamlit run` starts it: X-Forwarded-For of a loopback peer is written over the peer."""
    return ProxyHeadersMiddleware(app, trusted_hosts="127.0.0.1")


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


# Counting of guesses


def counted(client_address_: str, said: str | None, trusted: str = "", server: str = "10.0.0.80") -> str:
    """Whose attempts a request's are counted with. said: X-Forwarded-For."""
    headers = [] if said is None else [(b"x-forwarded-for", said.encode("latin-1"))]
    scope = {"type": "http", "client": (client_address_, 40_000), "server": (server, 8501), "headers": headers}
    return client_address.client_of(scope, Hosting(trusted_proxies=tuple(filter(None, trusted.split(",")))))


@pytest.mark.parametrize(
    ("said", "whose"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("203.0.113.9, 198.51.100.1", "198.51.100.1"),
        ("203.0.113.9,\t198.51.100.1 ", "198.51.100.1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("203.0.113.9, 198.51.100.1, 10.0.0.2", "198.51.100.1"),  # another proxy, named by its address
        ("198.51.100.1, ::ffff:10.0.0.2", "198.51.100.1"),
    ],
)
def test_behind_trusted_proxies_a_client_is_counted_by_its_plain_address(said, whose):
    assert counted("10.0.0.1", said, "10.0.0.1,10.0.0.2") == whose


@pytest.mark.parametrize(
    "last",
    [
        "198.51.100.1:80",
        "198.51.100.1:",
        "198.51.100.1 : 80",
        "[198.51.100.1]",
        "[2001:db8::1]",
        "[2001:db8::1]:80",
        "2001:db8::1%eth0",
        "198.51.100.1\xa0",
        "198.51.100",
        "198.051.100.1",
        "unknown",
        "_hidden",
        "for=198.51.100.1",
        "",
        " ",
        "198.51.100.1,",
        "127.0.0.1",
        "127.9.9.9",
        "::1",
        "::ffff:127.0.0.1",
        "0.0.0.0",
        "::",
        "10.0.0.80",  # the server's
        "10.0.0.1",  # the proxy's own: a program of its machine, or its answer to itself
        "::ffff:10.0.0.1",
        "10.0.0.2, 10.0.0.2",
        "10.0.5.5",  # of a trusted network: a client in it
    ],
)
def test_what_leaves_a_doubt_is_counted_by_the_peer_whatever_stands_before_it(last):
    trusted = "10.0.0.1,10.0.0.2,10.0.5.0/24"
    assert {counted("10.0.0.1", f"203.0.113.{number}, {last}", trusted) for number in range(9)} == {"10.0.0.1"}
    assert {counted("10.0.0.1", last.strip(", ") and last, trusted)} == {"10.0.0.1"}


ADDRESSES = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=4).map(lambda address: f"::ffff:{address}"),
    st.sampled_from(["127.0.0.1", "127.8.8.8", "::1", "10.0.0.1", "10.0.0.2", "10.0.5.5", "198.51.100.1", "", "x"]),
)
HOPS = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", " ", "\t", "[", "\xa0"]),
        ADDRESSES,
        st.sampled_from(["", " ", "]", ":80", "]:80", ":0", "%1", ": 8_0", "\x0b"]),
    ),
)


@given(st.lists(HOPS, max_size=4), HOPS, st.sampled_from(["198.51.100.1", "127.0.0.1", "127.7.7.7", "10.0.0.80"]))
def test_no_header_gives_a_peer_that_is_no_proxy_a_count_without_its_own(before, last, peer):
    """Whatever it says, it is counted as itself too, this machine as one."""
    own = peer if peer == "198.51.100.1" else "127.0.0.1"
    assert own in counted(peer, ",".join([*before, last])).split(" or ")


@given(st.lists(HOPS, max_size=4), HOPS)
def test_what_a_client_writes_before_the_proxys_hop_changes_nothing(before, last):
    trusted = "10.0.0.1,10.0.0.2,10.0.5.0/24"
    alone, said = (counted("10.0.0.1", each, trusted).split(" or ")[0] for each in (last, ",".join([*before, last])))
    is_proxy = last.strip(" \t").removeprefix("::ffff:") == "10.0.0.2"  # which wrote the hop before it
    assert said == alone or is_proxy


def test_reading_on_from_a_hop_that_is_no_address_would_be_found(monkeypatch):
    """The planted fault: as it was, what cannot be read was stepped over."""
    monkeypatch.setattr(client_address, "_plain", lambda text: ip_address(text) if text != "unknown" else PROXY_HOP)
    monkeypatch.setattr(client_address, "_is_in", lambda address, _: address in ("10.0.0.1", str(PROXY_HOP)))
    found = {counted("10.0.0.1", f"203.0.113.{number}, unknown", f"10.0.0.1,{PROXY_HOP}") for number in range(9)}
    assert len(found) == 9


PROXY_HOP = ip_address("10.0.0.2")


def test_a_peer_that_the_header_names_with_a_port_is_counted_as_itself_and_as_this_machine():
    said = {counted("10.0.0.1", f"203.0.113.{number}, 10.0.0.1:443", "10.0.0.1") for number in range(9)}
    assert said == {"10.0.0.1 or 127.0.0.1"}
    assert counted("10.0.0.1", "10.0.0.1:443, 198.51.100.1", "10.0.0.1") == "198.51.100.1 or 127.0.0.1"
    assert counted("x or y", "[x or y]:40000") == "127.0.0.1"  # which no connection has


def test_a_neighbour_on_the_link_is_itself_and_a_unix_socket_is_one():
    assert counted("fe80::1%eth0", None) == "fe80::1"
    assert counted("fe80::1%eth0", "198.51.100.1", "fe80::/10") == "198.51.100.1"
    scope = {"client": None, "headers": [(b"x-forwarded-for", b"198.51.100.1")]}
    assert client_address.client_of(scope, Hosting()) == "unix"
    assert client_address.client_of(scope, Hosting(trusted_proxies=("unix",))) == "198.51.100.1"


def test_ones_own_address_with_a_port_opens_no_further_guesses(monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=EDITOR, sign_in_attempts="3")
    guessing = client(client=("198.51.100.9", 40_000))
    said = ("198.51.100.9", "198.51.100.9:80", "198.51.100.9:40000", "[198.51.100.9]:1", "::ffff:198.51.100.9")
    found = [sign_in(guessing, "wrong", **{"x-forwarded-for": each}).status_code for each in said]
    assert found == [401, 401, 401, 429, 429]
    assert sign_in(guessing, EDITOR).status_code == 429
    assert sign_in(client(client=("198.51.100.10", 1)), EDITOR).status_code == 303


def test_all_addresses_of_this_machine_are_one(monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=EDITOR, sign_in_attempts="3")
    peers = ("127.0.0.1", "127.0.0.2", "::1", "127.255.0.9", "::ffff:127.0.0.3")
    assert [sign_in(client(client=(peer, 9)), "wrong").status_code for peer in peers] == [401, 401, 401, 429, 429]


# The secret that a proxy and the server share


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([SECRET], 200),
        ([], 401),
        ([""], 401),
        ([SECRET[:-1]], 401),
        ([SECRET.upper()], 401),
        ([f"{SECRET}, {SECRET}"], 401),
        ([SECRET, SECRET], 401),
        (["\xff" * len(SECRET)], 401),
    ],
)
def test_a_header_signs_in_only_with_the_secret_of_the_proxy(sent, status, monkeypatch):
    signed_in_by_another_header(monkeypatch)
    headers = [("x-other-user", "ada"), *(("x-ulpscope-proxy-secret", each.encode("latin-1")) for each in sent)]
    answer = client(client=(PROXY, 40_000)).get("/api/x", headers=headers)
    assert answer.status_code == status
    assert SECRET not in answer.text
    assert client(client=("10.9.9.8", 40_000)).get("/api/x", headers=headers).status_code == 401


@pytest.mark.parametrize("name", ["x-ulpscope-proxy-secret", "X_ULPscope_Proxy_Secret", "x-ulpscope_proxy-secret"])
def test_nothing_behind_the_gate_sees_the_secret(name, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=EDITOR, hosting_proxy_secret=SECRET)
    scopes = []

    async def behind(scope, receive, send):
        scopes.append(scope)
        await PlainTextResponse("seen")(scope, receive, send)

    browser = client(Gate(behind))
    sign_in(browser, EDITOR)
    assert browser.get("/x", headers={name: SECRET}).text == "seen"
    assert SECRET not in str(scopes[-1])


def test_another_secret_ends_what_the_header_opened(monkeypatch):
    signed_in_by_another_header(monkeypatch)
    monkeypatch.setattr(middleware, "LOOK_SECONDS", 0.05)
    proxied = client(client=(PROXY, 40_000), headers={"x-other-user": "ada", **PROVEN})
    with proxied.websocket_connect("/_stcore/stream") as websocket:
        assert websocket.receive_json()["role"] == "editor"
        set_up(monkeypatch, hosting_proxy_secret="another-secret-of-theirs")
        until(lambda: websocket.receive()["type"] == "websocket.close")


def test_a_client_is_named_by_a_proxy_with_the_secret_alone(monkeypatch):
    """Who only reaches the port from the proxy's machine is counted as that machine."""
    set_up(
        monkeypatch,
        sign_in_editor_password=EDITOR,
        sign_in_attempts="1",
        hosting_trusted_proxies=PROXY,
        hosting_proxy_secret=SECRET,
    )
    near, proxied = client(client=(PROXY, 4)), client(client=(PROXY, 5), headers=PROVEN)
    for number, found in ((1, 401), (2, 429), (3, 429)):
        assert sign_in(near, "wrong", **{"x-forwarded-for": f"198.51.100.{number}"}).status_code == found
    for number in (4, 5):
        assert sign_in(proxied, "wrong", **{"x-forwarded-for": f"198.51.100.{number}"}).status_code == 401


# Cookies


@pytest.mark.parametrize(
    ("headers", "base", "public_url", "is_secure"),
    [
        ({}, "http://testserver", "", False),
        ({"x-forwarded-proto": "http"}, "http://testserver", "", False),
        ({"x-forwarded-proto": "http, https"}, "http://testserver", "", False),
        ({"x-forwarded-proto": "https"}, "http://testserver", "", True),
        ({"x-forwarded-proto": "HTTPS, http"}, "http://testserver", "", True),
        ({}, "https://testserver", "", True),
        ({}, "http://testserver", "https://testserver", True),
    ],
)
def test_every_cookie_is_secure_behind_https_streamlits_too(headers, base, public_url, is_secure, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password=EDITOR, hosting_public_url=public_url)

    async def behind(scope, receive, send):
        answer = PlainTextResponse("")
        answer.raw_headers += [(b"set-cookie", b"_streamlit_xsrf=2|secure; Path=/"), (b"set-cookie", b"b=c; SECURE")]
        await answer(scope, receive, send)

    browser = client(Gate(behind), base_url=base)
    page = browser.get("/sign-in", headers=headers)
    fields = {"form": form_of(page.text), "next": "/", "secret": EDITOR}
    said = []
    for answer in (page, browser.post("/sign-in", data=fields, headers=headers | _sent_back(page))):
        said += answer.headers.get_list("set-cookie")
    answered = browser.get("/x", headers=headers | _sent_back(answer)).headers.get_list("set-cookie")
    assert (len(said), len(answered)) == (3, 2)  # a form's, a session's, and the form's that goes
    flags = [[part.strip().lower() for part in each.split(";")[1:]].count("secure") for each in (*said, *answered)]
    assert flags == [1 if is_secure else 0] * 4 + [1]


def _sent_back(answer: Response) -> dict[str, str]:
    """The cookies of an answer as a browser sends them; the test's own keeps secure ones to itself."""
    return {"cookie": "; ".join(each.partition(";")[0] for each in answer.headers.get_list("set-cookie"))}
