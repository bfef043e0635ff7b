"""Chosen tokens out of JSON lines and Parquet: the tables are those that the lists of a server come
to.
"""

import bz2
import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import CaptureError, DumpError, StoreError, UsageError
from core.inference.models.model import texts_by
from core.judging.ingest import describe, headers_of, ingest
from core.responses.pairing import pairs_of
from core.responses.records import Response, ResponseSide, TopTokenRow, compress_rows
from core.rl.queries import tokens_of
from core.rl.writing import FORMAT
from core.runs.file import records
from core.runs.importing import import_run
from core.runs.queries.verdicts import next_command
from core.runs.reports.conditions import check_decidable, parse_conditions
from core.runs.reports.report_json import report_of_run
from core.runs.reports.run_json import run_json
from core.runs.response_run import write_responses
from core.runs.store.cards import list_runs
from tests.core.rl.test_formats import refused
from tests.core.runs.made_runs import ingested, opened, verdict_of
from tests.json_lines import write_lines
from tests.places import ROOT

SIDES = ("reference", "variant")


@pytest.fixture(scope="module")
def rows():
    """Three hundred tokens in sequences of 1 to 40, a fifth of the values missing on a side or on
    both.
    """
    rng = np.random.default_rng(3)
    made = []
    # 300 tokens in all
    for length in (1, 40, 7, *[36] * 7):
        values = -rng.exponential(size=length).round(4)
        less = rng.exponential(size=length) / 100
        moved = values - np.where(rng.random(length) < 0.5, 0, less)
        row = {"token_ids": rng.integers(0, 150_000, length).tolist()}
        for name, side in (("reference", values), ("variant", moved)):
            is_missing = rng.random(length) < 0.1
            row[name] = np.where(is_missing, None, side).tolist()
        made.append(row)
    return made


def parquet(path, rows):
    # several row groups, which are read one after another
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def one_side(rows, side, names=None):
    made = [{"token_ids": row["token_ids"], "logprobs": row[side]} for row in rows]
    for row, name in zip(made, names or (), strict=False):
        row["sequence"] = name
    return made


def in_python(store, rows):
    """The run that the same values come to as responses of a server."""
    sides = []
    for side in SIDES:
        responses = []
        for row in rows:
            listed = []
            both = zip(row["token_ids"], row[side], strict=True)
            for at, (token, value) in enumerate(both):
                entries = () if value is None else ((token, value),)
                listed.append(TopTokenRow(at, entries, 0, token, int(value is None)))
            made = Response(
                FORMAT,
                "token_id",
                (),
                compress_rows(listed, "here"),
                start_known=False,
                generated_from=0,
                top_logprobs=1,
            )
            responses.append(made)
        sides.append(ResponseSide(side, tuple(responses)))
    return write_responses(
        store,
        "here",
        records.Provenance("upload"),
        sides,
        pairs_of(sides),
    )


TABLES = [
    "prompt",
    "token",
    "vocabulary",
    "side",
    "side_position",
    "top_token",
    "position",
    "response",
    "pair",
]


def tables(store, run_id):
    with opened(store, run_id) as run:
        found = {name: run.query(f"SELECT * FROM {name} ORDER BY ALL") for name in TABLES}
    del found["pair"]["verdict"], found["pair"]["because"]
    return found


def assert_equal(one, other):
    for name, expected in other.items():
        # of a pair, rms is summed in another order
        pd.testing.assert_frame_equal(
            one[name],
            expected,
            check_dtype=False,
            check_exact=name != "pair",
            rtol=1e-14,
        )


@pytest.mark.parametrize("form", [write_lines, parquet])
def test_every_column_is_that_of_the_lists_of_a_server(form, rows, store, tmp_path):
    ours = ingest(store, [form(tmp_path / "tokens.any", rows)], name="here")
    assert_equal(tables(store, ours), tables(store, in_python(store, rows)))


