"""Tags and notes lie beside the run files, survive what may lie there, and never change a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import StoreError, UsageError
from core.runs.store import labels
from core.runs.store.labels import Labels, labels_of
from core.runs.store.store import Store
from tests.core.runs.made_runs import ROOT, copied
from tests.covering import thorough

# what is typed -> what is kept
TYPED = {
    "as it is": ((["nightly"], "a note"), (("nightly",), "a note")),
    "blanks": ((["  two \t words ", ""], "  x\r\ny\r"), (("two words",), "x\ny")),
    "twice": ((["a", "b", "a "], ""), (("a", "b"), "")),
    "control characters": ((["a\x00b\x1b[31m"], "x\x07y\u202ez"), (("a b [31m",), "xyz")),
    "half a surrogate": ((["a\ud800"], "\udfff"), (("a",), "")),
    "markup stays text": ((["<b>"], "[x](http://e) <script>"), (("<b>",), "[x](http://e) <script>")),
    "other scripts": ((["日本 é"], "ü"), (("日本 é",), "ü")),
}


@pytest.mark.parametrize(("typed", "kept"), TYPED.values(), ids=TYPED)
def test_labels_are_cleaned_written_and_read_back(typed, kept, tmp_path: Path) -> None:
    wanted = labels_of(*typed)
    assert (wanted.tags, wanted.note) == kept
    assert labels.write(tmp_path, "a run", wanted).aside is None
    assert labels.read(tmp_path, "a run") == wanted
    found, damaged = labels.read_all(tmp_path)
    assert (found, damaged) == ({"a run": wanted} if wanted != Labels() else {}, [])


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ((["x" * 41], ""), "has 41 characters; a tag has 1 to 40"),
        (([f"t{i}" for i in range(21)], ""), "21 tags; a run has at most 20"),
        (([], "x" * 4001), "4,001 characters; at most 4,000"),
    ],
)
def test_more_than_is_kept_is_refused(typed, sentence) -> None:
    with pytest.raises(UsageError, match=sentence):
        labels_of(*typed)


def test_the_most_that_is_kept_fits_into_a_file(tmp_path: Path) -> None:
    """The twin of the test above, in characters of four bytes each."""
    most = labels_of([chr(0x1F600 + i) * 40 for i in range(20)], "\N{GRINNING FACE}" * 4000)
    labels.write(tmp_path, "r", most)
    assert labels.read(tmp_path, "r") == most


def test_empty_labels_leave_no_file(tmp_path: Path) -> None:
    labels.write(tmp_path, "r", Labels(("a",)))
    labels.write(tmp_path, "r", Labels())
    assert list((tmp_path / labels.FOLDER).iterdir()) == []
    assert labels.read(tmp_path, "r") == Labels()


@pytest.mark.parametrize("run_id", ["", "../x", "a/b", "a\0b", "/etc/passwd"])
def test_an_id_that_leads_elsewhere_is_refused(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run id"):
        labels.write(tmp_path, run_id, Labels(("a",)))
    assert list(tmp_path.iterdir()) == []


def _fifo(path: Path) -> None:
    os.mkfifo(path)


DAMAGED: dict[str, Callable[[Path], object]] = {
    "nothing": Path.touch,
    "text": lambda path: path.write_text("this is no JSON"),
    "half of it": lambda path: path.write_text('{"tags": ["a"], "no'),
    "no text at all": lambda path: path.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda path: path.write_text("[]"),
    "a number for tags": lambda path: path.write_text('{"tags": 7, "note": ""}'),
    "numbers for tags": lambda path: path.write_text('{"tags": [7], "note": ""}'),
    "no note": lambda path: path.write_text('{"tags": []}'),
    "too many tags": lambda path: path.write_text(json.dumps({"tags": [str(i) for i in range(99)], "note": ""})),
    "too long a note": lambda path: path.write_text(json.dumps({"tags": [], "note": "x" * 5000})),
    "too many bytes": lambda path: path.write_bytes(b" " * (1 << 20) + b'{"tags": [], "note": ""}'),
    "deeply nested": lambda path: path.write_text("[" * 60_000),
    "a directory": Path.mkdir,
    "a pipe": _fifo,
    "a link to elsewhere": lambda path: path.symlink_to("/etc/passwd"),
    "a link to nothing": lambda path: path.symlink_to("gone"),
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_a_damaged_file_is_a_sentence_harms_no_other_and_is_put_aside_before_it_is_replaced(
    fault: str, tmp_path: Path
) -> None:
    labels.write(tmp_path, "good", Labels(("kept",)))
    path = labels.path_of(tmp_path, "bad")
    DAMAGED[fault](path)
    before = path.read_bytes() if path.is_file() else None
    found, damaged = labels.read_all(tmp_path)
    assert found == {"good": Labels(("kept",))}
    assert len(damaged) == 1
    assert "bad.json: no labels are read" in damaged[0]
    aside = labels.write(tmp_path, "bad", Labels(("new",))).aside
    assert aside is not None
    if before is not None:
        assert (tmp_path / aside).read_bytes() == before
    assert os.path.lexists(tmp_path / aside)
    assert labels.read_all(tmp_path) == ({"good": Labels(("kept",)), "bad": Labels(("new",))}, [])


def test_a_good_file_is_replaced_and_nothing_is_put_aside(tmp_path: Path) -> None:
    """The twin of the test above."""
    labels.write(tmp_path, "r", Labels(("old",)))
    assert labels.write(tmp_path, "r", Labels(("new",))).aside is None
    assert [path.name for path in (tmp_path / labels.FOLDER).iterdir()] == ["r.json"]


def test_every_change_is_seen_by_the_stamps(tmp_path: Path) -> None:
    seen = {labels.stamps(tmp_path)}
    for note in ("a", "b", "c"):  # of one size, and faster after each other than a clock may tick
        labels.write(tmp_path, "r", Labels((), note))
        seen.add(labels.stamps(tmp_path))
    assert len(seen) == 4
    assert labels.stamps(tmp_path) in seen


WRITER = """
import sys
from pathlib import Path
from core.runs.store import labels
for number in range(int(sys.argv[3])):
    for run in range(10):
        labels.write(Path(sys.argv[1]), f"{sys.argv[2]}-{run}", labels.Labels((sys.argv[2],), str(number)))
    labels.write(Path(sys.argv[1]), "both", labels.Labels((sys.argv[2],), str(number)))
