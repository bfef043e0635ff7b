"""A dump on disk becomes a stored, analysed run; against writing the same bytes to the same disk
and waiting for them (fsync).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from benchmarks.logits import pair
from benchmarks.scratch import scratch
from benchmarks.timing import Line, interleaved
from core.judging.ingest import ingest
from core.numerics.formats import BFLOAT16, widen
from core.runs.store.store import Store

ROUNDS = 5


def raw_write(source: Path, target: Path) -> None:
    """The bytes of `source`, which the page cache holds, to `target` and to disk."""
    with source.open("rb") as file, target.open("wb") as out:
        while chunk := file.read(8 << 20):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    target.unlink()


def take_in(dump: Path, directory: Path) -> None:
    store = Store(directory)
    store.delete(ingest(store, [dump]))


def run() -> list[Line]:
    a, b = pair(BFLOAT16)
    lines = []
    with scratch() as folder:
        narrow, wide = folder / "narrow.npz", folder / "wide.npz"
        np.savez(narrow, reference=a, variant=b, compute_dtype="bfloat16")
        np.savez(
            wide,
            reference=widen(a, BFLOAT16).view(np.float32),
            variant=widen(b, BFLOAT16).view(np.float32),
        )
        del a, b
        # not timed: the first call compiles the kernel if it is not cached
        take_in(narrow, folder / "store")
        seconds = interleaved(
            {
                "narrow": lambda: take_in(narrow, folder / "store"),
                "raw narrow": lambda: raw_write(narrow, folder / "raw"),
                "wide": lambda: take_in(wide, folder / "store"),
                "raw wide": lambda: raw_write(wide, folder / "raw"),
            },
            ROUNDS,
        )
        for path, what in ((narrow, "bfloat16 bits"), (wide, "the same as float32")):
            size, ours, raw = (
                path.stat().st_size / 1e6,
                seconds[path.stem],
                seconds[f"raw {path.stem}"],
            )
            lines.append(
                Line(
                    f"ingest, {size:.0f} MB npz of {what}",
                    ">= 0.7",
                    f"{raw / ours:.2f}",
                    f"{size / ours:.0f} MB/s of dump, raw write + fsync {size / raw:.0f} MB/s;"
                    f" medians of {ROUNDS}",
                ),
            )
    return lines
