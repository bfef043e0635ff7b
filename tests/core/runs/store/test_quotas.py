"""Limits and retention: what is refused, what is moved, and what stays whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.configuration import Limits, Retention
from core.errors import LimitError
from core.judging.ingest import ingest
from core.runs.store import audit, labels, quotas
from core.runs.store.labels import Labels
from core.runs.store.partial import Partial
from core.runs.store.quotas import (
    apply_retention,
    check_file,
    check_space,
    due,
    free_bytes,
    reserved_bytes,
    room_for,
    taken_bytes,
)
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import ROOT, calm_sides, copied, header_of, next_tick

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
    check_space(store, 100, Limits(store_bytes=sum(taken_bytes(store)) + 100, free_bytes=1))
    check_space(Store(store.directory / "not" / "made" / "yet"), 100, Limits())
    assert free_bytes(store) > 0


def test_what_lies_in_the_trash_still_takes_room(store: Store) -> None:
    before = sum(taken_bytes(store))
    store.discard("a")
    assert sum(taken_bytes(store)) == before
    store.purge_trash()
    assert sum(taken_bytes(store)) < before


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
    assert "came 30.1 days ago" in found[0].because
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


def _cells(store: Store, *verdicts: str) -> list[str]:
    """Runs of one cell, the oldest first, each with a verdict."""
    ids = [f"cell-{'a' * 16}-{number:016x}" for number in range(len(verdicts))]
    for run_id, verdict in zip(ids, verdicts, strict=True):
        header = header_of()
        with RunWriter(store, header, run_id=run_id) as writer:
            for side, bits in enumerate(calm_sides(header)):
                writer.write(side, 0, bits)
            writer.write_verdict(0, verdict, "It is.", 1.0, ())
            writer.finish()
    return ids


def test_of_each_cell_of_a_sweep_the_newest_so_many_stay(tmp_path: Path) -> None:
    ids = _cells(store := Store(tmp_path / "cells"), "rounding", "rounding", "rounding", "rounding")
    found = due(store, Retention(cells=2))
    assert [(run.run_id, run.because) for run in found] == [
        (ids[0], "3 runs of its cell are newer, and 2 are kept"),
        (ids[1], "2 runs of its cell are newer, and 2 are kept"),
    ]


@pytest.mark.parametrize("retention", [Retention(cells=1), Retention(runs=1), Retention(days=1e-9)])
def test_the_last_good_run_of_a_cell_stays_under_every_rule(tmp_path: Path, retention: Retention) -> None:
    ids = _cells(store := Store(tmp_path / "cells"), "rounding", "rounding", "bug suspected")
    gone = {run.run_id for run in due(store, retention)}
    assert ids[1] not in gone
    assert ids[0] in gone


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


def reserving(store: Store, size: int, limits: Limits) -> Partial:
    """Room for a file of so many bytes, as every writer takes it."""
    with room_for(store, size, limits):
        partial = store.new_partial("a file", datetime.now(UTC))
        partial.reserve(size)
    return partial


def test_what_is_reserved_counts_until_it_is_there_and_no_longer(store: Store) -> None:
    before = sum(taken_bytes(store))
    partial = reserving(store, 1000, NONE)
    assert (sum(taken_bytes(store)) - before, reserved_bytes(store)) == (1000, 1000)
    (partial.directory / "0").mkdir()
    (partial.directory / "0" / "dump").write_bytes(b"x" * 400)
    assert (sum(taken_bytes(store)) - before, reserved_bytes(store)) == (1000, 600)
    (partial.directory / "spill").write_bytes(b"x" * 900)  # more than was announced
    assert (sum(taken_bytes(store)) - before, reserved_bytes(store)) == (1300, 0)
    partial.remove()
    assert sum(taken_bytes(store)) == before


def test_a_reservation_leaves_the_disk_its_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "free_bytes", lambda _: 1000)
    limits = Limits(free_bytes=300)
    partial = reserving(store, 500, limits)
    with pytest.raises(LimitError, match="store's disk and 500"):
        reserving(store, 201, limits)
    reserving(store, 200, limits).remove()
    partial.remove()
    reserving(store, 700, limits).remove()


def _at_once(store: Store, limits: Limits, monkeypatch: pytest.MonkeyPatch) -> list[Partial]:
    """What of four writers of 100 bytes got room that come while the others look for it."""
    looked = threading.Barrier(4)
    check = quotas.check_space
    found: list[Partial] = []

    def slow(*asked: object, **more: object) -> None:
        check(*asked, **more)
        with suppress(threading.BrokenBarrierError):  # who holds the lock waits for nobody who could come
            looked.wait(0.05)

    def write() -> None:
        with suppress(LimitError):
            found.append(reserving(store, 100, limits))

    monkeypatch.setattr(quotas, "check_space", slow)
    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("is_locked", [True, False])
def test_of_those_who_come_at_once_as_many_get_room_as_there_is(
    is_locked: bool, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the lock, the planted fault, all of them do."""
    if not is_locked:
        monkeypatch.setattr(quotas, "_lock", lambda _: None)
    limits = Limits(store_bytes=sum(taken_bytes(store)) + 250, free_bytes=0)
    assert len(_at_once(store, limits, monkeypatch)) == (2 if is_locked else 4)


def test_the_reservation_of_a_process_that_died_is_gone(store: Store) -> None:
    limits = Limits(store_bytes=sum(taken_bytes(store)) + 250, free_bytes=0)
    script = (
        "import os, sys; from pathlib import Path; from datetime import UTC, datetime;"
        "from core.runs.store.store import Store;"
        "Store(Path(sys.argv[1])).new_partial('x', datetime.now(UTC)).reserve(200); os._exit(9)"
    )
    living = reserving(store, 100, limits)
    subprocess.run([sys.executable, "-c", script, str(store.directory)], cwd=ROOT, check=False)
    assert sum(taken_bytes(store)) == limits.store_bytes + 50
    reserving(store, 150, limits).remove()
    with pytest.raises(LimitError):
        reserving(store, 151, limits)  # the living one's stays
    living.remove()


def test_downloads_that_were_made_count_and_go_where_there_is_no_room(store: Store) -> None:
    folder = store.directory / quotas.DOWNLOADS
    folder.mkdir()
    before = sum(taken_bytes(store))
    for age, name in ((9, "old.npz"), (1, "new.npz")):
        (folder / name).write_bytes(b"x" * 100)
        os.utime(folder / name, (time.time() - age,) * 2)
    assert sum(taken_bytes(store)) - before == 200
    limits = Limits(store_bytes=before + 250, free_bytes=0)
    check_space(store, 50, limits)
    assert len(list(folder.iterdir())) == 2
    check_space(store, 100, limits)
    assert [path.name for path in folder.iterdir()] == ["new.npz"]
    with pytest.raises(LimitError):
        check_space(store, 251, limits)


def test_a_store_that_is_a_link_is_locked_where_it_lies(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store.directory)
    reserving(Store(tmp_path / "link"), 10, Limits()).remove()