@pytest.mark.parametrize("form", [write_lines, parquet])
def test_files_of_a_side_each_are_joined_by_name_or_in_order(form, rows, store, tmp_path):
    expected = tables(store, ingest(store, [write_lines(tmp_path / "whole.jsonl", rows)]))
    del expected["response"]["settings"]
    for names in (None, [f"s{number}" for number in range(len(rows))]):
        reference, variant = (one_side(rows, side, names) for side in SIDES)
        # in another order, and one that is alone
        if names is not None:
            variant.append(
                {
                    "token_ids": [1],
                    "logprobs": [-1.0],
                    "sequence": "x",
                }
            )
            variant.reverse()
        paths = [
            form(tmp_path / "reference.any", reference),
            form(tmp_path / "variant.any", variant),
        ]
        run_id = ingest(store, paths)
        with opened(store, run_id) as run:
            is_noted = "1 sequence of one file alone" in run.header.provenance.note
            assert is_noted == (names is not None)
        found = tables(store, run_id)
        settings = found["response"].pop("settings")
        assert json.loads(settings[3]) == ({} if names is None else {"sequence": "s3"})
        assert_equal(found, expected)


def test_nan_and_values_of_no_probability_are_missing(store, tmp_path):
    path = tmp_path / "tokens.jsonl"
    path.write_text(
        '{"token_ids": [1, 2, 3, 4], "reference": [NaN, -1, -9999, -2], "variant": [-1, -1, -3,'
        " -Infinity]}",
    )
    with ingested(store, path) as run:
        assert run.pairs[0].summary.finite == 1
        assert verdict_of(run) == "identical"
        reference, variant = run.responses()
    assert reference.responses[0].rows.missing.tolist() == [1, 0, 1, 0]
    assert variant.responses[0].rows.missing.tolist() == [0, 0, 0, 1]


GOOD = {
    "token_ids": [1, 2],
    "reference": [-1.0, -2.0],
    "variant": [-1.0, -2.0],
}


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
    # DuckDB takes `*` and `?` in a path for a pattern
    path = write_lines(tmp_path / "a*b?.jsonl", [GOOD, {**GOOD, **bad}])
    with pytest.raises(DumpError) as refused:
        ingest(store, [path])
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(store.paths())
    assert not list(store.directory.glob(".partial*"))


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, pa.Codec("zstd").compress],
    ids=["gzip", "bz2", "zstd"],
)
def test_a_packed_file_is_the_plain_one(pack, rows, store, tmp_path):
    plain = write_lines(tmp_path / "a.jsonl", rows)
    packed = tmp_path / "a.jsonl.packed"
    packed.write_bytes(pack(plain.read_bytes()))
    expected = tables(store, ingest(store, [plain], name="here"))
    assert_equal(tables(store, ingest(store, [packed], name="here")), expected)
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DumpError, match="packed"):
        ingest(store, [packed])


def test_values_just_above_zero_are_taken_and_counted(store, tmp_path):
    """As target less log-sum in bfloat16 makes them; what is masked does not count."""
    above = {**GOOD, "variant": [0.03, -2.0]}
    masked = {
        **GOOD,
        "variant": [-1.0, 7.0],
        "mask": [1, 0],
    }
    empty = {
        "token_ids": [],
        "reference": [],
        "variant": [],
    }
    path = write_lines(tmp_path / "a.jsonl", [above, masked, empty])
    with ingested(store, path) as run:
        note = run.header.provenance.note
        assert run.pairs[0].summary.finite == 3
        assert run.pairs[0].summary.max_abs == pytest.approx(1.03)
    assert note.startswith(
        "1 sequence without a token in the loss left out. 1 value of 'variant' above 0, up to 0.03",
    )


def test_a_damaged_footer_is_a_sentence(rows, store, tmp_path):
    path = parquet(tmp_path / "a.parquet", rows)
    data = bytearray(path.read_bytes())
    # in the schema
    start = data.index(b"token_ids")
    data[start : start + 4] = b"\xff" * 4
    path.write_bytes(data)
    refused(store, "damaged or cut off", path)


@pytest.mark.parametrize("form", [write_lines, parquet])
def test_a_file_cut_in_half_is_a_sentence(form, rows, store, tmp_path):
    path = form(tmp_path / "cut.any", rows)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(store, "cut off", path)


