"""The dashboard in Chromium: from start to first page, opening a page from a link, and a rerun in which no chart changes."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.timing import Line
from tests.browser.driving import chromium, start

ROUNDS = 7
# The key r runs the script again with nothing changed. The promise gives the milliseconds until it has run and rests.
WATCH = """() => {
  const app = document.querySelector("[data-testid=stApp]");
  window.rerun = new Promise((resolve) => {
    let began = 0;
    for (const kind of ["keydown", "pointerdown"])
      document.addEventListener(kind, () => { began = performance.now(); }, { once: true, capture: true });
    const observer = new MutationObserver(() => {
      if (began && app.getAttribute("data-test-script-state") === "notRunning") {
        observer.disconnect();
        resolve(performance.now() - began);
      }
    });
    observer.observe(app, { attributes: true, attributeFilter: ["data-test-script-state"] });
    setTimeout(() => resolve(null), 5000);
  });
}"""


def _rerun(page: Page) -> float:
    """Milliseconds from the key r until the script has run and rests."""
    page.evaluate(WATCH)
    page.keyboard.press("r")
    taken = page.evaluate("window.rerun")
    if taken is None:
        raise RuntimeError("the page did not run again")
    page.wait_for_timeout(300)
    return taken


def _open(page: Page, url: str) -> float:
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("h1", timeout=30_000)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=30_000)
    return time.perf_counter() - began


def run() -> list[Line]:
    lines = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        starts = []
        for number in range(3):
            dashboard = start(Path(folder) / str(number) / "runs")
            page = browser.new_page()
            starts.append((dashboard.ready_seconds, _open(page, dashboard.url)))
            if number < 2:
                page.close()
                dashboard.process.terminate()
                dashboard.process.wait(20)
        ready, first = (statistics.median(column) for column in zip(*starts, strict=True))
        lines.append(
            Line(
                "viewer start to first page",
                "<= 2 s",
                f"{ready + first:.2f} s",
                f"server ready {ready:.2f} s, page {first:.2f} s",
            )
        )
        for name in ("overview", "near_ties", "heatmap", "flips"):
            url = f"{dashboard.url}/{name}?run=fresh-against-cached&prompt=1&position=36"
            opened = statistics.median(_open(page, url) for _ in range(3))
            page.wait_for_timeout(1500)
            reruns = statistics.median(_rerun(page) for _ in range(ROUNDS))
            lines.append(
                Line(
                    f"{name}: rerun, unchanged",
                    "<= 150 ms",
                    f"{reruns:.0f} ms",
                    f"median of {ROUNDS}; opening it by a link {opened:.2f} s",
                )
            )
        dashboard.process.terminate()
        dashboard.process.wait(20)
        browser.close()
    return lines
