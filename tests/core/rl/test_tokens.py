"""Chosen tokens out of JSON lines and Parquet: the tables are those that the lists of a server come
to.
"""

from __future__ import annotations

import bz2
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import DumpError, StoreError, UsageError
from core.judging.ingest import describe, headers_of, ingest
from core.responses.pairing import pairs_of
from core.responses.records import Response, ResponseSide, TopTokenRow, compress_rows
from core.rl.writing import FORMAT
from core.runs.file import records
from core.runs.importing import import_run
from core.runs.queries.verdicts import next_command
from core.runs.reader import RunReader
from core.runs.reports.conditions import check_decidable, parse_conditions
from core.runs.reports.report_json import report_of_run
from core.runs.reports.run_json import run_json
from core.runs.response_run import write_responses
from core.runs.store.cards import list_runs
from core.runs.store.store import Store

SIDES = ("reference", "variant")
Row = dict[str, object]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """Three hundred tokens in sequences of 1 to 40, a fifth of the values missing on a side or on
    both.
    """
    rng = np.random.default_rng(3)
    made: list[Row] = []
    for length in (1, 40, 7, *[36] * 7):
        values = -rng.exponential(size=length).round(4)
        moved = np.where(
            rng.random(length) < 0.5,
            values,
            values - rng.exponential(size=length) / 100,
        )
        sides = [
            [None if rng.random() < 0.1 else float(v) for v in side] for side in (values, moved)
        ]
        made.append(
            {
                "token_ids": rng.integers(0, 150_000, length).tolist(),
                **dict(zip(SIDES, sides, strict=True)),
            },
        )
    return made


