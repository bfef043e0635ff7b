"""Take the pictures of README and docs, of the sample runs in a real Chromium: `python -m
docs.images.take [name ...]`.

A link in place of a name (`report-c=kv_cache?run=...`) takes a picture of that, of the store that
ULPSCOPE_STORE names.
"""

import os
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.scratch import scratch
from tests.browser.driving import chromium, settle
from tests.serving import ROOT, start

FRESH = "run=fresh-against-cached"
CLOSER = "run=where-it-starts"


# by name: the page and its link, and its height
SHOTS = {
    "overview": (f"overview?{FRESH}", 900),
    "heatmap": (f"heatmap?{FRESH}", 900),
    "flips": (f"flips?{FRESH}", 1180),
    "layers": (f"layers?{CLOSER}", 1390),
    "bug-suspected": ("overview?run=injected-bug", 1180),
}


def take(page: Page, url: str, name: str, address: str, height: int) -> None:
    size = {"width": 1280, "height": height}
    page.set_viewport_size(size)
    page.goto(f"{url}/{address}")
    settle(page)
    if name == "heatmap":
        # drawn: with all of its tiles
        canvas = page.locator("canvas[data-state=drawn]").first
        canvas.hover(
            position={"x": 420, "y": 278},
            timeout=120_000,
        )
    page.wait_for_timeout(1000)
    page.screenshot(path=ROOT / "docs" / "images" / f"{name}.png")


def main(names: list[str]) -> None:
    with scratch() as folder:
        store = Path(os.environ.get("ULPSCOPE_STORE") or folder / "runs")
        dashboard = start(
            store,
            samples=str(ROOT / "sample_runs"),
        )
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium(),
                    args=[
                        "--no-sandbox",
                        "--disable-gpu",
                    ],
                )
                page = browser.new_page()
                # of a link the height is that of a page with its figures
                for each in names or SHOTS:
                    name, _, address = each.partition("=")
                    shot = (address, 1100) if address else SHOTS[name]
                    take(page, dashboard.url, name, *shot)
        finally:
            dashboard.process.terminate()
            dashboard.process.wait(20)


if __name__ == "__main__":
    main(sys.argv[1:])
