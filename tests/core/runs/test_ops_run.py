"""Runs of probes: what is stored is what any DuckDB reads, the words for it, and everything else that opens runs says a
sentence.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from core.errors import StoreError, UsageError
from core.runs.ops_run import OpsHeader, read_ops, write_ops_run
from core.runs.reader import RunReader
from core.runs.reports.ops_wording import (
    ProbeComparison,
    answer,
    batch_says,
    batches_tested,
    beside,
    distance_says,
    machine,
    markdown,
    says,
    spans,
)
from core.runs.store.cards import list_runs
from core.runs.store.store import Store
from core.runs.tables.ops import BatchClass, OpRow, Repeats, RowPositions
from tests.core.runs.made_runs import calm_sides, header_of, write_run

TESTED = (1, 2, 3, 4, 5, 7, 8, 16)


def row_of(**changes) -> OpRow:
    found = OpRow(
        "mm",
        "",
        "float32",
        "256 to 256",
        elements=256,
        repeats=Repeats(40),
        relative_rms=2.9e-7,
        seconds=0.5,
        classes=(BatchClass((1, 4, 5, 7, 8, 16), "aa" * 8), BatchClass((2, 3), "bb" * 8, 231, 1792)),
        positions=(RowPositions(3, ((0, 1, 2),)), RowPositions(17, (tuple(range(16)), (16,)))),
    )
    return replace(found, **changes)


UNSTEADY = row_of(
    op="scatter_add", repeats=Repeats(60, 3, 16, 4, 12, 4096, 2), classes=(), positions=(), note="repeats differ"
)
ABSENT = OpRow("sdpa", "flash", "float32", "8 heads", refusal="no such kernel")


def header(**changes) -> OpsHeader:
    found = OpsHeader(
        "operations",
        "cpu",
        "A processor",
        ("float32", "bfloat16"),
        3,
        "ulpscope ops --seed 3",
        versions={"torch": "2.13.0", "threads": "2"},
        created=datetime(2026, 11, 21, 7, tzinfo=UTC),
    )
    return replace(found, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_what_is_written_is_read_back(store):
    rows = (row_of(), UNSTEADY, ABSENT, row_of(dtype="bfloat16", relative_rms=None, modules="q_proj, k_proj"))
    run_id = write_ops_run(store, header(), rows)
    run = read_ops(store, run_id)
    assert run.rows == rows
    assert run.header == header(created=datetime(2026, 11, 21, 7))
    assert [path.name for path in store.directory.iterdir()] == [f"{run_id}.duckdb"]  # nothing half is left beside it


def test_plain_sql_answers_which_operations_change_with_the_batch(store):
    run_id = write_ops_run(
        store, header(), (row_of(), UNSTEADY, ABSENT, row_of(dtype="bfloat16", classes=(BatchClass(TESTED, "cc"),)))
    )
    with duckdb.connect(str(store.path_of(run_id)), read_only=True) as shell:
        changing = shell.sql(
            "SELECT op, dtype, batch_neq, batch_max_ulps FROM op WHERE NOT is_batch_invariant"
        ).fetchall()
        unsteady = shell.sql(
            "SELECT op, differing_calls, calls, worst_batch FROM op WHERE NOT is_repeatable"
        ).fetchall()
        absent = shell.sql("SELECT op, backend, refusal FROM op WHERE refusal <> ''").fetchall()
        classes = shell.sql("SELECT json_extract(batch_classes, '$[1].batches') FROM op WHERE probe = 0").fetchall()
        about = shell.sql("SELECT kind, vocab, positions, compute_dtype, seed, versions FROM run").fetchall()
        none = [
            shell.sql(f"SELECT count(*) FROM {name}").fetchall()[0] for name in ("side", "prompt", "pair", "logits")
        ]
    assert changing == [("mm", "float32", 231, 1792)]
    assert unsteady == [("scatter_add", 3, 60, 16)]
    assert absent == [("sdpa", "flash", "no such kernel")]
    assert [json.loads(found) for (found,) in classes] == [[2, 3]]
    assert about == [("ops", 0, 0, "float32, bfloat16", 3, '{"threads": "2", "torch": "2.13.0"}')]
    assert none == [(0,)] * 4


def test_a_run_is_never_overwritten_and_an_empty_one_is_refused(store):
    run_id = write_ops_run(store, header(), (row_of(),), run_id="mine")
    with pytest.raises(StoreError, match="exists already"):
        write_ops_run(store, header(), (UNSTEADY,), run_id=run_id)
    assert read_ops(store, run_id).rows == (row_of(),)
    with pytest.raises(UsageError, match="no operation was probed"):
        write_ops_run(store, header(), ())


def test_a_reader_of_logits_says_what_the_run_is_instead(store):
    run_id = write_ops_run(store, header(), (row_of(),))
    with pytest.raises(StoreError, match="no logits; `ulpscope ops --show"):
        RunReader(store.path_of(run_id))


def test_a_run_of_logits_is_no_run_of_probes(store):
    made = header_of()
    path = write_run(store, made, calm_sides(made))
    with pytest.raises(StoreError, match="holds logits and no probes"):
        read_ops(store, path.stem)


def test_the_gallery_lists_it_with_its_kind_beside_the_others(store):
    run_id = write_ops_run(store, header(), (row_of(),))
    made = header_of()
    write_run(store, made, calm_sides(made))
    cards, broken = list_runs(store)
    assert broken == []
    found = {card.kind: card for card in cards}
    assert set(found) == {"ops", "capture"}
    card = found["ops"]
    assert (card.run_id, card.sides, card.pairs, card.positions, card.device) == (run_id, (), 0, 0, "cpu")
    assert card.bytes == store.path_of(run_id).stat().st_size


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "damage",
    [
        "batch_classes = 'none'",
        "batch_classes = '[]', row_positions = '[{\"batch\": 1000000000000, \"groups\": [[0]]}]'",
        'row_positions = \'[{"batch": 2, "groups": [[0], [7]]}]\'',
        'row_positions = \'[{"batch": 2, "groups": 3}]\'',
        'batch_classes = \'[{"batches": [2], "digest": "a", "neq": 0, "max_ulps": 0}]\'',
        'batch_classes = \'[{"batches": [1, 1], "digest": "a", "neq": 0, "max_ulps": 0}]\'',
        'batch_classes = \'[{"batches": [1], "digest": 5, "neq": 0, "max_ulps": 0}]\'',
        'batch_classes = \'[{"batches": [1], "digest": "a", "neq": "many", "max_ulps": 0}]\'',
    ],
)
def test_a_damaged_table_is_one_sentence(store, damage):
    run_id = write_ops_run(store, header(), (row_of(),))
    with duckdb.connect(str(store.path_of(run_id))) as shell:
        shell.execute(f"UPDATE op SET {damage}")
    with pytest.raises(StoreError, match="probes makes no sense"):
        read_ops(store, run_id)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ((1,), "1"),
        ((2, 3), "2, 3"),
        ((4, 5, 7, 8), "4..8"),
        ((1, 4, 5, 7), "1, 4..7"),
        ((2, 4, 8), "2, 4, 8"),
        (TESTED, "1..16"),
        ((), ""),
    ],
)
def test_a_span_is_of_sizes_that_were_tested_one_after_another(members, expected):
    assert spans(members, TESTED) == expected


def classes(*groups: tuple[int, ...]) -> tuple[BatchClass, ...]:
    return tuple(BatchClass(group, f"{number:016x}", number, number) for number, group in enumerate(groups))


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([TESTED], "same bits at 1..16"),
        ([(1, 4, 5, 7, 8, 16), (2, 3)], "differs from batch 1 at 2, 3; same class 1, 4..16"),
        ([(1,), (2, 3, 4, 5, 7, 8, 16)], "differs from batch 1 at 2..16"),
        ([(1,), (2, 3), (4, 5, 7, 8, 16)], "differs from batch 1 at 2..16; classes {1} {2, 3} {4..16}"),
    ],
)
def test_classes_in_words(groups, expected):
    assert batch_says(row_of(classes=classes(*groups))) == expected


def test_answers_and_their_sentences():
    assert [answer(row_of(), question) for question in ("repeat", "batch", "position")] == ["yes", "no", "no"]
    assert says(row_of(), "repeat") == "40 calls, all identical"
    assert says(row_of(), "position") == "batch 17: index 16 differs from index 0"
    assert distance_says(row_of()) == "231 of 256 elements, up to 1,792 ULPs"
    assert [answer(UNSTEADY, question) for question in ("repeat", "batch", "position")] == [
        "no",
        "not asked",
        "not asked",
    ]
    assert "12 of 4,096 elements, up" in says(UNSTEADY, "repeat")
    assert {answer(ABSENT, question) for question in ("repeat", "batch", "position")} == {"not available"}
    assert says(ABSENT, "batch") == "not available: no such kernel"


def runs_of(*tables: tuple[OpRow, ...]):
    from core.runs.ops_run import OpsRun

    return [OpsRun(f"run {number}", header(), rows) for number, rows in enumerate(tables)]


def only(*rows: OpRow) -> ProbeComparison:
    (found,) = beside(runs_of(*((row,) for row in rows)))
    return found


def test_machines_that_answer_alike_agree_and_others_do_not():
    invariant = row_of(classes=(BatchClass(TESTED, "aa" * 8),), positions=())
    assert only(row_of(), row_of()).disagreement == ""
    assert only(row_of(), invariant).disagreement == "batch size"
    assert only(row_of(repeats=Repeats(40, 1, 1, 1, 1, 1, 1)), row_of()).disagreement == "run to run"
    other_steps = row_of(classes=classes((1, 2, 3), (4, 5, 7, 8, 16)))
    assert only(row_of(), other_steps).disagreement == "batch classes"
    assert only(row_of(), replace(ABSENT, op="mm", backend="", size="256 to 256")).disagreement == ""


def test_classes_of_unlike_batch_sizes_are_held_against_each_other_where_both_were_asked():
    short, long = row_of(classes=classes((1, 2, 3))), row_of(classes=classes((1, 2, 3), (64, 128)))
    assert only(short, row_of(classes=classes((1,), (2, 3)))).disagreement == "batch size"
    assert only(row_of(classes=classes((1, 2), (3,))), row_of(classes=classes((1, 2), (3, 64)))).disagreement == ""
    assert batches_tested(long) == [1, 2, 3, 64, 128]
    assert only(short, long).disagreement == ""
    quick, full = (
        (RowPositions(3, ((0, 1, 2),)),),
        (RowPositions(3, ((0, 1, 2),)), RowPositions(5, ((0, 1), (2, 3, 4)))),
    )
    assert only(row_of(positions=quick), row_of(positions=full)).disagreement == ""
    assert (
        only(row_of(positions=full[1:]), row_of(positions=(RowPositions(5, ((0, 1, 2, 3, 4),)),))).disagreement
        == "row position"
    )


def test_same_bits_on_two_machines_are_told_by_the_digest_of_row_0_alone():
    other = row_of(classes=(BatchClass(TESTED, "dd" * 8),))
    assert only(row_of(), row_of()).same_bits is True
    assert only(row_of(), other).same_bits is False
    assert only(row_of(), UNSTEADY_MM).same_bits is None
    assert len(beside(runs_of((row_of(),), (UNSTEADY,)))) == 2


UNSTEADY_MM = row_of(repeats=Repeats(60, 3, 16, 4, 12, 4096, 2), classes=(), positions=())


def test_the_tables_of_a_report_stay_in_their_cells():
    hostile = row_of(modules="a|b\n<script>")
    text = markdown(runs_of((hostile, ABSENT))[0])
    line = next(line for line in text.splitlines() if line.startswith("| mm"))
    assert line.count(" | ") == 6
    assert "a\\|b &lt;script>" in line
    assert "3; same class 1, 4..16" in line
    assert "not available: no such kernel" in text
    assert "torch 2.13.0" in text
    assert machine(runs_of((hostile,))[0]) == "cpu, A processor, torch 2.13.0, 2 threads"


@pytest.mark.parametrize("wrong", [{"refusal": "none here"}, {"classes": (BatchClass((2, 3), "bb"),)}])
def test_rows_that_contradict_themselves_are_refused(wrong):
    with pytest.raises(UsageError):
        row_of(**wrong)