def lines(path: Path, rows: list[Row]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def one_side(rows: list[Row], side: str, names: list[str] | None = None) -> list[Row]:
    made: list[Row] = [{"token_ids": row["token_ids"], "logprobs": row[side]} for row in rows]
    return (
        made
        if names is None
        else [{**row, "sequence": name} for row, name in zip(made, names, strict=True)]
    )


def in_python(store: Store, rows: list[Row]) -> str:
    """The run that the same values come to as responses of a server."""
    sides = []
    for side in SIDES:
        responses = []
        for row in rows:
            pairs = list(zip(row["token_ids"], row[side], strict=True))  # type: ignore[call-overload]
            listed = [
                TopTokenRow(
                    at,
                    () if value is None else ((token, value),),
                    0,
                    token,
                    int(value is None),
                )
                for at, (token, value) in enumerate(pairs)
            ]
            made = compress_rows(listed, "here")
            about = {"start_known": False, "generated_from": 0, "top_logprobs": 1}
            responses.append(Response(FORMAT, "token_id", (), made, **about))  # type: ignore[arg-type]
        sides.append(ResponseSide(side, tuple(responses)))
    return write_responses(store, "here", records.Provenance("upload"), sides, pairs_of(sides))


def tables(store: Store, run_id: str) -> dict[str, list]:
    kept = (
        "prompt",
        "token",
        "vocabulary",
        "side",
        "side_position",
        "top_token",
        "position",
        "response",
        "pair",
    )
    with RunReader(store.path_of(run_id)) as run:
        found = {
            name: run.query(f"SELECT * FROM {name} ORDER BY ALL").to_dict("records")
            for name in kept
        }
    for row in found["pair"]:
        for name in ("verdict", "because"):
            row.pop(name)
    return found


def assert_equal(one: dict[str, list], other: dict[str, list]) -> None:
    for name, expected in other.items():
        assert len(one[name]) == len(expected), name
        for ours, theirs in zip(one[name], expected, strict=True):
            assert list(ours) == list(theirs)
            for column, value in theirs.items():
                where = name, column, value, ours[column]
                if name == "pair" and column == "rms":  # summed in another order
                    assert math.isclose(ours[column], value, rel_tol=1e-14), where
                else:
                    assert str(ours[column]) == str(value), where


@pytest.mark.parametrize("form", [lines, parquet])
def test_every_column_is_that_of_the_lists_of_a_server(form, rows, store, tmp_path):
    ours = ingest(store, [form(tmp_path / "tokens.any", rows)], name="here")
    assert_equal(tables(store, ours), tables(store, in_python(store, rows)))


@pytest.mark.parametrize("form", [lines, parquet])
def test_files_of_a_side_each_are_joined_by_name_or_in_order(form, rows, tmp_path):
    store, whole = Store(tmp_path / "runs"), tmp_path / "whole.jsonl"
    expected = tables(store, ingest(store, [lines(whole, rows)]))
    for names in (None, [f"s{number}" for number in range(len(rows))]):
        paths = [form(tmp_path / f"{side}.any", one_side(rows, side, names)) for side in SIDES]
        if names is not None:  # in another order, and one that is alone
            more = [
                *one_side(rows, "variant", names)[::-1],
                {"token_ids": [1], "logprobs": [-1.0], "sequence": "x"},
            ]
            form(paths[1], more)
        found = ingest(store, paths)
        with RunReader(store.path_of(found)) as run:
            assert ("1 sequence of one file alone" in run.header.provenance.note) == (
                names is not None
            )
        found_tables = tables(store, found)
        settings = [row.pop("settings") for row in found_tables["response"]]
        assert json.loads(settings[3]) == ({} if names is None else {"sequence": "s3"})
        for row in expected["response"]:
            row.pop("settings", None)
        assert_equal(found_tables, expected)


def test_nan_and_values_of_no_probability_are_missing(store, tmp_path):
    path = tmp_path / "tokens.jsonl"
    path.write_text(
        '{"token_ids": [1, 2, 3, 4], "reference": [NaN, -1, -9999, -2], "variant": [-1, -1, -3,'
        " -Infinity]}",
    )
    with RunReader(store.path_of(ingest(store, [path]))) as run:
        assert run.pairs[0].summary.finite == 1
        assert run.pairs[0].verdict == "identical"
        assert [
            response.rows.missing.tolist()
            for side in run.responses()
            for response in side.responses
        ] == [
            [1, 0, 1, 0],
            [0, 0, 0, 1],
        ]


GOOD = {"token_ids": [1, 2], "reference": [-1.0, -2.0], "variant": [-1.0, -2.0]}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"variant": [-1.0]}, "row 2: `variant` and `token_ids` have other lengths"),
        ({"variant": None}, "row 2: expected a list `variant`"),
        ({"reference": [-1.0, 0.5]}, "row 2: `reference` has a value above 0"),
        ({"reference": [-1.0, "x"]}, "cannot be read"),
        ({"token_ids": []}, "row 2: `reference` and `token_ids` have other lengths"),
        ({"token_ids": [1, -2]}, "row 2: expected `token_ids`"),
        ({"token_ids": [1, 2.5]}, "row 2: expected `token_ids`"),
        ({"token_ids": [1, 1 << 31]}, "row 2: expected `token_ids`"),
        ({"token_ids": [1, None]}, "row 2: expected `token_ids`"),
    ],
)
def test_a_bad_row_is_a_sentence_and_nothing_is_stored(bad, says, store, tmp_path):
    with pytest.raises(DumpError) as refused:
        ingest(store, [lines(tmp_path / "a*b?.jsonl", [GOOD, {**GOOD, **bad}])])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(store.paths())
    assert not list(store.directory.glob(".partial*"))


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, pa.Codec("zstd").compress],
    ids=["gzip", "bz2", "zstd"],
)
def test_a_packed_file_is_the_plain_one(pack, rows, tmp_path):
    store, plain = Store(tmp_path / "runs"), lines(tmp_path / "a.jsonl", rows)
    packed = tmp_path / "a.jsonl.packed"
    packed.write_bytes(pack(plain.read_bytes()))
    assert_equal(*(tables(store, ingest(store, [path], name="here")) for path in (packed, plain)))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DumpError, match="packed"):
        ingest(store, [packed])


def test_values_just_above_zero_are_taken_and_counted(store, tmp_path):
    """As target less log-sum in bfloat16 makes them; what is masked does not count."""
    rows = [{**GOOD, "variant": [0.03, -2.0]}, {**GOOD, "variant": [-1.0, 7.0], "mask": [1, 0]}]
    empty = {"token_ids": [], "reference": [], "variant": []}
    with RunReader(
        store.path_of(ingest(store, [lines(tmp_path / "a.jsonl", [*rows, empty])])),
    ) as run:
        note = run.header.provenance.note
        assert run.pairs[0].summary.finite == 3
        assert run.pairs[0].summary.max_abs == pytest.approx(1.03)
    assert note.startswith(
        "1 sequence without a token in the loss left out. 1 value of 'variant' above 0, up to 0.03",
    )


def test_a_damaged_footer_is_a_sentence(rows, tmp_path):
    path = parquet(tmp_path / "a.parquet", rows)
    data = bytearray(path.read_bytes())
    start = data.index(b"token_ids")  # in the schema
    data[start : start + 4] = b"\xff" * 4
    path.write_bytes(data)
    with pytest.raises(DumpError, match="damaged or cut off"):
        ingest(Store(tmp_path / "runs"), [path])


