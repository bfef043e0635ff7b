"""A server without a sign-in: it answers the user who started it, through no proxy, and who has the token if one is
asked for.
"""

from __future__ import annotations

import grp
import http.client
import os
import pwd
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn
from starlette.websockets import WebSocketDisconnect

from app.hosting import local_access, refuse_unsafe_start
from core.hosting import socket_owner
from tests.app.hosting.servers import SERVE, free_port, started
from tests.app.hosting.serving import client, gated, set_up
from tests.waiting import until

HERE = "http://127.0.0.1:8501"
NOBODY = 65_534


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    local_access.forget()


# Whose connection it is


class Peer:
    """The gate with a connection of our choice in front: the two ends that a server tells it."""

    def __init__(self, peer, server=("127.0.0.1", 8501)):
        self.app, self.peer, self.server = gated(), peer, server

    async def __call__(self, scope, receive, send):
        if scope["type"] != "lifespan":
            scope = {**scope, "client": self.peer, "server": self.server}
        await self.app(scope, receive, send)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Looks at the kernel's tables: 127.0.0.1:1 is our user's, everything else another's."""
    found: list[tuple] = []

    def is_own(peer: tuple[str, int], server: tuple[str, int]) -> bool:
        found.append((peer, server))
        return peer == ("127.0.0.1", 1)

    monkeypatch.setattr(socket_owner, "can_be_asked", lambda: True)
    monkeypatch.setattr(socket_owner, "is_own", is_own)
    return found


def test_another_users_program_gets_a_sentence_that_leads_to_the_sign_in(looks):
    assert client(Peer(("127.0.0.1", 1)), base_url=HERE).get("/").json()["role"] == "editor"
    other = client(Peer(("127.0.0.1", 2)), base_url=HERE)
    for answer in (other.get("/"), other.get("/api/runs"), other.put("/api/change"), other.get("/health")):
        assert answer.status_code == 403
        assert "set up a sign-in (docs/hosting.md)" in answer.text
        assert "another user's" in answer.text
    with pytest.raises(WebSocketDisconnect), other.websocket_connect("/_stcore/stream"):
        pass
    assert looks


def test_a_connection_is_looked_at_once_and_another_with_its_port_again(looks):
    """A port is free again for anybody once its connection has gone; what is kept is of the connection."""
    own = ("127.0.0.1", 1)
    same_port = (*own,)
    assert own == same_port
    assert own is not same_port
    app = Peer(own)
    browser = client(app, base_url=HERE)
    assert [browser.get("/").status_code for _ in range(5)] == [200] * 5
    assert len(looks) == 1
    app.peer = same_port
    browser.get("/")
    assert len(looks) == 2


def test_what_is_kept_of_connections_is_bounded(looks, monkeypatch):
    monkeypatch.setattr(local_access, "_MOST_KEPT", 3)
    for port in range(2, 12):
        assert client(Peer(("127.0.0.1", port)), base_url=HERE).get("/").status_code == 403
        assert len(local_access._AccessState.connections) <= 3


@pytest.mark.parametrize(
    ("peer", "server"), [(None, ("/run/x.sock", None)), (("testclient", 5), ("127.0.0.1", 8501)), (None, None)]
)
def test_where_there_are_no_two_ends_it_is_as_if_the_kernel_could_not_be_asked(peer, server, looks):
    assert client(Peer(peer, server), base_url="http://localhost").get("/").status_code == 200
    assert looks == []


def test_where_the_kernel_cannot_be_asked_this_machine_is_let_in(looks, monkeypatch):
    monkeypatch.setattr(socket_owner, "can_be_asked", lambda: False)
    assert client(Peer(("127.0.0.1", 2)), base_url=HERE).get("/").status_code == 200
    assert looks == []


def test_with_a_sign_in_nobody_asks_whose_a_connection_is(looks, monkeypatch):
    set_up(monkeypatch, sign_in_editor_password="correct horse")
    assert client(Peer(("127.0.0.1", 2)), base_url=HERE).get("/health").status_code == 200
    assert looks == []


