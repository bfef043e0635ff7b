"""deploy/nginx.conf in a real nginx, with an echo in place of the server: what of a client's headers arrives."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from core.hosting import start
from tests.app.hosting.servers import free_port
from tests.waiting import until

SITE = Path(__file__).resolve().parents[2] / "deploy" / "nginx.conf"
SECRET = "shared-with-the-proxy"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        shutil.which("nginx") is None or shutil.which("openssl") is None,
        reason="needs nginx and openssl: apt-get install nginx-light",
    ),
]
MAIN = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; events {{ worker_connections 64; }}
http {{
    client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    include {folder}/site.conf;
}}
"""


class Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps([[name.lower(), value] for name, value in self.headers.items()]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def site(folder: Path, text: str) -> Iterator[int]:
    """nginx with that site in front of an echo: its port."""
    folder.mkdir()
    echo = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=echo.serve_forever, daemon=True).start()
    port, plain = free_port(), free_port()
    names = ("-keyout", str(folder / "privkey.pem"), "-out", str(folder / "fullchain.pem"), "-subj", "/CN=localhost")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run(made, check=True, capture_output=True)
    for old, new in {
        r"127\.0\.0\.1:850[12]": f"127.0.0.1:{echo.server_port}",
        r"listen 80;": f"listen 127.0.0.1:{plain};",
        r"listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        r"\n *listen \[::\].*": "",
        r"ulpscope\.example\.org;": "localhost;",
        r"/etc/letsencrypt/live/ulpscope\.example\.org": str(folder),
        r"/var/log/nginx": str(folder),
    }.items():
        text, count = re.subn(old, new, text)
        assert count, old
    (folder / "site.conf").write_text(text)
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    said = subprocess.run([*command, "-t"], capture_output=True, text=True).stderr
    assert "[warn]" not in said.replace("the listen ... http2", "")
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or _arrived(port, {}))
        assert process.poll() is None
        yield port
    finally:
        process.terminate()
        process.wait(30)
        echo.shutdown()
        echo.server_close()


def _arrived(port: int, headers: dict[str, str], path: str = "/x") -> list[list[str]]:
    """Names and values of the headers behind nginx; nothing where nobody answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    line = http.client.HTTPSConnection("localhost", port, context=context, timeout=60)
    with suppress(OSError):
        line.request("GET", path, headers=headers)
        return json.loads(line.getresponse().read())
    return []


FORGED = dict.fromkeys((*start.IDENTITY_HEADERS, start.PROXY_SECRET, "X-Real-IP", "Forwarded"), "forged")


@pytest.mark.parametrize("path", ["/x", "/api/x", "/files/x", "/_stcore/stream"])
def test_no_name_of_a_user_and_no_secret_comes_through_from_a_client(path, tmp_path):
    with site(tmp_path / "site", SITE.read_text()) as port:
        arrived = _arrived(port, FORGED, path)
        assert arrived
        assert [pair for pair in arrived if "forged" in pair[1]] == []
        underscores = {name.replace("-", "_"): value for name, value in FORGED.items() if "-" in name}
        assert [pair for pair in _arrived(port, underscores, path) if "forged" in pair[1]] == []


def test_a_line_that_is_missing_is_found_and_a_line_that_is_filled_in_counts(tmp_path):
    text = SITE.read_text()
    with site(tmp_path / "one", re.sub(r".* X-WEBAUTH-USER .*\n", "", text)) as port:
        assert [pair for pair in _arrived(port, FORGED) if "forged" in pair[1]] == [["x-webauth-user", "forged"]]
    for line in start.proxy_lines("X-Forwarded-User", SECRET):
        text, count = re.subn(rf'proxy_set_header {line.split()[1]} +"";', line, text)
        assert count == 1
    with site(tmp_path / "two", text) as port:
        said = dict(_arrived(port, FORGED))
        assert said["x-ulpscope-proxy-secret"] == SECRET
        assert "x-forwarded-user" not in said  # nobody is signed in
