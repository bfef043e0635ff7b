"""Bounds of a run, of a dump as of a run file: what no run has is a sentence."""

import numpy as np
import pytest

from core.errors import DumpError, StoreError
from core.judging.ingest import describe, headers_of, ingest
from core.runs.dumps.arrays import StoredArray
from core.runs.dumps.containers import MOST_ARRAYS
from core.runs.file.records import LONGEST_TOKEN, MAX_SIDES
from core.runs.importing import import_run
from core.runs.reader import RunReader
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from tests.core.runs.damaging import damaged
from tests.core.runs.dumps.made_dumps import logits
from tests.core.runs.made_runs import copied
from tests.covering import few


def test_what_is_as_long_as_it_may_be_is_read(tmp_path):
    path = copied(tmp_path / "runs" / "run.duckdb")
    damaged(
        path,
        f"UPDATE token SET text = repeat('x', {LONGEST_TOKEN})",
        "UPDATE run SET name = repeat('x', 1000)",
    )
    with RunReader(path) as run:
        assert {len(text) for text in run.header.prompts[0].token_texts} == {LONGEST_TOKEN}
    assert len(list_runs(Store(path.parent))[0]) == 1


def many_sides(path, sides, **more):
    side = logits(0, (2, 8))
    np.savez(path, **{f"s{i}": side for i in range(sides)}, **more)
    return path


@pytest.mark.parametrize("sides", [MAX_SIDES + 1, *few([MOST_ARRAYS + 1])])
def test_a_dump_of_more_sides_than_a_run_has_is_refused_before_a_value_is_read(
    sides,
    tmp_path,
    monkeypatch,
):
    path = many_sides(tmp_path / "many.npz", sides)
    for read in ("blocks", "checked_rows"):
        monkeypatch.setattr(StoredArray, read, lambda *_: pytest.fail("values were read"))
    for look in (
        headers_of,
        lambda path: describe([path]),
        lambda path: ingest(Store(tmp_path / "runs"), [path]),
    ):
        with pytest.raises(
            DumpError,
            match=f"many.npz: holds {sides} (sides|arrays of logits|members).*{MAX_SIDES}",
        ):
            look(path)
    # emitted tokens are arrays of the file, but no sides
    emitted = {f"emitted:s{i}": np.array([-1, 3]) for i in range(MAX_SIDES)}
    assert headers_of(many_sides(tmp_path / "most.npz", MAX_SIDES, **emitted))[0] == "dump"


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE token SET text = repeat('x', 1025)", "the text of a token has 1,025 characters"),
        (
            "INSERT INTO side SELECT s.* REPLACE (range AS side) FROM side s, range(2, 600)",
            "from 2 to 512 sides",
        ),
        ("UPDATE run SET name = repeat('x', 1001)", "the name of a run has 1,001 characters"),
        ("UPDATE side SET holds = 'prob'", "values are 'prob'; expected logit or logprob"),
        ("DELETE FROM logits WHERE side = 1 AND position = 0", "tiles of logits"),
    ],
)
def test_a_run_file_of_what_no_run_has_is_refused(statement, words, tmp_path):
    path = copied(tmp_path / "runs" / "many.duckdb")
    damaged(path, statement)
    for look in (RunReader, lambda path: import_run(Store(tmp_path / "to"), path)):
        with pytest.raises(StoreError, match=words):
            look(path)


@pytest.mark.parametrize(
    ("reserved", "words"),
    [
        (
            {"tokens": np.array(["x" * 1025, "a"])},
            "'tokens': the text of a token has 1,025 characters",
        ),
        ({"tokens": np.array(["a", "b"])}, "'tokens': the texts of all tokens have together 2"),
        # a note of 1 MiB has room for half of that
        ({"meta": np.array(b"x" * 600_009)}, "'meta' takes 600,009 bytes; expected"),
    ],
)
def test_a_dump_with_texts_of_no_run_is_refused_in_a_sentence(
    reserved,
    words,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr("core.runs.file.records.TOKENS_TOGETHER", 1)
    with pytest.raises(DumpError, match=words):
        describe([many_sides(tmp_path / "texts.npz", 2, **reserved)])
