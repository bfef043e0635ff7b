"""The dashboard in a real Chromium: every page on a sample run, the clicks that matter, an upload from file to
picture.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from app import navigation
from tests.browser.driving import ROOT, Dashboard, open_saved, picture, settle, start

FRESH, CLOSER = "run=fresh-against-cached", "run=where-it-starts"
LOOKS = {  # which run a page is looked at with
    "layers": CLOSER,
    "kernels": CLOSER,
    "repeats": "run=batch-1-against-n",
    "compare": f"{FRESH}&with=injected-bug",
}
NO_SCROLL = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
PAGES = {"" if page.name == "runs" else page.name: page.title for page in navigation.PAGES}


def test_a_command_is_copied_as_it_stands(page: Page, dashboard: Dashboard):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{dashboard.url}/kernels?run=fresh-against-cached")
    settle(page)
    page.get_by_text("Not recorded: ").click()
    page.wait_for_timeout(1000)  # it unfolds
    block = page.get_by_test_id("stCode")
    block.hover()
    block.get_by_role("button", name="Copy to clipboard").click()
    shown = block.locator("code").text_content()
    assert shown is not None
    assert " --kernels " in shown
    assert page.evaluate("navigator.clipboard.readText()") == shown


@pytest.mark.thorough
def test_the_start_page_opens_and_a_click_on_a_run_opens_it(page: Page, dashboard: Dashboard):
    page.goto(dashboard.url)
    settle(page)
    expect(page.locator("h1")).to_have_text("Runs")
    table = page.locator("[data-testid=stDataFrame]").first.bounding_box()
    assert table is not None
    page.mouse.click(table["x"] + 120, table["y"] + 52)  # the name in the first row; the table is drawn on a canvas
    expect(page.locator("h1")).to_have_text("Overview")
    assert "run=" in page.url


def test_a_click_on_a_token_selects_its_position_on_every_page(page: Page, dashboard: Dashboard):
    page.goto(f"{dashboard.url}/overview?run=batch-1-against-n&position=0")
    settle(page)
    page.locator(".token[data-position='30']").click()
    expect(page.get_by_role("heading", name="Top tokens at position 30")).to_be_visible()
    assert "position=30" in page.url
    page.get_by_role("link", name="Near ties").click()
    expect(page.locator("h1")).to_have_text("Near ties")
    settle(page)
    expect(page.get_by_role("heading", name="Top tokens at position 30")).to_be_visible()
    assert "position=30" in page.url
    assert "run=batch-1-against-n" in page.url


@pytest.mark.thorough
def test_a_click_on_a_point_of_the_scatter_selects_its_position(page: Page, dashboard: Dashboard):
    page.goto(f"{dashboard.url}/near_ties?run=fresh-against-cached&position=37")
    settle(page)
    flip = (
        page.locator(".js-plotly-plot")
        .first.locator(".scatterlayer .trace")
        .nth(3)
        .locator(".point")
        .first.bounding_box()
    )
    assert flip is not None
    page.mouse.click(flip["x"] + flip["width"] / 2, flip["y"] + flip["height"] / 2)
    expect(page.get_by_role("heading", name=re.compile("Top tokens at position (?!37)"))).to_be_visible()
    settle(page)
    assert "position=37" not in page.url


def test_a_run_that_arrives_or_goes_while_the_gallery_is_open_is_noticed(page: Page, dashboard: Dashboard):
    page.goto(dashboard.url)
    settle(page)
    counted = page.get_by_text(
        re.compile(r"^\d+ of \d+ runs,")
    ).first  # the one before may stand below it until the run of the script ends
    before = counted.inner_text()
    copy = dashboard.store / "arrives.duckdb"
    dashboard.store.mkdir(exist_ok=True)
    copy.write_bytes((ROOT / "tests" / "runs" / "batch-1-against-n.duckdb").read_bytes())
    expect(counted).not_to_have_text(before)
    page.goto(f"{dashboard.url}/overview?run=arrives")
    settle(page)
    expect(page.locator("h1")).to_have_text("Overview")
    copy.unlink()
    page.get_by_role("link", name="Flips").click()
    expect(page.get_by_text("The run 'arrives' was deleted meanwhile")).to_be_visible()
    expect(page.locator("h1")).to_have_text("Runs")


@pytest.mark.thorough
def test_an_uploaded_dump_is_saved_and_shown_on_every_page(page: Page, dashboard: Dashboard):
    page.goto(f"{dashboard.url}/upload")
    settle(page)
    page.locator("input[type=file]").set_input_files(ROOT / "sample_runs" / "dumps" / "fresh_and_cached_upcast.npz")
    expect(page.get_by_role("combobox", name="Reference")).to_be_visible()
    picture(page, "upload-arrived")
    page.get_by_role("button", name="Save as a run").click()
    open_saved(page, "fresh_and_cached_upcast")
    expect(page.locator("h1")).to_have_text("Overview")
    settle(page)
    assert "fresh-and-cached-upcast" in page.url
    expect(page.get_by_text("logits differ;")).to_be_visible()
    for name in ("Near ties", "Heatmap", "Flips"):
        page.get_by_role("link", name=name).first.click()
        expect(page.locator("h1")).to_have_text(name)
        settle(page)
        assert page.locator("[data-testid=stException]").count() == 0
        assert "fresh-and-cached-upcast" in page.url
    assert [path.stem for path in dashboard.store.glob("*fresh-and-cached*.duckdb")] == [
        re.search(r"run=([^&]+)", page.url).group(1)
    ]


@pytest.mark.thorough
@pytest.mark.model
def test_a_capture_started_on_the_page_is_seen_by_others_and_opens_when_done(
    page: Page, dashboard: Dashboard, browser: Browser
):
    page.goto(f"{dashboard.url}/capture")
    settle(page)
    page.get_by_label("Name of the run").fill("From the page")
    page.get_by_label("Name of the run").press("Tab")
    settle(page)
    page.get_by_role("button", name="Capture", exact=True).click()
    other = browser.new_context().new_page()
    other.goto(f"{dashboard.url}/capture")
    expect(other.get_by_text("From the page").first).to_be_visible()
    other.context.close()
    page.get_by_role("link", name="Near ties").click()  # the capture survives a page switch
    expect(page.locator("h1")).to_have_text("Near ties")
    page.get_by_role("link", name="New run", exact=True).click()
    page.get_by_role("button", name="Open run").click(timeout=300_000)
    expect(page.locator("h1")).to_have_text("Overview")
    settle(page)
    assert "from-the-page" in page.url
    expect(page.get_by_text("logits differ;").or_(page.get_by_text("Bit-identical:"))).to_be_visible()


def loaded_libraries(process: subprocess.Popen) -> str:
    return Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.thorough
def test_the_viewer_never_loads_torch(page: Page, dashboard: Dashboard):
    for name in PAGES:
        page.goto(f"{dashboard.url}/{name}?run=fresh-against-cached")
        settle(page)
    libraries = loaded_libraries(dashboard.process)
    assert "libtorch" not in libraries
    assert "duckdb" in libraries  # the look at the process does see what it has loaded


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    running = start(tmp_path_factory.mktemp("shipped") / "runs", ULPSCOPE_SAMPLES=str(ROOT / "sample_runs"))
    yield running
    running.process.terminate()
    running.process.wait(20)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1440, "dark"), (390, "light")])
def test_every_page_stands_on_a_shipped_run(browser: Browser, shipped: Dashboard, width: int, scheme: str):
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    for name, title in PAGES.items():
        page.goto(f"{shipped.url}/{name}?{LOOKS.get(name, FRESH)}")
        settle(page)
        expect(page.locator("h1")).to_have_text(title)
        assert page.locator("[data-testid=stException], [data-testid=stAlertContentError]").count() == 0, name
        assert page.evaluate(NO_SCROLL) <= 0, name
        picture(page, f"shipped-{name}-{width}-{scheme}")
    page.context.close()
