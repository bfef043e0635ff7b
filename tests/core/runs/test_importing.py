"""Run files from elsewhere: what is a run comes in bit for bit, and nothing else does."""

import shutil
from pathlib import Path

import duckdb
import pytest

from core.errors import LimitError, StoreError
from core.runs.importing import NOTE, check_schema, import_run
from core.runs.ops_run import read_ops, write_ops_run
from core.runs.reader import RunReader
from core.runs.store.store import Store
from tests.core.responses.made_sides import response, side, store_run
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import copied
from tests.core.runs.test_ops_run import UNSTEADY, header
from tests.places import ROOT, RUNS

SAMPLES = sorted(RUNS.glob("*.duckdb"))
DUMP = ROOT / "sample_runs" / "dumps" / "six_calls.npz"


@pytest.fixture
def foreign_file(tmp_path):
    return copied(tmp_path / "outside" / "somebody.duckdb")


def differing(first, second):
    """Tables whose rows are not the same in both files, `run` aside."""
    with duckdb.connect() as database:
        database.execute(f"ATTACH '{first}' AS a (READ_ONLY); ATTACH '{second}' AS b (READ_ONLY)")
        asked = (
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'a' AND table_name <>"
            " 'run'"
        )
        tables = [name for (name,) in database.execute(asked).fetchall()]
        both = (
            "FROM (FROM a.{0} EXCEPT ALL FROM b.{0}) UNION ALL (FROM b.{0} EXCEPT ALL FROM a.{0})"
        )
        return [table for table in tables if database.execute(both.format(table)).fetchone()]


@pytest.mark.spread(1)
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_run_comes_in_bit_for_bit_under_a_new_id_and_its_note_says_so(path, store):
    new = store.path_of(import_run(store, path, name="called anew"))
    assert new.stem != path.stem
    assert differing(path, new) == []
    with RunReader(path) as old, RunReader(new) as run:
        assert run.header.name == "called anew"
        assert run.created == old.created
        assert NOTE in run.header.provenance.note
    again = store.path_of(import_run(store, new))
    with RunReader(again) as run:
        assert run.header.provenance.note.count(NOTE) == 1


def test_it_has_the_id_asked_for_and_progress_is_reported(store, foreign_file):
    before = foreign_file.read_bytes()
    steps = []
    run_id = import_run(
        store,
        foreign_file,
        run_id="a-run",
        on_progress=lambda *rows: steps.append(rows),
    )
    assert run_id == "a-run"
    assert steps[-1][1] == steps[-1][2] > 0
    assert [each.name for each in store.directory.iterdir()] == ["a-run.duckdb"]
    assert foreign_file.read_bytes() == before


def test_probes_of_operations_come_in(store, tmp_path):
    outside = Store(tmp_path / "outside")
    path = outside.path_of(write_ops_run(outside, header(), [UNSTEADY]))
    assert list(read_ops(store, import_run(store, path)).rows) == [UNSTEADY]


REFUSED = {
    "a view in place of a table": (
        ["ALTER TABLE kv RENAME TO kw", "CREATE VIEW kv AS FROM kw"],
        "the view 'kv'",
    ),
    "a macro": (["CREATE MACRO f(x) AS x + 1"], "the macro 'f'"),
    "a macro that hides views": (
        [
            "CREATE VIEW v AS SELECT 1",
            (
                "CREATE MACRO duckdb_views() AS TABLE SELECT 'x' AS view_name, 'y' AS database_name"
                " WHERE false"
            ),
        ],
        "the view 'v'",
    ),
    "a schema": (["CREATE SCHEMA other"], "the schema 'other'"),
    "a default": (
        ["ALTER TABLE run ALTER note SET DEFAULT current_user"],
        "default or generated column",
    ),
    "another type": (
        ["ALTER TABLE position ALTER max_ulps TYPE VARCHAR"],
        "the column position.max_ulps",
    ),
    "a column that may be NULL": (
        ["ALTER TABLE pair ALTER flips DROP NOT NULL"],
        "pair.flips has the type BIGINT; expected BIGINT NOT NULL",
    ),
    "a column too few": (["ALTER TABLE pair DROP COLUMN flips"], "lacks the column 'flips'"),
    "another bit": (
        [
            (
                "UPDATE logits SET bits = '\\x01'::BLOB || bits[2:] WHERE side = 1 AND prompt = 0"
                " AND position = 0"
            ),
        ],
        "SHA-256",
    ),
    "another digest": (["UPDATE side SET sha256 = repeat('0', 64) WHERE side = 1"], "SHA-256"),
    "another digest of values": (
        ["UPDATE side SET values_sha256 = repeat('0', 64) WHERE side = 1"],
        "SHA-256",
    ),
    "a position too few": (["DELETE FROM position WHERE position = 0"], "of other positions"),
    "no name": (["UPDATE run SET name = '  '"], "has no name"),
}