@pytest.mark.parametrize("form", [lines, parquet])
def test_a_file_cut_in_half_is_a_sentence(form, rows, tmp_path):
    path = form(tmp_path / "cut.any", rows)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DumpError, match="cut off"):
        ingest(Store(tmp_path / "runs"), [path])


@pytest.mark.parametrize(
    ("names", "changed", "says"),
    [
        (["a", "b"], {}, "share no `sequence`"),
        (["c", "c"], {}, "occurs twice"),
        (["c", "d"], {"token_ids": [1, 3]}, "other `token_ids` from token 1 on"),
        (None, {}, "2 and 1 sequences"),
    ],
)
def test_two_files_that_do_not_fit_are_a_sentence(names, changed, says, tmp_path):
    sides = [
        one_side([GOOD, GOOD], "reference", ["c", "d"]),
        one_side([GOOD, {**GOOD, **changed}], "variant", names),
    ]
    if names is None:
        sides = [one_side([GOOD, GOOD], "reference"), one_side([GOOD], "variant")]
    with pytest.raises(DumpError, match=says):
        ingest(
            Store(tmp_path / "runs"),
            [lines(tmp_path / f"{at}.jsonl", side) for at, side in enumerate(sides)],
        )


def test_a_column_that_a_parquet_file_lacks_is_named_and_options_of_whole_rows_are_refused(
    tmp_path,
):
    path = parquet(tmp_path / "tokens.parquet", [{"token_ids": [1], "reference": [-1.0]}])
    with pytest.raises(DumpError, match="lacks a column"):
        ingest(Store(tmp_path / "runs"), [path])
    with pytest.raises(UsageError, match="whole rows"):
        ingest(Store(tmp_path / "runs"), [path], holds="logits")


def test_one_value_everywhere_is_no_log_probability(store, tmp_path):
    path = lines(tmp_path / "zeros.jsonl", [{**GOOD, "variant": [0.0, 0.0]}])
    with RunReader(store.path_of(ingest(store, [path]))) as run:
        assert run.pairs[0].verdict == "invalid dump"


def test_a_long_run_is_summed_up_and_never_read_as_a_whole(rows, store, tmp_path, monkeypatch):
    run_id = ingest(store, [lines(tmp_path / "tokens.jsonl", rows)])
    with RunReader(store.path_of(run_id)) as run:
        whole, table = run_json(run), run.positions(0)
    monkeypatch.setattr(records, "MAX_ROWS", 100)
    with RunReader(store.path_of(run_id)) as run:
        assert run_json(run) == whole
        assert whole["positions"] == 300
        assert run.positions_of(0, 3).equals(table[table["prompt"] == 3].reset_index(drop=True))
        assert float(run.largest(0)["max_abs"].iloc[0]) == table["max_abs"].max()
        for read in (
            lambda: run.positions(0),
            run.responses,
            lambda: run_json(run, with_positions=True),
        ):
            with pytest.raises(StoreError, match="too long"):
                read()
        assert [row["max_abs"] for row in run.records(0)] == [table["max_abs"].max()]
        with pytest.raises(UsageError, match="summed up"):
            check_decidable(parse_conditions(["flips"]), report_of_run(run)[0])
    assert [card.positions for card in list_runs(store)[0]] == [300]
    assert import_run(store, store.path_of(run_id), name="again")


def test_flips_of_chosen_tokens_are_unknown(rows, store, tmp_path):
    with RunReader(store.path_of(ingest(store, [lines(tmp_path / "tokens.jsonl", rows)]))) as run:
        assert run_json(run)["summary"]["flips"] is None
        assert run.evidence(0)[0].figures.flips is None
        pair = report_of_run(run)[0][0]
        assert [each.judge(pair).outcome for each in parse_conditions("flips")] == ["undecided"]
    assert [card.flips for card in list_runs(store)[0]] == [None]


@pytest.mark.parametrize("form", [lines, parquet])
def test_a_file_is_described_and_no_command_is_named_that_could_not_run(form, rows, tmp_path):
    store, path = Store(tmp_path / "runs"), form(tmp_path / "tokens.any", rows)
    assert headers_of(path)[0] == "responses"
    found = describe([path])
    assert (found["kind"], found["prompts"], found["positions"]) == ("responses", len(rows), 300)
    with RunReader(store.path_of(ingest(store, [path]))) as run:
        assert run.pairs[0].verdict == "undecided"
        assert next_command(run, run.pairs[0]) == ""
