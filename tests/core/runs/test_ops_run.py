"""Runs of probes: what is stored is what any DuckDB reads, and everything else that opens runs says
a sentence.
"""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from core.errors import StoreError, UsageError
from core.runs.ops_run import OpsHeader, read_ops, write_ops_run
from core.runs.store.cards import list_runs
from core.runs.tables.ops import answers, whole_row
from tests.core.runs.made_runs import make_run, opened

CLASSES = [
    {"batches": [1, 4, 5], "digest": "aa", "neq": 0, "max_ulps": 0},
    {"batches": [2, 3], "digest": "bb", "neq": 231, "max_ulps": 1792},
]


def row_of(**changes):
    row = {
        "op": "mm",
        "backend": "",
        "dtype": "float32",
        "size": "256 to 256",
        "elements": 256,
        "is_repeatable": True,
        "calls": 40,
        "differing_calls": 0,
        "is_batch_invariant": False,
        "batch_classes": CLASSES,
        "batch_neq": 231,
        "batch_max_ulps": 1792,
        "is_position_invariant": False,
        "row_positions": [
            {"batch": 3, "groups": [[0, 1, 2]]},
            {"batch": 5, "groups": [[0, 1, 2, 3], [4]]},
        ],
    }
    return whole_row(**row | changes)


STEADY = row_of(
    op="softmax",
    is_batch_invariant=True,
    is_position_invariant=True,
    batch_classes=CLASSES[:1],
)
UNSTEADY = whole_row(
    op="scatter_add",
    backend="",
    dtype="bfloat16",
    size="4096 values into 64",
    is_repeatable=False,
    calls=60,
    differing_calls=3,
    worst_max_ulps=2,
    note="repeats differ",
)
ABSENT = whole_row(
    op="sdpa",
    backend="flash",
    dtype="float32",
    size="8 heads",
    refusal="no such kernel",
)


def header(**changes):
    made = OpsHeader(
        "operations",
        "cpu",
        "A processor",
        ("float32", "bfloat16"),
        "ulpscope ops --quick",
        versions={"torch": "2.13.0", "threads": "2"},
        created=datetime(2026, 11, 21, 7, tzinfo=UTC),
    )
    return replace(made, **changes)


def test_what_is_written_is_read_back(store):
    rows = [row_of(), UNSTEADY, ABSENT]
    run_id = write_ops_run(store, header(), rows)
    run = read_ops(store, run_id)
    assert run.rows == rows
    # DuckDB's TIMESTAMP has no time zone: UTC comes back without it
    assert run.header == header(created=datetime(2026, 11, 21, 7))
    # no partial file is left
    assert [path.name for path in store.directory.iterdir()] == [f"{run_id}.duckdb"]


def test_each_row_answers_three_questions(store):
    rows = read_ops(
        store,
        write_ops_run(store, header(), [row_of(), STEADY, UNSTEADY, ABSENT]),
    ).rows
    assert [list(answers(row).values()) for row in rows] == [
        [
            "same",
            "differs at 2, 3: 231 of 256 elements, up to 1,792 ULPs",
            "differs in batches of 5",
        ],
        ["same", "same", "same"],
        ["3 of 60 calls differ, up to 2 ULPs", "not asked", "not asked"],
        ["not available: no such kernel", "", ""],
    ]


def test_a_run_is_never_overwritten_and_an_empty_one_is_refused(store):
    run_id = write_ops_run(store, header(), [row_of()], run_id="mine")
    with pytest.raises(StoreError, match="exists already"):
        write_ops_run(store, header(), [UNSTEADY], run_id=run_id)
    assert read_ops(store, run_id).rows[0]["op"] == "mm"
    with pytest.raises(UsageError, match="no operation was probed"):
        write_ops_run(store, header(), [])


def test_readers_of_logits_and_of_probes_refuse_each_others_runs(store):
    run_id = write_ops_run(store, header(), [row_of()])
    with pytest.raises(StoreError, match="no logits; `ulpscope ops --show"):
        opened(store, run_id)
    path = make_run(store)
    with pytest.raises(StoreError, match="holds logits and no probes"):
        read_ops(store, path.stem)
    cards, broken = list_runs(store)
    assert broken == []
    assert {card.kind for card in cards} == {"ops", "capture"}
