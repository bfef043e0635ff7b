"""deploy/nginx.conf for real: Debian's nginx with a certificate of its own in front of two processes of one store, and
Chromium in front of it.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, TimeoutError, expect

from tests.browser.driving import ROOT, settle
from tests.core.runs.made_runs import copied
from tests.waiting import throughout, until

SITE = ROOT / "deploy" / "nginx.conf"
VIEWER, EDITOR = "a viewer's long password", "an editor's long password"
DEEP_LINK = "/flips?run=fresh-against-cached&variant=decode&position=36"
needs_nginx = pytest.mark.skipif(
    shutil.which("nginx") is None or shutil.which("openssl") is None,
    reason="needs nginx and openssl: apt-get install nginx-light",
)
pytestmark = [pytest.mark.thorough, needs_nginx]
MAIN = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    client_body_temp_path {folder}/bodies; proxy_temp_path {folder}/proxied; fastcgi_temp_path {folder}/f;
      uwsgi_temp_path {folder}/u;
    scgi_temp_path {folder}/s;
    include {folder}/site.conf;
}}
"""


@dataclass(frozen=True)
class Site:
    """What is served at https://localhost:port, and by which processes."""

    port: int
    plain_port: int
    apps: tuple[subprocess.Popen, ...]
    folder: Path
    token: str

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> http.client.HTTPResponse:
        trusting = ssl.create_default_context(cafile=self.folder / "fullchain.pem")
        connection = http.client.HTTPSConnection("localhost", self.port, context=trusting, timeout=60)
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.text = answer.read()
        return answer


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _site_conf(folder: Path, ports: list[int], source: str) -> str:
    """The file that is shipped, with other ports, name and places."""
    https, plain, first, second = ports
    changes = {
        r"127\.0\.0\.1:8501": f"127.0.0.1:{first}",
        r"127\.0\.0\.1:8502": f"127.0.0.1:{second}",
        r"listen 80;": f"listen 127.0.0.1:{plain};",
        r"listen 443 ssl": f"listen 127.0.0.1:{https} ssl",
        r"\n *listen \[::\].*": "",
        r"ulpscope\.example\.org;": "localhost;",
        r"/etc/letsencrypt/live/ulpscope\.example\.org": str(folder),
        r"/var/log/nginx": str(folder),
    }
    for old, new in changes.items():
        source, count = re.subn(old, new, source)
        assert count, old
    return source


def _until_answered(port: int, process: subprocess.Popen) -> None:
    def answers() -> bool:
        assert process.poll() is None, "it did not start"
        with suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/_stcore/health")
            return connection.getresponse().status in (200, 401, 301, 400)
        return False

    until(answers)


