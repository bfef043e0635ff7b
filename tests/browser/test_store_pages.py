"""Pages of the store in a real Chromium. Matrix: a cell is clicked, opened and compared.
Ops: a stored run, and a probe of this machine that is cancelled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.runs.ops_run import write_ops_run
from core.runs.store.store import Store
from core.sweeps.ledger import Ledger, run_id_of
from core.sweeps.plan import Cell, read_plan
from tests.browser.driving import Dashboard, picture, settle
from tests.core.runs.test_ops_run import STEADY, header, row_of
from tests.core.sweeps.stand_in import write

ROW, COLUMN = 35, 160  # pixels of a table of few columns: of a row, and well within the first column behind the names


@pytest.fixture
def sweep(dashboard: Dashboard, tmp_path: Path) -> Iterator[tuple[Ledger, tuple[Cell, ...]]]:
    """Two models by two paths; the first cell was good and is a bug now, the others have no run."""
    (tmp_path / "a.txt").write_text("def f():")
    lists = {"models": ["m", "n"], "prompts": ["a.txt"], "paths": ["decode", "chunked:8"]}
    (tmp_path / "browser.toml").write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in lists.items()))
    cells = read_plan(tmp_path / "browser.toml").cells
    store = Store(dashboard.store)
    ledger = Ledger(store)
    ledger.write_plan(read_plan(tmp_path / "browser.toml"))
    for build, moved, verdict in (("1", 0.0, "rounding"), ("2", 2.0, "bug suspected")):
        write(store, run_id_of(cells[0].asked, {"build": build}), cells[0].request, moved=moved, verdict=verdict)
    yield ledger, cells
    for run_id in store.cells():
        store.delete(run_id)
    for path in ledger.folder.rglob("*.json*"):
        path.unlink()


def _click(page: Page, row: int, column: int) -> None:
    """Click a cell of the table, which is drawn on a canvas and has to learn first where the pointer is."""
    place = page.locator("[data-testid=stDataFrame]").first.bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + COLUMN * (column + 1), place["y"] + ROW * (row + 1.5), steps=4)
    page.wait_for_timeout(100)
    page.mouse.down()
    page.wait_for_timeout(50)
    page.mouse.up()


def test_a_cell_leads_to_its_run_and_to_the_other_build(page: Page, dashboard: Dashboard, sweep):
    _, cells = sweep
    page.goto(f"{dashboard.url}/matrix")
    settle(page)
    expect(
        page.get_by_text("4 cells: 3 missing, 1 bug suspected; 1 changed since their last good run.")
    ).to_be_visible()
    _click(page, 0, 0)
    expect(page.get_by_text("0 → 1 flip and rounding → bug suspected")).to_be_visible()
    settle(page)
    picture(page, "matrix")
    page.get_by_role("button", name="Compare with the last good run").click()
    expect(page.locator("h1")).to_have_text("Compare")
    settle(page)
    assert f"with={run_id_of(cells[0].asked, {'build': '1'})}" in page.url
    page.goto(f"{dashboard.url}/matrix")
    settle(page)
    _click(page, 0, 0)
    page.get_by_role("button", name="Open the run").click()
    expect(page.locator("h1")).to_have_text("Overview")
    assert f"run={run_id_of(cells[0].asked, {'build': '2'})}" in page.url


@pytest.mark.thorough
def test_probes_are_shown_and_this_machine_is_probed(page: Page, dashboard: Dashboard):
    store = Store(dashboard.store)
    write_ops_run(store, header(device_name="<b>a card</b>"), [row_of(), STEADY], run_id="a-card")
    page.goto(f"{dashboard.url}/ops?probes=a-card&show=differing")
    settle(page)
    expect(page.locator("h1")).to_have_text("Machine")
    expect(page.get_by_text("1 of 2 probes")).to_be_visible()
    expect(page.locator(".js-plotly-plot")).to_be_visible()
    picture(page, "ops")

    page.get_by_text("Probe this machine").first.click()
    settle(page)
    page.get_by_role("button", name="Probe this machine").click()
    expect(page.get_by_text(re.compile(r"of \d\d probes"))).to_be_visible(
        timeout=300_000
    )  # a job is polite to what else runs
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("cancelled; nothing was stored")).to_be_visible()
    page.get_by_role("button", name="Dismiss").click()
    expect(page.get_by_text("cancelled; nothing was stored")).to_have_count(0)
    store.delete("a-card")
