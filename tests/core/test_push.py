"""`push`: to a real server, over connections that break, and one sentence for everything that stands in the way."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import httpx2
import numpy as np
import pytest

from core.push import client as pushing
from core.push.client import PushError, Pushing, push_file
from core.runs.reader import RunReader
from tests.app.api.serving import Server, free_port, serving
from tests.core.runs.made_runs import copied


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("pushed") / "runs") as running:
        yield running


def dump(path: Path, positions: int = 8, vocab: int = 256) -> Path:
    reference = np.random.default_rng(0).standard_normal((positions, vocab)).astype(np.float32)
    np.savez(path, reference=reference, variant=np.nextafter(reference, np.float32(9)))
    return path


def pushed(asked: Pushing) -> tuple[pushing.Pushed, list[str]]:
    notes: list[str] = []
    return push_file(asked, lambda *_: None, notes.append), notes


def test_a_dump_and_a_run_arrive_and_their_link_is_printed(server: Server, cli, tmp_path: Path) -> None:
    path = dump(tmp_path / "mine.npz")
    done = cli("push", path, "--to", server.url, "--name", "a/b", "--model", "m", "--json")
    said = json.loads(done.stdout)
    assert said["url"] == f"{server.url}/overview?run={said['run_id']}"
    with RunReader(server.store / f"{said['run_id']}.duckdb") as run:
        assert (run.header.name, run.header.provenance.model) == ("a/b", "m")
    copied(tmp_path / "runs" / "stored-run.duckdb")
    done = cli("push", "stored", "--to", server.url)
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip().rpartition("=")[2]
    with RunReader(server.store / f"{run_id}.duckdb") as run:
        assert run.header.name == "a run"
    refused = cli("push", path, "--to", server.url, "--compute-dtype", "bfloat16")
    assert refused.returncode == 2
    assert "server did not take" in refused.stderr


class _Breaking(httpx2.HTTPTransport):
    """A line that breaks after every so many requests, once what they sent has arrived."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.count, self.every = 0, every

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().handle_request(request)
        self.count += 1
        if self.count % self.every == 0:
            raise httpx2.ReadError("broken", request=request)
        return answer


