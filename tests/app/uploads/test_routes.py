"""The upload routes say and do what tus 1.0.0 asks for; expected values are the protocol's
(tus.io/protocols/resumable-upload).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.uploads import partial_file, tus
from app.uploads.partial_file import Upload, Writing
from app.uploads.spool import FOLDER, Spool
from core.runs.store.store import Store
from core.text import file_name
from tests.app.uploads.serving import OFFSET, TUS, about, announce, offset, send

ADA, BOB = "ada", "bob"


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "0")
    return Store(tmp_path / "runs")


def client_of(member: str | None = None) -> TestClient:
    """With the member where the gate puts it."""
    app = Starlette(routes=tus.ROUTES)

    async def gated(scope, receive, send):
        if member is not None:
            scope.setdefault("state", {})["ulpscope_member"] = member
        await app(scope, receive, send)

    return TestClient(gated)


@pytest.fixture
def client() -> TestClient:
    return client_of()


def on_disk(store: Store) -> list[Path]:
    return [path for path in (store.directory / FOLDER).glob("*/file/*") if path.is_file()]


def test_a_file_sent_in_pieces_lies_on_the_disk_bit_for_bit(client, store):
    body = os.urandom(3_000_001)
    address = announce(client, len(body), "fresh and cached.npz")
    for first in range(0, len(body), 1_000_000):
        answer = send(client, address, first, body[first : first + 1_000_000])
        assert answer.status_code == 204
        assert answer.headers["Upload-Offset"] == str(min(len(body), first + 1_000_000))
        assert answer.headers["Tus-Resumable"] == "1.0.0"
    (path,) = on_disk(store)
    assert path.name == "fresh and cached.npz"
    assert path.read_bytes() == body
    assert Spool(store).finished(address.rsplit("/", 1)[-1], "local") == path


def test_what_the_server_can_is_told_to_who_asks(client, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_LIMITS_FILE_BYTES", "12345")
    answer = client.options("/api/uploads")
    assert answer.status_code == 204
    assert answer.headers["Tus-Version"] == "1.0.0"
    assert answer.headers["Tus-Max-Size"] == "12345"
    told = answer.headers["Tus-Extension"].split(",")
    assert {"creation", "creation-with-upload", "termination", "expiration", "checksum"} == set(told)


def test_head_tells_offset_length_and_metadata_and_is_not_cached(client):
    address = announce(client, 10, "a b.npz", modified="17")
    send(client, address, 0, b"abc")
    answer = client.head(address, headers=TUS)
    assert answer.status_code == 200
    assert (answer.headers["Upload-Offset"], answer.headers["Upload-Length"]) == ("3", "10")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Upload-Metadata"] == about("a b.npz", modified="17")["Upload-Metadata"]
    assert answer.headers["Upload-Expires"].endswith(" GMT")


def test_a_file_may_be_announced_and_sent_at_once(client, store):
    answer = client.post("/api/uploads", headers=TUS | OFFSET | {"Upload-Length": "6"}, content=b"whole!")
    assert answer.status_code == 201
    assert answer.headers["Upload-Offset"] == "6"
    assert [path.read_bytes() for path in on_disk(store)] == [b"whole!"]


def test_an_upload_that_is_given_up_leaves_nothing(client, store):
    address = announce(client, 10)
    send(client, address, 0, b"abc")
    assert client.delete(address, headers=TUS).status_code == 204
    assert client.head(address, headers=TUS).status_code == 404
    assert send(client, address, 3, b"d").status_code == 404
    assert [path.name for path in (store.directory / FOLDER).iterdir()] == ["lock"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Upload-Offset": "2"}, b"x", 409),  # only 3 have arrived
        ({"Upload-Offset": "4"}, b"x", 409),
        ({"Upload-Offset": "3"}, b"x" * 8, 413),  # 10 were announced
        ({"Upload-Offset": "-1"}, b"x", 400),
        ({"Upload-Offset": "٣"}, b"x", 400),  # a digit, but of no ASCII
        ({}, b"x", 400),
        ({"Upload-Offset": "3", "Content-Type": "application/octet-stream"}, b"x", 415),
        ({"Upload-Offset": "3", "Tus-Resumable": "0.2.2"}, b"x", 412),
        ({"Upload-Offset": "3", "Upload-Checksum": "crc32 AAAA"}, b"x", 400),
        ({"Upload-Offset": "3", "Upload-Checksum": "sha1 AAAA"}, b"x", 460),
    ],
)
def test_a_piece_that_does_not_fit_is_refused_in_a_sentence_and_changes_nothing(client, store, headers, body, status):
    address = announce(client, 10)
    send(client, address, 0, b"abc")
    raw = [(key.encode(), value.encode()) for key, value in (TUS | OFFSET | headers).items()]
    answer = client.patch(address, headers=raw, content=body)
    assert answer.status_code == status
    assert answer.json()["error"].endswith(".")
    assert offset(client, address) == 3
    assert [path.read_bytes() for path in on_disk(store)] == [b"abc"]


def test_a_body_that_lies_about_its_length_is_cut_at_what_was_announced(client, store):
    address = announce(client, 10)
    pieces = (b"x" * 4 for _ in range(5))  # chunked: no Content-Length
    assert client.patch(address, headers=TUS | OFFSET | {"Upload-Offset": "0"}, content=pieces).status_code == 413
    assert offset(client, address) <= 10


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_a_checksum_that_agrees_counts_and_one_that_does_not_throws_the_piece_away(client, kind):
    address = announce(client, 6)
    right = base64.b64encode(hashlib.new(kind, b"abc").digest()).decode()
    assert send(client, address, 0, b"abd", **{"Upload-Checksum": f"{kind} {right}"}).status_code == 460
    assert offset(client, address) == 0
    assert send(client, address, 0, b"abc", **{"Upload-Checksum": f"{kind} {right}"}).status_code == 204
    assert offset(client, address) == 3


@pytest.mark.parametrize("length", ["", "-5", "1e9", "12 MB", "9" * 30])
def test_a_length_that_is_none_is_refused(client, store, length):
    assert client.post("/api/uploads", headers=TUS | {"Upload-Length": length}).status_code == 400
    assert on_disk(store) == []


@pytest.mark.parametrize("metadata", ["filename !!!", "filename /w==", "filename " + "A" * 5000])
def test_metadata_that_cannot_be_read_is_refused(client, metadata):
    answer = client.post("/api/uploads", headers=TUS | {"Upload-Length": "1", "Upload-Metadata": metadata})
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "..\\..\\x.npz",
        ".hidden",
        "a\0b.npz",
        "..",
        "",
        "é" * 300 + ".npz",
        "\u202egpj.npz",
        " .npz",
        " .",
        ". ..",
        ".. .",
        ". . .",
        "x" * 199 + " " + "y" * 50,
        "a" * 170 + "." + "b" * 60,
    ],
)
def test_a_senders_file_name_reaches_no_other_place(client, store, name):
    address = announce(client, 3, name)
    assert send(client, address, 0, b"abc").status_code == 204
    (path,) = on_disk(store)
    assert path.parent.parent.parent == store.directory / FOLDER
    assert not path.name.startswith(".")
    assert len(path.name.encode()) <= 200
    assert path.name.isprintable()
    assert file_name(path.name, 200) == path.name
    assert client.delete(address, headers=TUS).status_code == 204


def _without_content(entry: Path) -> None:
    for path in (entry / "file").iterdir():
        path.unlink()


DAMAGES = {
    "no content": _without_content,
    "no description": lambda entry: (entry / "upload.json").unlink(),
    "half a description": lambda entry: (entry / "upload.json").write_text('{"owner": "loc'),
    "a number beyond all": lambda entry: (entry / "upload.json").write_text(
        '{"owner": "x", "name": "x", "length": 1, "created": 1e999'
    ),
    "a name that leads away": lambda entry: (entry / "upload.json").write_text(
        (entry / "upload.json").read_text().replace('"file": "dump.npz"', '"file": "../../lock"')
    ),
    "brackets without end": lambda entry: (entry / "upload.json").write_text("[" * 16_000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_takes_nobodys_place_and_expires(client, store, monkeypatch, damage):
    monkeypatch.setenv("ULPSCOPE_LIMITS_UPLOADS", "1")
    address = announce(client, 10, "dump.npz")
    entry = store.directory / FOLDER / address.rsplit("/", 1)[-1]
    DAMAGES[damage](entry)
    assert client.get("/api/uploads").json() == {"uploads": []}
    other = announce(client, 3)
    assert entry.exists()  # for as long as any other
    for path in (*entry.rglob("*"), entry):
        os.utime(path, (1, 1))
    client.get("/api/uploads")
    assert not entry.exists()
    assert client.head(other, headers=TUS).status_code == 200


def test_an_upload_whose_content_is_gone_can_be_given_up(client, store):
    address = announce(client, 10)
    _without_content(store.directory / FOLDER / address.rsplit("/", 1)[-1])
    assert client.delete(address, headers=TUS).status_code == 204
    assert [path.name for path in (store.directory / FOLDER).iterdir()] == ["lock"]


@pytest.mark.parametrize("headers", [{"Upload-Metadata": b"filename \xe9"}, {"Upload-Metadata": b"\xe9 \xe9"}])
def test_headers_beyond_ascii_are_refused_in_a_sentence(client, headers):
    answer = client.post("/api/uploads", headers=[*TUS.items(), ("Upload-Length", "1"), *headers.items()])
    assert (answer.status_code, "Upload-Metadata cannot be read" in answer.json()["error"]) == (400, True)


def test_a_checksum_beyond_ascii_is_refused_in_a_sentence(client):
    asked = [*(TUS | OFFSET | {"Upload-Offset": "0"}).items(), ("Upload-Checksum", b"sha256 \xe9")]
    answer = client.patch(announce(client, 3), headers=asked, content=b"abc")
    assert (answer.status_code, "Upload-Checksum cannot be read" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize("upload_id", ["..", "x", "0" * 32, "%2e%2e", "0" * 31 + "/"])
def test_an_address_that_is_none_of_an_upload_is_not_found(client, store, upload_id):
    announce(client, 3)
    assert client.head(f"/api/uploads/{upload_id}", headers=TUS).status_code in (404, 405)


def test_a_file_beyond_the_limit_or_the_disk_is_refused_before_a_byte_of_it_comes(client, store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_LIMITS_FILE_BYTES", "100")
    answer = client.post("/api/uploads", headers=TUS | {"Upload-Length": "101"})
    assert (answer.status_code, "100" in answer.json()["error"]) == (413, True)
    announce(client, 100)
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", str(1 << 60))
    assert client.post("/api/uploads", headers=TUS | {"Upload-Length": "1"}).status_code == 507
    assert len(on_disk(store)) == 1


def test_there_are_as_many_uploads_as_the_limit_says_and_removing_one_makes_room(client, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_LIMITS_UPLOADS", "2")
    first, _ = announce(client, 3), announce(client, 3)
    assert client.post("/api/uploads", headers=TUS | {"Upload-Length": "1"}).status_code == 429
    client.delete(first, headers=TUS)
    announce(client, 3)


def test_an_upload_that_nobody_continues_expires_and_one_that_is_being_sent_does_not(client, store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_LIMITS_UPLOAD_HOURS", "1")
    addresses = [announce(client, 10) for _ in range(3)]
    spool = Spool(store)
    left, sent, _ = (spool.find(address.rsplit("/", 1)[-1], "local") for address in addresses)
    for upload in (left, sent):
        _age(upload, 2 * 3600)
    writing = Writing(sent)
    announce(client, 1)
    assert [client.head(address, headers=TUS).status_code for address in addresses] == [404, 200, 200]
    writing.close()


def test_nothing_expires_where_no_hours_are_set(client, store, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_LIMITS_UPLOAD_HOURS", "0")
    address = announce(client, 10)
    _age(Spool(store).find(address.rsplit("/", 1)[-1], "local"), 10_000 * 3600)
    announce(client, 1)
    answer = client.head(address, headers=TUS)
    assert (answer.status_code, "Upload-Expires" in answer.headers) == (200, False)


def _age(upload: Upload, seconds: float) -> None:
    about = upload.directory / "upload.json"
    about.write_text(
        about.read_text().replace(f'"created": {upload.created!r}', f'"created": {upload.created - seconds!r}')
    )
    os.utime(upload.path, (time.time() - seconds, time.time() - seconds))


def test_two_senders_do_not_mix_their_bytes(client, store):
    address = announce(client, 10)
    upload = Spool(store).find(address.rsplit("/", 1)[-1], "local")
    writing = Writing(upload)
    writing.write(0, b"abc")
    answer = send(client, address, 3, b"xyz")
    assert answer.status_code == 423
    assert "Retry-After" in answer.headers
    assert client.get(address).json()["state"] == "receiving"
    writing.close()
    assert send(client, address, 3, b"def").status_code == 204
    assert upload.path.read_bytes() == b"abcdef"


def test_whoever_holds_an_upload_for_a_moment_keeps_nobody_from_sending(client, store, monkeypatch):
    """A look at whether it is held, or a process just started that has inherited the lock: gone by the second try."""
    address = announce(client, 10)
    upload = Spool(store).find(address.rsplit("/", 1)[-1], "local")
    looker = ExitStack()
    looker.enter_context(partial_file.held(upload.directory))
    own = partial_file.time
    clock = SimpleNamespace(**{**vars(own), "sleep": lambda _: looker.close()})
    monkeypatch.setattr(partial_file, "time", clock)
    assert send(client, address, 0, b"x" * 10).status_code == 204


def test_bytes_whose_checksum_was_never_compared_do_not_count_after_a_crash(client, store):
    address = announce(client, 10)
    send(client, address, 0, b"abc")
    upload = Spool(store).find(address.rsplit("/", 1)[-1], "local")
    writing = Writing(upload, is_verified_later=True)
    writing.write(3, b"unsure")
    copied = (upload.directory / "unverified").read_bytes()
    writing.close()
    upload.path.write_bytes(b"abcunsure")  # as it lies there when the process was killed in place of closing
    (upload.directory / "unverified").write_bytes(copied)
    assert offset(client, address) == 3
    assert send(client, address, 3, b"sure").status_code == 204
    assert upload.path.read_bytes() == b"abcsure"


def test_uploads_are_their_owners_alone():
    ada, bob = client_of(ADA), client_of(BOB)
    address = announce(ada, 3)
    assert [each["id"] for each in ada.get("/api/uploads").json()["uploads"]] == [address.rsplit("/", 1)[-1]]
    assert bob.get("/api/uploads").json()["uploads"] == []
    for answer in (
        bob.head(address, headers=TUS),
        send(bob, address, 0, b"abc"),
        bob.delete(address, headers=TUS),
        bob.get(address),
    ):
        assert answer.status_code == 404
    assert offset(ada, address) == 0


def test_the_list_says_how_far_each_is_and_shows_names_as_they_are(client):
    evil = '"><script>alert(1)</script>.npz'
    address = announce(client, 4, evil, modified="1700000000000", browser="b1")
    send(client, address, 0, b"abc")
    (listed,) = client.get("/api/uploads").json()["uploads"]
    assert listed["name"] == evil
    assert (listed["bytes_done"], listed["bytes_total"], listed["state"]) == (3, 4, "unfinished")
    assert (listed["modified"], listed["browser"]) == ("1700000000000", "b1")
    send(client, address, 3, b"d")
    assert client.get(address).json()["state"] == "complete"


def test_a_request_from_another_site_needs_a_header_that_no_form_can_send(client, store):
    """Without it nothing is made: a page of another origin would need our consent to send it (fetch.spec.whatwg.org,
    CORS-preflight).
    """
    answer = client.post("/api/uploads", headers={"Upload-Length": "3"})
    assert answer.status_code == 412
    assert answer.headers["Tus-Version"] == "1.0.0"
    assert on_disk(store) == []
    assert (
        "access-control-allow-origin"
        not in client.options("/api/uploads", headers={"Origin": "https://evil.example"}).headers
    )


def test_a_client_that_only_has_post_may_say_what_it_means(client):
    address = announce(client, 3)
    answer = client.post(
        address, headers=TUS | OFFSET | {"Upload-Offset": "0", "X-HTTP-Method-Override": "PATCH"}, content=b"abc"
    )
    assert answer.status_code == 204
    assert offset(client, address) == 3
    assert client.post(address, headers=TUS | {"X-HTTP-Method-Override": "GET"}).status_code == 405


def test_a_full_disk_is_said_and_what_arrived_is_kept(client, store, monkeypatch):
    address = announce(client, 3 << 20)
    real = os.pwrite

    def full(file, data, place):
        if place >= 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[: (1 << 20) - place], place)

    monkeypatch.setattr(os, "pwrite", full)
    answer = client.patch(address, headers=TUS | OFFSET | {"Upload-Offset": "0"}, content=bytes(3 << 20))
    assert answer.status_code == 507
    monkeypatch.setattr(os, "pwrite", real)
    assert offset(client, address) == 1 << 20
