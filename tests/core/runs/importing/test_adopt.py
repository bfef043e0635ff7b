"""Run files from outside: what is a run comes in bit for bit, and nothing else does."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from core.errors import LimitError, StoreError
from core.runs.file import bounds
from core.runs.file.database import Database
from core.runs.importing import check_figures, import_process
from core.runs.importing.adopt import adopt
from core.runs.importing.import_process import NOTE, take_in
from core.runs.ops_run import read_ops, write_ops_run
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.views.verdicts import finding
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import ROOT, bits_of_sides, copied, header_of, write_run
from tests.core.runs.test_ops_run import ABSENT, UNSTEADY, header, row_of
from tests.covering import few

COMPUTED = (
    "position",
    "side_position",
    "top_token",
    "ulp_histogram",
    "ulp_tile",
    "row_ulp_tile",
    "logits",
    "side",
    "prompt",
    "token",
    "vocabulary",
)
EXACT = COMPUTED[2:]  # on any processor: the first two hold sums whose last digits hang on the width of its vectors
COPIED = (
    "evidence",
    "floor_position",
    "kv",
    "kv_position",
    "layer",
    "layer_position",
    "kernel",
    "kernel_side",
    "remedy",
    "price",
)
ASKED = '{"model": "a/b", "variants": ["decode"]}'
GENERATED = ("generation", "generated_token")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def foreign_file(tmp_path: Path) -> Path:
    return copied(tmp_path / "outside" / "somebody.duckdb")


def taken(store: Store, path: Path, **asked: str) -> str:
    """In this process, which is quicker than in one of its own."""
    return take_in(
        store, path, run_id=asked.get("run_id"), name=asked.get("name"), on_progress=lambda done, total: None
    )


def differing(first: Path, second: Path, tables: tuple[str, ...]) -> list[str]:
    """Tables of the first file whose rows are not the same in the second, however they are ordered; in the columns that
    the first has.
    """
    with duckdb.connect() as database:
        database.execute(f"ATTACH '{first}' AS a (READ_ONLY); ATTACH '{second}' AS b (READ_ONLY)")
        there: dict[str, list[str]] = {}
        for table, column in database.execute(
            "SELECT table_name, column_name FROM duckdb_columns() WHERE database_name = 'a'"
        ).fetchall():
            there.setdefault(table, []).append(column)

        def rows(file: str, table: str) -> str:
            return f"(SELECT {', '.join(there[table])} FROM {file}.{table})"

        return [
            table
            for table in tables
            if table in there
            and database.execute(
                f"FROM ({rows('a', table)} EXCEPT ALL {rows('b', table)}) UNION ALL ({rows('b', table)} EXCEPT ALL"
                f" {rows('a', table)})"
            ).fetchone()
        ]


@pytest.mark.parametrize("dtype", few(["bfloat16", "float32"], "bfloat16"))
def test_every_bit_and_every_figure_comes_in_and_the_note_says_from_where(
    dtype: str, store: Store, tmp_path: Path
) -> None:
    announced = header_of(dtype, sides=3)
    announced = replace(announced, provenance=replace(announced.provenance, request=ASKED))
    path = write_run(Store(tmp_path / "outside"), announced, bits_of_sides(announced))
    new = store.path_of(taken(store, path))
    assert differing(path, new, (*COMPUTED, *COPIED, *GENERATED)) == []
    with RunReader(path) as old, RunReader(new) as run:
        assert (run.header.name, run.created) == (old.header.name, old.created)
        assert run.header.provenance.note == NOTE
        assert run.header.provenance.seed == 7
        assert run.header.provenance.request == ASKED
        again = taken(store, new)
    with RunReader(store.path_of(again)) as run:
        assert run.header.provenance.note == NOTE  # once, however often it travels


def test_a_bit_that_had_changed_would_be_seen(store: Store, foreign_file: Path) -> None:
    new = store.path_of(taken(store, foreign_file))
    damaged(new, "UPDATE logits SET bits = bits || '\\x00'::BLOB WHERE side = 1 AND position = 2 AND prompt = 0")
    assert differing(foreign_file, new, COMPUTED) == ["logits"]


@pytest.mark.thorough
def test_a_process_of_its_own_takes_in_a_sample_with_all_that_no_bits_prove(store: Store) -> None:
    path = ROOT / "tests" / "runs" / "where-it-starts.duckdb"
    told: list[tuple[int, int]] = []
    run_id = adopt(store, path, run_id="a-run", name="called anew", on_progress=lambda *rows: told.append(rows))
    assert run_id == "a-run"
    assert told[-1][0] == told[-1][1] > 0
    assert [each.name for each in store.directory.iterdir()] == ["a-run.duckdb"]
    assert differing(path, store.path_of(run_id), (*EXACT, *COPIED)) == []
    with RunReader(path) as old, RunReader(store.path_of(run_id)) as run:
        assert [run.evidence(pair.index) for pair in run.pairs] == [old.evidence(pair.index) for pair in old.pairs]
        assert [pair.verdict for pair in run.pairs] == [pair.verdict for pair in old.pairs]
        assert run.header.name == "called anew"


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "runs").glob("*.duckdb")), ids=lambda path: path.stem)
def test_every_sample_comes_in_as_it_is(path: Path, store: Store) -> None:
    new = store.path_of(taken(store, path))
    assert differing(path, new, (*EXACT, *COPIED, *GENERATED)) == []


REFUSED: dict[str, tuple[list[str], str]] = {
    "a view": (["CREATE VIEW v AS SELECT 1"], "the view 'v'"),
    "a view in place of a table": (["ALTER TABLE kv RENAME TO kw", "CREATE VIEW kv AS FROM kw"], "the view 'kv'"),
    "a macro": (["CREATE MACRO f(x) AS x + 1"], "the macro 'f'"),
    "a macro that hides others": (
        ["CREATE MACRO duckdb_functions() AS TABLE SELECT 'x' AS function_name WHERE false"],
        "the macro",
    ),
    "a macro that hides views": (
        [
            "CREATE VIEW v AS SELECT 1",
            "CREATE MACRO duckdb_views() AS TABLE SELECT 'x' AS view_name, 'y' AS database_name WHERE false",
        ],
        "the view 'v'",
    ),
    "a sequence": (["CREATE SEQUENCE s"], "the sequence 's'"),
    "a type": (["CREATE TYPE mood AS ENUM ('a')"], "the type 'mood'"),
    "an index": (["CREATE INDEX i ON position(position)"], "the index 'i'"),
    "a schema": (["CREATE SCHEMA other"], "the schema 'other'"),
    "another table": (["CREATE TABLE more (a INTEGER)"], "the table 'more'"),
    "another column": (["ALTER TABLE run ADD COLUMN more INTEGER"], "the column 'more'"),
    "a default": (["ALTER TABLE run ALTER note SET DEFAULT current_user"], "has a default"),
    "a generated column": (
        ["DROP TABLE price", "CREATE TABLE price (ordinal INTEGER, path VARCHAR AS (upper('x')))"],
        "has a default or is generated",
    ),
    "a constraint": (
        ["DROP TABLE price", "CREATE TABLE price (ordinal INTEGER CHECK (ordinal > 0))"],
        "the constraint",
    ),
    "another type of column": (
        ["ALTER TABLE position ALTER max_ulps TYPE VARCHAR"],
        "position.max_ulps is VARCHAR; expected BIGINT",
    ),
    "a column too few": (["ALTER TABLE pair DROP COLUMN noise_ratio"], "no column 'noise_ratio'"),
    "a table too few": (["DROP TABLE position"], "without the table 'position'"),
    "a newer form": (["UPDATE run SET file_version = 5"], "of version 5"),
    "a form before the first release": (
        ["ALTER TABLE run RENAME file_version TO schema_version", "DROP TABLE kv"],
        "written by a development version of ULPscope before 0.2",
    ),
    "a request that is no object": (["UPDATE run SET request = '[1]'"], "is no JSON object"),
    "a request that is no JSON": (["UPDATE run SET request = 'decode'"], "is no JSON object"),
    "a request without end": (
        ["UPDATE run SET request = '{\"a\": \"' || repeat('x', 9000000) || '\"}'"],
        "run.request holds a text of 9,000,009 bytes",
    ),
    "two runs": (["INSERT INTO run FROM run"], "2 rows of provenance"),
    "a terabyte of text": (["UPDATE token SET text = repeat('x', 1000000)"], "a text of 1,000,000 bytes"),
    "another bit": (
        ["UPDATE logits SET bits = '\\x01'::BLOB || bits[2:] WHERE side = 1 AND prompt = 0 AND position = 0"],
        "SHA-256",
    ),
    "another digest": (["UPDATE side SET sha256 = repeat('0', 64) WHERE side = 1"], "the file says '0000000000000000'"),
    "a figure that lies": (
        ["UPDATE position SET max_ulps = 0 WHERE prompt = 1 AND position = 3"],
        "its max_ulps at prompt 1, position 3 of pair 0 is 0, its logits give",
    ),
    "a flip that was none": (
        ["UPDATE position SET is_flip = NOT is_flip WHERE prompt = 0 AND position = 1"],
        "is_flip at prompt 0, position 1",
    ),
    "a summary that lies": (["UPDATE pair SET flips = 77"], "its flips of pair 0 is 77"),
    "a heatmap that lies": (
        ["UPDATE ulp_tile SET cells = ('\\xFF\\xFF'::BLOB || cells[3:]) WHERE level = 0 AND first_row = 2"],
        "heatmap cell 0 at prompt 0, position 2",
    ),
    "a heatmap in row ULPs that lies": (
        ["UPDATE row_ulp_tile SET cells = ('\\xFF\\xFF'::BLOB || cells[3:]) WHERE level = 0 AND first_row = 2"],
        "heatmap cell 0 at prompt 0, position 2",
    ),
    "row ULPs that lie": (
        ["UPDATE position SET max_row_ulps = 2 * max_row_ulps + 1 WHERE prompt = 1 AND position = 3"],
        "its max_row_ulps at prompt 1, position 3 of pair 0 is",
    ),
    "row ULPs below nothing": (
        ["INSERT INTO layer VALUES (0, 0, 0, 'm', 'norm', 0, 'bfloat16', 3, 10, 9, 10, 1, 1, 1, 1, -1, 1, 0, 0, NULL)"],
        "table layer has a row that no run has",
    ),
    "a column of row ULPs too few": (["ALTER TABLE pair DROP COLUMN rms_row_ulps"], "no column 'rms_row_ulps'"),
    "a histogram that lies": (["UPDATE ulp_histogram SET elements = elements + 1 WHERE distance = 1"], "1 ULPs apart"),
    "a top token that lies": (
        ["UPDATE top_token SET token_id = 299 WHERE rank = 0 AND side = 1 AND prompt = 0 AND position = 0"],
        "token_id at prompt 0, position 0",
    ),
    "a logsumexp that lies": (
        ["UPDATE side_position SET logsumexp = 1 WHERE side = 0 AND prompt = 1 AND position = 0"],
        "logsumexp at prompt 1",
    ),
    "rows too few": (["DELETE FROM position WHERE position = 1"], "table position has"),
    "tiles too few": (["DELETE FROM logits WHERE side = 1 AND prompt = 0 AND position = 1"], "table logits has"),
    "a tile in place of another": (
        ["UPDATE logits SET position = 0 WHERE side = 1 AND prompt = 0 AND position = 1"],
        "damaged",
    ),
    "a verdict of its own": (["UPDATE pair SET verdict = 'all is well'"], "the verdict 'all is well'"),
    "an identical pair that is not": (["UPDATE pair SET verdict = 'identical'"], "and its sides are not"),
    "a module that was never measured": (
        ["INSERT INTO layer VALUES (0, 0, 0, 'm', 'norm', 0, 'bfloat16', 3, 10, 11, 10, 1, 1, 1, 1, 1, 1, 0, 0, NULL)"],
        "table layer has a row that no run has",
    ),
    "a number that is none": (
        [
            "INSERT INTO layer VALUES (0, 0, 0, 'm', 'norm', 0, 'bfloat16', 3, 10, 1, 10, 1, 'nan'::DOUBLE, 1, 1, 1, 1,"
            " 0, 0, NULL)"
        ],
        "layer.rms holds a number that is not finite",
    ),
    "the same row twice": (["INSERT INTO kernel_side VALUES (0, 1, 1), (0, 1, 1)"], "a row twice, at side 0"),
    "a prompt beyond the last": (["INSERT INTO generation VALUES (0, 9, 1, 1, 'x')"], "table generation has a row"),
    "half of the tokens": (["DELETE FROM token WHERE position = 1"], "damaged"),
    "a time before computers": (["UPDATE run SET created = '0001-01-01'"], "cannot be"),
    "no name": (["UPDATE run SET name = '  '"], "has no name"),
    "a kind of its own": (["UPDATE run SET kind = 'party'"], "damaged"),
    "versions that are none": (["UPDATE run SET versions = '[1]'"], "versions are no JSON object"),
    "more logits than its bytes": (["UPDATE run SET vocab = 2000000000"], "cannot hold"),
}


WHOLE = {  # of the pair beside its floor
    "compute_dtype": "bfloat16",
    "noise_ratio": 0.5,
    "largest_ratio_allowed": 10,
    "pair_rms_logits": 1.5,
    "floor_rms_logits": 3.0,
    "seed_ratios": [1.5, 2],
    "worst_position_ratio": 0.75,
    "position_ratio_allowed": None,
    "positions": 9223372036854775807,
    "positions_beyond": 0,
    "log_spread": 0.1,
    "nonfinite_mismatch": 0,
}
FIGURES = [
    "[1, 2]",
    "3",
    "null",
    "no json",
    "[" * 100_000,
    *(
        json.dumps(WHOLE | odd)
        for odd in (
            {"noise_ratio": int("9" * 400)},
            {"noise_ratio": float("inf")},
            {"noise_ratio": float("nan")},
            {"noise_ratio": True},
            {"noise_ratio": "a lot"},
            {"log_spread": None},
            {"positions": 9223372036854775808},
            {"positions": 1.5},
            {"compute_dtype": 16},
            {"compute_dtype": ["bfloat16"]},
            {"seed_ratios": 1.0},
            {"seed_ratios": [1.0, [2.0]]},
            {"seed_ratios": {"0": 1.0}},
            {"first_nonfinite": [0, 3]},
            {"a figure of its own": 1},
            {"rows": 8},
        )
    ),
    '{"noise_ratio": 0.5}',
    '{"rows": 8, "bit_identical": true}',
]


def _judged(figures: str, *, rung: str = "own dtype", checked: str = "the pair") -> list[str]:
    evidence = (
        f"INSERT INTO evidence VALUES (0, '{rung}', '{checked}', NULL, 'a control', '{figures}', 'passed', 'Noise.')"
    )
    return ["UPDATE pair SET verdict = 'rounding', because = 'so', noise_ratio = 1.0 WHERE pair = 0", evidence]


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "statements",
    [
        *(_judged(figures) for figures in FIGURES),
        _judged(json.dumps(WHOLE), rung="float32"),
        _judged(json.dumps(WHOLE), checked="the widened pair"),
        _judged(json.dumps(WHOLE), checked="a check of its own"),
    ],
)
def test_figures_that_nobody_can_compute_with_are_refused_when_read_and_when_taken_in(
    statements: list[str], store: Store, foreign_file: Path
) -> None:
    damaged(foreign_file, *statements)
    with RunReader(foreign_file) as run, pytest.raises(StoreError, match="its evidence makes no sense"):
        finding(run, run.pairs[0], run.positions(0))
    with pytest.raises(StoreError, match="its evidence makes no sense"):
        taken(store, foreign_file)
    assert not store.directory.exists() or list(store.directory.iterdir()) == []


def test_figures_as_a_judgement_has_them_are_taken_in(store: Store, foreign_file: Path) -> None:
    damaged(foreign_file, *_judged(json.dumps(WHOLE)))
    with RunReader(store.path_of(taken(store, foreign_file))) as run:
        assert [json.loads(json.dumps(row.figures.to_json())) for row in run.evidence(0)] == [WHOLE]
        assert "0.50 times the floor" in finding(run, run.pairs[0], run.positions(0)).sentence


@pytest.mark.spread(8)
@pytest.mark.parametrize("name", REFUSED)
def test_what_no_run_file_has_is_refused_by_name_and_nothing_is_stored(
    name: str, store: Store, foreign_file: Path
) -> None:
    statements, words = REFUSED[name]
    damaged(foreign_file, *statements)
    before = foreign_file.read_bytes()
    with pytest.raises(StoreError) as refused:
        taken(store, foreign_file)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not store.directory.exists() or list(store.directory.iterdir()) == []
    assert foreign_file.read_bytes() == before


def test_a_lie_comes_in_where_nobody_compares(
    store: Store, foreign_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: it is the comparison that refuses it, and even then what is stored is computed anew."""
    damaged(foreign_file, "UPDATE position SET max_ulps = 999 WHERE prompt = 1 AND position = 3")
    monkeypatch.setattr(import_process, "check_figures", lambda run, writer: writer.figures())
    with RunReader(store.path_of(taken(store, foreign_file))) as run:
        assert 999 not in run.positions(0)["max_ulps"].tolist()