@pytest.mark.thorough
def test_in_pieces_it_goes_on_where_the_connection_broke(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dump(tmp_path / "pieces.npz", 16, 4096)
    monkeypatch.setattr(pushing, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(pushing, "PIECE_BYTES", 100_000)
    monkeypatch.setattr(pushing.time, "sleep", lambda seconds: None)
    line = _Breaking(3)
    client = httpx2.Client
    monkeypatch.setattr(pushing.httpx, "Client", lambda **asked: client(transport=line, **asked))
    done, notes = pushed(Pushing(path, "in pieces", server.url))
    assert done.resumed > 2
    assert sum("broke" in note for note in notes) > 2
    with RunReader(server.store / f"{done.run_id}.duckdb") as run:
        assert run.header.rows == 16
    assert line.count > path.stat().st_size / 100_000


@pytest.mark.thorough
def test_a_push_that_was_stopped_goes_on_when_it_is_begun_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dump(tmp_path / "again.npz", 16, 4096)
    monkeypatch.setattr(pushing, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(pushing, "PIECE_BYTES", 100_000)

    def stop(stage: str, done: int, total: int) -> None:
        if done >= 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_file(Pushing(path, "again", server.url), stop, lambda _: None)
    done, notes = pushed(Pushing(path, "again", server.url))
    assert ["going on at 200,000 of" in note for note in notes] == [True]
    assert (server.store / f"{done.run_id}.duckdb").exists()


def test_what_was_sent_whole_and_not_answered_is_not_sent_again(tmp_path: Path) -> None:
    asked: list[bytes] = []

    class Hanging(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.connection.close()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hanging) as server:
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(PushError, match="look whether the run"):
                pushed(Pushing(dump(tmp_path / "x.npz"), "x", f"http://127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()
    assert len(asked) == 1


class _Answering(http.server.BaseHTTPRequestHandler):
    """Says the same to everything."""

    status, body = 200, b"<html>"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            401,
            '{"error": "Sign in first."}',
            "asks who you are (401): Sign in first; give --token-file or ULPSCOPE_TOKEN.",
        ),
        (403, '{"error": "You are a viewer."}', "refuses it (403): You are a viewer."),
        (413, '{"error": "Too large."}', "refuses it (413): Too large."),
        (507, '{"error": "No room."}', "refuses it (507): No room."),
        (404, "<html>", "has no ULPscope API there (404)"),
        (200, "<html>", "does not answer as a ULPscope server does"),
        (500, '{"error": "\\u001b[31mred\\n"}', "refuses it (500):  [31mred "),
    ],
)
def test_whatever_a_server_answers_is_one_sentence(status: int, body: str, words: str, tmp_path: Path) -> None:
    answering = type("Answering", (_Answering,), {"status": status, "body": body.encode()})
    with http.server.HTTPServer(("127.0.0.1", 0), answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(PushError) as refused:
                pushed(Pushing(dump(tmp_path / "x.npz"), "x", f"http://127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_server_that_is_not_there_or_speaks_no_tls_is_one_sentence(tmp_path: Path) -> None:
    path, port = dump(tmp_path / "x.npz"), free_port()
    with pytest.raises(PushError, match="cannot be reached"):
        pushed(Pushing(path, "x", f"http://127.0.0.1:{port}", patience_seconds=0))
    with http.server.HTTPServer(("127.0.0.1", 0), _Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(PushError, match="TLS cannot be trusted"):
                pushed(Pushing(path, "x", f"https://127.0.0.1:{server.server_port}"))
        finally:
            server.shutdown()


def test_a_token_travels_in_a_header_and_is_in_no_sentence(
    tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    class Listening(_Answering):
        status, body = 401, b'{"error": "No."}'

        def do_PUT(self) -> None:
            seen.append(self.headers.get("Authorization"))
            super().do_PUT()

    path, token = dump(tmp_path / "x.npz"), tmp_path / "token"
    token.write_text("secret-of-mine\n")
    with http.server.HTTPServer(("127.0.0.1", 0), Listening) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            done = cli("push", path, "--to", url, "--token-file", token)
            monkeypatch.setenv("ULPSCOPE_TOKEN", "other-secret")
            other = cli("push", path, "--to", url)
        finally:
            server.shutdown()
    assert seen == ["Bearer secret-of-mine", "Bearer other-secret"]
    assert "asks who you are (401)" in done.stderr.strip()
    assert "secret" not in done.stderr + done.stdout + other.stderr + other.stdout
    assert "secret" not in repr(Pushing(path, "x", url, token="secret-of-mine"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.npz", "--to", "http://x"], "there is no such file"),
        (["x", "--to", "ftp://x"], "no address of a server"),
        (["x", "--to", "https://user:word@x"], "no address of a server"),
        (["no-such-run", "--to", "http://x"], "no run 'no-such-run'"),
        (["x", "--to", "http://x", "--token-file", "/none"], "cannot be read as a token"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    arguments: list[str], words: str, cli, tmp_path: Path
) -> None:
    copied(tmp_path / "runs" / "x.duckdb")
    done = cli("push", *arguments)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


class _Odd(http.server.BaseHTTPRequestHandler):
    """Speaks as a server of ours, but for what it is told to say otherwise: by method, (status, headers, body)."""

    said: ClassVar[dict[str, tuple[int, dict[str, str], str]]] = {}
    ours: ClassVar[dict[str, tuple[int, dict[str, str], str]]] = {
        "OPTIONS": (204, {"Tus-Version": "1.0.0"}, ""),
        "GET": (200, {}, '{"uploads": []}'),
        "POST": (201, {"Location": "/api/uploads/x"}, ""),
        "PATCH": (204, {"Upload-Offset": "{sent}"}, ""),
        "PUT": (201, {}, '{"state": "done", "run_id": "r", "url": "http://x/overview?run=r"}'),
    }

    def _answer(self) -> None:
        sent = len(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        status, headers, body = self.said.get(self.command, self.ours[self.command])
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value.replace("{sent}", str(sent)))
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_OPTIONS = do_GET = do_POST = do_PATCH = do_PUT = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def odd_server_says(tmp_path: Path, **said: tuple[int, dict[str, str], str]) -> pushing.Pushed:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Odd", (_Odd,), {"said": said})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            return pushed(
                Pushing(dump(tmp_path / "x.npz"), "x", f"http://127.0.0.1:{server.server_port}", patience_seconds=0)
            )[0]
        finally:
            server.shutdown()


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("method", "status", "headers", "body"),
    [
        ("GET", 200, {}, '{"uploads": [3]}'),
        ("GET", 200, {}, '{"uploads": [{"name": "x.npz", "bytes_total": SIZE, "modified": "TIME"}]}'),
        (
            "GET",
            200,
            {},
            '{"uploads": [{"name": "x.npz", "bytes_total": SIZE, "modified": "TIME", "id": "a", "bytes_done": -1}]}',
        ),
        ("GET", 200, {}, "[" * 100_000),
        ("POST", 201, {}, ""),
        ("POST", 201, {"Location": "http://[::"}, ""),
        ("PATCH", 204, {}, ""),
        ("PATCH", 204, {"Upload-Offset": "zzz"}, ""),
        ("PATCH", 204, {"Upload-Offset": "-5"}, ""),
        ("PATCH", 204, {"Upload-Offset": "0"}, ""),
        ("PATCH", 204, {"Upload-Offset": "99999999999"}, ""),
        ("PUT", 200, {}, '{"state": "done"}'),
        ("PUT", 200, {}, '{"state": "done", "run_id": 3, "url": "x"}'),
        ("PUT", 202, {}, '{"state": "x", "run_id": "r", "rows_done": "zz"}'),
        ("PUT", 202, {}, '{"state": "x", "run_id": "r", "rows_total": [1]}'),
        ("PUT", 202, {}, '{"state": "x"}'),
    ],
)
def test_an_answer_that_no_server_of_ours_gives_is_one_sentence(
    method: str, status: int, headers: dict[str, str], body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "_WHOLE_BYTES", 0)
    found = dump(tmp_path / "x.npz").stat()
    body = body.replace("SIZE", str(found.st_size)).replace("TIME", str(found.st_mtime_ns))
    monkeypatch.setattr(np, "savez", lambda *_, **__: None)  # the file is there, as that server knows it
    with pytest.raises(PushError, match="ULPscope server does"):
        odd_server_says(tmp_path, **{method: (status, headers, body)})


def test_a_server_that_says_nothing_odd_is_believed_and_its_escapes_are_not_printed(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(pushing, "_WHOLE_BYTES", 0)
    assert odd_server_says(tmp_path).run_id == "r"
    assert odd_server_says(tmp_path, GET=(200, {}, '{"uploads": null}')).run_id == "r"
    said = '{"state": "done", "run_id": "\\u001b]0;x\\u0007", "url": "\\u001b[31mx"}'
    assert odd_server_says(tmp_path, PUT=(200, {}, said)).url == " [31mx"
    with pytest.raises(PushError, match=r"did not take it:  \[31mno"):
        odd_server_says(tmp_path, PUT=(422, {}, '{"state": "failed", "message": "\\u001b[31mno"}'))
