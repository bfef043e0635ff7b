"""The table of docs/explanation/security.md, row by row, on real servers: one with a sign-in, one
without.
"""

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from core.hosting import tokens
from tests.core.runs.made_runs import copied
from tests.serving import ROOT, serving

PASSWORD = "correct horse"
EVIL = "https://evil.example"
METHODS = ("GET", "POST", "PUT", "DELETE")
SIGN_IN = {"/sign-in", "/sign-out", "/sign-in/oidc", "/sign-in/callback"}
MB = 1 << 20
_LIST_ROUTES = """
import json, re
from starlette.routing import Mount, Route, WebSocketRoute
from app.main import app

def paths(routes, before=""):
    for route in routes:
        path = before + re.sub(r"[{][^}]*[}]", "x", route.path)
        if isinstance(route, Mount):
            yield f"{path}/x.js"
            yield from paths(route.routes or [], path)
        else:
            assert isinstance(route, (Route, WebSocketRoute)), route
            yield path

print(json.dumps(sorted(set(paths(app._build_starlette_app().routes)))))
"""


@dataclass(frozen=True)
class Hosted:
    url: str
    store: Path
    token: str

    @property
    def bearer(self):
        return {"Authorization": f"Bearer {self.token}"}

    def runs(self):
        return sorted(path.name for path in self.store.glob("*.duckdb"))


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosted")
    copied(folder / "runs" / "mine.duckdb")
    token = tokens.add(folder / "runs", "ada")
    settings = {
        "sign_in_password": PASSWORD,
        "sign_in_tokens": "1",
        "samples": "",
        "limits_free_bytes": "0",
    }
    with serving(folder / "runs", **settings) as running:
        yield Hosted(running.url, folder / "runs", token)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    copied(folder / "runs" / "mine.duckdb")
    with serving(folder / "runs", samples="", limits_free_bytes="0") as running:
        yield Hosted(running.url, folder / "runs", "")


@pytest.fixture(scope="module")
def paths():
    done = subprocess.run(
        [sys.executable, "-c", _LIST_ROUTES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def websocket_status(server, origin=None, host=None, **headers):
    """101 if the page's websocket opens, else the status with which it is refused."""
    try:
        port = int(server.url.rpartition(":")[2])
        uri = f"ws://{host or '127.0.0.1'}:{port}/_stcore/stream"
        with (
            # the host of the address is what is tested, and need not resolve
            socket.create_connection(("127.0.0.1", port)) as line,
            connect(uri, sock=line, origin=origin, additional_headers=headers, open_timeout=20),
        ):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer ulp_" + "A" * 43},
        {"X-ULPscope-Member": "ada", "X-Forwarded-User": "ada", "X-Forwarded-For": "127.0.0.1"},
        {"Cookie": "ulpscope_00000000=eyJtZW1iZXIiOiAiYWRhIn0=.aaaaaa.bbbb; _streamlit_user=ada"},
    ],
)
def test_nobody_reaches_any_route_or_the_websocket(hosted, paths, headers):
    assert {
        "/api/runs",
        "/files/x.duckdb",
        "/_stcore/stream",
        "/_stcore/health",
        "/media/x",
        "/x.js",
    } <= set(paths)
    answered = []
    with httpx2.Client(base_url=hosted.url, timeout=60) as client:
        for path in ["/", "/overview", "/nowhere", "/api/runs", *(paths if not headers else ())]:
            # these answer everybody
            assert path not in SIGN_IN
            for method in METHODS:
                status = client.request(method, path, headers=headers).status_code
                answered += [f"{method} {path}: {status}"] if status != 401 else []
        # a page sends its reader to the sign-in, and nothing of it
        page = client.get("/overview?run=mine", headers=headers | {"Accept": "text/html"})
        assert page.status_code == 303
        assert page.content == b""
    assert answered == []
    assert websocket_status(hosted, **headers) == 401


def test_a_member_reaches_them(hosted):
    for path in ("/", "/api/runs", "/files/mine.duckdb", "/_stcore/health"):
        assert httpx2.get(hosted.url + path, headers=hosted.bearer).status_code == 200
    assert websocket_status(hosted, **hosted.bearer) == 101


