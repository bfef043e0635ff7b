"""A run with remedies whose every figure is planted."""

from __future__ import annotations

from core.runs.store.store import Store
from core.runs.tables.remedies import RemedyRow
from core.runs.writer import RunWriter
from tests.core.runs.made_runs import calm_sides, header_of

ROWS = (
    RemedyRow(
        "as it is",
        "Nothing.",
        "bfloat16",
        900,
        600,
        0.25,
        0.02,
        40,
        3,
        1.1,
        1000.0,
        100.0,
        1.0,
        1.0,
        "",
        1.0,
        1.0,
        1.0,
        1.0,
        6,
    ),
    RemedyRow(
        "float32",
        "Wide.",
        "float32",
        900,
        700,
        1e-5,
        2e-6,
        90_000,
        0,
        0.0001,
        500.0,
        60.0,
        0.5,
        0.6,
        "",
        0.48,
        0.53,
        0.59,
        0.6,
        6,
    ),
    RemedyRow("TF32 off", "Full operands.", "bfloat16", refusal="TF32 exists on CUDA only."),
    RemedyRow(
        "invariant",
        "One order.",
        "bfloat16",
        900,
        0,
        0.0,
        0.0,
        0,
        0,
        0.0,
        800.0,
        75.0,
        0.8,
        0.75,
        "",
        0.78,
        0.81,
        0.74,
        0.77,
        6,
    ),
)


def remedy_run(store: Store, run_id: str = "remedies", rows: tuple[RemedyRow, ...] = ROWS) -> str:
    header = header_of(lengths=(3,))
    with RunWriter(store, header, run_id=run_id) as writer:
        for side, bits in enumerate(calm_sides(header)):
            writer.write(side, 0, bits)
        if rows:
            writer.write_remedies(0, rows)
        return writer.finish()
