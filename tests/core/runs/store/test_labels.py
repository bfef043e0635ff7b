"""Tags, notes, pins and deletions are next to the run files, in one SQLite file, and never change a
run.
"""

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from operator import methodcaller

import pytest

from core.errors import StoreError, UsageError
from core.runs.store import labels
from core.runs.store.cards import list_runs
from core.runs.store.labels import Labels, labels_of
from core.runs.store.store import DELETED_SECONDS, Store
from tests.core.runs.made_runs import copied, make_run, opened
from tests.places import ROOT

TAG = chr(0x1F600) * 39  # and a letter: the most are 20 of 40
# what is typed -> what is stored
TYPED = {
    "as it is": ((["nightly"], "a note"), (("nightly",), "a note")),
    "blanks": ((["  two \t words ", ""], "  x\r\ny\r"), (("two words",), "x\ny")),
    "twice": ((["a", "b", "a "], ""), (("a", "b"), "")),
    "control characters": ((["a\x00b\x1b[31m"], "x\x07y\u202ez"), (("a b [31m",), "xyz")),
    "half a surrogate": ((["a\ud800"], "\udfff"), (("a",), "")),
    "other scripts": ((["日本 é"], "ü"), (("日本 é",), "ü")),
    "the most": 2 * ((tuple(TAG + letter for letter in "abcdefghijklmnopqrst"), "x" * 4000),),
}


@pytest.fixture
def store(tmp_path):
    """One run, `mine`, with labels."""
    store = Store(tmp_path / "store")
    copied(store.directory / "mine.duckdb")
    store.label("mine", Labels(("a tag",), "a note", True, "judged", "My name"))
    return store


@pytest.mark.parametrize(("typed", "stored"), TYPED.values(), ids=TYPED)
def test_labels_are_cleaned_written_and_read_back(typed, stored, tmp_path):
    wanted = labels_of(*typed)
    assert (wanted.tags, wanted.note) == stored
    Store(tmp_path).label("a run", wanted)
    assert labels.read_all(tmp_path).labels == {"a run": wanted}
    Store(tmp_path).label("a run", Labels())
    assert labels.read_all(tmp_path).labels == {}


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ((["x" * 41], ""), r"length <= 40 - at `\$\.tags"),
        (([f"t{i}" for i in range(21)], ""), r"length <= 20 - at `\$\.tags"),
        (([], "x" * 4001), r"length <= 4000 - at `\$\.note"),
    ],
)
def test_more_than_is_stored_is_refused(typed, sentence, tmp_path):
    with pytest.raises(UsageError, match=sentence):
        Store(tmp_path).label("a run", labels_of(*typed))
    assert labels.read_all(tmp_path).labels == {}


@pytest.mark.parametrize(
    "damage",
    # the second passes for SQLite until its pages are read
    [b"this is no database" * 100, b"SQLite format 3\x00" + b"\xff" * 5000],
)
def test_a_damaged_file_is_a_sentence_hides_no_run_and_is_not_overwritten(damage, store):
    path = store.directory / labels.FILE
    path.write_bytes(damage)
    found, (sentence,) = store.all_labels()
    assert found == {}
    assert "cannot be read" in sentence
    assert [card.run_id for card in list_runs(store)[0]] == ["mine"]
    with pytest.raises(StoreError, match="nothing was changed"):
        store.label("mine", Labels())
    with pytest.raises(StoreError, match="nothing was changed"):
        store.delete("mine")
    assert path.read_bytes() == damage


@pytest.mark.parametrize(
    ("tags", "path"),
    [('["a", 1]', r"\$\.tags\[1\]"), ("no JSON", "malformed")],
)
def test_stored_tags_of_another_type_are_refused_with_their_path_and_not_overwritten(
    tags,
    path,
    store,
):
    with closing(sqlite3.connect(store.directory / labels.FILE)) as database:
        database.execute("UPDATE label SET tags = ?", [tags])
        database.commit()
        assert store.all_labels()[0] == {}
        refusal = f"labels of run 'mine' cannot be read.*{path}"
        with pytest.raises(StoreError, match=refusal):
            store.labels("mine")
        with pytest.raises(StoreError, match=refusal):
            store.label("mine", Labels(("b",)), Labels())
        assert database.execute("SELECT tags FROM label").fetchall() == [(tags,)]


def test_a_store_that_cannot_be_written_to_is_a_sentence(tmp_path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match="nothing was changed"):
        Store(tmp_path / "store").label("r", Labels(("a",)))


def noted(text):
    """Labels of a note alone."""
    return Labels((), text)


def tagged(*tags):
    return Labels(tags)


@pytest.mark.parametrize(
    ("seen", "wanted", "stored", "expected"),
    [
        (
            Labels(("a", "b"), "n"),
            Labels(("b", "c"), "n"),
            Labels(("a", "b", "x"), "n"),
            Labels(("b", "x", "c"), "n"),
        ),
        # nobody else changed the tags, so their new order counts
        (tagged("a", "b"), tagged("b", "a"), tagged("a", "b"), tagged("b", "a")),
        (noted("n"), noted("mine"), noted("n"), noted("mine")),
        (noted("n"), noted("n"), noted("theirs"), noted("theirs")),
        (
            noted("n"),
            noted("mine"),
            noted("theirs"),
            noted("theirs\n\nmine"),
        ),
        (noted("n"), noted("same"), noted("same"), noted("same")),
        # an emptied note does not take another person's words away
        (noted("n"), noted(""), noted("theirs"), noted("theirs")),
        (Labels(), Labels(pinned=True), tagged("x"), Labels(("x",), pinned=True)),
        # unpinned by another person meanwhile
        (Labels(pinned=True), Labels(("t",), pinned=True), Labels(), tagged("t")),
        (Labels(), Labels(name="mine"), Labels(name="theirs"), Labels(name="mine")),
        (Labels(name="n"), Labels(("t",), name="n"), Labels(), tagged("t")),
        (Labels(judged_as="j"), tagged("b"), Labels(judged_as="j"), Labels(("b",), judged_as="j")),
    ],
)
def test_what_two_people_change_at_once_is_all_stored(seen, wanted, stored, expected, tmp_path):
    Store(tmp_path).label("r", stored)
    assert Store(tmp_path).label("r", wanted, seen) == expected
    assert Store(tmp_path).labels("r") == expected


