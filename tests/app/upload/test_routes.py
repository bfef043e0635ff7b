"""PUT, GET and DELETE of an upload: what arrives becomes a run or nothing."""

import base64
import gzip
import hashlib
import io
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from app.shell import store_changes
from app.shell.jobs import Jobs
from app.upload import routes, spool
from app.upload.spool import Upload
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import copied
from tests.places import PAYLOADS
from tests.serving import dump

STREAM = (PAYLOADS / "vllm_stream.txt").read_bytes()
STREAMS = STREAM + STREAM.replace(b"cmpl-927e17c65b26adbb", b"cmpl-0")


def send(client, body, first, last, query="", to="x"):
    headers = {"Content-Range": f"bytes {first}-{last}/{len(body)}"}
    return client.put(f"/api/uploads/{to}{query}", content=body[first : last + 1], headers=headers)


def finish(client, total, query):
    return client.put(f"/api/uploads/x{query}", headers={"Content-Range": f"bytes */{total}"})


def runs(store):
    return sorted(path.stem for path in store.glob("*.duckdb"))


def spooled(store):
    return list(store.glob(f"{spool.FOLDER}/*/data/*"))


def test_one_request_makes_a_run_and_answers_its_link(client, store):
    answer = client.put(
        "/api/uploads/two%20calls",
        params={"wait": 60, "model": "a/model"},
        content=dump(),
    )
    assert answer.status_code == 201, answer.text
    said = answer.json()
    assert said["file"] == "two calls"
    assert answer.headers["location"] == f"/api/runs/{said['run_id']}"
    assert said["url"] == f"http://testserver/overview?run={said['run_id']}"
    with RunReader(store / f"{said['run_id']}.duckdb") as run:
        assert run.header.name == "two calls"
        assert run.header.provenance.model == "a/model"
    assert spooled(store) == []
    assert client.get(f"/api/uploads/{said['upload']}").json()["state"] == "done"


def test_without_waiting_the_id_is_known_and_the_same_name_may_come_twice(
    client,
    store,
):
    for _ in range(2):
        answer = client.put("/api/uploads/later", content=dump())
        assert answer.status_code == 202
        assert answer.json()["state"] == "importing"
        done = client.get(answer.headers["location"], params={"wait": 60}).json()
        assert done["state"] == "done"
        assert done["run_id"] == answer.json()["run_id"]
        assert done["name"] == "later"
    assert len(runs(store)) == 2


def test_parts_go_on_at_the_offset_and_the_last_byte_imports(client, store):
    body = dump(8, 128)
    for first, last in ((0, 999), (1000, 2999)):
        answer = send(client, body, first, last, "?file=my%20dump.npz")
        assert answer.status_code == 200
        assert answer.json()["received"] == last + 1
    head = client.head("/api/uploads/x")
    assert head.headers["upload-offset"] == "3000"
    assert head.content == b""
    for wrong in (2999, 3001):
        refused = send(client, body, wrong, wrong + 10)
        assert refused.status_code == 409
        assert refused.json()["received"] == 3000
    assert send(client, body + b"x", 3000, 4000).status_code == 409  # another total is another file
    (path,) = spooled(store)
    assert path.name == "my dump.npz"
    assert path.read_bytes() == body[:3000]
    answer = send(client, body, 3000, len(body) - 1, "?wait=60&name=whole")
    assert (answer.status_code, answer.json()["name"]) == (201, "whole"), answer.text
    again = send(client, body, 3000, len(body) - 1)
    assert again.status_code == 409
    assert again.json()["run_id"] == answer.json()["run_id"]
    assert len(runs(store)) == 1


def test_a_failed_import_keeps_the_file_and_other_options_import_it(client, store):
    wide = np.eye(6, 40, dtype=np.float32)
    file = io.BytesIO()
    np.savez(file, hf=wide[:, :32], engine=wide)
    body = file.getvalue()
    refused = send(client, body, 0, len(body) - 1, "?wait=60")
    assert refused.status_code == 422
    assert "padded" in refused.json()["error"]
    taken = finish(client, len(body), "?wait=60&holds=padded")
    assert taken.status_code == 201, taken.text


@pytest.mark.parametrize(
    "text",
    [
        "bytes 0-9",
        "bytes 5-3/20",
        "bytes 0-20/20",
        "bytes */0",
        "bytes 0-3/20",  # the body has ten bytes
    ],
)
def test_a_range_that_means_nothing_is_refused(text, client, store):
    answer = client.put("/api/uploads/x", content=bytes(10), headers={"Content-Range": text})
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert client.get("/api/uploads/x").json().get("received", 0) <= 4


def test_another_request_waits_while_one_sends(client, store):
    send(client, bytes(20), 0, 9)
    with Upload(Store(store), "x").hold():
        assert send(client, bytes(20), 10, 14).status_code == 409
    assert send(client, bytes(20), 10, 14).json()["received"] == 15


