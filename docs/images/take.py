"""Take the pictures of README and docs, of the sample runs in a real Chromium: `python -m
docs.images.take [name ...]`.

A link in place of a name (`report-c=kv_cache?run=...`) takes a picture of that, of the store that
ULPSCOPE_STORE names.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.scratch import scratch
from tests.browser.driving import chromium, settle
from tests.serving import ROOT, start

FRESH = "run=fresh-against-cached"
CLOSER = "run=where-it-starts"


@dataclass(frozen=True)
class Shot:
    """One picture: its page and link, its height, what is pressed first, and over which part the
    mouse rests.
    """

    address: str
    height: int
    press: str = ""
    over: str = ""


SHOTS = {
    "overview": Shot(f"overview?{FRESH}", 900),
    "heatmap": Shot(f"heatmap?{FRESH}", 900, over="canvas[data-state=drawn]"),
    "flips": Shot(f"flips?{FRESH}", 1180),
    "layers": Shot(f"layers?{CLOSER}", 1240),
    "bug-suspected": Shot("overview?run=injected-bug", 1180),
}


def take(page: Page, url: str, name: str, shot: Shot) -> None:
    page.set_viewport_size({"width": 1280, "height": shot.height})
    page.goto(f"{url}/{shot.address}")
    settle(page)
    if shot.press:
        page.locator(shot.press).first.click()
        settle(page)
    if shot.over:
        page.wait_for_selector(shot.over, timeout=120_000)  # with all of its tiles
        page.locator(shot.over).first.hover(position={"x": 420, "y": 278})
    page.wait_for_timeout(1000)
    page.screenshot(path=ROOT / "docs" / "images" / f"{name}.png")


def main(names: list[str]) -> None:
    with scratch() as folder:
        store = Path(os.environ.get("ULPSCOPE_STORE") or folder / "runs")
        dashboard = start(store, samples=str(ROOT / "sample_runs"))
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium(),
                    args=["--no-sandbox", "--disable-gpu"],
                )
                page = browser.new_page()
                for name, _, address in (each.partition("=") for each in names or SHOTS):
                    take(page, dashboard.url, name, Shot(address, 1100) if address else SHOTS[name])
        finally:
            dashboard.process.terminate()
            dashboard.process.wait(20)


if __name__ == "__main__":
    main(sys.argv[1:])
