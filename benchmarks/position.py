"""One position's logits, both sides, from the store: what a click on a token costs."""

from __future__ import annotations

import statistics
import time

import numpy as np

from benchmarks.logits import POSITIONS, VOCAB, pair
from benchmarks.scratch import scratch
from benchmarks.timing import Line
from core.judging.ingest import ingest
from core.numerics.formats import BFLOAT16
from core.runs.reader import RunReader
from core.runs.store.store import Store

DRAWS = 60


def run() -> list[Line]:
    a, b = pair(BFLOAT16)
    with scratch() as folder:
        np.savez(folder / "dump.npz", reference=a, variant=b, compute_dtype="bfloat16")
        store = Store(folder / "store")
        path = store.path_of(ingest(store, [folder / "dump.npz"]))
        positions = np.random.default_rng(0).integers(0, POSITIONS, DRAWS).tolist()

        def seconds(reader, position):
            began = time.perf_counter()
            both = [reader.at(side, 0, position) for side in (0, 1)]
            elapsed = time.perf_counter() - began
            assert np.array_equal(both[0], a[position])
            assert np.array_equal(both[1], b[position])
            return elapsed

        with RunReader(path) as reader:
            seconds(reader, 0)
            warm = statistics.median(seconds(reader, position) for position in positions)
        first, opening = [], []
        for position in positions[:20]:
            began = time.perf_counter()
            with RunReader(path) as reader:
                opening.append(time.perf_counter() - began)
                first.append(seconds(reader, position))
    method = (
        f"bfloat16, vocabulary {VOCAB}, random positions of {POSITIONS}, file in the page cache;"
        " median of"
    )
    return [
        Line("one position, both sides", "<= 5 ms", f"{warm * 1e3:.1f} ms", f"{method} {DRAWS}"),
        Line(
            "  first read of a reader just opened",
            "",
            f"{statistics.median(first) * 1e3:.1f} ms",
            f"opening it: {statistics.median(opening) * 1e3:.1f} ms; medians of 20",
        ),
    ]