def test_delete_removes_what_arrived_and_stops_an_import(client, store, monkeypatch):
    send(client, dump(), 0, 9)
    assert client.delete("/api/uploads/x").json() == {"upload": "x", "removed": True}
    assert spooled(store) == []
    assert client.get("/api/uploads/x").status_code == 404
    # the import stays in the queue
    monkeypatch.setattr(Jobs, "_start_ready", lambda self: None)
    said = client.put("/api/uploads/y", content=dump()).json()
    assert client.delete(f"/api/uploads/{said['upload']}").status_code == 200
    assert [job.state for job in store_changes.jobs().all("upload")] == ["cancelled"]
    assert spooled(store) == []
    assert runs(store) == []


def test_an_import_of_a_server_that_was_killed_begins_anew(client, store):
    body = dump()
    send(client, body, 0, len(body) - 1, "?keep=1")
    upload = Upload(Store(store), "x")
    record = upload.record()
    # what a server leaves that is killed during an import; one that lives holds the upload
    upload.write(spool.replace(record, state=spool.IMPORTING, run_id="never-stored"))
    with upload.hold():
        assert client.get("/api/uploads/x").json()["state"] == "importing"
    assert client.get("/api/uploads/x").json()["state"] == "received"
    assert finish(client, len(body), "?wait=60").status_code == 201


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ('{"file": "x", "total": 9, "state": "lost"}', "$.state"),
        ("[" * 100_000, "Expected `object`"),
    ],
)
def test_a_record_of_another_form_is_refused_with_its_path(record, why, client, store):
    send(client, bytes(20), 0, 9)
    (Upload(Store(store), "x").directory / "record.json").write_text(record)
    answer = client.get("/api/uploads/x")
    assert answer.status_code == 409
    assert why in answer.json()["error"]


def test_uploads_that_nobody_continues_are_purged_after_a_day(client, store):
    send(client, bytes(20), 0, 9, to="old")
    send(client, bytes(20), 0, 9, to="young")
    folder = Upload(Store(store), "old").directory
    # the newest time of all counts, that of the folder too
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (1, 1))
    send(client, bytes(20), 0, 9, to="new")
    for name, status in (("old", 404), ("young", 200), ("new", 200)):
        assert client.get(f"/api/uploads/{name}").status_code == status


@pytest.mark.parametrize("body", [STREAMS, gzip.compress(STREAMS)])
def test_responses_become_a_run_however_they_are_wrapped(client, body):
    answer = client.put("/api/uploads/streams?wait=60", content=body)
    assert answer.status_code == 201, answer.text
    found = client.get(f"/api/runs/{answer.json()['run_id']}?positions=1").json()
    assert found["kind"] == "upload"
    assert len(found["by_position"]) == 3
    assert found["summary"]["neq"] == 0


def test_a_run_file_is_known_by_its_bytes_and_checked(client, store, tmp_path):
    path = copied(tmp_path / "outside" / "run.npz")
    answer = client.put("/api/uploads/from%20elsewhere?wait=60", content=path.read_bytes())
    assert answer.status_code == 201, answer.text
    assert client.put("/api/uploads/x?model=m", content=path.read_bytes()).status_code == 400
    damaged(path, "CREATE VIEW v AS SELECT 1")
    refused = client.put("/api/uploads/hostile?wait=60", content=path.read_bytes())
    assert refused.status_code == 422
    assert "view 'v'" in refused.json()["error"]
    assert len(runs(store)) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"hello, I am text", "is text"),
        (b'{"hello": 1}', "no response that is known"),
        (b"\x80\x04\x95pickled-things", "x.npz"),
    ],
)
def test_what_is_no_dump_is_one_sentence_and_no_run(body, words, client, store):
    refused = client.put("/api/uploads/hello?wait=60&file=x.npz", content=body)
    assert refused.status_code == 422
    assert refused.json()["state"] == "failed"
    assert words in refused.json()["error"]
    assert runs(store) == []


def test_size_and_room_are_checked_before_a_byte_is_stored(client, store, monkeypatch):
    body = dump()
    monkeypatch.setenv("ULPSCOPE_LIMITS_FILE_BYTES", "1000")
    assert client.put("/api/uploads/x", content=body).status_code == 413
    assert send(client, body, 0, 9).status_code == 413

    def parts():
        yield from (body[i : i + 500] for i in range(0, len(body), 500))

    # chunked: no Content-Length
    assert client.put("/api/uploads/x", content=parts()).status_code == 413
    assert client.put("/api/uploads/x", content=b"").status_code == 400
    monkeypatch.setenv("ULPSCOPE_LIMITS_FILE_BYTES", "0")
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "999000000000000")
    assert client.put("/api/uploads/x", content=body).status_code == 507
    assert spooled(store) == []
    monkeypatch.delenv("ULPSCOPE_LIMITS_FREE_BYTES")
    assert client.put("/api/uploads/x?wait=60", content=parts()).status_code == 201


