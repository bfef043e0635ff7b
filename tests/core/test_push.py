"""`push`: to a real server, over connections that break, and one sentence for each refusal."""

import itertools
import json

import httpx2
import pytest

from core import push as pushing
from core.push import PushError, PushRequest, push_file
from core.runs.reader import RunReader
from tests.core.probing.odd_server import listening, reply
from tests.core.runs.made_runs import copied
from tests.serving import dump, free_port, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("pushed") / "runs") as running:
        yield running


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(pushing, "PART_BYTES", 100_000)
    monkeypatch.setattr(pushing.time, "sleep", lambda seconds: None)


def written(path, positions=8, vocab=256):
    path.write_bytes(dump(positions, vocab))
    return path


def pushed(asked):
    notes = []
    return push_file(asked, lambda *_: None, notes.append), notes


def test_a_dump_and_a_run_arrive_and_their_link_is_printed(server, cli, tmp_path):
    path = written(tmp_path / "mine.npz")
    done = cli("push", path, "--to", server.url, "--name", "a/b", "--model", "m", "--json")
    said = done.json
    assert said["url"] == f"{server.url}/overview?run={said['run_id']}"
    with RunReader(server.store / f"{said['run_id']}.duckdb") as run:
        assert run.header.name == "a/b"
        assert run.header.provenance.model == "m"
    copied(tmp_path / "runs" / "stored-run.duckdb")
    done = cli("push", "stored", "--to", server.url).succeeded()
    with RunReader(server.store / f"{done.stdout.strip().rpartition('=')[2]}.duckdb") as run:
        assert run.header.name == "a run"
    refusal = cli("push", path, "--to", server.url, "--compute-dtype", "bfloat16").refusal
    assert "no bfloat16 value" in refusal


class _Breaking(httpx2.HTTPTransport):
    """A line that breaks after every third request, once what it sent has arrived."""

    count = 0

    def handle_request(self, request):
        answer = super().handle_request(request)
        self.count += 1
        if self.count % 3 == 0:
            error = httpx2.DecodingError if self.count % 2 else httpx2.ReadError
            raise error("broken", request=request)
        return answer


def test_it_goes_on_where_the_connection_broke_and_makes_one_run(
    server,
    tmp_path,
    small_parts,
    monkeypatch,
):
    path = written(tmp_path / "parts.npz", 16, 4096)
    client = httpx2.Client
    line = _Breaking()
    monkeypatch.setattr(pushing.httpx, "Client", lambda **asked: client(transport=line, **asked))
    before = len(list(server.store.glob("*.duckdb")))
    done, notes = pushed(PushRequest(path, "in parts", server.url))
    assert done.resumed == sum("broke" in note for note in notes) > 2
    with RunReader(server.store / f"{done.run_id}.duckdb") as run:
        assert run.header.rows == 16
    assert len(list(server.store.glob("*.duckdb"))) == before + 1


def test_a_push_that_was_stopped_goes_on_and_one_that_is_done_makes_another_run(
    server,
    tmp_path,
    small_parts,
):
    asked = PushRequest(written(tmp_path / "again.npz", 16, 4096), "again", server.url)

    sent = set()

    def stop(stage, done=0, total=0, unit=""):
        sent.add(done)
        # two parts have arrived
        if len(sent - {0}) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_file(asked, stop, lambda _: None)
    done, notes = pushed(asked)
    assert "resuming at 200,000 of" in notes[0]
    other, notes = pushed(asked)
    assert notes == []
    assert other.run_id != done.run_id


def state(**fields):
    """The state of an upload, as a server of another version may have it."""
    default = {
        "state": "receiving",
        "received": 0,
        "run_id": "",
        "url": "",
        "stage": "",
        "rows_done": 0,
        "rows_total": 0,
        "message": "",
    }
    return json.dumps(default | fields)


def answering(status, body, seen=None):
    """A server that says the same to everything."""

    def answer(handler):
        if seen is not None:
            seen.append(handler.headers.get("Authorization"))
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        reply(handler, body.encode(), status)

    return listening(answer)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (
            401,
            '{"error": "Sign in first."}',
            "(401): Sign in first; give --token-file or ULPSCOPE_TOKEN.",
        ),
        (403, '{"error": "Read-only."}', "refuses the file (403): Read-only."),
        (404, "<html>", "no ULPscope API at this address (404)"),
        (200, "<html>", "does not answer like a ULPscope server"),
        (200, '{"state": "importing"}', "does not answer like a ULPscope server"),
        (200, state(state="queued"), "does not answer like a ULPscope server"),
        (200, state(state="received"), "does not answer like a ULPscope server"),
        (200, state(state="done", run_id=None), "does not answer like a ULPscope server"),
        (200, state(received=10**18), "does not answer like a ULPscope server"),
        (500, '{"error": "\\u001b[31mred\\n"}', "refuses the file (500):  [31mred "),
    ],
)
def test_whatever_a_server_answers_is_one_sentence(status, body, words, tmp_path):
    with answering(status, body) as url, pytest.raises(PushError) as refused:
        pushed(PushRequest(written(tmp_path / "x.npz"), "x", url, patience_seconds=0))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_server_that_is_not_there_or_speaks_no_tls_is_one_sentence(tmp_path):
    path = written(tmp_path / "x.npz")
    with pytest.raises(PushError, match="cannot be reached"):
        pushed(PushRequest(path, "x", f"http://127.0.0.1:{free_port()}", patience_seconds=0))
    with answering(200, "") as url, pytest.raises(PushError, match="TLS cannot be trusted"):
        pushed(PushRequest(path, "x", url.replace("http:", "https:")))


def test_a_server_that_never_answered_is_given_up_before_one_that_broke_off(tmp_path, monkeypatch):
    times = itertools.count(0.0, 10.0)
    monkeypatch.setattr("core.push.time.monotonic", lambda: next(times))
    waits = []
    monkeypatch.setattr("core.push.time.sleep", waits.append)
    with pytest.raises(PushError, match="cannot be reached"):
        pushed(PushRequest(written(tmp_path / "x.npz"), "x", f"http://127.0.0.1:{free_port()}"))
    # ten seconds each, of the 300 that a broken connection has
    assert len(waits) <= 2


def test_a_token_travels_in_a_header_and_is_in_no_sentence(tmp_path, cli, monkeypatch):
    seen = []
    path = written(tmp_path / "x.npz")
    token = tmp_path / "token"
    token.write_text("secret-of-mine\n")
    with answering(401, '{"error": "No."}', seen) as url:
        done = cli("push", path, "--to", url, "--token-file", token)
        monkeypatch.setenv("ULPSCOPE_TOKEN", "other-secret")
        other = cli("push", path, "--to", url)
    assert seen == ["Bearer secret-of-mine", "Bearer other-secret"]
    assert "is the token right" in done.stderr
    assert "secret" not in done.stderr + done.stdout + other.stderr + other.stdout
    assert "secret" not in repr(PushRequest(path, "x", url, token="secret-of-mine"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.npz", "--to", "http://x"], "no such file"),
        (["x", "--to", "ftp://x"], "not a server address"),
        (["x", "--to", "https://user:word@x"], "not a server address"),
        (["no-such-run", "--to", "http://x"], "no run 'no-such-run'"),
        (["x", "--to", "http://x", "--token-file", "/none"], "cannot be read as a token"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(arguments, words, cli, tmp_path):
    copied(tmp_path / "runs" / "x.duckdb")
    assert words in cli("push", *arguments).refusal