ASK = """
import os, socket, sys
if len(sys.argv) > 2:
    os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
line = socket.socket()
line.connect(("127.0.0.1", int(sys.argv[1])))
line.sendall(b"GET /api/x HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n")
print(b"".join(iter(lambda: line.recv(9999), b"")).decode())
"""


@contextmanager
def listening() -> Iterator[int]:
    """The gate behind a real server: its port."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(gated(), port=port, log_level="error", access_log=False, lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started)
        yield port
    finally:
        server.should_exit = True
        thread.join(20)


def _asked(port: int, *uid: str) -> str:
    command = [sys.executable, "-I", "-c", ASK, str(port), *uid]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.skipif(not socket_owner.can_be_asked(), reason="the kernel does not say whose a socket is")
def test_a_real_server_answers_programs_of_its_own_user_alone():
    with listening() as port:
        assert "HTTP/1.1 200 " in _asked(port)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
            for _ in range(3):
                line.request("GET", "/")
                answer = line.getresponse()
                answer.read()
                assert answer.status == 200
            assert (
                len([kept for kept in local_access._AccessState.connections.values() if kept[1]]) == 2
            )  # two connections
        if os.geteuid() != 0:
            pytest.skip("only root can be another user")
        assert "HTTP/1.1 403 " in _asked(port, str(NOBODY))
        assert "sign-in" in _asked(port, str(NOBODY))


# Who says that it is a proxy


@pytest.mark.parametrize(
    "name",
    [
        "Via",
        "CF-Connecting-IP",
        "CF-Ray",
        "Cf_Visitor",
        "True-Client-IP",
        "X-Client-IP",
        "Tailscale-User-Login",
        "Remote-User",
        "X-Auth-Request-Email",
        "CDN-Loop",
        "Fastly-Client-IP",
    ],
)
def test_what_only_proxies_send_is_not_local(name):
    assert client(base_url=HERE).get("/", headers={name: "x"}).status_code == 403


@pytest.mark.parametrize("name", ["Cookie", "Cache-Control", "X-Client-Version", "Viaduct", "Accept", "Authorization"])
def test_what_browsers_and_programs_send_is(name):
    assert client(base_url=HERE).get("/", headers={name: "x"}).status_code == 200


@pytest.mark.parametrize(("version", "status"), [("1.1", 200), ("2", 200), ("1.0", 403), ("0.9", 403)])
def test_a_request_by_the_http_that_proxies_speak_by_themselves_is_not_local(version, status):
    app = gated()

    async def spoken(scope, receive, send):
        await app({**scope, "http_version": version}, receive, send)

    assert client(spoken, base_url=HERE).get("/").status_code == status


@pytest.mark.parametrize(
    "hosts",
    [
        ["evil.example.org@localhost"],
        ["localhost/evil"],
        ["localhost?"],
        ["localhost#x"],
        ["localhost:8501:1"],
        ["localhost:port"],
        ["localhost, evil.example.org"],
        [" evil localhost"],
        ["[::1]x"],
        ["[::1%lo]"],
        ["localhost", "localhost"],
        ["127.0.0.1:8501", "evil.example.org"],
        ["evil.example.org", "127.0.0.1:8501"],
        ["127.0.0.1:8501", ""],
        ["\xa0localhost"],
    ],
)
def test_a_host_that_is_malformed_or_comes_twice_is_not_this_machine(hosts):
    app = gated()

    async def sent(scope, receive, send):
        kept = [pair for pair in scope["headers"] if pair[0] != b"host"]
        await app({**scope, "headers": [*kept, *((b"host", each.encode("latin-1")) for each in hosts)]}, receive, send)

    assert client(sent, base_url=HERE).get("/").status_code == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:8501", "LOCALHOST.", "[::1]:8501", "a_b.localhost", "127.0.0.1:"]
)
def test_a_name_of_this_machine_is(host):
    assert client(base_url=HERE).get("/", headers={"host": host}).status_code == 200


# The token


@pytest.fixture
def token() -> str:
    return local_access.ask_for_token()


def test_without_the_token_nothing_is_answered_and_a_sentence_says_where_it_is(token):
    browser = client(base_url=HERE)
    for path in ("/", "/api/runs", "/health", "/?token=", "/?token=x", f"/?token={token[:-1]}", "/?token=\u00e9"):
        answer = browser.get(path)
        assert answer.status_code == 403
        assert "?token=" in answer.text
        assert token not in answer.text
        assert "set-cookie" not in answer.headers
    with pytest.raises(WebSocketDisconnect), browser.websocket_connect("/_stcore/stream"):
        pass


def test_the_token_in_the_address_becomes_a_cookie_and_leaves_the_address(token):
    browser = client(base_url=HERE)
    answer = browser.get(f"/flips?run=a%2Bb&token={token}&position=3")
    assert (answer.status_code, answer.headers["location"]) == (303, "/flips?run=a%2Bb&position=3")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("ulpscope_token_8501=")
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert "no-store" in answer.headers["cache-control"]
    assert browser.get("/flips?run=a").json()["role"] == "editor"
    assert browser.put("/api/change").status_code == 200
    with browser.websocket_connect("ws://127.0.0.1:8501/_stcore/stream") as websocket:
        assert websocket.receive_json()["role"] == "editor"
    assert browser.get(f"/?token={token}").headers["location"] == "/"
    assert browser.get("/x?token=wrong").status_code == 200  # who has the cookie may ask anything


@pytest.mark.parametrize(
    ("query", "location"),
    [
        ("%74oken={}", "/x"),
        ("token={}&token={}", "/x"),
        ("a=1&token={}&b=", "/x?a=1&b="),
        ("tokens=1&token={}", "/x?tokens=1"),
    ],
)
def test_no_spelling_of_the_token_stays_in_the_address(query, location, token):
    answer = client(base_url=HERE).get(f"/x?{query.replace('{}', token)}")
    assert (answer.status_code, answer.headers["location"]) == (303, location)


def test_the_way_on_is_of_this_server(token):
    for path, location in (("//evil.example.org/x", "/"), ("/\\evil.example.org", "/%5Cevil.example.org")):
        answer = client(base_url=HERE).get(f"{HERE}{path}?token={token}")
        assert answer.headers["location"] == location


def test_a_program_sends_the_token_in_its_header(token):
    program = client(base_url=HERE)
    assert program.get("/api/runs", headers={"authorization": f"Bearer {token}"}).status_code == 200
    assert program.put("/api/change", headers={"authorization": f"Bearer {token}"}).status_code == 200
    for said in (f"Bearer {token}x", "Bearer ", f"Basic {token}", "Bearer \xe9"):
        assert program.get("/api/runs", headers={"authorization": said.encode("latin-1")}).status_code == 403
    assert program.put(f"/api/change?token={token}").status_code == 403  # an address with it is for browsers to open


def test_a_new_start_has_another_token(token):
    browser = client(base_url=HERE)
    browser.get(f"/?token={token}")
    assert browser.get("/").status_code == 200
    assert local_access.ask_for_token() != token
    assert browser.get("/").status_code == 403


def test_the_token_opens_nothing_to_another_user_or_a_proxy(token, looks):
    """It is asked for besides."""
    bearer = {"authorization": f"Bearer {token}"}
    assert client(Peer(("127.0.0.1", 1)), base_url=HERE).get("/", headers=bearer).status_code == 200
    assert client(Peer(("127.0.0.1", 2)), base_url=HERE).get("/", headers=bearer).status_code == 403
    assert client(base_url=HERE).get("/", headers=bearer | {"via": "1.1 x"}).status_code == 403


def test_tokens_are_compared_in_constant_time(token, monkeypatch):
    compared = []
    monkeypatch.setattr(local_access.secrets, "compare_digest", lambda *both: compared.append(both) or False)
    assert client(base_url=HERE).get("/", headers={"authorization": f"Bearer {token}"}).status_code == 403
    assert (token.encode(), token.encode()) in compared


# A proxy that everybody sets up first

NGINX = """
daemon off; user {user} {group}; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://127.0.0.1:{server}; proxy_http_version {version}; {more} }}
    }}
}}
"""
UPGRADE = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;"


@contextmanager
def plain_nginx(folder: Path, server: int, uid: int, version: str, more: str = "") -> Iterator[int]:
    """nginx with nothing but a `proxy_pass`, as a user: its port."""
    folder.mkdir()
    port, user = free_port(), pwd.getpwuid(uid)
    names = {"user": user.pw_name, "group": grp.getgrgid(user.pw_gid).gr_name}
    site = NGINX.format(folder=folder, port=port, server=server, version=version, more=more, **names)
    (folder / "nginx.conf").write_text(site)
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        until(lambda: process.poll() is not None or _status(port))
        assert process.poll() is None
        yield port
    finally:
        process.terminate()
        process.wait(30)


def _status(port: int, **headers: str) -> int:
    """Status of an answer; 0 where nobody answers."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        try:
            line.request("GET", "/_stcore/stream" if headers else "/api/x", headers=headers)
            return line.getresponse().status
        except OSError:
            return 0


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx: apt-get install nginx-light")
@pytest.mark.skipif(
    os.geteuid() != 0 or not socket_owner.can_be_asked(), reason="only root can start it as another user"
)
def test_behind_a_plain_nginx_of_another_user_nobody_gets_in(tmp_path):
    websocket = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version": "13",
    }
    with listening() as server:
        assert _status(server) == 200
        with plain_nginx(tmp_path / "1", server, NOBODY, "1.1", UPGRADE) as port:
            assert _status(port) == 403
            assert _status(port, **websocket) == 403
        with plain_nginx(tmp_path / "2", server, NOBODY, "1.0") as port:
            assert _status(port) == 403
        # What it is that refuses them: by the version alone, and, as the server's own user with 1.1, nothing does.
        with plain_nginx(tmp_path / "3", server, 0, "1.0") as port:
            assert _status(port) == 403
        with plain_nginx(tmp_path / "4", server, 0, "1.1") as port:
            assert _status(port) == 200


