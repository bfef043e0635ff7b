"""The size of a run file is checked before any of it is read: what no run has is one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from core.errors import DumpError, StoreError, UsageError
from core.judging.ingest import ingest
from core.judging.inspect import describe, headers_of
from core.runs.dumps.arrays import StoredArray
from core.runs.dumps.containers import MOST_ARRAYS
from core.runs.file.bounds import LONGEST_TOKEN, MAX_SIDES
from core.runs.file.records import Prompt, SideHeader
from core.runs.importing import adopt, import_run
from core.runs.reader import RunReader
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from core.runs.tables import amounts
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import calm_sides, copied, header_of, write_run
from tests.covering import few

LARGE = {  # a text or a number of rows that no run has -> what is said of it
    "token": ("UPDATE token SET text = repeat('x', 1025)", "the text of a token has 1,025 bytes"),
    "wide characters": ("UPDATE token SET text = repeat('é', 513)", "the text of a token has 1,026 bytes"),
    "vocabulary": (
        "INSERT INTO vocabulary SELECT range, '' FROM range(100, 5100)",
        "table vocabulary has .* rows; the run makes at most",
    ),
    "name": ("UPDATE run SET name = repeat('x', 1001)", "the name of a run has 1,001 bytes"),
    "side": ("UPDATE side SET name = repeat('x', 900) WHERE side = 1", "the name of a side has 900 bytes"),
    "histogram": (
        "INSERT INTO ulp_histogram SELECT 0, range, 1 FROM range(3000000)",
        "table ulp_histogram has 3,0.* rows; the run makes at most",
    ),
    "positions": ("INSERT INTO position FROM position", "table position has 16 rows; the run makes at most 8"),
    "tokens": (
        "INSERT INTO token SELECT 0, range, 1, 'x' FROM range(5000)",
        "table token has .* rows; the run makes at most 8",
    ),
}


@pytest.mark.spread(5)
@pytest.mark.parametrize("what", LARGE)
def test_a_file_put_into_the_store_by_hand_costs_a_sentence_and_not_the_memory(what: str, tmp_path: Path) -> None:
    path = copied(tmp_path / "runs" / "run.duckdb")
    store = Store(path.parent)
    statement, words = LARGE[what]
    damaged(path, statement)
    with pytest.raises(StoreError, match=words):
        RunReader(path)
    cards, broken = list_runs(store)
    assert len(cards) + len(broken) == 1
    with pytest.raises(StoreError, match=words):
        import_run(Store(tmp_path / "other"), path, run_id=None, name=None, on_progress=lambda *_: None)


def test_texts_count_together_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copied(tmp_path / "runs" / "run.duckdb")
    RunReader(path).close()
    monkeypatch.setattr(amounts, "MOST_TEXT", 900)
    damaged(path, "INSERT INTO vocabulary VALUES (7, repeat('x', 901))")
    with pytest.raises(StoreError, match=r"table vocabulary has .* bytes of text"):
        RunReader(path)


def test_what_is_as_long_as_it_may_be_is_read(tmp_path: Path) -> None:
    path = copied(tmp_path / "runs" / "run.duckdb")
    damaged(path, f"UPDATE token SET text = repeat('x', {LONGEST_TOKEN})", "UPDATE run SET name = repeat('x', 1000)")
    with RunReader(path) as run:
        assert {len(text) for text in run.header.prompts[0].token_texts} == {LONGEST_TOKEN}
    assert len(list_runs(Store(path.parent))[0]) == 1


def test_nothing_is_stored_that_no_reader_would_open(tmp_path: Path) -> None:
    header = header_of(lengths=(3,))
    with pytest.raises(UsageError, match="token has 1,025 bytes"):
        replace(header, prompts=(Prompt(1, (1,), ("x" * (LONGEST_TOKEN + 1),)),))
    with pytest.raises(UsageError, match="at most 512 sides, not 513"):
        replace(header, sides=tuple(SideHeader(f"s{i}", "", "bfloat16") for i in range(MAX_SIDES + 1)))
    with pytest.raises(UsageError, match="run has 1,001 bytes"):
        replace(header, name="x" * 1001)


def many_sides(path: Path, sides: int, **more: np.ndarray) -> Path:
    logits = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    np.savez(path, **{f"s{i}": logits for i in range(sides)}, **more)
    return path


@pytest.mark.parametrize("sides", [MAX_SIDES + 1, *few([MOST_ARRAYS + 1])])
def test_a_dump_of_more_sides_than_a_run_has_is_refused_before_a_value_is_read(
    sides: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = many_sides(tmp_path / "many.npz", sides)
    for read in ("blocks", "checked_rows"):
        monkeypatch.setattr(StoredArray, read, lambda *_: pytest.fail("values were read"))
    for look in (headers_of, lambda path: describe([path]), lambda path: ingest(Store(tmp_path / "runs"), [path])):
        with pytest.raises(DumpError, match=f"many.npz: holds {sides} (sides|arrays of logits|members).*{MAX_SIDES}"):
            look(path)
    assert headers_of(many_sides(tmp_path / "most.npz", MAX_SIDES)).kind == "dump"


def test_every_side_of_a_dump_may_say_what_it_emitted_and_its_dtype(tmp_path: Path) -> None:
    emitted = {f"emitted:s{i}": np.array([-1, 3]) for i in range(MAX_SIDES)}
    assert headers_of(many_sides(tmp_path / "emitted.npz", MAX_SIDES, **emitted)).kind == "dump"


def test_a_run_file_of_more_sides_than_a_run_has_is_refused_by_all_who_open_it(tmp_path: Path) -> None:
    path = copied(tmp_path / "runs" / "many.duckdb")
    damaged(
        path, f"INSERT INTO side SELECT s.* REPLACE (range AS side) FROM side s, range(2, {MAX_SIDES + 1}) LIMIT 600"
    )
    for look in (RunReader, lambda path: adopt(Store(tmp_path / "to"), path)):
        with pytest.raises(StoreError, match="are more than a run can have"):
            look(path)
    assert len(list_runs(Store(path.parent))[1]) == 1


@pytest.mark.parametrize("texts", [["x" * 1025, "a"], ["a"]])
def test_a_dump_with_texts_no_tokenizer_makes_is_refused_in_a_sentence(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.runs.file.records.TOKENS_TOGETHER", 1)
    tokens = np.array((texts * 2)[:2])
    with pytest.raises(DumpError, match=r"texts\.npz: 'tokens': the text"):
        describe([many_sides(tmp_path / "texts.npz", 2, tokens=tokens)])


def test_a_dumps_meta_is_no_longer_than_a_note_may_be(tmp_path: Path) -> None:
    meta = np.array(b'{"a": "' + b"x" * 600_000 + b'"}')
    with pytest.raises(DumpError, match="'meta' takes 600,009 bytes; expected"):
        describe([many_sides(tmp_path / "meta.npz", 2, meta=meta)])


def test_a_calm_run_is_opened_as_before(tmp_path: Path) -> None:
    header = header_of(sides=3)
    store = Store(tmp_path / "runs")
    with RunReader(write_run(store, header, calm_sides(header))) as run:
        assert len(run.pairs) == 2
