"""Many processes read while others write; ids are found, runs are deleted, and names never
collide.
"""

import secrets
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.errors import LimitError, StoreError
from core.runs.store.cards import list_runs
from core.runs.store.store import Store, open_store
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import bits_of_sides, header_of, make_run, write_run
from tests.places import ROOT


def test_two_writer_processes_at_once_lose_nothing(tmp_path):
    command = [sys.executable, "-m", "tests.core.runs.made_runs", str(tmp_path), "3"]
    writers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    assert [writer.communicate(timeout=300)[1] for writer in writers] == [b"", b""]
    cards, broken = list_runs(Store(tmp_path))
    assert len(cards) == 6
    assert broken == []
    assert all(path.suffix == ".duckdb" for path in tmp_path.iterdir())


def test_two_writers_of_one_process_and_moment_get_two_runs(tmp_path, monkeypatch):
    """Ids drawn alike: the second writer draws again, while the first is writing and after it is
    done.
    """
    # by the first writer once, by the second and the third twice each
    drawn = iter(["aaaa", "aaaa", "bbbb", "aaaa", "cccc"])
    draw = secrets.token_hex
    # an id ends in two random bytes; folders of unfinished runs have eight
    monkeypatch.setattr(secrets, "token_hex", lambda n: next(drawn) if n == 2 else draw(n))
    store = Store(tmp_path)
    header = header_of()
    sides = bits_of_sides(header)
    now = datetime(2026, 11, 20, tzinfo=UTC)
    header = replace(header, created=now)
    with RunWriter(store, header) as first:
        write_run(store, header, sides)
        for side, bits in enumerate(sides):
            first.write(side, 0, bits)
        first.finish()
    write_run(store, header, sides)
    assert [path.stem[-4:] for path in store.paths()] == ["aaaa", "bbbb", "cccc"]


def test_a_run_id_that_is_taken_or_no_name_is_refused_and_the_run_stays(tmp_path):
    store = Store(tmp_path)
    header = header_of()
    kept = make_run(store, run_id="kept").read_bytes()
    with pytest.raises(StoreError, match="exists already or is being"):
        RunWriter(store, header, run_id="kept")
    for name in ("../x", "a/b", "", ".hidden", "x" * 200, "a b"):
        with pytest.raises(StoreError, match="cannot be a run id"):
            RunWriter(store, header, run_id=name)
    assert store.path_of("kept").read_bytes() == kept
    assert len(list(tmp_path.iterdir())) == 1


# the runs there are, what is asked for, what is found (None: a StoreError that says the words)
FOUND = [
    (["abc-1", "abc-2", "x"], "abc-1", "abc-1", ""),
    (["abc-1", "abc-2", "x"], "x", "x", ""),
    # a whole id is not ambiguous for being the beginning of another
    (["abc", "abc-2"], "abc", "abc", ""),
    (["abc-1", "x"], "ab", "abc-1", ""),
    (["abc-1", "abc-2"], "abc", None, "could be abc-1, abc-2; give more of its id"),
    (["abc-1"], "b", None, "no run 'b' in"),
    (["abc-1"], "../x", None, "is not a run id"),
    (["abc-1"], "../store/abc-1", None, "is not a run id"),
    (["abc-1"], "", None, "is not a run id"),
    (["abc-1"], "/etc/passwd", None, "is not a run id"),
    (["abc-1"], "abc*", None, "is not a run id"),
    (["abc-1"], ".", None, "is not a run id"),
    (["abc-1"], "abc-1.duckdb", None, "no run 'abc-1.duckdb'"),
    (["abc-1"], "a\x00b", None, "is not a run id"),
]


@pytest.mark.parametrize(("runs", "asked", "found", "words"), FOUND)
def test_a_run_is_found_by_its_id_or_a_unique_beginning(runs, asked, found, words, store, tmp_path):
    store.directory.mkdir()
    (tmp_path / "x.duckdb").touch()  # what '../x' would reach
    for name in runs:
        (store.directory / f"{name}.duckdb").touch()
    if found is None:
        with pytest.raises(StoreError, match=words):
            store.path_of(asked)
    else:
        assert store.path_of(asked) == store.directory / f"{found}.duckdb"


def test_sample_runs_are_found_and_never_deleted(tmp_path):
    store = Store(tmp_path / "store", [tmp_path / "samples"])
    (tmp_path / "samples").mkdir()
    sample = tmp_path / "samples" / "s.duckdb"
    sample.touch()
    assert store.path_of("s") == sample
    with pytest.raises(StoreError, match="read-only sample run"):
        store.delete("s")
    assert sample.exists()
    with pytest.raises(StoreError, match="no run 'other'"):
        store.delete("other")


def test_a_store_that_is_its_own_sample_directory_lists_every_run_once(tmp_path):
    store = Store(tmp_path, [tmp_path / "." / "", tmp_path])
    make_run(store, run_id="once")
    assert [card.run_id for card in list_runs(store)[0]] == ["once"]
    assert store.path_of("on").stem == "once"


def test_a_write_that_would_fill_the_disk_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "1")
    free = shutil.disk_usage(tmp_path).free
    store = Store(tmp_path / "new")
    store.check_space(free // 2)
    with pytest.raises(LimitError, match=r"limits\.free_bytes") as refused:
        store.check_space(2 * free)
    assert refused.value.status == 507
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "999000000000000")
    with pytest.raises(LimitError):
        make_run(store)
    assert not store.directory.exists()
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "0")
    make_run(store)


def test_a_run_of_the_id_of_a_sample_is_listed_in_its_place(tmp_path):
    sample = make_run(Store(tmp_path / "samples"), run_id="alike")
    store = Store(tmp_path / "own", (sample.parent,))
    own = make_run(store, run_id="alike")
    assert store.paths() == [own]
    store.delete("alike")
    assert store.paths() == [sample]


def test_the_store_is_the_one_asked_for_then_the_environments_then_the_clones_from_any_folder(
    tmp_path,
    monkeypatch,
):
    for name in ("ULPSCOPE_STORE", "ULPSCOPE_SAMPLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert open_store().directory == ROOT / "runs"
    monkeypatch.setenv("ULPSCOPE_STORE", str(tmp_path))
    assert open_store().directory == tmp_path
    assert open_store(tmp_path / "asked").directory == tmp_path / "asked"
    assert [place.name for place in open_store().read_only] == ["sample_runs"]
    monkeypatch.setenv("ULPSCOPE_SAMPLES", "")
    assert open_store().read_only == ()
