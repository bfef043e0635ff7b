"""Limits and retention: what is refused, what is moved, and what stays whatever happens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from core.configuration import Limits, Retention
from core.errors import LimitError
from core.judging.ingest import ingest
from core.runs.store import audit, labels, quotas
from core.runs.store.labels import Labels
from core.runs.store.quotas import apply_retention, check_file, check_space, due, free_bytes, stored_bytes
from core.runs.store.store import Store
from tests.core.runs.made_runs import ROOT, copied, next_tick

NONE = Limits(file_bytes=0, store_bytes=0, free_bytes=0)
DAY = 86_400


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "runs", [tmp_path / "samples"])
    for name in ("a", "b", "c"):
        copied(found.directory / f"{name}.duckdb")
        next_tick(found.directory)
    copied(tmp_path / "samples" / "sample.duckdb")
    return found


def ids(store: Store) -> list[str]:
    return sorted(path.stem for path in store.paths() if store.is_writable(path))


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (Limits(file_bytes=99, free_bytes=0), 413, "the file has 100 bytes; this server takes files of at most 99 "),
        (Limits(file_bytes=0, store_bytes=50, free_bytes=0), 507, "of at most 50 "),
        (Limits(file_bytes=0, free_bytes=1 << 60), 507, "have to stay free"),
    ],
)
def test_what_a_limit_refuses_gets_its_status_and_a_sentence(
    found: Limits, status: int, words: str, store: Store
) -> None:
    def check() -> None:
        check_file(100, found)
        check_space(store, 100, found)

    with pytest.raises(LimitError) as refused:
        check()
    assert (refused.value.status, words in str(refused.value)) == (status, True)


def test_what_fits_is_not_refused(store: Store) -> None:
    check_file(100, Limits(file_bytes=100))
    check_space(store, 100, NONE)
    check_space(store, 100, Limits(store_bytes=stored_bytes(store) + 100, free_bytes=1))
    check_space(Store(store.directory / "not" / "made" / "yet"), 100, Limits())
    assert free_bytes(store) > 0


def test_what_lies_in_the_trash_still_takes_room(store: Store) -> None:
    before = stored_bytes(store)
    store.discard("a")
    assert stored_bytes(store) == before
    store.purge_trash()
    assert stored_bytes(store) < before


def test_an_ingest_leaves_the_disk_its_room_and_nothing_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "900 TB")
    with pytest.raises(LimitError, match=r"limits\.free_bytes"):
        ingest(store, [ROOT / "sample_runs" / "dumps" / "six_calls.npz"])
    assert sorted(path.name for path in store.directory.iterdir()) == ["a.duckdb", "b.duckdb", "c.duckdb"]
    with pytest.raises(LimitError):
        check_space(store, 1)


def test_nothing_is_due_where_nothing_is_configured(store: Store) -> None:
    assert due(store, Retention(), now=time.time() + 1000 * DAY) == []


def test_the_oldest_beyond_a_number_go_and_samples_stay(store: Store) -> None:
    assert [run.run_id for run in due(store, Retention(runs=2))] == ["a"]
    assert apply_retention(store, Retention(runs=1)) == ["a", "b"]
    assert ids(store) == ["c"]
    assert (store.read_only[0] / "sample.duckdb").exists()
    assert sorted(run.run_id for run in store.discarded()) == ["a", "b"]
    assert [(event["who"], event["run_id"]) for event in audit.read(store.directory, 9)] == [
        ("retention", "a"),
        ("retention", "b"),
    ]


def test_those_that_came_too_long_ago_go(store: Store) -> None:
    assert due(store, Retention(days=30), now=time.time() + 29.9 * DAY) == []
    found = due(store, Retention(days=30), now=time.time() + 30.1 * DAY)
    assert [run.run_id for run in found] == ["a", "b", "c"]
    assert found[0].because == "it came 30.1 days ago, and runs are kept for 30"
    assert due(store, Retention(days=30), now=0.0) == []  # a clock that went back


def test_a_pinned_run_stays_and_so_does_one_whose_labels_cannot_be_read(store: Store) -> None:
    labels.write(store.directory, "a", Labels(pinned=True))
    (store.directory / ".labels" / "b.json").write_text("{damaged")
    assert apply_retention(store, Retention(runs=1)) == []
    labels.write(store.directory, "a", Labels(("tag",)))
    assert apply_retention(store, Retention(runs=1)) == ["a"]


def test_without_looking_at_pins_a_pinned_run_would_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    labels.write(store.directory, "a", Labels(pinned=True))
    monkeypatch.setattr(quotas, "_may_be_pinned", lambda *_: False)
    assert apply_retention(store, Retention(runs=2)) == ["a"]


def test_a_run_that_was_restored_has_just_come(store: Store) -> None:
    (entry,) = [run.entry for run in store.discarded()] or [store.discard("a")]
    next_tick(store.directory)
    store.restore(entry)
    assert [run.run_id for run in due(store, Retention(runs=2))] == ["b"]


def test_a_file_that_is_no_run_is_left_alone_and_does_not_count(store: Store) -> None:
    next_tick(store.directory)
    (store.directory / "newest.duckdb").write_bytes(b"none")
    assert due(store, Retention(runs=3)) == []
    assert apply_retention(store, Retention(days=1e-9)) == ["a", "b", "c"]
    assert (store.directory / "newest.duckdb").exists()