@pytest.mark.parametrize(
    ("names", "changed", "says"),
    [
        (["a", "b"], {}, "share no `sequence`"),
        (["c", "c"], {}, "occurs twice"),
        (["c", "d"], {"token_ids": [1, 3]}, "other `token_ids` from token 1 on"),
        (["c"], {}, "2 and 1 sequences"),
    ],
)
def test_two_files_that_do_not_fit_are_a_sentence(names, changed, says, store, tmp_path):
    is_named = len(names) == 2
    reference_names = ["c", "d"] if is_named else None
    variant_names = names if is_named else None
    rows = [GOOD, {**GOOD, **changed}][: len(names)]
    reference = one_side([GOOD, GOOD], "reference", reference_names)
    variant = one_side(rows, "variant", variant_names)
    paths = [
        write_lines(tmp_path / f"{number}.jsonl", rows)
        for number, rows in enumerate((reference, variant))
    ]
    refused(store, says, *paths)


def test_a_column_that_a_parquet_file_lacks_is_named_and_options_of_whole_rows_are_refused(
    store,
    tmp_path,
):
    path = parquet(tmp_path / "tokens.parquet", [{"token_ids": [1], "reference": [-1.0]}])
    refused(store, "lacks a column", path)
    with pytest.raises(UsageError, match="whole rows"):
        ingest(store, [path], holds="logits")


def test_one_value_everywhere_is_no_log_probability(store, tmp_path):
    path = write_lines(tmp_path / "zeros.jsonl", [{**GOOD, "variant": [0.0, 0.0]}])
    with ingested(store, path) as run:
        assert verdict_of(run) == "invalid dump"


def test_a_long_run_is_summed_up_and_never_read_as_a_whole(rows, store, tmp_path, monkeypatch):
    run_id = ingest(store, [write_lines(tmp_path / "tokens.jsonl", rows)])
    with opened(store, run_id) as run:
        whole = run_json(run)
        table = run.positions(0)
    largest = table["max_abs"].max()
    monkeypatch.setattr(records, "MAX_ROWS", 100)
    with opened(store, run_id) as run:
        assert run_json(run) == whole
        assert whole["positions"] == 300
        of_prompt = table[table["prompt"] == 3].reset_index(drop=True)
        assert run.positions_of(0, 3).equals(of_prompt)
        assert run.largest(0)["max_abs"].iloc[0] == largest
        with pytest.raises(StoreError, match="too long"):
            run.positions(0)
        with pytest.raises(StoreError, match="too long"):
            run.responses()
        with pytest.raises(StoreError, match="too long"):
            run_json(run, with_positions=True)
        assert [row["max_abs"] for row in run.records(0)] == [largest]
        with pytest.raises(UsageError, match="summed up"):
            check_decidable(parse_conditions(["flips"]), report_of_run(run)[0])
    assert [card.positions for card in list_runs(store)[0]] == [300]
    assert import_run(store, store.path_of(run_id), name="again")


def test_flips_of_chosen_tokens_are_unknown(rows, store, tmp_path):
    with ingested(store, write_lines(tmp_path / "tokens.jsonl", rows)) as run:
        assert run_json(run)["summary"]["flips"] is None
        assert run.evidence(0)[0].figures.flips is None
        pair = report_of_run(run)[0][0]
        assert [each.judge(pair).outcome for each in parse_conditions("flips")] == ["undecided"]
    assert [card.flips for card in list_runs(store)[0]] == [None]


@pytest.mark.parametrize("form", [write_lines, parquet])
def test_a_file_is_described_and_no_command_is_named_that_could_not_run(
    form, rows, store, tmp_path
):
    path = form(tmp_path / "tokens.any", rows)
    assert headers_of(path)[0] == "responses"
    found = describe([path])
    assert found["kind"] == "responses"
    assert found["prompts"] == len(rows)
    assert found["positions"] == 300
    with ingested(store, path) as run:
        assert verdict_of(run) == "undecided"
        assert next_command(run, run.pairs[0]) == ""


def test_a_tokenizer_gives_the_texts_of_the_tokens(store, tmp_path):
    row = {
        "token_ids": [5, 300, 5],
        "reference": [-1.0, -2.0, -3.0],
        "variant": [-1.0, -2.1, -3.0],
    }
    path = write_lines(tmp_path / "a.jsonl", [row])
    texts = texts_by(str(ROOT / "sample_runs/model"))
    with opened(store, ingest(store, [path], texts_of=texts)) as run:
        assert run.vocabulary == texts([5, 300])
        expected = [texts([id])[id] for id in row["token_ids"]]
        assert tokens_of(run, 0)["text"].tolist() == expected
    with pytest.raises(CaptureError, match="no such folder"):
        texts_by(str(tmp_path / "none"))
