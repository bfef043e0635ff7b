"""What was read of runs is kept by bytes: beyond the budget the least recently used goes, and never what is in use."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.shell import store_cache
from app.shell.memory_budget import MemoryBudget
from core.runs.reader import RunReader
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import copied

RUNS = 6


class Thing:
    """A value of so many bytes."""

    def __init__(self, size: int) -> None:
        self.size = size


def size(thing: Thing) -> int:
    return thing.size


@pytest.fixture
def wide(tmp_path: Path) -> list[Path]:
    """Runs with wide texts of tokens."""
    first = copied(tmp_path / "0.duckdb")
    damaged(first, "INSERT INTO vocabulary SELECT range, repeat('x', 1000) || range FROM range(300)")
    for number in range(1, RUNS):
        (tmp_path / f"{number}.duckdb").write_bytes(first.read_bytes())
    return sorted(tmp_path.glob("*.duckdb"))


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBudget]:
    """Room for three readers with their vocabularies."""
    found = MemoryBudget(3 * (8 << 20))
    monkeypatch.setattr(store_cache, "memory", lambda: found)
    yield found
    gc.collect()


def opened(path: Path) -> RunReader:
    return store_cache._reader(*store_cache._stamp(path))


def read_all(paths: list[Path]) -> list[weakref.ref[RunReader]]:
    """Weak references to readers that were opened one after another, each with its texts read, and let go of."""
    found = []
    for path in paths:
        reader = opened(path)
        assert len(reader.vocabulary) == 300
        found.append(weakref.ref(reader))
        del reader
        opened(path)  # as the next rerun does, which sees what was read since
    return found


def test_many_readers_of_wide_texts_stay_within_the_budget_the_latest_of_them(
    wide: list[Path], budget: MemoryBudget
) -> None:
    readers = read_all(wide)
    assert 0 < budget.bytes <= budget.most_bytes
    alive = [number for number, reader in enumerate(readers) if reader() is not None]
    assert alive == list(range(RUNS - len(alive), RUNS))
    assert 1 < len(alive) < RUNS


def test_a_reader_in_use_is_neither_closed_nor_forgotten(wide: list[Path], budget: MemoryBudget) -> None:
    mine = opened(wide[0])
    read_all(wide[1:])
    assert len(mine.vocabulary) == 300
    assert opened(wide[0]) is mine
    assert budget.bytes <= budget.most_bytes


def test_what_a_reader_reads_later_counts(wide: list[Path]) -> None:
    with RunReader(wide[0]) as run:
        before = run.held_bytes()
        assert len(run.vocabulary) == 300
        assert run.held_bytes() - before > 300 * 1000
        before = run.held_bytes()
        assert len(run.positions(0)) == 8
        assert run.held_bytes() > before
    assert run.held_bytes() > 0  # also once it is closed


def test_the_least_recently_used_goes_first_and_what_grew_is_seen() -> None:
    budget = MemoryBudget(100)
    first, second = budget.get("a", lambda: Thing(40), size), budget.get("b", lambda: Thing(40), size)
    places = [weakref.ref(first), weakref.ref(second)]
    del first, second
    budget.get("a", lambda: Thing(0), size)
    budget.get("c", lambda: Thing(40), size)
    assert [place() is not None for place in places] == [True, False]
    third = budget.get("c", lambda: Thing(0), size)
    third.size = 90
    assert budget.bytes == 80
    budget.get("c", lambda: Thing(0), size)
    assert (places[0]() is None, budget.bytes) == (True, 90)
    assert budget.take("c") is third
    assert budget.take("c") is None


def test_two_who_want_the_same_at_once_read_it_once() -> None:
    budget, made, both = MemoryBudget(100), [], threading.Barrier(2)

    def read() -> Thing:
        made.append(1)
        return Thing(1)

    def wanted() -> None:
        both.wait()
        budget.get("a", read, size)

    threads = [threading.Thread(target=wanted) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
