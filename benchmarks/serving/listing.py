"""The gallery of a store with a thousand runs: listing them, searching their prompts, and the page in Chromium."""

from __future__ import annotations

import shutil
import statistics

import numpy as np
from playwright.sync_api import sync_playwright

from benchmarks.logits import pair
from benchmarks.scratch import scratch
from benchmarks.serving.pages import ROUNDS, _rerun
from benchmarks.timing import Line, interleaved
from core.judging.ingest import ingest
from core.numerics.formats import BFLOAT16
from core.runs.store import labels
from core.runs.store.cards import list_runs, prompt_texts
from core.runs.store.store import Store
from tests.browser.driving import chromium, settle, start

RUNS = 1000
POSITIONS = 256


def run() -> list[Line]:
    a, b = pair(BFLOAT16, rows=POSITIONS, vocab=64)
    tokens = [f"word{number} " for number in range(POSITIONS)]
    with scratch() as folder:
        np.savez(
            folder / "dump.npz",
            reference=a,
            variant=b,
            compute_dtype="bfloat16",
            token_ids=np.arange(POSITIONS) % 64,
            tokens=tokens,
        )
        store = Store(folder / "store")
        first = store.path_of(ingest(store, [folder / "dump.npz"]))
        for number in range(RUNS - 1):
            shutil.copy(first, first.with_name(f"{first.stem}-{number}{first.suffix}"))
        for path in store.paths():
            labels.write(store.directory, path.stem, labels.Labels((f"tag {len(path.stem) % 7}",), "a note"))

        def listing() -> None:
            cards, broken = list_runs(store)
            assert len(cards) == RUNS
            assert not broken

        def prompts() -> None:
            assert all(text.startswith("word0 word1 ") for text in prompt_texts(store.paths()).values())

        def labelled() -> None:
            assert len(labels.read_all(store.directory)[0]) == RUNS

        seconds = interleaved({"list": listing, "prompts": prompts, "labels": labelled}, 3)
        reruns, sought = _in_the_browser(store)
    how = "one file copied under new names, all in the page cache; median of 3"
    page = f"median of {ROUNDS} in Chromium"
    return [
        Line(f"list {RUNS} runs", "<= 1 s", f"{seconds['list']:.2f} s", how),
        Line(
            f"read the prompts of {RUNS} runs, at the first search",
            "",
            f"{seconds['prompts']:.2f} s",
            f"{how}; {POSITIONS} tokens each",
        ),
        Line(
            f"read the tags and notes of {RUNS} runs",
            "",
            f"{seconds['labels'] * 1000:.0f} ms",
            "a file each; median of 3",
        ),
        Line(f"gallery of {RUNS} runs: rerun, unchanged", "<= 150 ms", f"{reruns:.0f} ms", page),
        Line(
            f"gallery of {RUNS} runs: rerun while prompts are searched",
            "<= 150 ms",
            f"{sought:.0f} ms",
            f"{page}; every run is found",
        ),
    ]


def _in_the_browser(store: Store) -> tuple[float, float]:
    """Milliseconds of a rerun of the gallery: as it opens, and with a search that every prompt answers."""
    dashboard = start(store.directory, ULPSCOPE_SAMPLES="")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            medians = []
            for asked in ("", "?search=word7"):
                page.goto(f"{dashboard.url}/{asked}")
                page.get_by_text(f"{RUNS:,} of {RUNS:,} runs").wait_for(timeout=60_000)
                settle(page)
                page.wait_for_timeout(1500)
                medians.append(statistics.median(_rerun(page) for _ in range(ROUNDS)))
            browser.close()
    finally:
        dashboard.process.terminate()
        dashboard.process.wait(20)
    return medians[0], medians[1]
