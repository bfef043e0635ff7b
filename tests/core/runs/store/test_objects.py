"""A store under a URL: whole runs or none, the same for every machine, and nothing believed but the run files.

The same claims over memory, a directory and a real S3 server; what only a server can do wrong is in `test_s3.py`.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import ExtraError, StoreError, UsageError
from core.runs.reader import RunReader
from core.runs.store import mirror, objects
from core.runs.store.cards import list_runs
from core.runs.store.labels import Labels
from core.runs.store.mirror import INDEX
from core.runs.store.store import Store, open_store
from tests.core.runs.made_runs import bits_of_sides, copied, header_of, write_run
from tests.core.runs.store.machines import Machine, ids, machines_of, placed

ROOT = Path(__file__).resolve().parents[4]
pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "file", "s3"])
def machine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return machines_of(request.param, request, tmp_path, monkeypatch)


def objects_of(store: Store) -> objects.Objects:
    assert store.mirror is not None
    return store.mirror._objects


def test_a_run_written_on_one_machine_is_read_bit_for_bit_on_another(machine: Machine) -> None:
    here = machine("a")
    path = write_run(here, header := header_of(), sides := bits_of_sides(header))
    there = machine("b")
    assert there.directory != here.directory
    assert ids(there) == [path.stem]
    with RunReader(there.path_of(path.stem[:12])) as run:
        assert [run.read_rows(side, 0, header.rows).tolist() for side in (0, 1)] == [side.tolist() for side in sides]
    assert there.path_of(path.stem).read_bytes() == path.read_bytes()
    assert set(objects_of(there).list()) == {path.name, INDEX}


def test_no_run_is_put_over_another(machine: Machine) -> None:
    first = placed(machine("a"), "same")
    with pytest.raises(StoreError, match="run 'same' exists already"):
        placed(machine("b"), "same", "where-it-starts")
    assert objects_of(machine("c")).read("same.duckdb") == first


def test_an_id_that_is_taken_there_is_not_given_out(machine: Machine) -> None:
    placed(machine("a"), "same")
    with pytest.raises(StoreError, match="exists already or is being"):
        write_run(machine("b"), header := header_of(), bits_of_sides(header), "same")


def entries(store: Store) -> dict:
    body = objects_of(store).read(INDEX)
    assert body is not None
    return json.loads(gzip.decompress(body))["runs"]


def test_the_index_is_made_again_from_the_run_files_when_it_is_lost_damaged_or_behind(machine: Machine) -> None:
    placed(machine("a"), "one")
    before = list_runs(machine("a"))
    made = entries(machine("a"))
    for number, damage in enumerate((None, b"", b"no index", gzip.compress(b"[]"), gzip.compress(b'{"version": 9}'))):
        if damage is None:
            objects_of(machine("a")).remove(INDEX)
        else:
            objects_of(machine("a")).write(INDEX, damage)
        assert list_runs(machine(f"new {number}")) == before
        assert entries(machine("a")) == made
    placed(machine("b"), "two")
    assert "two" not in entries(machine("a"))
    assert ids(machine("new")) == ["one", "two"]
    assert set(entries(machine("a"))) == {"one", "two"}


def test_a_run_that_is_gone_is_listed_by_no_index(machine: Machine) -> None:
    placed(machine("a"), "one")
    placed(machine("a"), "gone")
    assert ids(machine("a")) == ["gone", "one"]
    objects_of(machine("a")).remove("gone.duckdb")
    assert "gone" in entries(machine("b"))
    assert ids(machine("b")) == ["one"]
    with pytest.raises(StoreError, match="no run 'gone' in"):
        machine("b").path_of("gone")


def planted(store: Store, run_id: str, **others: object) -> None:
    """An index that says something else of a run."""
    said = entries(store)
    said[run_id] = {**said[run_id], **others, "card": {**said[run_id]["card"], "name": "a lie"}}
    objects_of(store).write(INDEX, gzip.compress(json.dumps({"version": 1, "runs": said}).encode()))


def test_an_entry_of_another_file_than_is_there_counts_for_nothing(machine: Machine) -> None:
    placed(machine("a"), "one")
    (card,) = list_runs(machine("a"))[0]
    for number, other in enumerate(({"tag": "of another"}, {"bytes": 7})):
        planted(machine("a"), "one", **other)
        assert list_runs(machine(f"new {number}"))[0] == [card]


def test_an_entry_of_the_file_itself_is_what_is_shown(machine: Machine) -> None:
    """The twin of the test above: a lie with the right tag is seen, so it was the index that was read."""
    placed(machine("a"), "one")
    list_runs(machine("a"))
    planted(machine("a"), "one")
    assert [card.name for card in list_runs(machine("new"))[0]] == ["a lie"]


@pytest.mark.parametrize("machine", ["memory"], indirect=True)
@pytest.mark.parametrize("field", ["flips", "created", "sides", "name"])
def test_a_card_of_the_index_that_is_none_is_read_from_the_run(machine: Machine, field: str) -> None:
    placed(machine("a"), "one")
    expected = list_runs(machine("a"))
    said = entries(machine("a"))
    for value in ({"x": 1}, None, "x" * 5000):
        said["one"]["card"] = {**said["one"]["card"], field: value}
        objects_of(machine("a")).write(INDEX, gzip.compress(json.dumps({"version": 1, "runs": said}).encode()))
        assert list_runs(machine(f"new {value!s:.9}")) == expected


def counting(store: Store, monkeypatch: pytest.MonkeyPatch, fails_at: int = -1) -> list[tuple[int, int]]:
    """Ranges of run files that are read from now on; the one of that number fails."""
    read, seen = objects_of(store).read, []

    def counted(name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        if name.endswith(".duckdb"):
            seen.append((start or 0, end or 0))
            if len(seen) - 1 == fails_at:
                raise StoreError("the connection is gone.")
        return read(name, start, end)

    monkeypatch.setattr(objects_of(store), "read", counted)
    return seen


def test_a_file_is_fetched_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    placed(machine("a"), "one")
    there = machine("b")
    ranges = counting(there, monkeypatch)
    there.path_of("one")
    first = len(ranges)
    assert first > 0
    there.path_of("one")
    machine("b").path_of("on")
    assert len(ranges) == first


def test_a_download_that_broke_off_goes_on_where_it_was(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "_PART_BYTES", 1 << 19)
    body = placed(machine("a"), "one", "injected-bug")
    there = machine("b")
    ranges = counting(there, monkeypatch, fails_at=2)
    with pytest.raises(StoreError, match="connection is gone"):
        there.path_of("one")
    assert not (there.directory / "one.duckdb").exists()
    assert there.path_of("one").read_bytes() == body
    assert [start for start, _ in ranges] == [0, 1 << 19, 1 << 20, 1 << 20]


def test_what_arrives_otherwise_than_it_is_there_gets_no_name(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another object has taken the name between the first and the last range."""
    monkeypatch.setattr(mirror, "_PART_BYTES", 1 << 20)
    placed(machine("a"), "one", "injected-bug")
    other = (ROOT / "tests" / "runs" / "where-it-starts.duckdb").read_bytes()
    there = machine("b")
    read = objects_of(there).read

    def changing(name: str, start: int | None = None, end: int | None = None) -> bytes | None:
        body = read(name, start, end)
        if start == 0:
            objects_of(there).write(name, other)
        return body

    monkeypatch.setattr(objects_of(there), "read", changing)
    with pytest.raises(StoreError, match="is not what is there"):
        there.path_of("one")
    assert list(there.directory.glob("*.duckdb")) == []


