"""Whatever stands in a file, reading it ends in a sentence or in figures: no crash, no other exception, in bounded time
and memory.

The short form of every test is CI's; `python -m pytest -m thorough tests/fuzz` runs ULPSCOPE_FUZZ damaged files a test
(1500 where it is not set).
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from core.errors import StoreError
from core.runs.importing.adopt import adopt
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from tests.fuzz.damage import CORPUS, DAMAGES, Damage, checksum, corpus, damaged, damaged_inside, resealed
from tests.fuzz.reading import Readers, read_everything

DUMPS = corpus(".npz", ".npy", ".safetensors")
ARCHIVES = corpus(".npz")
RUNS = corpus(".duckdb")
LONG = int(os.environ.get("ULPSCOPE_FUZZ", "1500"))
EFFORTS = [pytest.param(8, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.thorough)]


@pytest.fixture(scope="module")
def readers() -> Iterator[Readers]:
    with Readers() as running:
        yield running


def _effort(examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The short form takes the same examples every time, however the test is written down (`derandomize` goes by its
    source); the long one others each time, and prints how to have a failure again.
    """
    asked = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    return asked if examples == LONG else lambda test: seed(0)(asked(test))


def _check(readers: Readers, path: Path, raw: bytes, seen: Counter[str]) -> None:
    path.write_bytes(raw)
    outcome = readers.read(path)
    seen[outcome.how] += 1
    assert outcome.fault == "", outcome


def test_the_corpus_is_readable_and_small(tmp_path: Path) -> None:
    for name, raw in (DUMPS | RUNS).items():
        (tmp_path / name).write_bytes(raw)
        read_everything(tmp_path / name)
    assert len(DUMPS) >= 9
    folder = Path(__file__).parent / "corpus"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 300_000


@pytest.mark.parametrize("examples", EFFORTS)
def test_a_damaged_dump_is_a_sentence_or_a_dump(examples: int, readers: Readers, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()

    @_effort(examples)
    @given(name=st.sampled_from(sorted(DUMPS)), damages=st.lists(DAMAGES, min_size=1, max_size=4))
    def each(name: str, damages: list[Damage]) -> None:
        _check(readers, tmp_path / name, damaged(DUMPS[name], damages), seen)

    each()
    assert seen["sentence"] > examples // 3


@pytest.mark.parametrize("examples", EFFORTS)
def test_an_archive_damaged_behind_its_checksums_is_a_sentence_or_a_dump(
    examples: int, readers: Readers, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()

    @_effort(examples)
    @given(
        name=st.sampled_from(sorted(ARCHIVES)),
        member=st.integers(0, 7),
        damages=st.lists(DAMAGES, min_size=1, max_size=3),
    )
    def each(name: str, member: int, damages: list[Damage]) -> None:
        _check(readers, tmp_path / name, damaged_inside(ARCHIVES[name], member, damages), seen)

    each()
    assert min(seen["sentence"], seen["read"]) > examples // 20


@pytest.mark.parametrize("examples", EFFORTS)
def test_a_run_file_damaged_by_accident_is_a_sentence_or_the_run(
    examples: int, readers: Readers, tmp_path: Path
) -> None:
    seen: Counter[str] = Counter()

    @_effort(examples)
    @given(name=st.sampled_from(sorted(RUNS)), damages=st.lists(DAMAGES, min_size=1, max_size=4))
    def each(name: str, damages: list[Damage]) -> None:
        _check(readers, tmp_path / name, damaged(RUNS[name], damages), seen)

    each()
    assert seen["sentence"] > examples // 3


@pytest.mark.parametrize("examples", [pytest.param(12, id="short"), EFFORTS[1]])
def test_a_run_file_made_to_harm_harms_nobody_but_its_reader(examples: int, readers: Readers, tmp_path: Path) -> None:
    """With right checksums DuckDB believes what it reads: it may never come back, or crash. No other exception, and no
    more memory than allowed.

    So no such file is ever opened by a server: `adopt` reads it in a process of its own (the tests below).
    """
    seen: Counter[str] = Counter()

    @_effort(examples)
    @given(name=st.sampled_from(sorted(RUNS)), damages=st.lists(DAMAGES, min_size=1, max_size=4))
    def each(name: str, damages: list[Damage]) -> None:
        path = tmp_path / name
        path.write_bytes(resealed(damaged(RUNS[name], damages)))
        outcome = readers.read(path)
        seen[outcome.how] += 1
        assert outcome.how in ("timeout", "signal") or outcome.fault == "", outcome

    each()
    print(dict(seen))
    assert seen["sentence"] > examples // 4
    assert seen["timeout"] + seen["signal"] <= examples // 10


@pytest.mark.thorough
def test_a_file_that_never_comes_back_is_refused_by_adopt_and_leaves_nothing(tmp_path: Path) -> None:
    """It keeps DuckDB busy for ever when it is attached: found by the test above."""
    path = tmp_path / "harmful.duckdb"
    path.write_bytes(gzip.decompress((CORPUS / "harmful" / "never-comes-back.duckdb.gz").read_bytes()))
    store = Store(tmp_path / "store")
    with pytest.raises(StoreError, match=r"harmful\.duckdb: takes longer to read"):
        adopt(store, path)
    assert not store.directory.exists() or list(store.directory.iterdir()) == []


@pytest.mark.thorough
def test_a_run_file_made_to_harm_is_refused_by_adopt_or_becomes_a_run_with_its_own_figures(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    adopted: list[str] = []

    @settings(max_examples=40, deadline=None, database=None, print_blob=True, phases=[Phase.generate])
    @given(name=st.sampled_from(sorted(RUNS)), damages=st.lists(DAMAGES, min_size=1, max_size=3))
    def each(name: str, damages: list[Damage]) -> None:
        path = tmp_path / name
        path.write_bytes(resealed(damaged(RUNS[name], damages)))
        with suppress(StoreError):  # anything else fails
            adopted.append(adopt(store, path))

    each()
    cards, broken = list_runs(store)
    assert broken == []
    assert {card.run_id for card in cards} == set(adopted)
    for card in cards:  # whatever it was, it is a file that our writer wrote now
        read_everything(store.path_of(card.run_id))


def test_damage_behind_the_checksums_gets_further_than_damage_before_them(readers: Readers, tmp_path: Path) -> None:
    """Else the sealing would be wrong, and what is fuzzed would be DuckDB's checksum alone."""
    raw = RUNS["run.duckdb"]
    assert resealed(raw) == raw
    assert checksum(bytes(8)) == 5381
    said = {}
    for sealed in (False, True):
        change = damaged(raw, [Damage("flip", "filled", 0.3, 1, 1)])
        path = tmp_path / "run.duckdb"
        path.write_bytes(resealed(change) if sealed else change)
        said[sealed] = readers.read(path).text
    assert "hecksum" in said[False] or "hecksums" in said[False]
    assert "hecksum" not in said[True]


PLANTED = {"crash": "signal", "raise": "exception: KeyError", "hang": "timeout", "eat": "MiB", "babble": "no sentence"}


@pytest.mark.spread(2)
@pytest.mark.parametrize("fault", PLANTED)
def test_a_reader_with_a_planted_fault_is_seen(fault: str, readers: Readers, tmp_path: Path) -> None:
    path = tmp_path / "plain.npz"
    path.write_bytes(DUMPS["plain.npz"])
    assert PLANTED[fault] in readers.read(path, fault).fault
    assert readers.read(path).how == "read"  # the twin: without it the same reader does read the file
