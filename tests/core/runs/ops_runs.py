"""Runs of probed operations whose every answer is planted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from core.runs.ops_run import OpsHeader, write_ops_run
from core.runs.store.store import Store
from core.runs.tables.ops import BatchClass, OpRow, Repeats, RowPositions

BATCHES = (1, 2, 3, 4, 8)
MM = OpRow(
    "mm",
    "",
    "float32",
    "256 to 256",
    elements=256,
    repeats=Repeats(25),
    relative_rms=3e-7,
    classes=(BatchClass((1, 2, 3), "a" * 16), BatchClass((4, 8), "b" * 16, 231, 1792)),
    positions=(RowPositions(3, ((0, 1, 2),)),),
)
SOFTMAX = replace(MM, op="softmax", size="width 256", classes=(BatchClass(BATCHES, "c" * 16),))


def probed(
    store: Store, run_id: str, *rows: OpRow, chip: str = "A processor", minute: int = 0, device: str = "cpu"
) -> str:
    """Put a run with these answers into the store; its id."""
    about = OpsHeader(
        run_id,
        device,
        chip,
        ("float32", "bfloat16"),
        0,
        "ulpscope ops --quick",
        versions={"torch": "2.13.0", "threads": "2"},
        created=datetime(2026, 11, 21, 7, minute, tzinfo=UTC),
    )
    return write_ops_run(store, about, rows, run_id=run_id)
