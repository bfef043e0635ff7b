"""PUT: what arrives becomes a run or nothing, whatever the sender says of it and whenever it goes away."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import socket
import stat
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from app.shell import store_changes
from app.shell.jobs import TAKING_IN, Job, Jobs
from app.uploads import ingest_jobs, ingest_status
from core.errors import UsageError
from core.runs.file.bounds import MAX_SIDES
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.app.api.serving import free_port, serving
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import copied
from tests.waiting import until

PAYLOADS = Path(__file__).parents[2] / "core" / "runs" / "sparse" / "payloads"


def dump(positions: int = 4, vocab: int = 64, seed: int = 0, **more: np.ndarray) -> bytes:
    chance = np.random.default_rng(seed)
    reference = chance.standard_normal((positions, vocab)).astype(np.float32)
    file = io.BytesIO()
    np.savez(file, reference=reference, variant=np.nextafter(reference, np.float32(9)), **more)
    return file.getvalue()


def left(store: Path) -> list[str]:
    """What lies in the store beside the runs and the log."""
    return sorted(path.name for path in store.iterdir() if path.suffix != ".duckdb" and path.name != ".ingests")


def test_a_dump_becomes_a_run_whose_link_is_answered(real_client: TestClient, store: Path) -> None:
    answer = real_client.put("/api/runs/two%20calls", params={"wait": 60, "model": "a/model"}, content=dump())
    assert answer.status_code == 201, answer.text
    said = answer.json()
    assert answer.headers["location"] == f"/api/runs/{said['run_id']}"
    assert said["url"] == f"http://testserver/overview?run={said['run_id']}"
    with RunReader(store / f"{said['run_id']}.duckdb") as run:
        assert (run.header.name, run.header.provenance.model, run.header.vocab) == ("two calls", "a/model", 64)
    assert left(store) == []


def test_responses_of_an_engine_become_a_run_told_as_on_the_command_line(client: TestClient) -> None:
    body = (PAYLOADS / "llamacpp_completion.json").read_bytes()
    answer = client.put("/api/runs/twice?wait=60", content=b"[" + body + b"," + body + b"]")
    assert answer.status_code == 201, answer.text
    said = client.get(f"/api/runs/{answer.json()['run_id']}?positions=1").json()
    assert (said["kind"], said["name"], len(said["by_position"])) == ("sparse", "twice", 3)
    assert said["summary"]["flips"] == 0
    refused = client.put("/api/runs/none?wait=60", content=b'{"hello": 1}')
    assert refused.status_code == 422
    assert "no response that is known" in refused.json()["error"]


STREAM = (PAYLOADS / "vllm_stream.txt").read_bytes()
AGAIN = STREAM.replace(b"cmpl-927e17c65b26adbb", b"cmpl-0")


@pytest.mark.parametrize(
    "body",
    [
        STREAM + AGAIN,
        gzip.compress(STREAM + AGAIN),
        (STREAM + AGAIN).decode().encode("utf-16"),
        b"HTTP/1.1 200 OK\r\n\r\n" + STREAM + AGAIN,
        STREAM.replace(b"data: [DONE]", b"").replace(b"data: ", b"")
        + AGAIN.replace(b"data: [DONE]", b"").replace(b"data: ", b""),
    ],
)
def test_streams_become_a_run_however_they_are_wrapped(client: TestClient, body: bytes) -> None:
    answer = client.put("/api/runs/streams?wait=60", content=body)
    assert answer.status_code == 201, answer.text
    found = client.get(f"/api/runs/{answer.json()['run_id']}?positions=1").json()
    assert (found["kind"], len(found["by_position"]), found["summary"]["listed_that_differ"]) == ("sparse", 3, 0)


def test_answers_without_a_common_token_become_a_run(client: TestClient) -> None:
    logprobs = [{"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": None} for text in ("The", "A")]
    lines = [json.dumps({"choices": [{"index": 0, "text": "", "logprobs": one}]}) for one in logprobs]
    answer = client.put("/api/runs/bare?wait=60", content="\n".join(lines).encode())
    assert answer.status_code == 201, answer.text
    said = client.get(f"/api/runs/{answer.json()['run_id']}?positions=1").json()
    assert (said["summary"]["listed"], said["placeholders"]) == (0, [])
    assert "no value can be compared" in said["verdicts"][0]["because"]
    assert client.get(f"/api/runs/{answer.json()['run_id']}.npz").status_code in (404, 409, 422)


def test_without_waiting_the_id_is_known_and_where_to_ask(client: TestClient, store: Path) -> None:
    answer = client.put("/api/runs/later", content=dump())
    assert answer.status_code == 202
    said = answer.json()
    assert answer.headers["location"] == said["job"] == f"/api/ingests/{said['run_id']}"
    done = client.get(said["job"], params={"wait": 60}).json()
    assert (done["state"], done["run_id"], done["rows_done"]) == ("done", said["run_id"], 4)
    assert [each["run_id"] for each in client.get("/api/ingests").json()["ingests"]] == [said["run_id"]]
    assert client.get(f"/api/runs/{said['run_id']}").json()["summary"]["neq"] == 4 * 64


def test_a_run_file_is_known_by_its_bytes_and_checked(client: TestClient, store: Path, tmp_path: Path) -> None:
    path = copied(tmp_path / "outside" / "run.npz")
    answer = client.put("/api/runs/from%20elsewhere?wait=60", content=path.read_bytes())
    assert answer.status_code == 201, answer.text
    damaged(path, "CREATE VIEW v AS SELECT 1")
    refused = client.put("/api/runs/hostile?wait=60", content=path.read_bytes())
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("hostile: holds the view 'v'")
    assert refused.json()["state"] == "failed"
    assert len(list(store.glob("*.duckdb"))) == 1
    assert left(store) == []


@pytest.mark.parametrize("body", [b"", b"hello, I am text", b"\x80\x04\x95pickled-things"])
def test_what_is_neither_is_refused_by_its_first_bytes(body: bytes, client: TestClient, store: Path) -> None:
    answer = client.put("/api/runs/x", content=body)
    assert answer.status_code == 415
    assert "expected an npz" in answer.json()["error"]
    assert left(store) == []


def test_a_bomb_is_refused_by_the_checks_of_dumps(client: TestClient, store: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1000, 70_000)})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", header.getvalue() + bytes(280_000_000))
    assert len(file.getvalue()) < 1_000_000
    answer = client.put("/api/runs/bomb?wait=60", content=file.getvalue())
    assert answer.status_code == 422
    assert "more than 200 times as many" in answer.json()["error"]


def test_padded_vocabularies_are_cut_where_the_sender_says_so(client: TestClient) -> None:
    body = io.BytesIO()
    np.savez(body, hf=np.eye(6, 32, dtype=np.float32), engine=np.eye(6, 40, dtype=np.float32))
    refused = client.put("/api/runs/padded?wait=60", content=body.getvalue())
    assert refused.status_code == 422
    assert "--holds padded" in refused.json()["error"]
    taken = client.put("/api/runs/padded?wait=60&holds=padded", content=body.getvalue())
    assert taken.status_code == 201, taken.text


def test_a_dump_of_more_sides_than_a_run_has_is_refused_in_a_sentence(client: TestClient, store: Path) -> None:
    more = {f"s{number}": np.zeros((4, 64), np.float32) for number in range(MAX_SIDES - 1)}
    answer = client.put("/api/runs/many?wait=60", content=dump(**more))
    assert answer.status_code == 422
    assert f"many: holds {MAX_SIDES + 1} sides" in answer.json()["error"]
    assert left(store) == []


def test_a_file_too_large_is_413_and_one_without_room_507(
    client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = dump()
    monkeypatch.setenv("ULPSCOPE_LIMITS_FILE_BYTES", "1000")
    announced = client.put("/api/runs/x", content=body)
    assert (announced.status_code, "limits.file_bytes" in announced.json()["error"]) == (413, True)
    monkeypatch.setenv("ULPSCOPE_LIMITS_FILE_BYTES", "0")
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "999 TB")
    assert client.put("/api/runs/x", content=body).status_code == 507
    assert not store.exists() or left(store) == []


def test_a_chunked_body_that_says_nothing_of_its_size_is_counted_as_it_comes(
    client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULPSCOPE_LIMITS_FILE_BYTES", "3000")
    body = dump(8, 128)
    answer = client.put("/api/runs/x", content=(body[i : i + 500] for i in range(0, len(body), 500)))
    assert "content-length" not in answer.request.headers
    assert answer.status_code == 413
    assert left(store) == []
    monkeypatch.delenv("ULPSCOPE_LIMITS_FILE_BYTES")
    answer = client.put("/api/runs/x?wait=60", content=(body[i : i + 500] for i in range(0, len(body), 500)))
    assert answer.status_code == 201


def test_a_body_is_what_its_digest_says_or_is_not_stored(client: TestClient, store: Path) -> None:
    body = dump()
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    damaged_on_the_way = body[:-1] + bytes([body[-1] ^ 1])
    refused = client.put("/api/runs/x", content=damaged_on_the_way, headers={"Repr-Digest": f"sha-256=:{digest}:"})
    assert refused.status_code == 422
    assert left(store) == []
    assert client.put("/api/runs/x", content=body, headers={"Repr-Digest": "md5=:AA==:"}).status_code == 400
    assert (
        client.put("/api/runs/x?wait=60", content=body, headers={"Repr-Digest": f"sha-256=:{digest}:"}).status_code
        == 201
    )


def test_the_same_again_is_another_run_unless_the_sender_says_only_once(client: TestClient, store: Path) -> None:
    for _ in range(2):
        assert client.put("/api/runs/same?wait=60", content=dump()).status_code == 201
    refused = client.put("/api/runs/same", content=dump(), headers={"If-None-Match": "*"})
    assert refused.status_code == 412
    assert client.put("/api/runs/new?wait=60", content=dump(), headers={"If-None-Match": "*"}).status_code == 201
    assert len(list(store.glob("*.duckdb"))) == 3


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("modle=x", "is not a parameter"),
        ("compute_dtype=int4", "int4"),
        ("wait=-1", "wait"),
        ("wait=9999", "wait"),
        ("model=" + "x" * 300, "300 characters"),
    ],
)
def test_a_parameter_that_means_nothing_is_refused_before_a_byte_is_stored(
    query: str, words: str, client: TestClient, store: Path
) -> None:
    answer = client.put(f"/api/runs/x?{query}", content=dump())
    assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.text
    assert not store.exists() or left(store) == []


def test_a_name_of_any_letters_stays_text_and_one_with_a_slash_goes_beside(client: TestClient) -> None:
    name = "../<script>alert(1)</script> --store=/etc"
    answer = client.put("/api/runs/x", params={"name": name, "wait": 60}, content=dump())
    assert answer.status_code == 201, answer.text
    assert answer.json()["name"] == name
    assert client.get(f"/api/runs/{answer.json()['run_id']}").json()["name"] == name


def test_an_ingest_that_waits_can_be_stopped_and_its_file_goes(
    client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(store_changes.jobs()), "_start_ready", lambda self: None)
    said = client.put("/api/runs/x", content=dump()).json()
    assert left(store) == [f".partial-incoming-{said['run_id']}"]
    stopped = client.delete(said["job"])
    assert (stopped.status_code, stopped.json()["state"]) == (200, "cancelled")
    assert left(store) == []
    assert client.get("/api/ingests/none").status_code == 404
    assert client.delete(said["job"]).json()["state"] == "cancelled"  # there was nothing to stop any more


def test_an_ingest_that_is_over_stays_as_it_ended_and_nothing_is_said_to_be_cancelled(
    client: TestClient, store: Path
) -> None:
    said = client.put("/api/runs/x?wait=60", content=dump()).json()
    answer = client.delete(said["job"])
    assert (answer.status_code, answer.json()["state"]) == (200, "done")


@pytest.mark.parametrize(
    "path", ["/api/runs/%20", "/api/runs/x?name=%20", "/api/runs/%09?name=", "/api/runs/%E2%80%83"]
)
def test_a_blank_name_is_none(path: str, client: TestClient, store: Path) -> None:
    for more in ({}, {"if-none-match": "*"}):
        answer = client.put(path, content=dump(), headers=more)
        assert (answer.status_code, "blank" in answer.json()["error"]) == (400, True)
    assert not store.exists() or left(store) == []


def test_only_so_many_wait(client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store_changes.jobs()), "_start_ready", lambda self: None)
    monkeypatch.setattr(ingest_jobs, "MOST_WAITING", 1)
    assert client.put("/api/runs/x", content=dump()).status_code == 202
    refused = client.put("/api/runs/x", content=dump())
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
    assert len(left(store)) == 1


def test_another_process_of_the_store_says_at_least_whether_it_is_there(client: TestClient, store: Path) -> None:
    place = ingest_jobs.receiving(store_changes.jobs(), "elsewhere")
    run_id = ingest_jobs.reserved_in(place)
    assert client.get(f"/api/ingests/{run_id}").json()["state"] == "running"
    place.remove()
    assert client.get(f"/api/ingests/{run_id}").status_code == 404
    copied(store / f"{run_id}.duckdb")
    assert client.get(f"/api/ingests/{run_id}").json()["state"] == "done"


def test_another_process_tells_how_it_is_getting_on_and_why_it_failed(
    client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, run = threading.Event(), Jobs._run
    monkeypatch.setattr(Jobs, "_run", lambda self, number: may_go_on.wait(60) and run(self, number))
    there = Jobs(store)  # of another process of the store, which shares files with this one and nothing else
    place = ingest_jobs.receiving(there, "elsewhere")
    run_id = ingest_jobs.reserved_in(place)
    arrived = place.directory / "dump.npz"
    arrived.write_bytes(dump())
    began = ingest_jobs.begin(there, [arrived], title="elsewhere", options={}, who="ada", place=place)

    def told(address: str, *states: str) -> dict[str, object]:
        said: dict[str, object] = {}

        def is_told() -> bool:
            said.update(client.get(address).json())
            return said["state"] in states

        until(is_told, about=lambda: said)
        return said

    said = told(f"/api/ingests/{run_id}", "running")
    assert (said["state"], said["stage"]) == ("running", "starting")
    may_go_on.set()
    said = told(f"/api/ingests/{run_id}", "done", "failed")
    assert (said["state"], said["stage"]) == ("done", "done"), said
    assert said["rows_done"] == said["rows_total"]
    assert said["rows_done"]
    assert [said["run_id"] for said in client.get("/api/ingests").json()["ingests"]] == [run_id]
    assert began.reserved == run_id

    place = ingest_jobs.receiving(there, "broken")
    arrived = place.directory / "dump.npz"
    arrived.write_bytes(dump()[:200])
    assert client.delete(f"/api/ingests/{ingest_jobs.reserved_in(place)}").status_code == 409
    failing = ingest_jobs.begin(there, [arrived], title="broken", options={}, who="ada", place=place)
    assert "dump.npz" in told(f"/api/ingests/{failing.reserved}", "failed")["message"]
    (store / ingest_status.FOLDER / f"{failing.reserved}.json").unlink()  # the planted fault: nothing was written down
    assert client.get(f"/api/ingests/{failing.reserved}").status_code == 404


def test_what_a_killed_process_said_is_believed_as_long_as_its_files_are_there(client: TestClient, store: Path) -> None:
    place = ingest_jobs.receiving(store_changes.jobs(), "killed")
    run_id = ingest_jobs.reserved_in(place)
    ingest_status.teller(store)(
        Job(1, "killed", TAKING_IN, (), state="running", rows_done=3, rows_total=7, reserved=run_id)
    )
    said = client.get(f"/api/ingests/{run_id}").json()
    assert (said["state"], said["rows_done"], said["rows_total"]) == ("running", 3, 7)
    assert len(client.get("/api/ingests").json()["ingests"]) == 1
    place.remove()
    assert client.get(f"/api/ingests/{run_id}").status_code == 404
    assert client.get("/api/ingests").json()["ingests"] == []


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"[]",
        b"{",
        b'{"title": 1}',
        b'{"rows_done": "3"}',
        b'{"rows_done": true}',
        b'{"number": 1}',
        b'{"strange": 1}',
        b"[" * 60_000,
        b"\xff",
    ],
)
def test_a_standing_that_means_nothing_counts_as_none(store: Path, written: bytes) -> None:
    (store / ingest_status.FOLDER).mkdir(parents=True)
    (store / ingest_status.FOLDER / "a.json").write_bytes(written)
    assert ingest_status.read(store, "a") is None
    assert ingest_status.listed(store) == []
    for strange in ("../a", "/etc/passwd", ".a", "", "a/b"):
        assert ingest_status.read(store, strange) is None


def test_standings_are_forgotten_after_a_day_and_those_of_a_clock_ahead_too(store: Path) -> None:
    for name, age in (("old", 90_000), ("ahead", -90_000), ("new", 10)):
        ingest_status.teller(store)(Job(1, name, TAKING_IN, (), state="failed", reserved=name))
        moment = time.time() - age
        os.utime(store / ingest_status.FOLDER / f"{name}.json", (moment, moment))
    ingest_status.forget_old(store)
    assert [job.title for job in ingest_status.listed(store)] == ["new"]
    assert stat.S_IMODE((store / ingest_status.FOLDER / "new.json").stat().st_mode) == 0o600


def test_options_that_no_file_has_are_refused() -> None:
    with pytest.raises(UsageError, match="no option"):
        ingest_jobs.checked({"store": "/etc"})
    with pytest.raises(UsageError, match="printable"):
        ingest_jobs.checked({"name": "a\x00b"})


def _head(length: int, more: str = "") -> bytes:
    return f"PUT /api/runs/cut HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def test_over_real_sockets_a_sender_that_goes_leaves_nothing_and_one_that_asks_first_is_told(tmp_path: Path) -> None:
    body = dump(64, 4096)
    with serving(tmp_path / "runs", port=free_port(), ULPSCOPE_LIMITS_FILE_BYTES="50 MB") as server:
        with socket.create_connection(("127.0.0.1", server.port), 20) as line:
            line.sendall(_head(len(body)) + body[: len(body) // 2])
            (begun, *_) = until(lambda: server.store.exists() and left(server.store))
            assert begun.startswith(".partial-incoming-")
        until(lambda: left(server.store) == [], about=lambda: left(server.store))  # the sender went away in the middle
        with socket.create_connection(("127.0.0.1", server.port), 20) as line:
            line.sendall(_head(len(body), "Expect: 100-continue\r\n"))
            assert line.recv(100).startswith(b"HTTP/1.1 100 ")
            line.sendall(body)
            assert line.recv(4000).startswith(b"HTTP/1.1 202 ")
        with socket.create_connection(("127.0.0.1", server.port), 20) as line:
            line.sendall(_head(60_000_000, "Expect: 100-continue\r\n"))
            assert line.recv(4000).startswith(b"HTTP/1.1 413 ")  # before any of it travels
        until(lambda: left(server.store) == [], about=lambda: left(server.store))
        assert len(list(server.store.glob("*.duckdb"))) == 1


@pytest.mark.thorough
def test_three_hundred_megabytes_pass_through_a_memory_that_stays_flat(tmp_path: Path) -> None:
    import http.client

    start = dump(4, 4096)
    size = 300 << 20
    with serving(tmp_path / "runs", port=free_port()) as server:
        http.client.HTTPConnection("127.0.0.1", server.port).request("GET", "/api/runs")
        line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        line.putrequest("PUT", "/api/runs/large")
        line.putheader("Content-Length", str(size))
        line.endheaders()
        line.send(start)
        before, highest, sent = server.resident_bytes(), 0, len(start)
        while sent < size:
            part = min(4 << 20, size - sent)
            line.send(bytes(part))
            sent += part
            highest = max(highest, server.resident_bytes())
        assert line.getresponse().status == 202
    assert highest - before < 64 << 20


TUS = {"Tus-Resumable": "1.0.0"}


def test_an_upload_that_arrived_whole_becomes_a_run_without_a_body(client: TestClient, store: Path) -> None:
    body = dump()
    announced = client.post(
        "/api/uploads", headers=TUS | {"Upload-Length": str(len(body)), "Upload-Metadata": "filename YS5ucHo="}
    )
    place = announced.headers["location"]
    half = TUS | {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    client.patch(place, headers=half, content=body[:500])
    upload = place.rsplit("/", 1)[1]
    assert client.put(f"/api/runs/x?upload={upload}").status_code == 409
    client.patch(place, headers=half | {"Upload-Offset": "500"}, content=body[500:])
    assert client.put("/api/runs/x?upload=none").status_code == 404
    answer = client.put(f"/api/runs/called?wait=60&upload={upload}")
    assert (answer.status_code, answer.json()["name"]) == (201, "called"), answer.text
    assert client.head(place, headers=TUS).status_code == 404


@pytest.mark.thorough
def test_a_server_that_is_killed_in_the_middle_leaves_nothing_once_another_has_started(tmp_path: Path) -> None:
    body = dump(64, 4096)
    store = tmp_path / "runs"
    with serving(store) as server, socket.create_connection(("127.0.0.1", server.port), 20) as line:
        line.sendall(_head(len(body)) + body[: len(body) // 2])
        until(lambda: store.exists() and left(store))
        server.process.kill()
        server.process.wait()
    assert left(store)
    Store(store).sweep()  # as every server and every writer begins
    assert left(store) == []


def test_only_so_many_arrive_at_once(client: TestClient, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULPSCOPE_LIMITS_UPLOADS", "1")
    place = ingest_jobs.receiving(store_changes.jobs(), "first")
    assert client.put("/api/runs/x", content=dump()).status_code == 503
    place.remove()
    assert client.put("/api/runs/x?wait=60", content=dump()).status_code == 201
