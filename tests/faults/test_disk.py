"""A full disk, and files that are damaged or gone while they are viewed: what was stored stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.errors import StoreError
from core.runs.reader import RunReader
from core.runs.store.labels import Labels
from core.runs.store.store import Store
from tests.app.opening import open_page, page_text
from tests.core.runs.made_runs import ROOT, copied, make_run
from tests.faults.nursery import dump_of
from tests.faults.whole import Watched

DISK_BYTES = 2 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of its own; skipped if none may be mounted (RLIMIT_FSIZE stands for one in
    test_crash.py).
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "ulpscope-test", disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return filler


def _ingest(store: Store, dump: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "core", "ingest", str(dump), "--store", str(store.directory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_full_disk_refuses_in_a_sentence_keeps_all_and_takes_runs_again_once_there_is_room(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "0")  # the guard would refuse before the disk does
    store = Store(small_disk / "store")
    copied(store.directory / "mine.duckdb")
    store.label("mine", Labels(("kept",), "a note"))
    watched = Watched(store)
    watched.check()
    dump = dump_of(tmp_path)
    refused = _ingest(store, dump)  # begins, and finds no room in the middle
    assert refused.returncode == 2
    assert refused.stderr.count("error: ") == 1
    assert "Traceback" not in refused.stderr
    watched.check()
    filler = _fill(small_disk)
    assert _ingest(store, dump).returncode == 2  # not even a beginning
    with pytest.raises(StoreError, match="nothing was changed"):
        store.label("mine", Labels(("lost",), "x" * 4000))
    assert store.labels("mine") == Labels(("kept",), "a note")
    watched.check()
    filler.unlink()
    make_run(store)
    watched.check()
    assert [path.name for path in store.directory.iterdir() if path.name.startswith(".partial-")] == []
    assert len(watched.known) == 2


# ---- damaged or gone while it is looked at


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The dashboard's own, with two runs."""
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path / "runs"))
    made_here = Store(tmp_path / "runs")
    for run_id in ("mine", "other"):
        copied(made_here.directory / f"{run_id}.duckdb")
    return made_here


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _scribble(path: Path) -> None:
    with path.open("r+b") as file:
        for start in range(3 * 4096, path.stat().st_size, 16384):
            file.seek(start + 100)
            file.write(os.urandom(64))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


FATES = {"gone": Path.unlink, "truncated": _truncate, "scribbled over": _scribble, "emptied": _empty}


@pytest.mark.spread(2)
@pytest.mark.parametrize("page", ["overview", "near_ties"])
@pytest.mark.parametrize("fate", FATES)
def test_a_run_lost_while_it_is_viewed_is_a_sentence_and_the_others_stay(fate: str, page: str, store: Store) -> None:
    app = open_page(page, run="mine", position="1")
    FATES[fate](store.directory / "mine.duckdb")
    os.utime(store.directory)  # a changed file has another time than the one that was opened
    app.run()
    assert not app.exception
    assert "mine" in page_text(app)
    with RunReader(store.path_of("other")) as other:
        assert other.read_rows(1, 0, other.header.rows).any()
