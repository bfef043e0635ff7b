"""Remedies in the run file, and the sentence that says what to change and what it costs."""

from __future__ import annotations

import dataclasses

import duckdb
import pytest

from core.errors import StoreError, UsageError
from core.runs.reader import RunReader
from core.runs.remedies import PriceRow, advice
from core.runs.store import Store
from core.runs.writer import RunWriter
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import calm_sides, header_of
from tests.core.runs.remedy_runs import ROWS, remedy_run


def test_the_advice_names_what_makes_the_sides_equal_what_calms_them_and_the_price():
    assert advice(ROWS) == (
        "**invariant** makes the sides equal in every logit, at 75% of the throughput. "
        "**float32** leaves 1/10,000 of the difference (rms, flips 0 of 3), at 50% of the throughput."
    )


def test_of_two_that_make_the_sides_equal_the_cheaper_is_named():
    cheap = dataclasses.replace(ROWS[3], name="math attention", reference_share=0.9, variant_share=0.95)
    assert advice((*ROWS, cheap)).startswith("**math attention** makes the sides equal in every logit, at 90% of the throughput.")


def test_where_nothing_helps_or_nothing_differs_the_advice_says_so():
    stubborn = dataclasses.replace(ROWS[0], name="deterministic algorithms")
    assert advice((ROWS[0], stubborn)) == "None of the remedies that could be measured halves the difference."
    assert "nothing to remedy" in advice((dataclasses.replace(ROWS[0], neq=0), *ROWS[1:]))


def test_remedies_come_back_as_they_were_and_are_plain_sql(tmp_path):
    store = Store(tmp_path)
    run_id = remedy_run(store)
    with RunReader(store.path_of(run_id)) as run:
        assert run.remedies == {0: list(ROWS)}
    with duckdb.connect(str(store.path_of(run_id)), read_only=True) as database:
        asked = "SELECT name FROM remedy WHERE neq = 0"
        assert database.execute(asked).fetchall() == [("invariant",)]
    with RunReader(store.path_of(remedy_run(store, "without", ()))) as run:
        assert run.remedies == {}


def test_prices_come_back_as_they_were(tmp_path):
    header, rows = (
        header_of(lengths=(3,)),
        [PriceRow("decode", 1, 32, 100.0, 80.0, 0.8), PriceRow("decode", 4, 128, 300.0, 300.0, 1.0)],
    )
    with RunWriter(Store(tmp_path), header, run_id="priced") as writer:
        for side, bits in enumerate(calm_sides(header)):
            writer.write(side, 0, bits)
        writer.write_prices(rows)
        writer.finish()
    with RunReader(tmp_path / "priced.duckdb") as run:
        assert run.prices == rows


def test_remedies_of_a_pair_that_is_not_there_are_refused(tmp_path):
    with RunWriter(Store(tmp_path), header_of()) as writer, pytest.raises(UsageError, match="remedies of pair 1 arrived"):
        writer.write_remedies(1, ROWS)


UNSIZED = {"max_abs": None, "rms": None, "max_ulps": None, "noise_ratio": None}


def test_a_difference_without_a_size_is_never_called_small():
    """NaN on one side only: over the finite logits alone its rms could be anything."""
    broken = dataclasses.replace(ROWS[0], **UNSIZED)
    assert advice((broken, *ROWS[1:3])) == (
        "As it is, a NaN or infinity stands on one side only: that difference has no size. "
        "**float32** leaves none of those, at 50% of the throughput."
    )
    still = dataclasses.replace(ROWS[1], **UNSIZED)
    assert advice((ROWS[0], still)) == "None of the remedies that could be measured halves the difference."
    assert advice(ROWS[:2]).startswith("**float32** leaves 1/10,000")  # the twin


def test_where_no_remedy_could_be_measured_the_advice_says_that():
    assert advice((ROWS[0], ROWS[2])) == "None of the remedies could be measured."


def test_a_clock_that_disagrees_with_itself_is_named():
    plain = dataclasses.replace(ROWS[0], reference_share=1.02, variant_share=0.77)
    assert advice((plain, *ROWS[1:])).endswith("The clock is coarse: it finds 77% of the throughput where nothing was changed.")
    assert "clock" not in advice((dataclasses.replace(plain, variant_share=0.95), *ROWS[1:]))


@pytest.mark.parametrize(
    "damage",
    ["UPDATE remedy SET rms = 'nan'", "UPDATE remedy SET reference_share = 'inf'", "UPDATE remedy SET neq = NULL",
     "UPDATE remedy SET neq = elements + 1", "UPDATE remedy SET name = 'a\n\n![x](http://x/y.png)'", "DELETE FROM remedy WHERE ordinal = 0"],
)  # fmt: skip
def test_remedies_that_cannot_have_been_measured_are_a_damaged_file(tmp_path, damage):
    store = Store(tmp_path)
    path = store.path_of(remedy_run(store))
    damaged(path, damage)
    with RunReader(path) as run, pytest.raises(StoreError, match="list of remedies makes no sense") as refused:
        _ = run.remedies
    assert "http" not in str(refused.value)
