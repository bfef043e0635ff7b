"""Servers as they are started for real: where they refuse to, what they print, and what they make of oversized
headers.
"""

from __future__ import annotations

import socket

import httpx2
import pytest

from core.hosting import tokens
from tests.app.hosting.servers import SERVE, free_port, serving, started
from tests.app.hosting.serving import EDITOR, form_of
from tests.waiting import until

STREAMLIT = ("streamlit", "run", "app/main.py", "--server.headless", "true")

TRAVERSALS = (  # with a right token: what is asked for lies outside what the routes serve
    "/files/..%2f..%2fetc%2fpasswd.duckdb",
    "/files/%2e%2e%2f.hosting%2fsecret.duckdb",
    "/files/.hosting.duckdb",
    "/files/..duckdb",
    "//etc/passwd",
    "/component/..%2f..%2f..%2fetc/passwd",
    "/media/..%2f..%2fetc/passwd",
    "/_stcore/bidi-components/..%2f..%2fetc/passwd",
    "/files/%00.npz",
    "/static/..%2f..%2f..%2f..%2fapp.py",
)


@pytest.mark.parametrize(
    ("command", "settings", "about"),
    [
        ((*STREAMLIT, "--server.address", "0.0.0.0"), {}, "does not listen on 0.0.0.0"),
        pytest.param(
            (*STREAMLIT, "--server.address", ""), {}, "does not listen on every address", marks=pytest.mark.thorough
        ),
        pytest.param((*SERVE, "--address", "::"), {}, "does not listen on ::", marks=pytest.mark.thorough),
        pytest.param(
            STREAMLIT,
            {"sign_in_editor_password": "short"},
            "editor_password has 5 characters",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_server_that_would_let_anybody_in_does_not_start(command, settings, about, store, tmp_path):
    port = str(free_port())
    option = "--port" if command[:2] == SERVE else "--server.port"
    process = started(store, tmp_path / "log", *command, option, port, **settings)
    assert process.wait(60) == 2
    said = (tmp_path / "log").read_text()
    assert about in said
    assert "Traceback" not in said
    assert not store.exists()


def _answer_to(url: str, head: bytes) -> bytes:
    """The first line of what the server answers to raw bytes; empty where it hangs up."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=300) as line:
        try:
            line.sendall(head)
            return line.recv(200).partition(b"\r\n")[0]
        except ConnectionError:
            return b""


@pytest.mark.thorough
def test_a_server_with_a_sign_in_keeps_its_sessions_over_a_restart_and_its_secrets_to_itself(store, tmp_path):
    token, _ = tokens.add(store, "ada", "editor", 1)
    with serving(store, tmp_path / "log", sign_in_editor_password=EDITOR, sign_in_tokens="1") as url:
        with httpx2.Client(base_url=url) as browser:
            assert browser.get("/_stcore/health").status_code == 401
            form = {"form": form_of(browser.get("/sign-in").text), "next": "/", "secret": EDITOR}
            assert browser.post("/sign-in", data=form).status_code == 303
            assert browser.get("/_stcore/health").status_code == 200
            cookies = dict(browser.cookies.items())
        assert httpx2.get(f"{url}/_stcore/health", headers={"authorization": f"Bearer {token}"}).status_code == 200
        head = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        assert b"200" in _answer_to(url, head + b"X-Fine: " + b"x" * 10_000 + b"\r\n\r\n")
        assert b"431" in _answer_to(url, head + b"X-Large: " + b"x" * 40_000 + b"\r\n\r\n")
        assert b"200" not in _answer_to(
            url, head + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 8000) for n in range(200)) + b"\r\n"
        )
        assert b"200" not in _answer_to(url, head + b"X-Endless: " + b"x" * 2_000_000)
        for path in TRAVERSALS:
            request = (
                f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
            )
            answer = _answer_to(url, request.encode())
            assert b" 400" in answer or b" 404" in answer, (path, answer)
    said = (tmp_path / "log").read_text()
    assert "sign-in: password, tokens" in said
    for secret in (EDITOR, token, *cookies.values()):
        assert secret not in said
    with serving(store, tmp_path / "log", sign_in_editor_password=EDITOR) as url:
        assert httpx2.get(f"{url}/_stcore/health", cookies=cookies).status_code == 200
        assert httpx2.get(f"{url}/_stcore/health", headers={"authorization": f"Bearer {token}"}).status_code == 401


@pytest.mark.thorough
def test_signing_out_of_one_of_two_servers_on_a_store_signs_out_of_both(store, tmp_path):
    settings = {"sign_in_editor_password": EDITOR}
    with serving(store, tmp_path / "1", **settings) as first, serving(store, tmp_path / "2", **settings) as second:
        with httpx2.Client(base_url=first) as browser:
            form = {"form": form_of(browser.get("/sign-in").text), "next": "/", "secret": EDITOR}
            assert browser.post("/sign-in", data=form).status_code == 303
            cookies = dict(browser.cookies.items())
            assert httpx2.get(f"{second}/_stcore/health", cookies=cookies).status_code == 200
            browser.get("/sign-out", headers={"sec-fetch-site": "same-origin"})
        until(lambda: httpx2.get(f"{second}/_stcore/health", cookies=cookies).status_code == 401)
