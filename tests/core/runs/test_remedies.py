"""Remedies in the run file, and the sentence that says what to change and what it costs."""

from __future__ import annotations

import dataclasses

import duckdb
import pytest

from core.errors import StoreError, UsageError
from core.runs.reader import RunReader
from core.runs.store.store import Store
from core.runs.tables.remedies import Kept, PriceRow, advice
from core.runs.writer import RunWriter
from tests.core.runs.damaging import damaged
from tests.core.runs.made_runs import calm_sides, header_of
from tests.core.runs.remedy_runs import ROWS, remedy_run


def test_the_advice_names_what_makes_the_sides_equal_what_calms_them_and_the_price():
    assert "leaves 1/10,000 of the difference" in advice(ROWS)


def test_of_two_that_make_the_sides_equal_the_cheaper_is_named():
    cheap = dataclasses.replace(
        ROWS[3], name="math attention", variant_share=0.95, variant_share_low=0.9, variant_share_high=0.96
    )
    assert "**math attention** makes the sides" in advice((*ROWS, cheap))
    assert "at 0.80 ± 0.02" in advice((*ROWS, cheap))


def test_where_nothing_helps_or_nothing_differs_the_advice_says_so():
    stubborn = dataclasses.replace(ROWS[0], name="deterministic algorithms")
    assert "measured does not halve" in advice((ROWS[0], stubborn))
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
        [PriceRow("decode", 1, 32, 100.0, 80.0, 0.8, 0.79, 0.82, 6), PriceRow("decode", 4, 128, 300.0, 300.0, 1.0)],
    )
    with RunWriter(Store(tmp_path), header, run_id="priced") as writer:
        for side, bits in enumerate(calm_sides(header)):
            writer.write(side, 0, bits)
        writer.write_prices(rows)
        writer.finish()
    with RunReader(tmp_path / "priced.duckdb") as run:
        assert run.prices == rows


def test_remedies_of_a_pair_that_is_not_there_are_refused(tmp_path):
    with (
        RunWriter(Store(tmp_path), header_of()) as writer,
        pytest.raises(UsageError, match="remedies of pair 1 arrived"),
    ):
        writer.write_remedies(1, ROWS)


UNSIZED = {"max_abs": None, "rms": None, "max_ulps": None, "noise_ratio": None}


def test_a_difference_without_a_size_is_never_called_small():
    """NaN on one side only: over the finite logits alone its rms could be anything."""
    broken = dataclasses.replace(ROWS[0], **UNSIZED)
    assert "0.50 ± 0.03" in advice((broken, *ROWS[1:3]))
    still = dataclasses.replace(ROWS[1], **UNSIZED)
    assert advice((ROWS[0], still)) == advice((ROWS[0], ROWS[0]))  # which says that nothing helps
    assert advice(ROWS[:2]).startswith("**float32** leaves 1/10,000")  # the twin


def test_where_no_remedy_could_be_measured_the_advice_says_that():
    assert "remedies could be measured" in advice((ROWS[0], ROWS[2]))


WITHOUT_SPREAD = dict.fromkeys(
    ("reference_share_low", "reference_share_high", "variant_share_low", "variant_share_high", "turns")
)


def test_shares_of_older_runs_have_one_digit_and_a_clock_that_disagrees_with_itself_is_named():
    rows = [dataclasses.replace(row, **WITHOUT_SPREAD) for row in ROWS]
    assert "at about 0.8 of the throughput" in advice(rows)
    assert "clock" not in advice(rows)
    rows[0] = dataclasses.replace(rows[0], reference_share=1.02, variant_share=0.77)
    assert "finds 77% of the throughput" in advice(rows)


# share, low, high, what is said
SHARES_SAID = [
    (1.0, 0.97, 1.02, "1.0 ± 0.1"),
    (0.998, 0.98, 1.01, "1.00 ± 0.02"),
    (0.5, 0.4999, 0.5001, "0.50 ± 0.01"),  # no share is surer than its digits
    (0.0712, 0.0705, 0.073, "0.071 ± 0.002"),
    (35.2, 33.0, 36.0, "35 ± 3"),
    (6.08, 2.39, 9.5, "too noisy to say (2.4 to 9.5)"),
    (1.0, 1.0, 1.0, "1"),
    (0.958, None, None, "about 1"),
    (0.52, None, None, "about 0.5"),
]


@pytest.mark.parametrize(("share", "low", "high", "said"), SHARES_SAID)
def test_a_share_is_told_with_its_spread_and_no_more_digits_than_that(share, low, high, said):
    assert Kept(share, low, high).in_words() == said


def test_what_a_noisy_clock_says_of_a_cure_is_not_its_price():
    noisy = dataclasses.replace(
        ROWS[3], reference_share_low=0.2, reference_share_high=2.0, variant_share_low=0.3, variant_share_high=6.0
    )
    assert "too noisy to say (0.3" in advice((ROWS[0], noisy))


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.0), (0.1, 0.5), (None, 0.9), (float("nan"), 0.9)])
def test_an_interval_that_does_not_hold_its_share_is_none(low, high):
    with pytest.raises(UsageError, match="is none"):
        Kept(0.8, low, high)


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE remedy SET rms = 'nan'",
        "UPDATE remedy SET reference_share = 'inf'",
        "UPDATE remedy SET neq = NULL",
        "UPDATE remedy SET neq = elements + 1",
        "UPDATE remedy SET name = 'a\n\n![x](http://x/y.png)'",
        "DELETE FROM remedy WHERE ordinal = 0",
        "UPDATE remedy SET variant_share_low = 2 WHERE ordinal = 3",
        "UPDATE remedy SET turns = 0",
    ],
)
def test_remedies_that_cannot_have_been_measured_are_a_damaged_file(tmp_path, damage):
    store = Store(tmp_path)
    path = store.path_of(remedy_run(store))
    damaged(path, damage)
    with RunReader(path) as run, pytest.raises(StoreError, match="remedies makes no sense") as refused:
        _ = run.remedies
    assert "http" not in str(refused.value)