def assert_refused(store, path, words):
    """The file gets one sentence, and nothing is stored."""
    with pytest.raises(StoreError) as refused:
        import_run(store, path)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not store.directory.exists() or list(store.directory.iterdir()) == []


@pytest.mark.spread(4)
@pytest.mark.parametrize("fault", REFUSED)
def test_what_no_run_file_has_is_refused_and_nothing_is_stored(fault, store, foreign_file):
    statements, words = REFUSED[fault]
    for statement in statements:
        damaged(foreign_file, statement)
    assert_refused(store, foreign_file, words)


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda path: path.parent, "so not a run file"),
        (lambda _: DUMP, "six_calls.npz: cannot be read or written as a run file"),
        (half, "somebody.duckdb"),
    ],
)
def test_what_is_no_run_file_is_one_sentence(change, words, store, foreign_file):
    assert_refused(store, change(foreign_file), words)


def test_without_room_nothing_is_imported(store, foreign_file, monkeypatch):
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "999000000000000")
    with pytest.raises(LimitError):
        import_run(store, foreign_file)
    with pytest.raises(LimitError):
        store_run(
            store,
            "lists",
            *(side(name, response([1, 2], {0: {2: -0.5}})) for name in "ab"),
        )
    assert not store.directory.exists()


@pytest.mark.parametrize(
    ("rows", "table", "most"),
    [
        # A run of 4,096 tokens, 2 sides (1 pair), 1 prompt and 58 positions.
        ("INSERT INTO vocabulary SELECT 7, 'x' FROM range(3_000_000)", "vocabulary", 4096 + 58),
        ("INSERT INTO evidence SELECT e.* FROM evidence e, range(1000)", "evidence", 1000),
        ("INSERT INTO top_token SELECT t.* FROM top_token t, range(1)", "top_token", 2 * 58 * 20),
        (
            "INSERT INTO side_position SELECT s.* FROM side_position s LIMIT 1",
            "side_position",
            2 * 58,
        ),
        (
            "INSERT INTO generated_token SELECT 0, 0, range, 7 FROM range(2_097_153)",
            "generated_token",
            2 * (1 << 20),
        ),
        ("INSERT INTO prompt SELECT range, 1 FROM range(1, 59)", "prompt", 58),
        ("INSERT INTO ulp_tile SELECT 0, 0, range, '' FROM range(180)", "ulp_tile", 2 * 58 + 64),
        ("INSERT INTO kernel_side SELECT 0, 1, 1 FROM range(3)", "kernel_side", 2),
    ],
)
def test_a_table_of_more_rows_than_a_run_has_is_refused_before_it_is_read(
    rows,
    table,
    most,
    store,
    tmp_path,
):
    path = Path(shutil.copy(RUNS / "injected-bug.duckdb", tmp_path))
    damaged(path, rows)
    for look in (check_schema, lambda path: import_run(store, path)):
        with pytest.raises(
            StoreError,
            match=rf"table '{table}' has .* rows; expected at most {most:,} ",
        ):
            look(path)


@pytest.mark.parametrize(
    ("change", "table"),
    [
        (
            "INSERT INTO vocabulary SELECT range, repeat('x', 5_000_000) FROM range(4)",
            "vocabulary",
        ),
        ("UPDATE run SET model = repeat('x', 20_000_000)", "run"),
        ("UPDATE pair SET because = repeat('x', 20_000_000)", "pair"),
    ],
)
def test_a_table_of_few_but_long_texts_is_refused(change, table, store, foreign_file):
    damaged(foreign_file, change)
    with pytest.raises(StoreError, match=rf"'{table}' have 20,0\d\d,\d\d\d characters"):
        import_run(store, foreign_file)
