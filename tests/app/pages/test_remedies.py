"""The Remedies page on planted rows, and on a run without any."""

from __future__ import annotations

import dataclasses

import pytest

from tests.app.opening import codes, opened
from tests.core.runs.remedy_runs import ROWS, remedy_run
from tests.core.runs.test_remedies import WITHOUT_SPREAD

pytestmark = pytest.mark.usefixtures("own_store")


def test_the_table_has_what_is_left_and_what_it_costs(own_store):
    app = opened("remedies", run=remedy_run(own_store))
    assert any(element.value.startswith("**invariant** makes the sides equal") for element in app.markdown)
    table = app.dataframe[0].value
    assert table["remedy"].tolist() == ["as it is", "float32", "invariant"]
    assert table["differing logits"].tolist() == ["600 of 900 (66.7%)", "700 of 900 (77.8%)", "0 of 900 (0.0%)"]
    assert table["reference keeps"].tolist() == ["1", "0.50 ± 0.03", "0.80 ± 0.02"]
    assert table["variant keeps"].tolist() == ["1", "0.60 ± 0.01", "0.75 ± 0.02"]
    assert table["variant, tokens/s"].tolist() == [100.0, 60.0, 75.0]
    assert any("medians of 6 turns" in element.value for element in app.caption)
    assert any("**TF32 off**: TF32 exists on CUDA only" in element.value for element in app.markdown)


def test_a_run_without_remedies_says_what_to_do(own_store):
    app = opened("remedies", run=remedy_run(own_store, rows=()))
    assert "without trying remedies" in app.info[0].value
    assert codes(app) == []  # of a run that does not say by which command it was made, no other is shown


def test_an_older_runs_shares_have_one_digit_and_no_rates_that_contradict_them(own_store):
    """Its rates and its shares come from other rounds of the clock."""
    rows = tuple(dataclasses.replace(row, **WITHOUT_SPREAD) for row in ROWS)
    app = opened("remedies", run=remedy_run(own_store, rows=rows))
    table = app.dataframe[0].value
    assert table["variant keeps"].tolist() == ["about 1", "about 0.6", "about 0.8"]
    assert table["variant, tokens/s"].isna().all()
    assert any("without their spread" in element.value for element in app.caption)
