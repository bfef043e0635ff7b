"""Rows of `kernel` and `kernel_side`: what each side of a run launched, written once and read back whole."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from core.runs.database import Database
from core.runs.kernels import KernelList, KernelRow


def insert_kernels(database: Database, listed: KernelList) -> None:
    """Of one side, in the order of its rows."""
    database.execute("INSERT INTO kernel_side VALUES (?, ?, ?)", [listed.side, listed.forwards, listed.of])
    rows = listed.rows
    database.insert(
        "kernel",
        pa.table(
            {
                "side": np.full(len(rows), listed.side, np.int32),
                "ordinal": np.arange(len(rows), dtype=np.int32),
                "module": pa.array([row.module for row in rows], pa.string()),
                "library": pa.array([row.library for row in rows], pa.string()),
                "name": pa.array([row.name for row in rows], pa.string()),
                "detail": pa.array([row.detail for row in rows], pa.string()),
                "launches": np.array([row.launches for row in rows], np.int64),
                "microseconds": np.array([row.microseconds for row in rows], np.float64),
            }
        ),
    )


def read_kernels(database: Database) -> dict[int, KernelList]:
    """By side; empty where the capture did not watch them."""
    found: dict[int, list[KernelRow]] = {}
    for side, *row in database.rows(
        "SELECT side, module, library, name, detail, launches, microseconds FROM kernel ORDER BY side, ordinal"
    ):
        found.setdefault(side, []).append(KernelRow(*row))
    counts = database.rows("SELECT side, forwards, forwards_of FROM kernel_side ORDER BY side")
    return {side: KernelList(side, tuple(found.get(side, ())), looked, total) for side, looked, total in counts}
