"""Size of a run file by what it keeps of its logits, against the logits themselves: a cell of a sweep."""

from __future__ import annotations

from pathlib import Path

from numpy.typing import NDArray

from benchmarks.logits import VOCAB, pair
from benchmarks.scratch import scratch
from benchmarks.timing import Line
from core.numerics.formats import BFLOAT16
from core.runs.file.kept import ALL, FIGURES, FLIPS
from core.runs.file.records import Prompt, Provenance, RunHeader, SideHeader
from core.runs.store.store import Store
from core.runs.writer import RunWriter

ROWS = 512
CHUNKS = (1, 64)  # rows that arrive at a time: from a decode, from a prefill
CELLS = 10_000
TARGETS = {ALL: "<= 1.15", FLIPS: "<= all", FIGURES: "<= 0.01"}


def file_bytes(folder: Path, sides: tuple[NDArray, NDArray], keep: str, chunk: int) -> int:
    """Bytes of the run file of a pair whose rows arrive `chunk` at a time. sides: bits [rows, vocab] each"""
    store = Store(folder)
    header = RunHeader(
        name="cell",
        compute_dtype="bfloat16",
        vocab=VOCAB,
        prompts=(Prompt(ROWS),),
        sides=(SideHeader("reference", "prefill", "bfloat16"), SideHeader("variant", "decode", "bfloat16")),
        provenance=Provenance(kind="capture", model="m"),
        kept=keep,
    )
    with RunWriter(store, header) as writer:
        for side, bits in enumerate(sides):
            for row in range(0, ROWS, chunk):
                writer.write(side, row, bits[row : row + chunk])
        run_id = writer.finish()
    found = store.path_of(run_id).stat().st_size
    store.delete(run_id)
    return found


def run() -> list[Line]:
    sides = pair(BFLOAT16, ROWS)
    raw = sum(bits.nbytes for bits in sides)
    lines = []
    with scratch() as folder:
        for keep in (ALL, FLIPS, FIGURES):
            taken = [file_bytes(folder, sides, keep, chunk) for chunk in CHUNKS]
            lines.append(
                Line(
                    f"--keep {keep}, {ROWS} x {VOCAB} bfloat16",
                    TARGETS[keep],
                    f"{max(taken) / raw:.3f}",
                    f"of {raw / 1e6:.0f} MB of logits, the larger of {' and '.join(map(str, CHUNKS))} rows at a time;"
                    f" {CELLS:,} such cells take {max(taken) * CELLS / 1e9:,.0f} GB; random logits",
                )
            )
    return lines