def _nginx(folder: Path, ports: list[int], source: str) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    (folder / "site.conf").write_text(_site_conf(folder, ports, source))
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    process = subprocess.Popen(
        ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
    )
    _until_answered(ports[1], process)
    return process


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("nginx")
    folder.chmod(0o755)
    certificate = [
        "-keyout",
        str(folder / "privkey.pem"),
        "-out",
        str(folder / "fullchain.pem"),
        "-days",
        "2",
        "-nodes",
    ]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *certificate, "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    ports = _free_ports(4)
    settings = folder / "ulpscope.toml"
    settings.write_text(
        f'[hosting]\npublic_url = "https://localhost:{ports[0]}"\ntrusted_proxies = ["127.0.0.1"]\n'
        f"[sign_in]\nviewer_password = {json.dumps(VIEWER)}\neditor_password = {json.dumps(EDITOR)}\ntokens = true\n"
        "[limits]\nfree_bytes = 0\n"
    )
    settings.chmod(0o600)
    store = folder / "runs"
    copied(store / "mine.duckdb")
    environment = {**os.environ, "ULPSCOPE_CONFIG": str(settings), "ULPSCOPE_STORE": str(store)}
    made = subprocess.run(
        [sys.executable, "-m", "core", "tokens", "add", "ci", "--role", "editor", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    processes = []
    for port in ports[2:]:
        log = (folder / f"{port}.log").open("wb")
        serve = [sys.executable, "-m", "core", "serve", "--port", str(port)]
        processes.append(subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=log, stderr=log))
    for port, process in zip(ports[2:], processes, strict=True):
        _until_answered(port, process)
    nginx = _nginx(folder, ports, SITE.read_text())
    yield Site(ports[0], ports[1], tuple(processes), folder, json.loads(made.stdout)["token"])
    for process in (nginx, *processes):
        process.terminate()
        process.wait(30)


@pytest.fixture
def stranger(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(30_000)
    yield context
    context.close()


def _sign_in(context: BrowserContext, site: Site, password: str, link: str = DEEP_LINK):
    page = context.new_page()
    page.goto(site.url + link)
    assert "/sign-in" in page.url
    page.get_by_label(re.compile("assword")).fill(password)
    page.get_by_role("button", name="Sign in").click()
    return page


def test_a_deep_link_is_opened_by_signing_in_through_the_proxy(site: Site, stranger: BrowserContext) -> None:
    page = _sign_in(stranger, site, VIEWER)
    expect(page.get_by_role("heading", name="Flips", exact=True)).to_be_visible()
    settle(page)
    assert "position=36" in page.url
    assert "run=fresh-against-cached" in page.url
    assert page.locator("[data-testid=stException]").count() == 0
    cookies = {cookie["name"]: cookie for cookie in stranger.cookies()}
    assert cookies["ulpscope_process"]["value"] in "ab"
    sessions = [cookie for name, cookie in cookies.items() if name.startswith("__Host-ulpscope")]
    assert sessions
    assert all(cookie["secure"] for cookie in sessions)
    assert any(cookie["httpOnly"] for cookie in sessions)
    again = stranger.new_page()  # the websocket too goes to the process that has the session's state
    again.goto(site.url + DEEP_LINK.replace("flips", "near_ties"))
    expect(again.get_by_role("heading", name="Near ties", exact=True)).to_be_visible()


def test_without_the_websockets_headers_the_page_stays_empty(
    site: Site, stranger: BrowserContext, tmp_path: Path
) -> None:
    """The planted fault: the two lines everybody forgets."""
    broken = re.sub(r"\n *proxy_set_header (Upgrade|Connection).*", "", SITE.read_text())
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in ("privkey.pem", "fullchain.pem"):
        shutil.copy(site.folder / name, folder)
    apps = [int(path.stem) for path in site.folder.glob("*.log") if path.stem.isdigit()]
    ports = [*_free_ports(2), *apps]
    nginx = _nginx(folder, ports, broken)
    try:
        page = stranger.new_page()
        page.goto(f"https://localhost:{ports[0]}/sign-in?next=%2Fflips")
        page.get_by_label(re.compile("assword")).fill(VIEWER)
        page.get_by_role("button", name="Sign in").click()
        with pytest.raises(TimeoutError):
            page.wait_for_selector("h1", timeout=8000)
    finally:
        nginx.terminate()
        nginx.wait(30)


def test_plain_http_is_sent_to_https_and_nobody_is_believed_who_says_who_they_are(site: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.plain_port, timeout=10)
    connection.request("GET", DEEP_LINK, headers={"Host": "localhost"})
    answer = connection.getresponse()
    assert answer.status == 301
    assert answer.getheader("location") == f"https://localhost{DEEP_LINK}"
    for spoofed in ({}, {"X_Forwarded_User": "root"}, {"X_Ulpscope_Identity": "x"}, {"X_Forwarded_For": "127.0.0.1"}):
        for path in ("/api/runs", "/files/mine.duckdb", "/_stcore/health"):
            assert site.ask("GET", path, **spoofed).status == 401
    answer = site.ask("GET", "/sign-in")
    assert answer.getheader("strict-transport-security")
    assert "nginx/" not in (answer.getheader("server") or "")


@pytest.mark.parametrize("host", ["evil.example.org", "127.0.0.1", "localhost.evil.org"])
def test_who_calls_this_machine_by_another_name_gets_no_answer(site: Site, host: str) -> None:
    with pytest.raises(http.client.RemoteDisconnected):
        site.ask("GET", "/health", Host=host)
    assert site.ask("GET", "/health", Host="localhost").status == 200


def test_a_configuration_that_was_cut_off_lets_nobody_in_through_the_proxy(site: Site) -> None:
    settings = site.folder / "ulpscope.toml"
    whole = settings.read_text()

    def nobody_gets_in() -> bool:
        for process in "ab":
            for path in ("/api/runs", "/", "/_stcore/health"):
                assert site.ask("GET", path, Cookie=f"ulpscope_process={process}").status == 401
            assert site.ask("GET", "/health", Cookie=f"ulpscope_process={process}").status == 200
        return True

    try:
        for cut in ("", whole[: whole.index("[sign_in]")], whole[: whole.index("editor_password") + 4]):
            settings.write_text(cut)
            throughout(1.5, nobody_gets_in)  # a process reads its settings once a second
    finally:
        settings.write_text(whole)


def test_an_upload_larger_than_a_page_may_send_streams_through_and_both_processes_have_the_run(site: Site) -> None:
    logits = np.random.default_rng(0).standard_normal((300, 30_000)).astype(np.float32)
    dump = site.folder / "large.npz"
    np.savez(dump, reference=logits, variant=logits)
    assert dump.stat().st_size > 64 << 20
    bearer = {"Authorization": f"Bearer {site.token}"}
    answer = site.ask("PUT", "/api/runs/through-nginx?wait=120", dump.read_bytes(), **bearer)
    said = json.loads(answer.text)
    assert answer.status in (200, 201), said
    assert said["url"].startswith(site.url)
    assert not list((site.folder / "bodies").rglob("*[0-9]"))  # nothing was put down on the proxy's disk
    for process in "ab":
        found = site.ask("GET", f"/api/runs/{said['run_id']}", Cookie=f"ulpscope_process={process}", **bearer)
        assert found.status == 200
        part = site.ask("GET", f"/api/runs/{said['run_id']}/file", Range="bytes=0-15", **bearer)
        assert (part.status, part.text[8:12]) == (206, b"DUCK")


def test_one_process_may_be_killed_and_its_viewers_go_on_with_the_other(site: Site, stranger: BrowserContext) -> None:
    page = _sign_in(stranger, site, EDITOR)
    expect(page.get_by_role("heading", name="Flips", exact=True)).to_be_visible()
    process = next(cookie["value"] for cookie in stranger.cookies() if cookie["name"] == "ulpscope_process")
    site.apps["ab".index(process)].send_signal(signal.SIGKILL)
    page.reload()
    expect(page.get_by_role("heading", name="Flips", exact=True)).to_be_visible()
    settle(page)
    assert "position=36" in page.url
    assert page.locator("[data-testid=stException]").count() == 0
