"""A discarded run is listed nowhere, comes back bit for bit with its labels, never over another run, and goes for good
in time.
"""

from __future__ import annotations

import errno
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from core.errors import StoreError
from core.runs.reader import RunReader
from core.runs.store import labels, trash
from core.runs.store.cards import list_runs
from core.runs.store.labels import Labels
from core.runs.store.store import Store
from tests.core.runs.made_runs import copied, made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One run, `mine`, with labels."""
    made_here = Store(tmp_path / "store")
    copied(made_here.directory / "mine.duckdb")
    labels.write(made_here.directory, "mine", Labels(("a tag",), "a note"))
    return made_here


def in_trash(store: Store, run_id: str, days: float) -> Path:
    """A run that was discarded so many days ago; its entry."""
    then = (datetime.now(UTC) - timedelta(days=days)).strftime("%Y%m%d-%H%M%S")
    entry = store.directory / trash.FOLDER / f"{then}-0123abcd"
    copied(entry / f"{run_id}.duckdb")
    return entry


def names(store: Store) -> list[str]:
    return sorted(path.relative_to(store.directory).as_posix() for path in store.directory.rglob("*") if path.is_file())


def test_a_discarded_run_is_listed_nowhere_and_comes_back_as_it_was(store: Store) -> None:
    path = store.path_of("mine")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    entry = store.discard("min")
    assert list_runs(store) == ([], [])
    assert labels.read_all(store.directory) == ({}, [])
    with pytest.raises(StoreError, match="no run 'mine'"):
        store.path_of("mine")
    (found,) = store.discarded()
    assert (found.entry, found.run_id, found.bytes) == (entry, "mine", len(before[0]))
    assert abs((datetime.now(UTC).replace(tzinfo=None) - found.deleted).total_seconds()) < 30
    assert store.restore(entry) == "mine"
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert labels.read(store.directory, "mine") == Labels(("a tag",), "a note")
    assert store.discarded() == []
    assert names(store) == [".labels/mine.json", "mine.duckdb"]


def test_a_run_without_labels_comes_back_too(store: Store) -> None:
    labels.forget(store.directory, "mine")
    store.restore(store.discard("mine"))
    assert names(store) == ["mine.duckdb"]


def test_a_reader_reads_on_while_its_run_is_discarded_and_restored(store: Store) -> None:
    with RunReader(store.path_of("mine")) as run:
        before = run.read_rows(1, 0, run.header.rows).tobytes()
        entry = store.discard("mine")
        assert run.read_rows(1, 0, run.header.rows).tobytes() == before
        store.restore(entry)
        assert run.read_rows(1, 0, run.header.rows).tobytes() == before


def test_labels_that_are_there_meanwhile_stay(store: Store) -> None:
    entry = store.discard("mine")
    labels.write(store.directory, "mine", Labels(("newer",)))
    store.restore(entry)
    assert labels.read(store.directory, "mine") == Labels(("newer",))


def test_runs_of_one_id_lie_in_the_trash_beside_each_other(store: Store) -> None:
    first = store.discard("mine")
    copied(store.directory / "mine.duckdb")
    second = store.discard("mine")
    assert {run.entry for run in store.discarded()} == {first, second}
    assert store.restore(second) == "mine"
    with pytest.raises(StoreError, match="is there again"):
        store.restore(first)


def test_sample_runs_and_directories_are_refused_and_what_is_gone_is_a_sentence(store: Store, tmp_path: Path) -> None:
    with_samples = Store(store.directory, [tmp_path / "samples"])
    copied(tmp_path / "samples" / "sample.duckdb")
    with pytest.raises(StoreError, match="read-only sample run"):
        with_samples.discard("sample")
    (store.directory / "folder.duckdb").mkdir()
    with pytest.raises(StoreError, match="'folder' cannot be deleted"):
        store.discard("folder")
    with pytest.raises(StoreError, match="no run 'other'"):
        store.discard("other")
    with pytest.raises(StoreError, match="not in the trash"):
        store.restore("20261121-000000-00000000")
    assert [run.run_id for run in store.discarded()] == []


@pytest.mark.parametrize(
    "entry", ["", "..", ".", "../..", "mine", "/etc", "20261121-000000-0000000g", "99999999-999999-00000000"]
)
def test_what_is_no_entry_is_not_restored_from(store: Store, entry: str) -> None:
    with pytest.raises(StoreError, match="not in the trash"):
        store.restore(entry)
    assert store.path_of("mine").exists()


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "No space left on device"), (errno.EXDEV, "Invalid cross-device link")]
)
def test_a_disk_that_refuses_is_a_sentence_and_the_run_stays(store: Store, monkeypatch, code: int, words: str) -> None:
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        with pytest.raises(StoreError, match=words):
            store.discard("mine")
    assert store.path_of("mine").exists()
    assert names(store) == [".labels/mine.json", "mine.duckdb"]
    entry = store.discard("mine")
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lambda *_, **__: refuse(Path()))
        patched.setattr(Path, "touch", refuse)
        with pytest.raises(StoreError, match=words):
            store.restore(entry)
    assert store.restore(entry) == "mine"


def test_deleted_by_somebody_else_meanwhile_is_a_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.path_of("mine")
    monkeypatch.setattr(Store, "find", lambda self, run_id: path)
    path.unlink()
    with pytest.raises(StoreError, match="'mine' is not"):
        store.discard("mine")
    assert store.discarded() == []
    assert list((store.directory / trash.FOLDER).iterdir()) == []


def two_sweeps(store: Store, hours_between: float = 1.01) -> None:
    store.sweep()
    for mark in store.directory.glob(f"{trash.FOLDER}/*/expired"):
        marked = mark.stat().st_mtime - hours_between * 3600
        os.utime(mark, (marked, marked))
    store.sweep()


def test_writers_sweep_out_what_was_deleted_a_week_ago_and_only_that(store: Store) -> None:
    old, new = in_trash(store, "old", days=7.1), in_trash(store, "new", days=6.9)
    made(store)
    two_sweeps(store, hours_between=0.9)
    assert old.exists()
    two_sweeps(store)
    made(store)
    assert not old.exists()
    assert new.exists()
    assert [run.run_id for run in store.discarded()] == ["new"]
    assert store.path_of("mine").exists()


def test_one_entry_or_all_of_it_is_purged_by_hand_with_its_labels(store: Store) -> None:
    entry = store.discard("mine")
    in_trash(store, "other", days=1)
    assert store.purge_trash(older_than_seconds=3600, entry=entry) == 0
    assert store.purge_trash(entry=entry) == 1
    assert [run.run_id for run in store.discarded()] == ["other"]
    assert store.purge_trash() == 1
    assert names(store) == []
    with pytest.raises(StoreError, match="not in the trash"):
        store.restore(entry)


def test_what_is_not_ours_in_the_trash_stays(store: Store, tmp_path: Path) -> None:
    place = store.directory / trash.FOLDER
    copied(tmp_path / "precious" / "x.duckdb")
    place.mkdir()
    (place / "20200101-000000-00000000").symlink_to(tmp_path / "precious")
    (place / "20200101-000000-00000001").write_text("a file")
    (place / "notes").mkdir()
    assert store.discarded() == []
    assert store.purge_trash() == 0
    with pytest.raises(StoreError):
        store.restore("20200101-000000-00000000")
    assert len(list(place.iterdir())) == 3
    assert (tmp_path / "precious" / "x.duckdb").exists()


def test_a_trash_that_is_a_link_is_left_alone(store: Store, tmp_path: Path) -> None:
    in_trash(store, "old", days=30)
    (store.directory / trash.FOLDER).rename(tmp_path / "elsewhere")
    (store.directory / trash.FOLDER).symlink_to(tmp_path / "elsewhere")
    assert store.purge_trash() == 0
    assert store.discarded() == []
    assert list((tmp_path / "elsewhere").rglob("*.duckdb"))


def test_an_entry_without_a_run_is_not_listed_and_is_swept_in_time(store: Store) -> None:
    entry = in_trash(store, "cut-short", days=8)
    (entry / "cut-short.duckdb").unlink()
    assert store.discarded() == []
    two_sweeps(store)
    assert not entry.exists()


def test_a_link_to_a_run_is_discarded_and_restored_as_a_link(store: Store, tmp_path: Path) -> None:
    target = shutil.copy(store.path_of("mine"), tmp_path / "target.duckdb")
    (store.directory / "link.duckdb").symlink_to(target)
    store.restore(store.discard("link"))
    assert (store.directory / "link.duckdb").is_symlink()
    assert Path(target).exists()


def test_a_deleted_run_is_meant_by_its_id_a_beginning_of_it_or_its_entry(store: Store) -> None:
    entry = store.discard("mine")
    older = in_trash(store, "mint", 2).name
    for name, meant in (("mine", entry), (entry, entry), ("mint", older), (older, older)):
        assert trash.entry_of(store.discarded(), name) == meant
    with pytest.raises(StoreError, match=f"'min' could be mine .{entry}., mint .{older}.; give the entry"):
        trash.entry_of(store.discarded(), "min")
    for nothing in ("", "x", "../mine", "ine"):
        with pytest.raises(StoreError, match="no deleted run"):
            trash.entry_of(store.discarded(), nothing)


def test_a_run_deleted_twice_is_meant_by_its_entry_only(store: Store) -> None:
    newer, older = store.discard("mine"), in_trash(store, "mine", 2).name
    with pytest.raises(StoreError, match="give the entry"):
        trash.entry_of(store.discarded(), "mine")
    assert trash.entry_of(store.discarded(), older) == older != newer
