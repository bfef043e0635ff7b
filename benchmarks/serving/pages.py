"""The dashboard in Chromium: from start to first page, every page of a long run opened by a link,
and a step to the next position, on pages without positions a rerun.

A page counts as painted when its script has ended in the browser, all elements in their places;
when the browser first showed anything, and when every table and figure was drawn, those out of
sight too, is reported with it. A browser that was here before is one with a profile on disk, as
people have it: Chromium keeps the code it compiled there, from a script's second visit on, and in a
private window never.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from app.navigation import PAGE_OF, PAGES
from benchmarks.scratch import scratch
from benchmarks.timing import Line
from core.numerics.formats import format_named
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store.store import Store
from core.runs.writer import RunWriter
from tests.browser.driving import chromium
from tests.serving import start

ROUNDS = 7
WARM, BEFORE = 7, 3  # visits that count, and those before them
POSITIONS, VOCAB = 4096, 4096
NAMES = tuple(page.name for page in PAGES)
# The promise gives the milliseconds from a key to the last change of a figure or of the script's
# state.
WATCH = """() => {
  const app = document.querySelector("[data-testid=stApp]");
  const isDrawn = () => app.getAttribute("data-test-script-state") === "notRunning"
    && !document.querySelector(".ulpscope-figure[data-state=waiting]");
  window.rerun = new Promise((resolve) => {
    let began = 0, timer = 0;
    const begin = () => { began = performance.now(); };
    document.addEventListener("keydown", begin, { once: true, capture: true });
    const observer = new MutationObserver(() => {
      const taken = performance.now() - began;
      clearTimeout(timer);
      const end = () => { observer.disconnect(); resolve(taken); };
      if (began && isDrawn()) timer = setTimeout(end, 300);
    });
    const attributeFilter = ["data-test-script-state", "data-state"];
    observer.observe(app, { attributes: true, subtree: true, attributeFilter });
    setTimeout(() => resolve(null), 5000);
  });
}"""


def _rerun(page: Page, key: str) -> float:
    """Milliseconds from a key until the script has run and every figure is drawn anew."""
    page.evaluate(WATCH)
    page.keyboard.press(key)
    milliseconds = page.evaluate("window.rerun")
    if milliseconds is None:
        raise RuntimeError("the page did not run again")
    page.wait_for_timeout(300)
    return milliseconds


def _open(page: Page, url: str) -> float:
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("h1", timeout=30_000)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=30_000)
    return time.perf_counter() - began


def _wait_for_figures(page: Page, began: float) -> float:
    """Seconds until no element is a placeholder and every figure is drawn."""
    for what in ("[data-testid=stSkeleton]", ".ulpscope-figure[data-state=waiting]"):
        page.wait_for_selector(what, state="detached", timeout=30_000)
    return time.perf_counter() - began


def _visits(browser: Browser, profile: BrowserContext, url: str, key: str = "r") -> tuple[str, str]:
    """What was reached: of a browser that was never here, of `profile`, and of a key; and when
    `profile` first showed anything.
    """
    # a new context has no cache, as a browser that was never here
    visitor = browser.new_context()
    cold = _open(visitor.new_page(), url)
    visitor.close()
    warm, paints, full = [], [], []
    for number in range(BEFORE + WARM):
        page = profile.new_page()
        began = time.perf_counter()
        script_end = _open(page, url)
        whole = _wait_for_figures(page, began)
        if number >= BEFORE:
            warm.append(script_end)
            full.append(whole)
            paints.append(
                page.evaluate(
                    "performance.getEntriesByName('first-contentful-paint')[0].startTime",
                ),
            )
        page.wait_for_timeout(400)
        # the last one stays open, for the reruns
        if number + 1 < BEFORE + WARM:
            page.close()
    page.wait_for_timeout(1500)
    # a click gives the page the focus that keys need
    page.locator("h1").click()
    _rerun(page, key)
    reruns = statistics.median(_rerun(page, key) for _ in range(ROUNDS))
    page.close()
    return (
        f"{cold:.2f} s, {statistics.median(warm):.2f} s, {reruns:.0f} ms",
        (
            f"something is seen after {statistics.median(paints) / 1e3:.2f} s, all tables and"
            f" figures after {statistics.median(full):.2f} s"
        ),
    )


def _empty_page(browser: Browser, profile: BrowserContext, folder: Path) -> Line:
    """What Streamlit itself takes here and now: a page of one heading."""
    script = folder / "empty.py"
    script.write_text('import streamlit as st\n\nst.title("empty")\n')
    server = start(folder / "empty" / "runs", script)
    reached, note = _visits(browser, profile, server.url)
    server.process.terminate()
    server.process.wait(20)
    return Line(
        "a Streamlit page of one heading",
        "",
        reached,
        f"the same, in the same run: what is not ours; {note}",
    )


def long_run(folder: Path) -> str:
    """A run of one prompt of POSITIONS positions, with token texts, in the store that is `folder`;
    its id.
    """
    random = np.random.default_rng(0)
    fmt = format_named("bfloat16")
    ids = random.integers(0, VOCAB, POSITIONS)
    texts = tuple(f" word{i}" if i % 7 else f"\nline{i}" for i in ids)
    prompt = Prompt(POSITIONS, tuple(int(i) for i in ids), texts)
    vocabulary = {i: f" word{i}" for i in range(VOCAB)}
    sides = tuple(
        SideHeader(path, path, "bfloat16")
        for path in ("prefill", "decode", "decode+batch:2", "decode+batch:4")
    )
    header = RunHeader(
        "4096 positions",
        "bfloat16",
        VOCAB,
        (prompt,),
        sides,
        Provenance("capture", model="m"),
        vocabulary,
    )
    plain = (random.standard_normal((POSITIONS, VOCAB)) * 3).astype(fmt.values).view(fmt.carrier)
    with RunWriter(Store(folder), header) as writer:
        writer.write(0, 0, plain)
        for side in (1, 2, 3):
            noisy = plain + (random.random(plain.shape) < 0.1 * side).astype(fmt.carrier)
            writer.write(side, 0, noisy)
        return writer.finish()


def run() -> list[Line]:
    lines = []
    with scratch() as folder, sync_playwright() as playwright:
        settings = {"executable_path": chromium(), "args": ["--no-sandbox", "--disable-gpu"]}
        browser = playwright.chromium.launch(**settings)
        profile = playwright.chromium.launch_persistent_context(folder / "profile", **settings)
        starts = []
        for number in range(3):
            dashboard = start(folder / str(number) / "runs")
            page = browser.new_page()
            starts.append((dashboard.ready_seconds, _open(page, dashboard.url)))
            page.close()
            # the last server stays up, for the pages
            if number < 2:
                dashboard.process.terminate()
                dashboard.process.wait(20)
        ready, first = (statistics.median(column) for column in zip(*starts, strict=True))
        lines.append(
            Line(
                "viewer start to first page",
                "<= 1.5 s",
                f"{ready + first:.2f} s",
                f"server ready {ready:.2f} s, page {first:.2f} s",
            ),
        )
        run_id = long_run(folder / "2" / "runs")
        for name in NAMES:
            url = f"{dashboard.url}/{'' if name == 'runs' else name}?run={run_id}&position=36"
            if name == "compare":
                url += "&with=fresh-against-cached"
            key = "j" if PAGE_OF[name].shows == "run" else "r"
            reached, note = _visits(browser, profile, url, key)
            lines.append(
                Line(
                    f"{name}, {POSITIONS} positions",
                    "<= 2 s, 0.6 s, 100 ms",
                    reached,
                    "painted in a browser that was never here, and in one that was (median of"
                    f" {WARM}; {note}), a step to the next position (median of {ROUNDS})",
                ),
            )
        dashboard.process.terminate()
        dashboard.process.wait(20)
        lines.append(_empty_page(browser, profile, folder))
        profile.close()
        browser.close()
    return lines