def test_two_notes_too_long_for_one_are_refused_and_nothing_is_changed(tmp_path):
    theirs = Labels((), "t" * labels.LONGEST_NOTE)
    Store(tmp_path).label("r", theirs)
    with pytest.raises(UsageError, match=r"\$\.note"):
        Store(tmp_path).label("r", Labels((), "mine"), Labels())
    assert Store(tmp_path).labels("r") == theirs


ADDER = """
import sys, pathlib
from core.runs.store import labels
from core.runs.store.store import Store
folder = pathlib.Path(sys.argv[1])
name = sys.argv[2]
for number in range(int(sys.argv[3])):
    Store(folder).label("r", labels.Labels((f"{name}{number % 9}",)), labels.Labels())
    Store(folder).label(f"{name}{number}", labels.Labels(("own",)))
    print(number, flush=True)
"""


def test_two_processes_that_write_at_once_lose_nothing(tmp_path):
    command = [sys.executable, "-c", ADDER, str(tmp_path)]
    # nine tags each on run `r`, within the 20 that a run may have
    writers = [
        subprocess.Popen([*command, name, "9"], cwd=ROOT, stdout=subprocess.DEVNULL)
        for name in "ab"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    both = sorted(f"{name}{number}" for name in "ab" for number in range(9))
    found = labels.read_all(tmp_path).labels
    assert sorted(found.pop("r").tags) == both
    assert sorted(found) == both


def test_labels_and_deletions_change_no_run(store):
    path = store.path_of("mine")
    content = path.read_bytes()
    written = path.stat().st_mtime_ns
    assert store.delete("min") == "mine"
    assert list_runs(store) == ([], [])
    assert not store.has("mine")
    with pytest.raises(StoreError, match="no run 'mine'"):
        store.path_of("mine")
    (deleted,) = store.deleted()
    assert deleted.run_id == "mine"
    assert deleted.bytes == len(content)
    assert abs(datetime.now(UTC) - deleted.deleted) < timedelta(seconds=30)
    assert store.restore("mi") == "mine"
    assert path.read_bytes() == content
    assert path.stat().st_mtime_ns == written
    assert store.labels("mine") == Labels(("a tag",), "a note", True, "judged", "My name")
    assert [card.name for card in list_runs(store)[0]] == ["My name"]
    assert store.deleted() == []


def test_a_deleted_run_goes_for_good_after_a_week_when_the_next_is_written(store):
    for run_id, age in (("old", DELETED_SECONDS + 60), ("new", DELETED_SECONDS - 60)):
        copied(store.directory / f"{run_id}.duckdb")
        store.label(run_id, Labels(("x",)))
        store.delete(run_id)
        at = (datetime.now(UTC) - timedelta(seconds=age)).timestamp()
        statement = f"UPDATE deleted SET at = {at} WHERE run_id = '{run_id}'"
        # the date of a deletion has no public setter
        store._change(methodcaller("execute", statement))
    written = make_run(store)
    assert [run.run_id for run in store.deleted()] == ["new"]
    names = {path.name for path in store.directory.iterdir()}
    assert names == {"mine.duckdb", "new.duckdb", labels.FILE, written.name}
    assert set(store.all_labels()[0]) == {"mine", "new"}


def test_a_run_that_was_restored_meanwhile_is_not_removed(store):
    store._remove(["mine"])
    assert store.has("mine")
    assert store.labels("mine").tags == ("a tag",)


def test_a_run_purged_by_hand_goes_with_its_labels_and_whoever_reads_it_reads_on(store):
    with opened(store, "mine") as run:
        with pytest.raises(StoreError, match="is no deleted run"):
            store.purge("mine")
        store.delete("mine")
        assert store.purge("mine") == "mine"
        assert len(run.positions(0)) == run.header.rows
    assert [path.name for path in store.directory.iterdir()] == [labels.FILE]
    assert store.all_labels() == ({}, [])
    with pytest.raises(StoreError, match="is no deleted run"):
        store.restore("mine")


def test_the_id_of_a_deleted_run_is_free_again(store):
    store.delete("mine")
    make_run(store, run_id="mine")
    assert [card.run_id for card in list_runs(store)[0]] == ["mine"]
    assert store.deleted() == []
    assert store.labels("mine") == Labels()


def test_a_deleted_run_is_named_by_its_id_or_a_unique_beginning(store):
    copied(store.directory / "mint.duckdb")
    for run_id in ("mine", "mint"):
        store.delete(run_id)
    with pytest.raises(StoreError, match="could be mint, mine; give more"):
        store.restore("min")
    for nothing in ("", "x", "../mine", "ine"):
        with pytest.raises(StoreError, match="is no deleted run"):
            store.restore(nothing)
    assert store.restore("mint") == "mint"
