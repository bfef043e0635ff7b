"""A hosted server that is sent anything: by nobody, by a viewer, by an editor, to every route and over the websocket.

`python -m pytest -m thorough tests/fuzz/test_server.py` sends ULPSCOPE_FUZZ requests and orders a seed (1500 where it
is not set). A failure prints the seed, and the request itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import websockets
from starlette.routing import Route
from streamlit.proto.BackMsg_pb2 import BackMsg
from websockets.sync.client import connect

from app.hosting import sign_in
from app.routes import ROUTES
from core.hosting import tokens
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from tests.app.hosting.servers import serving
from tests.app.hosting.serving import EDITOR, VIEWER
from tests.core.runs.made_runs import ROOT, copied

LONG = int(os.environ.get("ULPSCOPE_FUZZ", "1500"))
SEEDS = (1, 2, 3, 4)
HIDDEN = "the run that nobody sees"  # a name in the store, which no answer to nobody may have
SCRIPT = str(ROOT / "app" / "main.py").encode()  # which Streamlit tells every page, and needs
WORKING = (503, 507)  # by a server that is well: the disk is full, or a file is locked
TEMPLATES = sorted(
    {route.path for route in (*ROUTES, *sign_in.ROUTES) if isinstance(route, Route)}
    | {"/_stcore/health", "/_stcore/host-config", "/_stcore/upload_file/{x}/{y}", "/media/{x}", "/component/{x}/{y}"}
    | {"/", "/overview", "/capture", "/static/{x}", "/_stcore/bidi-components/{x}/{y}", "/nowhere"}
)
WORDS = re.compile(r"\S+")
PARTS = (
    *WORDS.findall(
        "mine other kept x 0 1 -1 999999999999999999999 1e400 nan NaN %00 %ff%fe %E2%80%AE .. ..%5c .hosting"
    ),
    *WORDS.findall(
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd %F0%9F%92%A9 {x} * mine%0d%0aX-Planted:%201 CON mine.duckdb %2f ; %"
    ),
    *("%zz", "'", "%22", "<script>", "~root", "mine%20", ".audit", "a" * 300, "a" * 5000),
)
NAMES = WORDS.findall(
    "name wait upload limit offset search for_good pair prompt measure next code state dtype model compute_dtype"
    " reference holds colour run position x level sort rows"
)
HEADERS = """Range: bytes=0-
Range: bytes=5-1
Range: bytes=-99999999999999999999
Range: x
If-None-Match: *
If-Match: x
If-Modified-Since: never
Content-Type: application/json
Content-Type: application/offset+octet-stream
Tus-Resumable: 1.0.0
Upload-Length: 5
Upload-Length: -1
Upload-Length: 99999999999999999999999
Upload-Offset: 0
Upload-Offset: x
Upload-Metadata: filename eA==
Upload-Metadata: , ,,
Upload-Checksum: sha1 x
Accept: text/html
Accept: */*;q=x
Accept-Encoding: gzip;q=0, br
Expect: 100-continue
X-HTTP-Method-Override: DELETE
Origin: null
Origin: https://evil.example
Sec-Fetch-Site: cross-site
X-Forwarded-For: 127.0.0.1, ::1
X-Forwarded-Proto: https
X-Forwarded-User: ada
X-ULPscope-Identity: e30=
Repr-Digest: sha-256=:x:
Cookie: a=b; ;;=
Cookie: \xff\xfe
Last-Event-ID: 5
Connection: upgrade
Upgrade: websocket
Transfer-Encoding: gzip
X-\xe9: \xe9""".splitlines()
BODIES = (
    *(b"", b"{}", b"[]", b"null", b'{"tags": [1]}', b'{"note": "\\ud800"}', b"[" * 3000, b"PK\x03\x04" + b"\0" * 60),
    *(b"\x93NUMPY\x01\x00", b"\0" * 4096, b'{"tags": ["' + b"t" * 3000 + b'"]}', b"form=x&secret=y&next=//evil"),
)


@dataclass(frozen=True)
class Answer:
    status: int  # 0: hung up
    raw: bytes


def faults_of(answer: Answer, who: str, folder: Path) -> list[str]:
    """Faults of an answer, in words."""
    found = []
    if answer.status >= 500 and answer.status not in WORKING:
        found.append(f"a status of {answer.status}")
    for secret in (str(ROOT), str(folder), "Traceback (most recent", "site-packages"):
        if (place := answer.raw.find(secret.encode())) >= 0:
            found.append(f"it tells '{secret}': {answer.raw[max(0, place - 100) : place + 300]!r}")
    if b"\r\nX-Planted" in answer.raw.partition(b"\r\n\r\n")[0]:
        found.append("a header out of an address")
    if who == "nobody" and HIDDEN.encode() in answer.raw:
        found.append("nobody is told of a run")
    return found


def _request(chance: random.Random, token: str) -> bytes:
    template = chance.choice(TEMPLATES)
    path = re.sub(r"\{[^}]*\}", lambda _: chance.choice(PARTS), template)
    if chance.random() < 0.1:
        path += chance.choice(("/", "//", "/..", "/" + chance.choice(PARTS), "#x"))
    asked = [f"{chance.choice(NAMES)}={chance.choice(PARTS)}" for _ in range(chance.choice((0, 0, 1, 1, 2, 5)))]
    method = chance.choice(("GET",) * 6 + ("HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"))
    body = chance.choice(BODIES) if method not in ("GET", "HEAD") or chance.random() < 0.05 else b""
    lines = [f"{method} {path}{'?' if asked else ''}{'&'.join(asked)} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += chance.sample(HEADERS, chance.choice((0, 1, 2, 4)))
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"Content-Length: {len(body) + (chance.choice((0, 0, 0, 0, 0, -1)) if body else 0)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _sent(url: str, request: bytes) -> Answer:
    host, _, port = url.removeprefix("http://").partition(":")
    raw = b""
    with socket.create_connection((host, int(port)), timeout=120) as line, suppress(ConnectionError):
        line.sendall(request)
        while len(raw) < 4 << 20 and (part := line.recv(1 << 16)):
            raw += part
            if request.startswith((b"GET /_stcore/stream", b"HEAD")) and b"\r\n\r\n" in raw:
                break
    status = re.match(rb"HTTP/1\.1 (\d{3})", raw)
    return Answer(int(status[1]) if status else 0, raw)


def _order(chance: random.Random) -> bytes | str:
    """An order of the browser's, more or less."""
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(("", "text", "{}", "\ud83d\ude00"))
    if kind < 0.25:
        return chance.randbytes(chance.choice((0, 1, 7, 200, 5000)))
    order = BackMsg()
    name = chance.choice([field.name for field in BackMsg.DESCRIPTOR.fields] + ["rerun_script"] * 8)
    value = getattr(order, name)
    if isinstance(value, bool):
        setattr(order, name, True)
    else:
        value.SetInParent()
    if name == "rerun_script":
        asked = order.rerun_script
        asked.page_name = chance.choice(("", "overview", "flips", "capture", "heatmap", "x" * 400, "../main"))
        part = chance.choice(PARTS)
        asked.query_string = f"run={chance.choice(('mine', part))}&{chance.choice(NAMES)}={part}&position={part}"
        asked.page_script_hash = chance.choice(("", "x", "0" * 32))
        asked.fragment_id = chance.choice(("", "", "", "nothing"))
        for _ in range(chance.choice((0, 1, 3))):
            state = asked.widget_states.widgets.add()
            state.id = chance.choice(("$$ID-x-position", "$$ID-x-delete", "x", "$$GENERATED", "$$ID-0-capture_start"))
            field, value = chance.choice(
                (
                    ("trigger_value", True),
                    ("double_value", chance.choice((float("nan"), 1e300, -1.0))),
                    ("string_value", part),
                    ("json_value", chance.choice(("{", "null", '{"a": 1}'))),
                    ("bytes_value", chance.randbytes(30)),
                )
            )
            setattr(state, field, value)
    raw = order.SerializeToString()
    if chance.random() < 0.15:
        raw = raw[: chance.randrange(len(raw) + 1)]
    return raw


def _talked(url: str, token: str, orders: list[bytes | str]) -> bytes:
    """All that the server says to these orders, until it has nothing to say for a while or hangs up."""
    said = b""
    headers = {"authorization": f"Bearer {token}"}
    address = f"{url.replace('http', 'ws', 1)}/_stcore/stream"
    with connect(
        address, subprotocols=[websockets.Subprotocol("streamlit")], additional_headers=headers, max_size=None
    ) as line:
        with suppress(websockets.ConnectionClosed, TimeoutError):
            for order in orders:
                line.send(order)
            while len(said) < 20 << 20:
                part = line.recv(2)
                said += part if isinstance(part, bytes) else part.encode()
        with suppress(TimeoutError, websockets.ConnectionClosed):
            line.close()
    return said


def _contents(folder: Path) -> dict[str, str]:
    """Digest of every file of the store that holds what somebody put there; made downloads are none."""
    kept = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.relative_to(folder).parts[0] not in (".hosting", ".audit", ".npz")
    ]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in kept}


@contextmanager
def _hosted(tmp_path: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    store = tmp_path / "runs"
    for run_id in ("mine", "other", "kept"):
        copied(store / f"{run_id}.duckdb")
    (store / ".labels").mkdir(exist_ok=True)
    known = {role: tokens.add(store, f"{role} of the test", role, 1)[0] for role in ("viewer", "editor")}
    settings = {"sign_in_tokens": "1", "sign_in_editor_password": EDITOR, "sign_in_viewer_password": VIEWER}
    with serving(store, tmp_path / "log", **settings, samples="", sign_in_attempts="1000000") as url:
        bearer = {"authorization": f"Bearer {known['editor']}"}
        note = {"tags": [HIDDEN], "note": HIDDEN}
        assert httpx2.put(f"{url}/api/runs/kept/labels", json=note, headers=bearer, timeout=60).status_code == 200
        yield url, store, {"nobody": "", **known}


def _is_well(url: str, token: str) -> None:
    """The server still answers, and the list of runs is whole."""
    said = httpx2.get(f"{url}/api/runs", headers={"authorization": f"Bearer {token}"}, timeout=120)
    assert said.status_code == 200
    assert json.loads(said.text)["runs"]


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_any_request_gets_an_answer_that_tells_nothing_and_changes_only_what_its_sender_may(seed: int, tmp_path: Path):
    chance, seen = random.Random(seed), set()
    with _hosted(tmp_path) as (url, store, known):
        before = _contents(store)
        for who in ("nobody", "viewer", "editor"):
            for _ in range(LONG // 3):
                request = _request(chance, known[who])
                answer = _sent(url, request)
                seen.add(answer.status)
                assert faults_of(answer, who, tmp_path) == [], (seed, who, request, answer.raw[:2000])
            if who != "editor":
                assert _contents(store) == before, (seed, who)
            _is_well(url, known["viewer"])
        assert list_runs(Store(store))[1] == []
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert {200, 400, 401, 403, 404, 405} <= seen


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
def test_any_order_over_the_websocket_of_a_viewer_changes_nothing_and_is_told_nothing(seed: int, tmp_path: Path):
    chance = random.Random(seed)
    with _hosted(tmp_path) as (url, store, known):
        before = _contents(store)
        for _ in range(LONG // 60):
            orders = [_order(chance) for _ in range(20)]
            said = _talked(url, known["viewer"], orders).replace(SCRIPT, b"")
            assert faults_of(Answer(200, said), "viewer", tmp_path) == [], (seed, orders)
        assert _contents(store) == before, seed
        _is_well(url, known["viewer"])


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (Answer(500, b"HTTP/1.1 500 Internal Server Error\r\n\r\n"), "status of 500"),
        (Answer(404, f"HTTP/1.1 404\r\n\r\nno run in {ROOT}/runs".encode()), "it tells"),
        (Answer(200, b"HTTP/1.1 200\r\nX-Planted: 1\r\n\r\n"), "a header out of an address"),
        (Answer(200, f"HTTP/1.1 200\r\n\r\n{HIDDEN}".encode()), "told of a run"),
    ],
)
def test_what_an_answer_must_not_be_is_found(answer: Answer, fault: str, tmp_path: Path):
    assert fault in " ".join(faults_of(answer, "nobody", tmp_path))
    assert faults_of(Answer(200, b"HTTP/1.1 200 OK\r\n\r\nfine"), "nobody", tmp_path) == []
