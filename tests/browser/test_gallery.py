"""The gallery in a real Chromium: ticks, deletions that are undone, labels and the trash."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from core.runs.store.labels import Labels
from core.runs.store.store import Store
from tests.browser.driving import ROOT, Dashboard, close_tabs, new_tab, picture, settle, start

SAMPLE = ROOT / "tests" / "runs" / "batch-1-against-n.duckdb"
ROW = 33  # pixels


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A dashboard with a store of its own and no sample runs."""
    running = start(tmp_path_factory.mktemp("gallery") / "runs", ULPSCOPE_SAMPLES="")
    yield running
    running.process.terminate()
    running.process.wait(20)


@pytest.fixture
def store(gallery: Dashboard) -> Store:
    """Three runs, newest first: a (tagged), b, c. They are copies of one, so their ids are all that tells them
    apart.
    """
    shutil.rmtree(gallery.store, ignore_errors=True)
    gallery.store.mkdir()
    for name in ("a", "b", "c"):
        shutil.copy(SAMPLE, gallery.store / f"{name}.duckdb")
    Store(gallery.store).label("a", Labels(("first",)))
    return Store(gallery.store)


@pytest.fixture
def opened(visitor: BrowserContext, gallery: Dashboard, store: Store) -> Iterator[Page]:
    page = new_tab(visitor, gallery)
    page.goto(gallery.url)
    settle(page)
    yield page
    exceptions = page.locator("[data-testid=stException]").count()
    page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    close_tabs(visitor)
    visitor.clear_cookies()
    assert exceptions == 0


def click_row(page: Page, row: int, x: int) -> None:
    """x: 17 for the box, 120 for the name; the table is drawn on a canvas."""
    table = page.locator("[data-testid=stDataFrame]").first.bounding_box()
    assert table is not None
    page.mouse.click(table["x"] + x, table["y"] + 52 + ROW * row)


def actions(page: Page):
    return page.locator(".st-key-actions")


def test_a_click_on_a_name_opens_the_run_of_that_row(opened: Page):
    click_row(opened, 1, 120)  # of equal dates the last id comes first: c, b, a
    expect(opened.locator("h1")).to_have_text("Overview")
    settle(opened)
    assert "run=b" in opened.url
    opened.get_by_role("link", name="Runs", exact=True).click()  # and back there, a tick does not open it once more
    expect(opened.locator("h1")).to_have_text("Runs")
    settle(opened)
    click_row(opened, 2, 17)
    expect(actions(opened).get_by_text("Ticked:")).to_be_visible()
    settle(opened)
    expect(opened.locator("h1")).to_have_text("Runs")


@pytest.mark.thorough
def test_several_runs_are_deleted_and_had_back(opened: Page, store: Store):
    click_row(opened, 0, 17)
    settle(opened)
    click_row(opened, 2, 17)
    expect(actions(opened).get_by_text("2 runs ticked")).to_be_visible()
    picture(opened, "gallery-ticked")
    opened.get_by_role("button", name="Delete 2 runs").click()
    expect(opened.get_by_text("Deleted 2 runs.")).to_be_visible()
    expect(opened.get_by_text(re.compile("^1 of 1 runs"))).to_be_visible()
    settle(opened)
    picture(opened, "gallery-undo")
    assert [path.stem for path in store.paths()] == ["b"]
    opened.get_by_role("button", name="Undo").click()
    expect(opened.get_by_text(re.compile("^3 of 3 runs"))).to_be_visible()
    assert [path.stem for path in store.paths()] == ["a", "b", "c"]
    assert store.labels("a") == Labels(("first",))
    assert store.deleted() == []


def test_a_tag_and_a_note_are_typed_saved_and_found_by_others(
    opened: Page, store: Store, browser: Browser, gallery: Dashboard
):
    click_row(opened, 0, 17)
    settle(opened)
    opened.get_by_role("button", name="Tags & note").click()
    field = opened.get_by_role("combobox", name="Tags", exact=True)
    field.fill("<b>new</b>")
    field.press("Enter")
    opened.get_by_role("textbox", name="Note").fill("<img src=x> **loud**")
    picture(opened, "gallery-labels")
    opened.get_by_role("button", name="Save").click()
    expect(actions(opened)).to_contain_text("<img src=x> **loud**")
    assert store.labels("c") == Labels(("<b>new</b>",), "<img src=x> **loud**")
    other = browser.new_context().new_page()
    other.goto(f"{gallery.url}/?search=loud")
    settle(other)
    expect(other.get_by_text(re.compile("^1 of 3 runs"))).to_be_visible()
    assert other.locator("[data-testid=stMain] img").count() == 0
    other.context.close()
