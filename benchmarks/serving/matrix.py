"""The Matrix page of a sweep of 10,000 cells, of which 9,800 have two builds, in Chromium: opened, run again, looked at
by another figure, filtered, clicked, and live while a cell is computed.

The run files are one, linked under every name; the figures are planted in the sweep's cards. A pause is how long the
browser's thread answers to nobody (its longest task).
"""

from __future__ import annotations

import json
import os
import random
import statistics
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.scratch import scratch
from benchmarks.serving.pages import WATCH
from benchmarks.timing import Line
from core.runs.file.records import BUG_SUSPECTED, IDENTICAL, ROUNDING
from core.runs.store.store import SUFFIX, Store
from core.sweeps.ledger import Ledger, run_id_of
from core.sweeps.plan import SweepPlan, read_plan
from tests.browser.driving import chromium, settle, start
from tests.core.sweeps.stand_in import write

ROUNDS = 7
BUILDS = ("1", "2")
PAUSES = """() => {
  window.pauses = [];
  new PerformanceObserver((list) => window.pauses.push(...list.getEntries().map((one) => one.duration)))
    .observe({ type: "longtask", buffered: true });
}"""


def large_plan(folder: Path) -> SweepPlan:
    """10 models x 20 prompts x 25 paths x 2 dtypes."""
    folder.mkdir()
    for number in range(20):
        (folder / f"p{number}.txt").write_text(f"def f{number}():")
    lists = {
        "models": [f"m{number}" for number in range(10)],
        "prompts": [f"p{number}.txt" for number in range(20)],
        "paths": [f"prefill+batch:{size}" for size in range(2, 27)],
        "dtypes": ["bfloat16", "float32"],
    }
    text = "\n".join(f"{key} = {json.dumps(values)}" for key, values in lists.items())
    (folder / "large.toml").write_text(text)
    return read_plan(folder / "large.toml")


def fill(store: Store, plan: SweepPlan) -> None:
    """Every cell but one in fifty has a run of each build, with figures of its own."""
    ledger, chance = Ledger(store), random.Random(0)
    ledger.keep(plan)
    first = run_id_of(plan.cells[1].asked, {"build": BUILDS[0]})
    write(store, first, plan.cells[1].request, moved=2.0)
    card = ledger.cards()[first]
    verdicts = [ROUNDING] * 40 + [IDENTICAL] * 9 + [BUG_SUSPECTED]
    lines = []
    for number, cell in enumerate(plan.cells):
        for build in BUILDS if number % 50 else ():
            run_id = run_id_of(cell.asked, {"build": build})
            if run_id != first:
                os.link(store.directory / f"{first}{SUFFIX}", store.directory / f"{run_id}{SUFFIX}")
            figures = {
                "verdict": chance.choice(verdicts),
                "noise_ratio": 3 * chance.random(),
                "flips": chance.randrange(4),
                "neq_share": chance.random(),
                "bits": ("a" * 64, chance.choice("bc") * 64),
                "growth": [10 ** (chance.random() - 2 + block / 20) for block in range(30)],
            }
            one = replace(card, run_id=run_id, created=f"2026-11-2{build}T00:00:00+00:00", versions={"build": build})
            lines.append(json.dumps({**one.__dict__, **figures}))
    (ledger.folder / "cards.jsonl").write_text("\n".join([*lines, ""]))


def _press(page: Page, x: float, y: float) -> None:
    """Click a cell of a table as a hand does: the table, drawn on a canvas, first learns where the pointer is."""
    page.mouse.move(x, y, steps=4)
    page.wait_for_timeout(100)
    page.evaluate(WATCH)
    page.mouse.down()
    page.wait_for_timeout(50)
    page.mouse.up()


class Viewer:
    """Does one thing after another on the page and keeps how long the script took to rest, and the longest pause."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.took: dict[str, list[float]] = {}
        self.pauses: dict[str, list[float]] = {}

    def does(self, name: str, act: object) -> None:
        """Milliseconds from the last key or click of `act` to the script's rest."""
        page = self._page
        page.evaluate("window.pauses.length = 0")
        page.evaluate(WATCH)
        act()
        taken = page.evaluate("window.rerun")
        if taken is None:
            raise RuntimeError(f"{name}: the page did not run again")
        page.wait_for_timeout(600)
        self.took.setdefault(name, []).append(taken)
        self.pauses.setdefault(name, []).append(max(page.evaluate("window.pauses"), default=0.0))

    def chooses(self, label: str, option: str) -> None:
        self._page.get_by_role("combobox", name=label).click()
        self._page.get_by_role("option", name=option, exact=True).wait_for()
        self._page.evaluate(WATCH)
        self._page.get_by_role("option", name=option, exact=True).click()

    def lines(self) -> list[Line]:
        return [
            Line(
                f"Matrix of 10,000 cells: {name}",
                "<= 150 ms",
                f"{max(self.pauses[name]):.0f} ms longest pause",
                f"script at rest after {statistics.median(taken):.0f} ms, median of {len(taken)}",
            )
            for name, taken in self.took.items()
        ]


def run() -> list[Line]:
    with scratch() as folder, sync_playwright() as playwright:
        store = Store(folder / "server" / "runs")
        store.directory.mkdir(parents=True)
        plan = large_plan(folder / "plan")
        fill(store, plan)
        server = start(store.directory, ULPSCOPE_SAMPLES="")
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        try:
            page.goto(f"{server.url}/matrix")
            settle(page)
            page.evaluate(PAUSES)
            page.wait_for_timeout(500)
            viewer = Viewer(page)
            for number in range(ROUNDS):
                viewer.does("run again", lambda: page.keyboard.press("r"))
                viewer.does("another figure", lambda n=number: viewer.chooses("Figure", ("flips", "verdict")[n % 2]))
                viewer.does("a filter", lambda n=number: viewer.chooses("path", ("prefill+batch:4", "any")[n % 2]))
                place = page.locator("[data-testid=stDataFrame]").bounding_box()
                assert place is not None
                x, y = place["x"] + 300, place["y"] + 60 + 35 * (number % 5)
                viewer.does("a cell", lambda x=x, y=y: _press(page, x, y))
            page.keyboard.press("r")
            page.wait_for_timeout(1000)
            with Ledger(store).claim(plan.cells[0].asked):
                page.keyboard.press("r")
                page.wait_for_timeout(500)
                page.evaluate("window.pauses.length = 0")
                page.wait_for_timeout(10_000)
                live = page.evaluate("window.pauses")
        finally:
            browser.close()
            server.process.terminate()
            server.process.wait(20)
    watched = Line(
        "Matrix of 10,000 cells: ten seconds live",
        "<= 150 ms",
        f"{max(live, default=0):.0f} ms longest pause",
        "a cell is being computed: drawn anew every two seconds",
    )
    return [*viewer.lines(), watched]
