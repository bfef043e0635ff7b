"""The heatmap in Chromium on a run of 4096 positions x 128256 tokens: opening the page, zooming in and out with the wheel, panning."""

from __future__ import annotations

import numpy as np

from benchmarks.logits import VOCAB, pair
from core.numerics.formats import BFLOAT16
from core.runs.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store import Store
from core.runs.writer import RunWriter

POSITIONS = 4096
ROWS = 64  # are drawn; the others are these, each time moved along the vocabulary: a second in place of a minute
FREE_BYTES = 6 << 30


def write_run(store: Store, rows: int = POSITIONS) -> str:
    """A bfloat16 run of two sides with what rounding does, 2.1 GB at 4096 rows; returns its id."""
    reference, variant = pair(BFLOAT16, ROWS)
    sides = tuple(SideHeader(name, "", "bfloat16") for name in ("reference", "variant"))
    header = RunHeader("Large", "bfloat16", VOCAB, (Prompt(rows),), sides, Provenance(kind="upload"))
    with RunWriter(store, header, run_id="large") as writer:
        for row in range(0, rows, ROWS):
            for side, bits in enumerate((reference, variant)):
                writer.write(side, row, np.roll(bits[: min(ROWS, rows - row)], 1021 * (row // ROWS), axis=1))
        return writer.finish()