def test_a_run_that_was_replaced_is_fetched_anew(machine: Machine) -> None:
    placed(machine("a"), "one")
    machine("b").path_of("one")
    assert machine("a").delete("one") == "one"
    body = placed(machine("a"), "one", "where-it-starts")
    assert machine("b").path_of("one").read_bytes() == body
    assert [card.positions for card in list_runs(machine("b"))[0]] == [
        card.positions for card in list_runs(machine("c"))[0]
    ]


def test_the_files_used_longest_ago_make_room(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(placed(machine("a"), "one"))
    for run_id in ("two", "three"):
        placed(machine("a"), run_id)
    monkeypatch.setattr(mirror, "_USED_SECONDS", 0.0)
    monkeypatch.setenv("ULPSCOPE_LIMITS_CACHE_BYTES", str(2 * size))
    there = machine("b")
    for run_id in ("one", "two", "one", "three"):
        there.path_of(run_id)
    assert sorted(path.stem for path in there.directory.glob("*.duckdb")) == ["one", "three"]
    assert ids(there) == ["one", "three", "two"]


def test_a_deleted_run_is_gone_on_every_machine_with_its_labels(machine: Machine) -> None:
    placed(machine("a"), "one")
    machine("a").label("one", Labels(("a tag",)))
    machine("b").path_of("one")
    assert machine("a").delete("on") == "one"
    assert ids(machine("b")) == []
    assert machine("b").all_labels() == ({}, [])
    with pytest.raises(StoreError, match="no run 'one'"):
        machine("b").path_of("one")
    with pytest.raises(StoreError, match="no run 'one'"):
        machine("c").delete("one")


def test_labels_of_two_machines_become_both(machine: Machine) -> None:
    placed(machine("a"), "one")
    machine("a").label("one", Labels(("a tag",), "a note"), Labels())
    assert machine("b").labels("one") == Labels(("a tag",), "a note")
    machine("b").label("one", Labels(("another",), pinned=True), Labels())  # who has seen none
    expected = Labels(("a tag", "another"), "a note", True)
    assert machine("a").all_labels() == ({"one": expected}, [])
    machine("c").label("one", Labels())
    assert machine("a").labels("one") == Labels()


def test_what_such_a_store_has_not_is_refused_in_a_sentence(machine: Machine) -> None:
    store = machine("a")
    placed(store, "one")
    with pytest.raises(StoreError, match="delete one` deletes the run"):
        store.discard("one")
    assert store.discarded() == []
    assert ids(store) == ["one"]


def dead(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the backend of a store raises what a closed port does."""

    def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(objects, "PAUSES", (0.0, 0.0))
    for name in ("ls", "info", "cat_file", "pipe_file", "put_file", "rm_file", "exists", "makedirs", "mv"):
        monkeypatch.setattr(objects_of(store)._fs, name, refused)


def test_while_nothing_answers_the_gallery_shows_what_is_known_and_says_so(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id in ("fetched", "unfetched"):
        placed(machine("a"), run_id)
    machine("a").label("fetched", Labels(("a tag",)))
    store = machine("b")
    before = list_runs(store)
    store.all_labels()
    body = store.path_of("fetched").read_bytes()
    with monkeypatch.context() as patched:
        dead(store, patched)
        assert list_runs(store) == before
        assert store.outage is not None
        assert "no connection, 3 times" in store.outage
        assert "they were at 20" in store.outage
        assert store.path_of("fetched").read_bytes() == body
        assert store.labels("fetched") == Labels(("a tag",))
        for refused in (
            lambda: store.path_of("unfetched"),
            lambda: store.delete("fetched"),
            lambda: store.label("fetched", Labels()),
            lambda: store.new_partial("a run", header_of().created or mirror.datetime.now(mirror.UTC)),
        ):
            with pytest.raises(StoreError, match=r"no connection, 3 times") as said:
                refused()
            assert str(said.value).count("\n") == 0
        assert store.labels("fetched") == Labels(("a tag",))
    assert store.mirror is not None
    monkeypatch.setattr(store.mirror, "_dead_until", 0.0)
    assert list_runs(store) == before
    assert store.outage is None


def test_a_store_that_never_answered_is_one_sentence(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    store = machine("a")
    dead(store, monkeypatch)
    with pytest.raises(StoreError, match="cannot list objects there"):
        list_runs(store)


def test_a_run_that_cannot_be_put_waits_and_is_sent_by_the_next_writer(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = machine("a")
    ids(store)
    with monkeypatch.context() as patched:
        dead(store, patched)
        with pytest.raises(StoreError, match="whole but not stored"):
            placed(store, "one")
    assert ids(machine("b")) == []
    store.sweep()
    assert ids(machine("b")) == ["one"]
    assert ids(store) == ["one"]


KILLED = """
import os, sys
from pathlib import Path
from core.runs.store.objects import Objects
objects = Objects(sys.argv[1])
def half(path, target, **_):
    body = Path(path).read_bytes()
    objects._fs.pipe_file(target, body[: len(body) // 2])
    os.kill(os.getpid(), 9)
objects._fs.put_file = half
if sys.argv[3] == "planted":
    half(sys.argv[2], objects._at("one.duckdb"))
objects.put_new(Path(sys.argv[2]), "one.duckdb")
"""


@pytest.mark.parametrize("planted", [False, True])
def test_a_writer_killed_in_the_middle_of_a_put_leaves_nothing_to_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    """planted: a put under the run's own name, which is seen half."""
    url, run = f"file://{tmp_path}/there", copied(tmp_path / "one.duckdb")
    (tmp_path / "there").mkdir()
    command = [sys.executable, "-c", KILLED, url, str(run), "planted" if planted else "as it is"]
    assert subprocess.run(command, cwd=ROOT).returncode == -signal.SIGKILL
    monkeypatch.setenv("ULPSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    cards, broken = list_runs(open_store(url))
    assert cards == []
    assert len(broken) == planted
    if not planted:
        (left,) = (tmp_path / "there").iterdir()
        open_store(url).sweep()
        assert left.exists()  # its writer may be alive
        os.utime(left, (0, 0))
        open_store(url).sweep()
        assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize(
    "url", ["s3://key:secret@bucket/runs", "s3://bucket/runs?X-Amz-Signature=secret", "s3://bucket/runs#secret"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="credentials belong in the environment") as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "error", "sentence"),
    [
        ("nothing://x/runs", UsageError, "a scheme that fsspec knows"),
        ("memory://", UsageError, "names no place to keep runs in"),
    ],
)
def test_a_url_that_names_no_store_is_a_sentence(url: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        open_store(url)


@pytest.mark.parametrize("missing", ["fsspec", "s3fs"])
def test_without_the_extra_the_sentence_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    known = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(known, "s3", raising=False)  # where another test has loaded it
    with pytest.raises(ExtraError, match="takes fsspec and s3fs"):
        open_store("s3://bucket/without-the-extra")


def test_whoever_opens_the_folder_of_a_store_has_the_store(machine: Machine) -> None:
    """As a job of the dashboard and the process that takes a run file in do."""
    placed(machine("a"), "one")
    folder = machine("b").directory
    assert ids(Store(folder)) == ["one"]
    assert Store(folder).address == machine("b").address
