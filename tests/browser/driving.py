"""Driving a page of a dashboard."""

import os
import re
import shutil
from contextlib import suppress

import pytest
from playwright.sync_api import TimeoutError, expect

# the path of a Firefox to drive in Chromium's place, by WebDriver BiDi
FIREFOX = os.environ.get("ULPSCOPE_FIREFOX", "")
# BiDi sets no theme, so Firefox has the light one
BACK = {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 21, 27)"}
if FIREFOX:
    del BACK["dark"]


def not_in_firefox(what):
    """Skip a test in Firefox for want of a command of BiDi."""
    return pytest.mark.skipif(bool(FIREFOX), reason=f"WebDriver BiDi: no {what}")


def chromium():
    """The browser to drive: ULPSCOPE_CHROMIUM, else the first of the usual names; the tests fail
    without one, they never skip.
    """
    for name in (
        os.environ.get("ULPSCOPE_CHROMIUM", ""),
        "chromium",
        "chromium-browser",
        "google-chrome",
    ):
        if name and (path := shutil.which(name)):
            return path
    raise RuntimeError("no Chromium was found; install one or set ULPSCOPE_CHROMIUM to its path")


# the first tab of a dashboard in a browser profile
_homes = {}


def new_tab(context, dashboard):
    """A tab without history, in the process of a first one that stays open: what that has compiled
    of the dashboard's scripts is not compiled again, half of what a page takes to open. Every
    dashboard has a first tab of its own: what was asked of one that had just gone from one server
    to another was now and then never answered.
    """
    if (context, dashboard.url) not in _homes:
        home = _homes[context, dashboard.url] = context.new_page()
        home.goto(f"{dashboard.url}/_stcore/health")  # of the same origin, and runs nothing
    home = _homes[context, dashboard.url]
    with home.expect_popup() as popup:
        home.evaluate("() => void window.open('about:blank')")
    return popup.value


def close_tabs(context):
    """All but the first tab of each dashboard."""
    for page in context.pages:
        if page not in _homes.values():
            page.close()


# Resolves when no script runs and nothing of the page has changed for a while: what a click starts
# is begun by then, charts are drawn. What is evaluated in a page is waited for without an end by
# the browser's driver, so this has one of its own.
QUIET = """() => new Promise((resolve, reject) => {
  let timer;
  const begun = performance.now();
  const wait = () => { clearTimeout(timer); timer = setTimeout(look, 250); };
  const look = () => {
    const app = document.querySelector("[data-testid=stApp]");
    const state = app?.getAttribute("data-test-script-state");
    const late = performance.now() - begun > 120000;
    if (state !== "notRunning" && !late) return wait();
    clearInterval(patience);
    observer.disconnect();
    if (late) reject(new Error(`not at rest after two minutes: the page's script is ${state}`));
    else resolve();
  };
  const observer = new MutationObserver(wait);
  const changes = { subtree: true, childList: true, characterData: true, attributes: true };
  observer.observe(document.documentElement, changes);
  const ends = performance.now() + 4000;  // something may change for ever: a bar of progress
  const patience = setInterval(() => {
    if (performance.now() < ends) return;
    observer.disconnect();
    look();
  }, 250);
  wait();
})"""


def settle(page):
    """Wait until no script runs, the code of every kind of element is there, every figure is drawn
    and the page has come to rest.
    """
    page.wait_for_selector(
        "[data-testid=stApp][data-test-script-state=notRunning]",
        timeout=120_000,
    )
    # in the place of an element whose code is on its way
    page.wait_for_selector("[data-testid=stSkeleton]", state="detached", timeout=120_000)
    page.evaluate(QUIET)
    page.wait_for_selector(
        ".ulpscope-figure[data-state=waiting]",
        state="detached",
        timeout=120_000,
    )


def visit(page, dashboard, path=""):
    """Open an address of a dashboard."""
    page.goto(f"{dashboard.url}/{path}")
    settle(page)


def expect_title(page, title):
    """Wait for the page of this title, and until it has come to rest."""
    expect(page.locator("h1")).to_have_text(title)
    settle(page)


def expect_heading(page, name, is_exact=True):
    """Wait for a heading, and until the page has come to rest."""
    expect(page.get_by_role("heading", name=name, exact=is_exact)).to_be_visible()
    settle(page)


def press(page, name, is_exact=False):
    """Click a button."""
    page.get_by_role("button", name=name, exact=is_exact).click()


def click_row(page, text, x=120):
    """Click the first row of a table in which a cell has this text; 17 pixels from the left is the
    box that ticks it.

    A table is drawn on a canvas, whose fallback names the cells: `glide-cell-COLUMN-ROW`.
    """
    cell = (
        page.locator("[data-testid=stDataFrame] td")
        .filter(has_text=re.compile(f"^{re.escape(text)}$"))
        .first
    )
    cell.wait_for(state="attached")
    row = int(cell.get_attribute("id").rpartition("-")[2])
    cell.locator("xpath=ancestor::*[@data-testid='stDataFrame']").click(
        position={"x": x, "y": 52 + 33 * row},
    )


def pause(page, milliseconds):
    """Wait by the page's own clock and two frames more, so that what it had to do by then is done,
    however busy its machine is. A hidden page draws no frames: it fails after a minute.
    """
    page.evaluate(
        """(ms) => new Promise((done, fail) => {
          setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), ms);
          setTimeout(() => fail(new Error("the page draws no frames")), ms + 60000);
        })""",
        milliseconds,
    )


def choose(page, label, option):
    """An option of a select box, opened again if a redraw closed it."""
    for _ in range(3):
        page.get_by_role("combobox", name=re.compile(label)).click()
        with suppress(TimeoutError):
            page.get_by_role("option", name=option, exact=True).click(timeout=4_000)
            break
    settle(page)


def wait_for_map(page):
    pause(page, 80)  # a change of the view is noticed at once, its tiles are asked for 40 ms later
    page.wait_for_selector("canvas[data-state=drawn]")
    return page.locator("canvas[data-state]")


def window(canvas):
    """First and last row, first and last column of what is drawn."""
    rows, columns = canvas.get_attribute("data-window").split(",")
    return (*map(float, rows.split(":")), *map(float, columns.split(":")))


def place(canvas, row, column):
    """Where on the screen a row and column are drawn."""
    box = canvas.bounding_box()
    left, top, width, height = map(float, canvas.get_attribute("data-plot").split(","))
    y0, y1, x0, x1 = window(canvas)
    return (
        box["x"] + left + (column - x0) / (x1 - x0) * width,
        box["y"] + top + (row - y0) / (y1 - y0) * height,
    )
