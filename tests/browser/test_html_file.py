"""The HTML file of a run, opened from a disk: no request, no script, in both themes, by
keyboard.
"""

import pytest
from playwright.sync_api import expect

from core.document.page import html_file
from core.runs.reader import RunReader
from tests.browser.conftest import what_went_wrong
from tests.browser.driving import BACK, not_in_firefox, visit
from tests.browser.test_accessibility import NO_SCROLL, faults
from tests.places import RUNS

SAMPLE = RUNS / "fresh-against-cached.duckdb"


@pytest.fixture
def address(tmp_path):
    with RunReader(SAMPLE) as run:
        (tmp_path / "run.html").write_text(html_file(run), encoding="utf-8")
    return (tmp_path / "run.html").as_uri()


@not_in_firefox("requests of files")
@pytest.mark.parametrize("scheme", BACK)
def test_it_opens_from_a_disk_without_a_network(scheme, browser, address):
    context = browser.new_context(
        viewport={"width": 1440, "height": 900},
        color_scheme=scheme,
        offline=True,
    )
    tab = context.new_page()
    problems, requests = what_went_wrong(tab), []
    tab.on("request", lambda request: requests.append(request.url))
    tab.goto(address)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == BACK[scheme]
    titles = ["Checks", "Tokens", "Flips", "Near ties", "Heatmap", "KV cache"]
    expect(tab.locator("h3")).to_have_text(titles)
    picture = tab.locator("image").evaluate(
        "image => image.decode ? 1 : image.getBoundingClientRect().width",
    )
    assert picture > 0
    assert (
        tab.locator(".strip .h100").first.evaluate(
            "token => getComputedStyle(token).backgroundColor",
        )
        == "rgba(213, 94, 0, 0.75)"
    )
    tab.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for width in (1440, 390):
        tab.set_viewport_size({"width": width, "height": 900})
        assert faults(tab) == []
        assert tab.evaluate(NO_SCROLL) <= 0
    assert requests == [address]
    assert problems == []


@not_in_firefox("media of print")
def test_tables_are_printed_in_whole(browser, address):
    tab = browser.new_context(viewport={"width": 720, "height": 900}).new_page()  # about A4
    tab.goto(address)
    toggle = "open => document.querySelectorAll('details').forEach(each => { each.open = open; })"
    tab.evaluate(toggle, True)
    hidden = (
        "each => each.scrollHeight > each.clientHeight + 1 || each.scrollWidth >"
        " each.clientWidth + 1"
    )
    cut = f"[...document.querySelectorAll('.box')].filter({hidden}).length"
    assert tab.evaluate(cut) > 0
    tab.evaluate(toggle, False)
    tab.emulate_media(media="print")
    assert tab.evaluate(cut) == 0
    shown = "[...document.querySelectorAll('table')].every(each => each.clientHeight)"
    assert tab.evaluate(shown)


def test_the_keyboard_goes_through_it_in_order_and_from_a_flip_to_its_row(
    browser,
    address,
):
    tab = browser.new_context().new_page()
    tab.goto(address)
    stops = []
    for _ in range(40):
        tab.keyboard.press("Tab")
        stop = tab.evaluate(
            "document.activeElement.getAttribute('aria-label') || document.activeElement.tagName",
        )
        if stop == "BODY":
            break
        # Firefox also stops at what scrolls
        if stop != "P":
            stops.append(stop)
    links = tab.locator(".strip a").count()
    assert stops == ["SUMMARY", "Checks", *["A"] * links, "SUMMARY", "Flips", *["SUMMARY"] * 2]
    tab.locator(".strip a").last.focus()
    tab.keyboard.press("Enter")
    row = tab.locator("tr:target")
    expect(row).to_have_count(1)
    expect(row).to_be_in_viewport()


def test_a_page_offers_it(page, dashboard):
    visit(page, dashboard, "near_ties?run=fresh-against-cached")
    with page.expect_download() as download:
        page.get_by_role("link", name="HTML file").click()
    # app/api/test_runs.py has what is in it
    assert download.value.suggested_filename == "fresh-against-cached.html"