@pytest.mark.thorough
def test_serve_prints_an_address_with_a_token_that_opens_the_dashboard(store, tmp_path):
    port = free_port()
    process = started(store, tmp_path / "log", *SERVE, "--port", str(port), "--token")
    said = re.compile(rf"open (http://127\.0\.0\.1:{port}/\?token=(\S+))")
    try:
        until(lambda: process.poll() is not None or (said.search((tmp_path / "log").read_text()) and _status(port)))
        assert process.poll() is None, (tmp_path / "log").read_text()
        found = said.search((tmp_path / "log").read_text())
        assert found
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as browser:
            assert browser.get("/_stcore/health").status_code == 403
            assert browser.get(found[1], follow_redirects=True).status_code == 200
            assert browser.get("/_stcore/health").status_code == 200
        log = (tmp_path / "log").read_text()
        assert log.count(found[2]) == 1
    finally:
        process.terminate()
        process.wait(20)


# What a start says


def test_a_start_says_the_token_once_and_what_the_kernel_does_not_know(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(socket_owner, "can_be_asked", lambda: False)
    set_up(monkeypatch, hosting_local_token="1")
    refuse_unsafe_start.check()
    said = capsys.readouterr().err
    assert said.count("\n") == 2
    assert "kernel does not say" in said
    token = re.search(r"open http://127\.0\.0\.1:PORT/\?token=(\S+)\n", said)
    assert token
    assert client(base_url=HERE).get("/").status_code == 403
    assert client(base_url=HERE).get(f"/?token={token[1]}").status_code == 303
    local_access.forget()
    monkeypatch.setattr(socket_owner, "can_be_asked", lambda: True)
    set_up(monkeypatch, hosting_local_token="0")
    refuse_unsafe_start.check()
    assert capsys.readouterr().err == ""
    assert client(base_url=HERE).get("/").status_code == 200  # who opens it on their own machine is asked for nothing


def test_a_start_warns_of_a_file_of_passwords_that_everybody_can_read(monkeypatch, capsys, tmp_path):
    path = tmp_path / "ulpscope.toml"
    path.write_text('[sign_in]\neditor_password = "correct horse"\n')
    path.chmod(0o644)
    monkeypatch.setenv("ULPSCOPE_CONFIG", str(path))
    refuse_unsafe_start.check()
    said = capsys.readouterr().err
    assert "machine can read [sign_in] editor_password" in said
    path.chmod(0o600)
    refuse_unsafe_start.check()
    assert capsys.readouterr().err == ""
