"""Nothing jumps: once a page's heading is there, neither the rest of the page that arrives nor a step of the position
moves what is read.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from app import navigation
from tests.browser.driving import Dashboard, pause, settle, visit

GOOD = 0.1  # cumulative layout shift, the bound of web.dev/articles/cls for a good page
RUN = "run=fresh-against-cached&variant=decode&prompt=0&position=144"
QUERIES = {
    "heatmap": "run=batch-1-against-n&position=89&token=100",
    "repeats": "run=batch-1-against-n",
    "compare": f"{RUN}&with=batch-1-against-n,injected-bug",
    "layers": "run=where-it-starts",
}
FIXED = ("runs", "ops", "capture", "probe", "upload", "matrix")  # which show no position
# The browser's own measure, of every shift that no click or key of a person caused, from the frame on in which the
# page's heading and the style sheet that keeps room (app/shell/room.css, in the sidebar) are both there: what is seen
# before that is Streamlit's empty page.
WATCH = """
window.shifts = [];
window.begun = null;
const look = () => {
  if (!document.querySelector("[data-testid=stMain] h1")
    || !document.querySelector("[data-testid=stSidebar] style")) return requestAnimationFrame(look);
  requestAnimationFrame(() => requestAnimationFrame(() => { window.begun = performance.now(); }));
};
requestAnimationFrame(look);
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifts.push([shift.startTime, shift.value]);
}).observe({ type: "layout-shift", buffered: true });
"""
# An event of a script's own is no input of a person, so what follows it is counted.
STEP = "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight', bubbles: true }))"
SHIFTED = "(from) => window.shifts.filter(([at]) => at > from).reduce((sum, [, value]) => sum + value, 0)"


@pytest.fixture
def watched(browser: Browser, dashboard: Dashboard) -> Page:
    """A viewer who was here before: the scripts of the widgets have been fetched once."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    visit(page, dashboard)
    page.add_init_script(WATCH)
    return page


@pytest.mark.thorough
def test_no_page_jumps_while_it_loads_or_while_positions_are_stepped(watched: Page, dashboard: Dashboard):
    found: dict[str, float] = {}
    for name in (page.name for page in navigation.PAGES):
        query = "" if name in FIXED else QUERIES.get(name, RUN)
        visit(watched, dashboard, f"{'' if name == 'runs' else name}?{query}")
        found[name] = watched.evaluate(SHIFTED, watched.evaluate("window.begun"))
        if name not in FIXED:
            now, before = watched.evaluate("[performance.now(), location.search]")
            watched.evaluate(STEP)
            # by the address: a function to wait for would be evaluated, which the pages' policy does not allow
            watched.wait_for_url(lambda url, before=before: urlsplit(url).query != before.removeprefix("?"))
            settle(watched)
            found[f"{name}, stepped"] = watched.evaluate(SHIFTED, now)
    assert {name: round(value, 3) for name, value in found.items() if value >= GOOD} == {}


@pytest.mark.thorough
def test_a_page_that_jumps_would_be_seen(watched: Page, dashboard: Dashboard):
    """The twin: a block that arrives late above what is read."""
    visit(watched, dashboard, "capture")
    now = watched.evaluate("performance.now()")
    watched.evaluate(
        "() => { const late = document.createElement('div'); late.style.height = '300px';"
        " document.querySelector('[data-testid=stMainBlockContainer]').prepend(late); }"
    )
    pause(watched, 300)
    assert watched.evaluate(SHIFTED, now) >= GOOD
