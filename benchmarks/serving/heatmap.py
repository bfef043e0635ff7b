"""The heatmap in Chromium on a run of 4096 positions x 128256 tokens: opening the page, zooming in
and out with the wheel, panning.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from playwright.sync_api import Locator, Page, sync_playwright

from benchmarks.logits import VOCAB, pair
from benchmarks.scratch import FOLDER, scratch
from benchmarks.timing import Line
from core.numerics.formats import BFLOAT16
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.browser.driving import chromium
from tests.serving import Server, start

POSITIONS = 4096
# are drawn; the others are these, each time moved along the vocabulary: a second in place of a
# minute
ROWS = 64
FREE_BYTES = 6 << 30
PLACES = ((0.3, 0.3), (0.7, 0.6), (0.5, 0.15))
# halvings: from the whole run to single logits
STEPS = 8
# From the event until the canvas has every tile of the new view and the frame after that.
WATCH = """(canvas) => {
  window.step = new Promise((resolve) => {
    let began = 0;
    const begin = () => { began ||= performance.now(); };
    for (const kind of ["wheel", "pointerup", "click"])
      document.addEventListener(kind, begin, { once: true, capture: true });
    const look = () => {
      if (began && performance.now() - began > 45 && canvas.dataset.state === "drawn")
        requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
      else setTimeout(look, 2);
    };
    look();
    setTimeout(() => resolve(null), 60000);
  });
}"""


def write_run(store: Store, rows: int = POSITIONS) -> str:
    """A bfloat16 run of two sides with what rounding does, 2.1 GB at 4096 rows; returns its id."""
    reference, variant = pair(BFLOAT16, ROWS)
    sides = tuple(SideHeader(name, "", "bfloat16") for name in ("reference", "variant"))
    header = RunHeader(
        "Large",
        "bfloat16",
        VOCAB,
        (Prompt(rows),),
        sides,
        Provenance(kind="upload"),
    )
    with RunWriter(store, header, run_id="large") as writer:
        for row in range(0, rows, ROWS):
            for side, bits in enumerate((reference, variant)):
                writer.write(
                    side,
                    row,
                    np.roll(bits[: min(ROWS, rows - row)], 1021 * (row // ROWS), axis=1),
                )
        return writer.finish()


def _wait_for_map(page: Page) -> Locator:
    page.wait_for_selector("canvas[data-state=drawn]", timeout=60_000)
    return page.locator("canvas[data-state]")


def _step(page: Page, canvas: Locator, act: Callable[[], None]) -> float:
    """Milliseconds of one gesture; then a pause in which the address bar follows."""
    canvas.evaluate(WATCH)
    act()
    milliseconds = page.evaluate("window.step")
    if milliseconds is None:
        raise RuntimeError("the heatmap was not drawn within a minute")
    page.wait_for_timeout(900)
    return milliseconds


def _open(page: Page, url: str) -> float:
    began = time.perf_counter()
    page.goto(url)
    _wait_for_map(page)
    return time.perf_counter() - began


def _gestures(page: Page) -> tuple[list[float], list[float], list[float]]:
    """Milliseconds of steps inwards, steps outwards and pans, at several places of the whole run
    down to single logits.
    """
    inwards, outwards, pans = [], [], []
    canvas = _wait_for_map(page)
    box = canvas.bounding_box()
    assert box is not None
    left, top, width, height = (
        float(v) for v in (canvas.get_attribute("data-plot") or "").split(",")
    )
    for x, y in PLACES:
        place = box["x"] + left + x * width, box["y"] + top + y * height
        for step in range(STEPS):
            page.mouse.move(*place)
            # exp(0.0028 * 248) = 2
            inwards.append(_step(page, canvas, lambda: page.mouse.wheel(0, -248)))
            if step % 3 == 1:
                page.mouse.down()
                page.mouse.move(place[0] + width / 3, place[1] + height / 4, steps=4)
                pans.append(_step(page, canvas, page.mouse.up))
        page.mouse.move(*place)
        outwards += [_step(page, canvas, lambda: page.mouse.wheel(0, 248)) for _ in range(STEPS)]
        # after a pan, steps out need not end at the whole run
        if canvas.get_attribute("data-window") != f"0:{POSITIONS},0:{VOCAB}":
            _step(page, canvas, page.get_by_role("button", name="Whole run").click)
    return inwards, outwards, pans


def _line(what: str, milliseconds: list[float], method: str, target: str = "<= 150 ms") -> Line:
    worst = sorted(milliseconds)[-max(1, len(milliseconds) // 20)]
    return Line(
        what,
        target,
        f"{statistics.median(milliseconds):.0f} ms",
        f"median of {len(milliseconds)}, 95 % within {worst:.0f} ms; {method}",
    )


def _server_megabytes(dashboard: Server) -> int:
    status = Path(f"/proc/{dashboard.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def run() -> list[Line]:
    FOLDER.mkdir(exist_ok=True)
    if shutil.disk_usage(FOLDER).free < FREE_BYTES:
        return [
            Line(
                "heatmap zoom step",
                "<= 150 ms",
                "not measured",
                f"needs {FREE_BYTES >> 30} GB of disk for its run",
            ),
        ]
    size = f"bfloat16, {POSITIONS} x {VOCAB}"
    with scratch() as folder, sync_playwright() as playwright:
        write_run(Store(folder / "runs"))
        browser = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox", "--disable-gpu"],
        )
        dashboard = start(folder / "runs")
        try:
            # a fixed size, for tiles depend on it
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            url = f"{dashboard.url}/heatmap?run=large&order=id"
            first = _open(page, url)
            page.wait_for_timeout(1500)
            open_seconds = statistics.median(_open(page, url) for _ in range(3))
            page.wait_for_timeout(1500)
            inwards, outwards, pans = _gestures(page)
            lines = [
                Line(
                    "heatmap opened by a link",
                    "",
                    f"{open_seconds:.2f} s",
                    f"{size}, until all is drawn; the server's first page {first:.2f} s",
                ),
                _line(
                    "heatmap zoom step in",
                    inwards,
                    f"{size}, wheel, a factor of 2, until every tile is drawn",
                ),
                _line(
                    "heatmap zoom step out",
                    outwards,
                    "the same back; tiles seen before are kept",
                ),
                _line(
                    "heatmap pan",
                    pans,
                    "a third of the width and a quarter of the height, from letting go",
                ),
            ]
            for name, what in (
                ("largest difference", "differences"),
                ("rank", "differences by rank"),
            ):
                canvas = _wait_for_map(page)
                milliseconds = _step(
                    page,
                    canvas,
                    page.get_by_role("button", name=name, exact=True).click,
                )
                lines.append(
                    Line(
                        f"heatmap of {what}, first look",
                        "",
                        f"{milliseconds / 1e3:.1f} s",
                        "whole run, reads all of it; kept then",
                    ),
                )
            lines.append(
                Line(
                    "heatmap, memory of the server",
                    "",
                    f"{_server_megabytes(dashboard)} MB",
                    "resident, after all of that",
                ),
            )
        finally:
            dashboard.process.terminate()
            dashboard.process.wait(20)
            browser.close()
    return lines
