"""What only a server can do wrong: 503s, silence, half of an answer, old lists; over a real S3 server on loopback."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.errors import StoreError
from core.runs.store import objects
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from tests.core.runs.made_runs import copied
from tests.core.runs.store import s3_server
from tests.core.runs.store.machines import Machine, ids, machines_of, placed

ROOT = Path(__file__).resolve().parents[4]
pytest.importorskip("s3fs")


@pytest.fixture
def faults(server: tuple[str, s3_server.Faults], monkeypatch: pytest.MonkeyPatch) -> Iterator[s3_server.Faults]:
    """Faults of a server that has none yet, for a client that waits a moment only."""
    _, planted = server
    monkeypatch.setattr(objects, "PAUSES", (0.01, 0.01))
    planted.seen.clear()
    planted.released.clear()
    planted.is_in_put.clear()
    yield planted
    planted.plan = lambda method, path, query: None
    planted.released.set()


@pytest.fixture
def machine(
    faults: s3_server.Faults, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    return machines_of("s3", request, tmp_path, monkeypatch)


def first(count: int, method: str, part: str, fault: str) -> Callable[[str, str, str], str | None]:
    """Plan: the first so many requests of a method with `part` in their address get the fault."""
    left = [count]

    def plan(asked: str, path: str, query: str) -> str | None:
        if asked != method or part not in f"{path}?{query}" or not left[0]:
            return None
        left[0] -= 1
        return fault

    return plan


@pytest.mark.parametrize(
    ("method", "part"), [("GET", "list-type"), ("PUT", "one.duckdb"), ("HEAD", "one.duckdb"), ("GET", "one.duckdb")]
)
def test_two_503s_are_borne_and_a_third_is_one_sentence(
    machine: Machine, faults: s3_server.Faults, method: str, part: str
) -> None:
    faults.plan = first(objects.TRIES - 1, method, part, "503")
    body = placed(machine("a"), "one")
    assert ids(machine("b")) == ["one"]
    assert machine("b").path_of("one").read_bytes() == body
    faults.plan = first(1000, method, part, "503")
    faults.seen.clear()
    with pytest.raises(StoreError, match="objects there") as said:
        _everything(machine("c"))
    assert s3_server.SECRET not in str(said.value)
    assert "\n" not in str(said.value)


def _everything(store: Store) -> None:
    """Every kind of request; the first that fails is told."""
    assert store.mirror is not None
    store.mirror._objects.list()
    store.mirror._objects.find("one.duckdb")
    store.mirror._objects.read("one.duckdb", 0, 10)
    store.mirror._objects.put_new(copied(store.directory / "x"), "one.duckdb")


def test_the_number_of_requests_to_a_server_that_fails_is_bounded(machine: Machine, faults: s3_server.Faults) -> None:
    store = machine("a")
    faults.plan = first(1000, "GET", "list-type", "503")
    for _ in range(2):
        faults.seen.clear()
        with pytest.raises(StoreError, match="cannot list objects there"):
            list_runs(store)
        assert faults.count("GET", "list-type") == objects.TRIES


def test_an_outage_is_asked_about_once_and_not_on_every_page(machine: Machine, faults: s3_server.Faults) -> None:
    placed(machine("a"), "one")
    assert ids(machine("a")) == ["one"]
    faults.plan = first(1000, "GET", "list-type", "503")
    faults.seen.clear()
    for _ in range(5):
        assert ids(machine("a")) == ["one"]
    assert faults.count("GET", "list-type") == objects.TRIES
    assert "listed as they were" in (machine("a").outage or "")


def test_silence_is_one_sentence_after_a_bounded_time(
    machine: Machine, faults: s3_server.Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "READ_SECONDS", 0.2)
    faults.plan = first(1000, "GET", "list-type", "silence")
    with pytest.raises(StoreError, match="cannot list objects"):
        list_runs(machine("a"))


def test_a_put_whose_answer_got_lost_has_happened(
    machine: Machine, faults: s3_server.Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt finds the name taken, by the same bytes."""
    monkeypatch.setattr(objects, "READ_SECONDS", 0.3)
    store = machine("a")
    faults.plan = first(1, "PUT", "one.duckdb", "done, then silence")
    body = placed(store, "one")
    assert faults.count("PUT", "one.duckdb") == 2
    assert not faults.asked_to_go_on  # or the client may wait for the answer without end: `_session` of objects.py
    assert machine("b").path_of("one").read_bytes() == body


