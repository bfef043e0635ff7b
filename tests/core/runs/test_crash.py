"""A writer may die at any moment: no visible run, no lock, nothing for a reader to trip over, and
the next writer tidies up.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import StoreError
from core.runs.store import store as store_module
from core.runs.store.cards import list_runs
from core.runs.store.partial import Partial, sweep
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import calm_sides, header_of, make_run, opened, write_run
from tests.places import ROOT
from tests.shell import ran
from tests.waiting import until


def _writer(store):
    """Another process that writes runs in a loop and prints a line for each."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.core.runs.made_runs", str(store.directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _partials(store):
    return [path for path in store.directory.iterdir() if path.name.startswith(".")]


def _check_whole(store):
    cards, broken = list_runs(store)
    assert broken == []
    for card in cards:
        with opened(store, card.run_id) as run:
            rows = run.header.rows
            assert len(run.read_rows(1, 0, rows)) == len(run.positions(0)) == rows
    return len(cards)


def test_a_killed_writers_partial_run_is_swept_and_a_living_writers_is_not(store):
    process = _writer(store)
    try:
        process.stdout.readline()  # it is in its loop

        def stopped():
            """What it has begun and locked: it is alive, and not moving while we look."""
            process.send_signal(signal.SIGSTOP)
            begun = [partial for partial in _partials(store) if any(partial.glob("*.duckdb"))]
            if not begun:
                process.send_signal(signal.SIGCONT)
            return begun

        living = until(stopped, every=0.001)
        store.sweep()
        assert _partials(store) == living
    finally:
        process.kill()
        process.wait()
    store.sweep()
    assert _partials(store) == []
    _check_whole(store)


def test_a_partial_run_of_this_process_is_not_swept_by_this_process(store):
    header = header_of()
    sides = calm_sides(header)
    with RunWriter(store, header) as first:
        first.write(0, 0, sides[0])
        second = write_run(store, header, sides)  # its writer sweeps
        first.write(1, 0, sides[1])
        first.finish()
    assert len(store.paths()) == 2
    assert second in store.paths()
    assert _partials(store) == []


def test_a_finished_run_is_held_until_it_is_in_place(store, monkeypatch):
    """DuckDB's own lock ends before that: a sweep in between would take a whole capture away."""
    sweeps = []

    def to_disk(path, original=store_module.to_disk):
        if path.is_file():
            code = (
                "import sys; from core.runs.store.store import *; Store(Path(sys.argv[1])).sweep()"
            )
            command = [sys.executable, "-c", code, str(store.directory)]
            sweeps.append(subprocess.run(command, cwd=ROOT, check=True))
        original(path)

    monkeypatch.setattr(store_module, "to_disk", to_disk)
    make_run(store)
    assert len(sweeps) == 1
    assert _check_whole(store) == 1


def test_a_link_named_like_a_partial_run_is_left_alone(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("kept")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / ".partial-x").symlink_to(tmp_path / "precious")
    (tmp_path / "store" / ".partial-y").write_text("a file")
    sweep(tmp_path / "store")
    assert [path.name for path in (tmp_path / "precious").iterdir()] == ["file"]


@pytest.mark.parametrize(
    "error",
    [ValueError("planted"), KeyboardInterrupt()],
    ids=["exception", "Ctrl-C"],
)
@pytest.mark.parametrize("rows", [0, 4, 8])
def test_an_exception_in_the_middle_leaves_nothing(error, rows, store):
    header = header_of()

    def interrupted():
        with RunWriter(store, header) as writer:
            if rows:
                writer.write(0, 0, calm_sides(header)[0][:rows])
            raise error

    with pytest.raises(type(error)):
        interrupted()
    assert list(store.directory.iterdir()) == []


def test_a_run_reaches_the_disk_before_it_gets_its_name_and_the_directory_after(
    tmp_path,
    monkeypatch,
):
    store = Store(tmp_path)
    events = []
    monkeypatch.setattr(
        store_module,
        "to_disk",
        lambda path: events.append(("to disk", path.suffix, len(store.paths()))),
    )
    partial = Partial.make(tmp_path, "x")
    partial.path.write_text("complete")
    store.place(partial.path, "x")
    assert events == [("to disk", ".duckdb", 0), ("to disk", "", 1)]
    partial.path.write_text("another")
    with pytest.raises(StoreError, match="exists already"):  # never over an existing run
        store.place(partial.path, "x")
    partial.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["x.duckdb"]


def test_no_log_is_left_beside_a_closed_run(tmp_path):
    """What lies in a write-ahead log would be lost by moving the file alone."""
    make_run(Store(tmp_path))
    assert [path.suffix for path in tmp_path.iterdir()] == [".duckdb"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from core.errors import StoreError
from core.numerics.divergence import compare
from core.runs.store.store import Store
from tests.core.runs.made_runs import calm_sides, header_of, write_run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
header = header_of("float32", (64,), 4096)
sides = calm_sides(header)
# compiled kernels are files too: before the limit
compare(sides[0][:1], sides[1][:1], header.format)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    write_run(Store(Path(sys.argv[1])), header, sides)
except StoreError as error:
    print(error)
"""


@pytest.mark.spread(1)
@pytest.mark.parametrize("room", [0, 40_000, 2_000_000])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(room, tmp_path):
    """A limit on the size of files stands for the disk: it fails the same writes, from the first
    byte to the last tile.
    """
    found = ran([sys.executable, "-c", FULL_DISK, str(tmp_path), str(room)], cwd=ROOT)
    assert found.stdout.count("\n") == 1
    assert "cannot be" in found.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_made_or_written_to_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(StoreError, match="set ULPSCOPE_STORE or --store"):
            RunWriter(Store(place), header_of())
