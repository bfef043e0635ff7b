"""The runs that are shipped, of a real model, in a real Chromium: every page, at every width, in light and in the
dark.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from app.main import PAGES
from tests.browser.driving import ROOT, Dashboard, picture, settle, start

FRESH, CLOSER, BUG = "run=fresh-against-cached", "run=where-it-starts", "run=injected-bug"
LOOKS = {
    "layers": CLOSER,
    "kernels": CLOSER,
    "remedies": CLOSER,
    "repeats": "run=batch-1-against-n",
    "compare": f"{FRESH}&with=injected-bug",
}
NO_SCROLL = "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    running = start(tmp_path_factory.mktemp("shipped") / "runs", ULPSCOPE_SAMPLES=str(ROOT / "sample_runs"))
    yield running
    running.process.terminate()
    running.process.wait(20)


def opened(browser: Browser, dashboard: Dashboard, address: str, width: int = 1280, scheme: str = "light") -> Page:
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.goto(f"{dashboard.url}/{address}")
    settle(page)
    return page


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1440, "dark"), (390, "light")])
def test_every_page_stands_on_a_shipped_run(browser: Browser, shipped: Dashboard, width: int, scheme: str):
    for name, title in PAGES:
        address = f"{'' if name == 'runs' else name}?{LOOKS.get(name, FRESH)}"
        page = opened(browser, shipped, address, width, scheme)
        expect(page.locator("h1")).to_have_text(title)
        assert page.locator("[data-testid=stException], [data-testid=stAlertContentError]").count() == 0, name
        assert page.evaluate(NO_SCROLL) <= 0, name
        picture(page, f"shipped-{name}-{width}-{scheme}")
        page.context.close()


def test_the_overview_of_a_judged_run_stands_above_the_fold(browser: Browser, shipped: Dashboard):
    """Verdict, four figures and the strip of tokens on one screen of 1280 x 900, at the first flip."""
    page = opened(browser, shipped, f"overview?{FRESH}")
    assert "prompt=0&position=9" in page.url
    parts = [".st-key-verdict .stMarkdownBadge", "[data-testid=stMetric] >> nth=3", ".strip .token >> nth=0"]
    for part in parts:
        box = page.locator(part).first.bounding_box()
        assert box is not None, part
        assert box["y"] + box["height"] <= 900, part
    page.context.close()


def test_what_stands_below_the_fold_is_seen_to(browser: Browser, shipped: Dashboard):
    """The twin: on a screen a third as high the strip is not there."""
    page = opened(browser, shipped, f"overview?{FRESH}")
    box = page.locator(".strip .token").first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] > 300
    page.context.close()
