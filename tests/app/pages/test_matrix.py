"""Sweeps on the Compare page, over real runs of cells whose figures are planted."""

import base64
import shutil

import numpy as np
import pytest

from app.compare import sweeps
from core.sweeps.history import change_of
from core.sweeps.ledger import FAILED, CellOutcome, Ledger, run_id_of
from core.sweeps.plan import read_plan
from tests.app.opening import click, enter, figures_of, open_page, page_text, table_of
from tests.core.sweeps.conftest import plan_file  # noqa: F401  (a fixture)
from tests.core.sweeps.stand_in import write
from tests.places import ROOT

SAMPLES = ROOT / "sample_runs"


@pytest.fixture
def sweep(bare_store, plan_file):  # noqa: F811
    """Two models by two paths: one changed to a bug, one is as it was, one failed, one is
    missing.
    """
    store = bare_store
    store.directory.mkdir()
    file = plan_file(name="night*ly", models=["m", "n"], paths=["decode", "chunked:8"])
    ledger = Ledger(store)
    for build in ("1", "2"):
        plan = read_plan(file, build)
        changed, same, failed, _ = plan.cells
        is_new = build == "2"
        for cell, moved, verdict in (
            (changed, 2.0 * is_new, "bug suspected" if is_new else "rounding"),
            (same, 0.5, "rounding"),
        ):
            write(
                store,
                run_id_of(cell.digest, {"build": build}),
                cell.request,
                moved=moved,
                verdict=verdict,
            )
    ledger.record(CellOutcome(failed, FAILED, says="no <b>room</b>"))
    ledger.write_plan(plan)
    return (
        ledger,
        run_id_of(changed.digest, {"build": "2"}),
        run_id_of(changed.digest, {"build": "1"}),
    )


def _grid(app):
    frame = table_of(app)
    return [list(frame.columns), *frame.to_numpy().tolist()]


def test_cells_are_a_table_of_the_two_axes_that_vary(sweep):
    app = open_page("sweeps")
    assert (
        "night*ly**: 4 cells: 1 bug suspected, 1 rounding, 1 failed, 1 missing; 1 changed"
        in page_text(app)
    )
    assert _grid(app) == [
        ["", "decode", "chunked:8"],
        ["m", "Δ bug suspected", "rounding"],
        ["n", "failed", "missing"],
    ]


def test_the_axes_and_the_figure_are_in_the_link(sweep):
    app = open_page("sweeps", down="path", across="model", figure="flips")
    assert _grid(app) == [
        ["", "m", "n"],
        ["decode", "Δ 1", "failed"],
        ["chunked:8", "0", "missing"],
    ]
    enter(app, "selectbox", "matrix_figure", "neq_share")
    assert app.query_params["figure"] == "neq_share"
    assert _grid(app)[1][1] == "Δ 12.5%"


def test_cells_are_exported_with_what_changed(sweep):
    ledger, now, _ = sweep
    (plan,) = ledger.plans()
    table = sweeps.export_cells([change_of(state) for state in ledger.states(plan.cells)])
    assert list(table["state"]) == ["done", "done", "failed", "missing"]
    assert table["run"][0] == now
    assert table["changed"][0] == "bits, flips, verdict"


def test_a_cell_leads_to_its_run_and_to_the_last_good_one(sweep):
    _, now, before = sweep
    for button, page, said in (
        ("matrix_open", "Overview", {"run": now}),
        ("matrix_compare", "Compare", {"run": now, "with": before}),
    ):
        app = open_page("sweeps")
        assert button not in [each.key for each in app.button]
        app.session_state["matrix"] = {
            "selection": {"rows": [], "columns": [], "cells": [(0, "decode")]},
        }
        app.run()
        assert "0 -> 1 flip" in page_text(app)
        click(app, button)
        assert app.title[0].value == page
        assert {name: app.query_params[name] for name in said} == said


def test_the_growth_over_layers_stands_below_where_modules_were_compared(sweep):
    ledger, now, before = sweep
    assert not figures_of(open_page("sweeps"))
    store = ledger.store
    for run_id in (now, before):
        store.path_of(run_id).unlink()
        shutil.copy(SAMPLES / "where-it-starts.duckdb", store.directory / f"{run_id}.duckdb")
    shutil.rmtree(ledger.folder / "cards")
    app = open_page("sweeps")
    (shown,) = figures_of(app)
    then, latest = shown["figure"]["data"]
    growth = Ledger(store).cards()[now].growth
    drawn = np.frombuffer(base64.b64decode(latest["y"]["bdata"]))
    np.testing.assert_allclose(drawn, [value or np.nan for value in growth])  # a log axis has no 0
    assert latest["y"] == then["y"]
    assert then["line"]["dash"] == "dot"
    assert latest["customdata"] == [[0]] * len(growth)