def test_a_put_whose_answer_got_lost_and_that_found_anothers_run_is_refused(
    machine: Machine, faults: s3_server.Faults
) -> None:
    """The twin of the test above."""
    store = machine("a")
    assert store.mirror is not None
    store.mirror._objects.write("one.duckdb", b"another's")
    with pytest.raises(StoreError, match="run 'one' exists already"):
        placed(store, "one")
    assert store.mirror._objects.read("one.duckdb") == b"another's"


def test_half_of_an_answer_is_asked_for_again(machine: Machine, faults: s3_server.Faults) -> None:
    body = placed(machine("a"), "one")
    there = machine("b")
    faults.plan = first(2, "GET", "one.duckdb", "half")
    assert there.path_of("one").read_bytes() == body
    assert faults.count("GET", "one.duckdb") == 3


def test_a_run_put_from_here_is_there_whatever_an_old_list_says(machine: Machine, faults: s3_server.Faults) -> None:
    placed(machine("a"), "old")
    assert ids(machine("a")) == ["old"]
    kept = faults.kept_list
    placed(machine("a"), "new")
    faults.kept_list = kept
    faults.plan = first(1000, "GET", "list-type", "stale")
    assert ids(machine("a")) == ["new", "old"]
    assert ids(machine("b")) == ["old"]  # so the list was old
    assert machine("b").path_of("new").exists()  # asked for by its name


def test_a_run_that_only_an_old_list_has_is_a_sentence(machine: Machine, faults: s3_server.Faults) -> None:
    placed(machine("a"), "gone")
    assert ids(machine("b")) == ["gone"]
    kept = faults.kept_list
    machine("a").delete("gone")
    faults.kept_list = kept
    faults.plan = first(1000, "GET", "list-type", "stale")
    assert ids(machine("b")) == ["gone"]
    with pytest.raises(StoreError, match=r"gone\.duckdb: is not in s3://bucket/"):
        machine("b").path_of("gone")


def test_of_two_that_put_one_id_at_once_one_is_told(machine: Machine, faults: s3_server.Faults) -> None:
    """The look before is not what keeps the other's run: the server refuses."""
    store = machine("a")
    other = (ROOT / "tests" / "runs" / "injected-bug.duckdb").read_bytes()
    path = copied(store.directory / "x")
    assert store.mirror is not None
    there, looked = store.mirror._objects, []

    def plan(method: str, url: str, query: str) -> str | None:
        if method == "PUT" and not looked:
            looked.append(url)
            s3_put(url, other)
        return None

    faults.plan = plan
    with pytest.raises(FileExistsError):
        there.put_new(path, "one.duckdb")
    faults.plan = lambda method, url, query: None
    assert there.read("one.duckdb") == other


def s3_put(url: str, body: bytes) -> None:
    import boto3

    _, bucket, key = url.split("/", 2)
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=body)


KILLED = """
import sys
from pathlib import Path
from core.runs.store.objects import Objects
Objects(sys.argv[1]).put_new(Path(sys.argv[2]), "one.duckdb")
"""


def test_a_writer_killed_in_the_middle_of_a_put_leaves_nothing(
    machine: Machine, faults: s3_server.Faults, tmp_path: Path
) -> None:
    store = machine("a")
    run = Path(shutil.copy(ROOT / "tests" / "runs" / "injected-bug.duckdb", tmp_path / "one.duckdb"))
    faults.plan = first(1, "PUT", "one.duckdb", "held")
    writer = subprocess.Popen([sys.executable, "-c", KILLED, store.address, str(run)], cwd=ROOT)
    try:
        assert faults.is_in_put.wait(60)
    finally:
        writer.kill()
    assert writer.wait() == -signal.SIGKILL
    faults.released.set()
    assert ids(store) == []
    placed(store, "one")
    assert ids(machine("b")) == ["one"]


def test_credentials_are_in_no_sentence(
    machine: Machine, faults: s3_server.Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(objects, "READ_SECONDS", 7)  # another client than one that has found some
    with pytest.raises(StoreError, match="no credentials for"):
        list_runs(machine("a"))
