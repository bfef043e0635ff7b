"""The server behind the pages: what comes and goes in its store while a page is open, and what it
never loads.
"""

import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect

from app.navigation import PAGES
from tests.browser.driving import expect_title, visit
from tests.places import RUNS


def test_a_run_that_arrives_or_goes_while_the_gallery_is_open_is_noticed(
    page,
    dashboard,
):
    visit(page, dashboard)
    # the one before may stand below it until the run of the script ends
    counted = page.get_by_text(re.compile(r"^\d+ runs, worst pair")).first
    before = counted.inner_text()
    dashboard.store.mkdir(exist_ok=True)
    copy = dashboard.store / "arrives.duckdb"
    shutil.copy(RUNS / "batch-1-against-n.duckdb", copy)
    expect(counted).not_to_have_text(before)
    visit(page, dashboard, "overview?run=arrives")
    expect_title(page, "Overview")
    copy.unlink()
    page.get_by_role("link", name="Flips").click()
    expect(page.get_by_text("The run 'arrives' was deleted")).to_be_visible()
    expect_title(page, "Runs")


@pytest.mark.thorough
def test_the_viewer_never_loads_torch(page, dashboard):
    for each in PAGES:
        visit(
            page,
            dashboard,
            f"{'' if each.name == 'runs' else each.name}?run=fresh-against-cached",
        )
    # of the server's process, whatever imported it
    libraries = Path(f"/proc/{dashboard.process.pid}/maps").read_text()
    assert "libtorch" not in libraries
    assert "duckdb" in libraries  # the look at the process does see what it has loaded
