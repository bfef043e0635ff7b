"""The gallery of a store with a thousand runs."""

from __future__ import annotations

import shutil

import numpy as np

from benchmarks.logits import pair
from benchmarks.scratch import scratch
from benchmarks.timing import Line, interleaved
from core.numerics.formats import BFLOAT16
from core.runs.gallery import list_runs
from core.runs.store import Store
from core.uploads.ingest import ingest

RUNS = 1000


def run() -> list[Line]:
    a, b = pair(BFLOAT16, rows=4, vocab=2048)
    with scratch() as folder:
        np.savez(folder / "dump.npz", reference=a, variant=b, compute_dtype="bfloat16")
        store = Store(folder / "store")
        first = store.path_of(ingest(store, [folder / "dump.npz"]))
        for number in range(RUNS - 1):
            shutil.copy(first, first.with_name(f"{first.stem}-{number}{first.suffix}"))

        def listing() -> None:
            cards, broken = list_runs(store)
            assert len(cards) == RUNS
            assert not broken

        seconds = interleaved({"list": listing}, 3)["list"]
    return [
        Line(
            f"list {RUNS} runs",
            "<= 1 s",
            f"{seconds:.2f} s",
            "one file copied under new names, all in the page cache; median of 3",
        )
    ]