def test_free_bytes_hold_while_parallel_and_chunked_uploads_arrive(
    client,
    store,
    monkeypatch,
):
    """Each fits when it begins; together they do not.

    What a 507 says of the bytes that arrived is true.
    """
    # room for one and a half of three files
    free = 10 << 20
    margin = 4 << 20
    size = 4 << 20

    def statvfs(place):
        used = sum(path.stat().st_size for path in spooled(store))
        return SimpleNamespace(f_bavail=free - used, f_frsize=1, f_blocks=1, f_bfree=1)

    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", str(margin))
    monkeypatch.setattr("core.runs.store.store.os.statvfs", statvfs)
    body = bytes(size)
    for name in "abc":  # each begins before another one fills the disk
        assert send(client, body, 0, 1023, "?keep=1", name).status_code < 300

    def send_rest(name):
        return send(client, body, 1024, size - 1, "?keep=1", name)

    with ThreadPoolExecutor(3) as pool:
        parallel = list(pool.map(send_rest, "abc"))
    kept = sum(path.stat().st_size for path in spooled(store))
    assert kept <= free - margin
    assert sorted(answer.status_code for answer in parallel)[-1] == 507
    for name, answer in zip("abc", parallel, strict=True):
        if answer.status_code == 507:
            assert "What arrived is kept" in answer.json()["error"]
            assert client.get(f"/api/uploads/{name}").json()["received"] < size
    chunked = client.put("/api/uploads/x?keep=1", content=(body[:65536] for _ in range(64)))
    assert chunked.status_code == 507
    assert "Nothing of it is stored" in chunked.json()["error"]
    assert sum(path.stat().st_size for path in spooled(store)) == kept


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's disk that is always full")
def test_a_full_disk_is_507(client, monkeypatch):
    monkeypatch.setattr(Upload, "path", lambda self, record: Path("/dev/full"))
    assert send(client, dump(), 0, 99).status_code == 507


def test_a_file_is_what_its_digest_says_or_is_not_stored(client, store):
    body = dump()
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    for text, content, status in (
        (f"sha-256=:{digest}:", body[:-1] + bytes([body[-1] ^ 1]), 422),
        ("md5=:AA==:", body, 400),
        (f"sha-256=:{digest}:", body, 201),
    ):
        answer = client.put(
            "/api/uploads/x?wait=60",
            content=content,
            headers={"Repr-Digest": text},
        )
        assert answer.status_code == status
    assert len(runs(store)) == 1


@pytest.mark.parametrize(
    "query",
    [
        "modle=x",
        "compute_dtype=int4",
        "wait=9999",
        "keep=2",
        "holds=x",
        "name=a%00b",
        "model=" + "x" * 300,
    ],
)
def test_a_parameter_that_means_nothing_is_refused(query, client, store):
    assert client.put(f"/api/uploads/x?{query}", content=dump()).status_code == 400
    assert spooled(store) == []


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..\\x",
        ".hidden",
        "..",
        # 600 bytes in UTF-8, of which a file name may have 255
        "é" * 300 + ".npz",
        "\u202egpj.npz",
        " .",
    ],
)
def test_a_senders_names_reach_no_other_place(name, client, store):
    body = dump()
    answer = client.put("/api/uploads/x", params={"file": name, "keep": 1}, content=body)
    assert answer.status_code == 200, answer.text
    (path,) = spooled(store)
    assert path.parents[2] == store / spool.FOLDER
    assert not path.name.startswith(".")
    assert path.name.isprintable()
    for odd in ("..%2f..%2fx", "%2e%2e", "a%00b", "x" * 5000):
        assert send(client, body, 0, 8, to=odd)
    assert {path.parent for path in store.glob(f"{spool.FOLDER}/*")} == {store / spool.FOLDER}


def test_a_sender_that_falls_silent_is_let_go_and_its_bytes_stay(monkeypatch, tmp_path):
    import anyio
    from starlette.requests import Request

    monkeypatch.setattr(routes, "IDLE_SECONDS", 0.1)
    messages = [{"type": "http.request", "body": b"abc", "more_body": True}]

    async def receive():
        return messages.pop() if messages else await anyio.sleep_forever()

    request = Request(
        {"type": "http", "method": "PUT", "headers": [], "query_string": b""},
        receive,
    )
    with pytest.raises(routes.RefusedError, match="No byte came"):
        anyio.run(routes._append, request, tmp_path / "x", routes.Part(0, 20, 20))
    assert (tmp_path / "x").read_bytes() == b"abc"