"""


@pytest.mark.parametrize("times", [30, *thorough([200])])
def test_two_processes_that_write_at_once_lose_no_runs_labels(times: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, name, str(times)], cwd=ROOT) for name in ("one", "two")]
    while any(writer.poll() is None for writer in writers):
        assert labels.read_all(tmp_path)[1] == []  # at no moment half a file
    assert [writer.returncode for writer in writers] == [0, 0]
    found, _ = labels.read_all(tmp_path)
    assert found.pop("both").note == str(times - 1)  # one run labelled by both: the last one counts
    assert found == {f"{name}-{run}": Labels((name,), str(times - 1)) for name in ("one", "two") for run in range(10)}
    assert not list((tmp_path / labels.FOLDER).glob(".*"))


ADDER = """
import sys, pathlib
from core.runs.store import labels
folder = pathlib.Path(sys.argv[1])
for number in range(9):
    seen = labels.read(folder, "r")
    labels.write(folder, "r", labels.Labels((*seen.tags, f"{sys.argv[2]}{number}"), seen.note), seen)
"""


def test_two_processes_that_tag_one_run_at_once_lose_no_tag(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", ADDER, str(tmp_path), name], cwd=ROOT) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert sorted(labels.read(tmp_path, "r").tags) == sorted(f"{name}{number}" for name in "ab" for number in range(9))


@pytest.mark.parametrize(
    ("seen", "wanted", "stored", "expected"),
    [
        (Labels(("a", "b"), "n"), Labels(("b", "c"), "n"), Labels(("a", "b", "x"), "n"), Labels(("b", "x", "c"), "n")),
        (Labels(("a", "b")), Labels(("b", "a")), Labels(("a", "b")), Labels(("b", "a"))),
        (Labels((), "n"), Labels((), "mine"), Labels((), "n"), Labels((), "mine")),
        (Labels((), "n"), Labels((), "n"), Labels((), "theirs"), Labels((), "theirs")),
        (Labels((), "n"), Labels((), "mine"), Labels((), "theirs"), Labels((), "theirs\n\nmine")),
        (Labels((), "n"), Labels((), "same"), Labels((), "same"), Labels((), "same")),
        (Labels((), "n"), Labels((), ""), Labels((), "theirs"), Labels((), "theirs")),
        (Labels((), "n"), Labels((), "mine"), Labels(), Labels((), "mine")),
        (Labels((), "n"), Labels((), "n"), Labels(), Labels()),
        (Labels(), Labels(pinned=True), Labels(("x",)), Labels(("x",), pinned=True)),
        (Labels(pinned=True), Labels(("t",), pinned=True), Labels(), Labels(("t",))),
        (Labels(("a",)), Labels(), Labels(("a",)), Labels()),
    ],
)
def test_what_two_people_change_at_once_is_all_kept(
    seen: Labels, wanted: Labels, stored: Labels, expected: Labels, tmp_path: Path
) -> None:
    labels.write(tmp_path, "r", stored)
    assert labels.write(tmp_path, "r", wanted, seen).labels == expected
    assert labels.read(tmp_path, "r") == expected


def test_two_notes_too_long_for_one_are_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    theirs = Labels((), "t" * labels.LONGEST_NOTE)
    labels.write(tmp_path, "r", theirs)
    with pytest.raises(UsageError, match="characters"):
        labels.write(tmp_path, "r", Labels((), "mine"), Labels())
    assert labels.read(tmp_path, "r") == theirs


def test_what_a_killed_writer_left_is_removed_after_an_hour_by_a_sweep(tmp_path: Path) -> None:
    labels.write(tmp_path, "r", Labels(("a",)))
    folder = tmp_path / labels.FOLDER
    (folder / ".writing-old").touch()
    (folder / ".writing-new").touch()
    os.utime(folder / ".writing-old", (0, 0))
    os.utime(folder / "r.json", (0, 0))
    Store(tmp_path).sweep()
    assert sorted(path.name for path in folder.iterdir()) == [".writing-new", "r.json"]


def test_a_store_that_cannot_be_written_to_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StoreError, match="cannot be written"):
        labels.write(tmp_path / "store", "r", Labels(("a",)))
    assert labels.read_all(tmp_path / "store") == ({}, [])


def test_labels_change_no_run_and_go_with_one_that_is_deleted_for_good(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", [tmp_path / "samples"])
    run, sample = copied(store.directory / "mine.duckdb"), copied(tmp_path / "samples" / "sample.duckdb")
    before = (run.read_bytes(), run.stat().st_mtime_ns, sample.read_bytes())
    for run_id in ("mine", "sample"):
        labels.write(store.directory, run_id, Labels(("x",)))
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["sample.duckdb"]
    assert (run.read_bytes(), run.stat().st_mtime_ns, sample.read_bytes()) == before
    store.delete("mine")
    assert set(labels.read_all(store.directory)[0]) == {"sample"}


def test_a_pin_is_kept_and_files_from_before_there_were_pins_read_as_not_pinned(tmp_path: Path) -> None:
    labels.write(tmp_path, "r", Labels(pinned=True))
    assert labels.read(tmp_path, "r") == Labels(pinned=True)
    labels.path_of(tmp_path, "r").write_text('{"tags": ["x"], "note": ""}')
    assert labels.read(tmp_path, "r") == Labels(("x",))
    labels.write(tmp_path, "r", Labels(("x",)))
    assert json.loads(labels.path_of(tmp_path, "r").read_text()) == {
        "tags": ["x"],
        "note": "",
    }  # as it was written before


@pytest.mark.parametrize(
    "body", ['{"tags": [], "note": "", "pinned": "yes"}', '{"tags": [], "note": "", "pinned": 1}', "[]", '"x"']
)
def test_a_pin_that_is_neither_true_nor_false_is_damage(body: str, tmp_path: Path) -> None:
    labels.path_of(tmp_path, "r").parent.mkdir()
    labels.path_of(tmp_path, "r").write_text(body)
    with pytest.raises(StoreError, match="no labels are read"):
        labels.read(tmp_path, "r")


def test_labels_that_a_person_writes_leave_the_judged_run_that_is_named_there(tmp_path: Path) -> None:
    seen = Labels(("nightly",), judged_as="better")
    labels.write(tmp_path, "r", seen)
    labels.write(tmp_path, "r", labels_of(["weekly"], "why"), seen)
    assert labels.read(tmp_path, "r") == Labels(("weekly",), "why", judged_as="better")


@pytest.mark.parametrize("named", ["5", "null", "[]"])
def test_a_judged_run_that_is_no_text_is_refused(named: str, tmp_path: Path) -> None:
    path = labels.path_of(tmp_path, "r")
    path.parent.mkdir()
    path.write_text(f'{{"tags": [], "note": "", "judged_as": {named}}}')
    with pytest.raises(StoreError):
        labels.read(tmp_path, "r")