@pytest.mark.parametrize(
    "origin",
    [EVIL, "null", "http://127.0.0.1:1", "https://127.0.0.1.evil.example"],
)
def test_a_page_of_another_site_changes_nothing(hosted, local, origin):
    headers = {"Origin": origin}
    with (
        httpx2.Client(base_url=hosted.url, timeout=60) as member,
        httpx2.Client(base_url=local.url) as neighbor,
    ):
        assert member.post("/sign-in", data={"secret": PASSWORD}).status_code == 303
        for client in (member, neighbor):
            for method, path in [
                ("DELETE", "/api/uploads/x"),
                ("PUT", "/api/uploads/x"),
                ("POST", "/sign-out"),
            ]:
                refused = client.request(method, path, content=b"x", headers=headers)
                assert refused.status_code == 403
        cookie = "; ".join(f"{name}={value}" for name, value in member.cookies.items())
        assert websocket_status(hosted, origin, Cookie=cookie) == 403
        assert websocket_status(local, origin) == 403
        assert websocket_status(hosted, hosted.url, Cookie=cookie) == 101  # the server's own page
        # signed in still; no script of theirs may read it
        answer = member.get("/api/runs", headers=headers)
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
    form = {"secret": PASSWORD}
    assert httpx2.post(f"{hosted.url}/sign-in", data=form, headers=headers).status_code == 403
    assert hosted.runs() == local.runs() == ["mine.duckdb"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8501", "localhost.evil.example", "169.254.169.254", ""],
)
def test_a_name_that_is_not_this_machines_is_refused_without_a_sign_in(local, host):
    for path in ("/", "/api/runs", "/files/mine.duckdb"):
        assert httpx2.get(local.url + path, headers={"Host": host}).status_code == 400
    if host:
        assert websocket_status(local, host=host.partition(":")[0]) == 400
    assert httpx2.get(f"{local.url}/api/runs").status_code == 200


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e%2fmine",
        "..%5cmine",
        "%00",
        "%2fetc%2fpasswd",
        ".hosting%2ftokens.json",
    ],
)
def test_a_name_of_a_run_leads_nowhere(hosted, name):
    (hosted_digest,) = tokens.digests(hosted.store).values()
    for path in (
        f"/api/runs/{name}",
        f"/api/runs/{name}/file",
        f"/files/{name}.duckdb",
        f"/files/{name}.npz",
    ):
        answer = httpx2.get(hosted.url + path, headers=hosted.bearer)
        # What is no address of ours gets Streamlit's page, as every unknown one.
        assert answer.status_code in (400, 404) or answer.headers["content-type"].startswith(
            "text/html",
        )
        assert b"root:" not in answer.content
        assert hosted_digest not in answer.text
    assert put(hosted, name, b"x") >= 400
    assert hosted.runs() == ["mine.duckdb"]
    assert {path.name for path in hosted.store.parent.iterdir()} == {"runs", "server.log"}


def sent_raw(server, head, block, blocks):
    """Send a head and many blocks; what the server answers, which may hang up in the middle."""
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=60) as line:
        try:
            line.sendall(head)
            for _ in range(blocks):
                line.sendall(block)
        except OSError:
            pass
        try:
            return line.recv(4096)
        except OSError:
            return b""


def test_a_header_of_100_mb_is_cut_off(hosted):
    answer = sent_raw(hosted, b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ", b"a" * MB, 100)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert httpx2.get(f"{hosted.url}/sign-in").status_code == 200


def test_a_form_of_100_mb_signs_nobody_in(hosted):
    head = f"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: {100 * MB}\r\n\r\n".encode()
    assert b" 401 " in sent_raw(hosted, head, b"secret=a&" * (MB // 9), 20)
    assert httpx2.get(f"{hosted.url}/sign-in").status_code == 200


def put(server, name, body):
    address = f"{server.url}/api/uploads/{name}?wait=60"
    return httpx2.put(address, content=body, headers=server.bearer, timeout=90).status_code
