"""Mitigations of a pair on the Internals page."""

from __future__ import annotations

from core.runs.tables.remedies import advice
from tests.app.opening import open_page, plain
from tests.core.runs.remedy_runs import ROWS, remedy_run


def test_remedies_are_a_table_with_the_advice_above_it(own_store):
    app = open_page("mitigations", run=remedy_run(own_store))
    (table,) = [frame.value for frame in app.dataframe if "variant_share" in frame.value]
    assert table["name"].tolist() == ["as it is", "float32", "invariant"]
    assert table["variant_share"].tolist() == [1.0, 0.6, 0.75]
    assert advice(ROWS) in plain(app)
    assert ROWS[2].refusal in plain(app)


def test_a_pair_without_mitigations_has_no_tab(own_store):
    app = open_page("internals", run=remedy_run(own_store, rows=()))
    assert "Mitigations" not in [tab.label for tab in app.tabs]
