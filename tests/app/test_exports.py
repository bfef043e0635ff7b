"""Tables for elsewhere: every digit, inert in a spreadsheet, the same in both forms."""

import csv
import io
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from app.shell import exports
from core.runs.queries.flips import flip_table
from tests.core.runs.made_runs import sample

# U+FF1D is a full-width equals sign, which some spreadsheets take for a plain one
FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "'=1"]
HOSTILE = [*FORMULAS, " plain", 'say "x", y', "", None, "ü\u2028"]
# 0.1 + 0.2 and 1/3 need 17 and 16 digits; 5e-324 and 1.8e308 are the ends of float64
FLOATS = [0.1 + 0.2, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, float("inf"), 2**-126, -7.25]


def read(data):
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def read_parquet(table):
    return pq.read_table(io.BytesIO(exports.parquet(table)))


TABLE = pd.DataFrame(
    {
        # the first integer that a float64 column would round
        "id": [2**53 + 1, -3],
        # pandas makes floats of a column with a null unless it is Int64
        "maybe": pd.array([None, 128_255], "Int64"),
        "text": pd.Series(["=1", None], dtype=object),
    },
)


def test_what_a_picture_says_of_others_is_no_markup_and_one_line():
    """plotly takes angle brackets in a title for markup, and names are of others."""
    assert exports.picture("x", ["<b>a</b> & b", "two\n lines"])["of"] == [
        "&lt;b&gt;a&lt;/b&gt; &amp; b",
        "two lines",
    ]


def test_floats_read_back_as_the_very_same_bits():
    _, *rows = read(exports.csv(pd.DataFrame({"value": FLOATS})))
    values = np.array([float(row[0]) for row in rows])
    # as integers: -0.0 equals 0.0
    assert values.view(np.int64).tolist() == np.array(FLOATS).view(np.int64).tolist()


def test_whole_numbers_stay_whole_where_some_are_unknown():
    assert read(exports.csv(TABLE)) == [
        ["id", "maybe", "text"],
        ["9007199254740993", "", "'=1"],
        ["-3", "128255", ""],
    ]


@pytest.mark.parametrize("dtype", [object, "str"])
def test_no_text_begins_like_a_formula_and_each_can_be_told_back(dtype):
    texts = [text for text in HOSTILE if text is not None]
    column = pd.Series(texts, dtype=dtype)
    table = pd.DataFrame({"=heading": column, "n": range(len(texts))})
    heading, *rows = read(exports.csv(table))
    assert heading == ["'=heading", "n"]
    for (cell, _), text in zip(rows, texts, strict=True):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n", "＝"))
        assert cell.removeprefix("'") == text


def test_negative_numbers_are_no_formulas_and_get_no_apostrophe():
    numbers = pd.DataFrame({"a": [-1.5], "b": [-2], "c": pd.array([-3], "Int64")})
    assert read(exports.csv(numbers))[1] == ["-1.5", "-2", "-3"]


def test_parquet_has_texts_as_they_are_and_whole_numbers_with_nulls():
    texts = pd.DataFrame({"text": pd.Series(HOSTILE, dtype=object)})
    assert read_parquet(texts).column("text").to_pylist() == HOSTILE
    kept = read_parquet(TABLE)
    assert kept.schema.names == ["id", "maybe", "text"]
    assert kept.column("maybe").to_pylist() == [None, 128_255]
    assert str(kept.schema.field("maybe").type) == "int64"


@pytest.mark.parametrize("run_id", ["plain", "../../etc/passwd", "a b/<c>"])
def test_a_files_name_says_where_it_is_from_and_means_nothing_to_a_file_system(run_id):
    run = SimpleNamespace(run_id=run_id)
    pair = SimpleNamespace(index=2)
    view = SimpleNamespace(run=run, pair=pair, prompt=1, position=36)
    name = exports.file_stem(view, "flips", at_position=True)
    assert name.endswith("-pair2-flips-prompt1-position36")
    assert not set(name) & set('/\\<>:"|?*')


def test_a_downloaded_rank_says_in_its_heading_that_1_is_the_argmax_and_is_the_page_s():
    with sample("injected-bug") as run:
        found = flip_table(run, 0)
    heading, first, *_ = read(exports.csv(found))
    place = heading.index("reference_token_variant_rank (1 = argmax)")
    assert int(first[place]) == found["reference_token_variant_rank"][0] > 1
    assert heading == read_parquet(found).column_names