@pytest.mark.spread(1)
@pytest.mark.parametrize("check", ["_check_table", "_check_summary", "_check_tiles"])
def test_each_comparison_is_one_that_catches(
    check: str, store: Store, foreign_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = {
        "_check_table": "UPDATE position SET neq = 0",
        "_check_summary": "UPDATE pair SET ties = 5",
        "_check_tiles": (
            "UPDATE ulp_tile SET cells = ('\\xFF\\xFF'::BLOB || cells[3:]) WHERE level = 0 AND first_row = 2"
        ),
    }
    damaged(foreign_file, lies[check])
    monkeypatch.setattr(check_figures, check, lambda *_: None)
    taken(store, foreign_file)


@pytest.mark.spread(1)
@pytest.mark.parametrize("table", ["kv", "token"])
def test_rows_beyond_what_a_run_has_are_refused_before_they_are_read(
    table: str, store: Store, foreign_file: Path, monkeypatch
) -> None:
    damaged(
        foreign_file,
        "INSERT INTO kv VALUES (0, 0, 0, 'key', 0, 8, 0, 8, 0, 0, 0, 0, 0, 0, 0, NULL), (0, 0, 1, 'key', 0, 8, 0, 8,"
        " 0, 0, 0, 0, 0, 0, 0, NULL)",
    )
    taken(store, foreign_file)
    monkeypatch.setitem(bounds.MOST_ROWS, table, 1)
    with pytest.raises(StoreError, match=f"table {table} has"):
        taken(store, foreign_file)


def test_a_macro_of_a_foreign_file_takes_no_functions_place_when_it_is_read(foreign_file: Path) -> None:
    """A view hidden by a macro called like the function that lists views: a run file in the directory may come from
    anybody too.
    """
    damaged(
        foreign_file,
        "CREATE VIEW v AS SELECT 1",
        "CREATE MACRO duckdb_views() AS TABLE SELECT 'x' AS view_name, false AS internal WHERE false",
        "CREATE MACRO count(x) AS 77",
    )
    with pytest.raises(StoreError, match="with the view 'v'"):
        RunReader(foreign_file)
    database = Database.to_read(foreign_file)
    assert database.rows("SELECT count(position) FROM position WHERE prompt = 0") == [(3,)]
    database.abandon()


def test_probes_of_operations_come_in_too(store: Store, tmp_path: Path) -> None:
    outside, rows = Store(tmp_path / "outside"), [row_of(), UNSTEADY, ABSENT]
    path = outside.path_of(write_ops_run(outside, header(), rows))
    found = read_ops(store, taken(store, path))
    assert found.rows == rows
    assert found.header.note.endswith(NOTE)


@pytest.mark.parametrize("name", few(["probes", "probes.db", "probes-2026.bin"], "probes-2026.bin"))
def test_the_probes_that_are_taken_in_are_those_of_the_file_that_was_checked(
    name: str, store: Store, tmp_path: Path
) -> None:
    """Not those of a neighbour whose name begins alike."""
    outside = Store(tmp_path / "outside")
    for run_id, chip in (("mine", "mine"), ("probes-2026-11", "a neighbour's"), ("probes", "another's")):
        write_ops_run(outside, replace(header(), device_name=chip), [UNSTEADY], run_id=run_id)
    asked = outside.path_of("mine").rename(outside.directory / name)
    found = read_ops(store, taken(store, asked))
    assert found.header.device_name == "mine"


def test_without_room_nothing_is_taken_in(store: Store, foreign_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ULPSCOPE_LIMITS_FREE_BYTES", "999 TB")
    with pytest.raises(LimitError, match=r"limits\.free_bytes"):
        taken(store, foreign_file)
    assert not store.directory.exists()


def not_a_file(path: Path) -> Path:
    return path.parent


def a_dump(path: Path) -> Path:
    return ROOT / "sample_runs" / "dumps" / "six_calls.npz"


def nothing(path: Path) -> Path:
    return path.with_name("none.duckdb")


@pytest.mark.parametrize(
    ("made", "words"),
    [(not_a_file, "is no file"), (nothing, "is no file"), (a_dump, "is no DuckDB file.*ulpscope ingest")],
)
def test_what_is_no_run_file_at_all_is_one_sentence(
    made: Callable[[Path], Path], words: str, store: Store, foreign_file: Path
) -> None:
    with pytest.raises(StoreError, match=words):
        adopt(store, made(foreign_file))


def test_changes_beside_the_file_are_not_taken_for_its_own(store: Store, foreign_file: Path) -> None:
    foreign_file.with_name(f"{foreign_file.name}.wal").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"\.wal"):
        taken(store, foreign_file)


@pytest.mark.parametrize(
    ("signal", "words"), [("SIGSEGV", "crash"), ("SIGKILL", "memory"), ("SIGXCPU", "takes longer")]
)
def test_a_file_that_ends_its_reader_is_one_sentence_and_leaves_nothing(
    signal: str, words: str, store: Store, foreign_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nkill -{signal.removeprefix('SIG')} $$\n")
    script.chmod(0o755)
    monkeypatch.setattr("core.subprocess_json.sys.executable", str(script))
    with pytest.raises(StoreError, match=words):
        adopt(store, foreign_file)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_refused_or_the_run_that_it_was(
    seed: int, store: Store, foreign_file: Path, tmp_path: Path
) -> None:
    whole = shutil.copy(foreign_file, tmp_path / "whole.duckdb")
    chance = random.Random(seed)
    body = bytearray(foreign_file.read_bytes())
    for _ in range(chance.choice([1, 3, 30])):
        body[chance.randrange(12, len(body))] = chance.randrange(256)
    foreign_file.write_bytes(body[: chance.randrange(len(body))] if seed % 4 == 0 else body)
    try:
        run_id = adopt(store, foreign_file)
    except StoreError:
        assert not store.directory.exists() or list(store.directory.iterdir()) == []
    else:
        assert differing(Path(whole), store.path_of(run_id), COMPUTED) == []
