"""Torch operations probed on one machine: what each keeps bit for bit.

Three questions to an operation, each asked of its bits: does a call repeat itself, is row 0 the
same alone and among N rows (*batch-invariant*), and is a row the same at every index of a batch
(*position-invariant*).
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..file.database import Database
from ..file.table import Table

OP = Table(
    "op",
    """
    -- torch operations probed on one machine, one row per operation, dtype and size; filled in runs
    -- of kind ops only
    probe INTEGER -- 0-based number, in the order of probing
    op VARCHAR -- name of the operation
    backend VARCHAR -- backend of attention; empty for other operations
    dtype VARCHAR -- dtype of its inputs and result; ULPs are counted in it
    size VARCHAR -- size of one row of its inputs, and of what the rows share
    modules VARCHAR -- modules of run.model that have this size; empty otherwise
    elements BIGINT -- elements of the result of one row
    rows_tried INTEGER -- rows that were row 0 of batches of their own; the classes are over all of
    -- them
    is_repeatable BOOLEAN NULL -- every call gave the bits of the first at its batch size; null if
    -- not asked
    calls BIGINT NULL -- calls made, over all batch sizes
    differing_calls BIGINT NULL -- calls that gave other bits than the first at their batch size
    worst_batch BIGINT NULL -- batch size of the call with most differing elements; 0 if none
    -- differs
    worst_call BIGINT NULL -- its 0-based number at that batch size
    worst_neq BIGINT NULL -- its elements that differ from the first call
    worst_elements BIGINT NULL -- its elements in all
    worst_max_ulps BIGINT NULL -- its largest distance to the first call, ULPs of the dtype
    is_batch_invariant BOOLEAN NULL -- row 0 has the same bits at every batch size; null if not
    -- asked or without meaning (see note)
    batch_classes VARCHAR -- JSON: batch sizes of equal bits of row 0, first that of batch 1; digest
    -- of the bits, elements that differ from batch 1, largest distance in ULPs
    batch_neq BIGINT NULL -- most elements of the rows tried that differ from batch 1 in any class
    batch_max_ulps BIGINT NULL -- largest distance of row 0 to batch 1 in any class, ULPs of the
    -- dtype
    is_position_invariant BOOLEAN NULL -- one row at every index of a batch has the same bits; null
    -- if not asked
    row_positions VARCHAR -- JSON: for each batch size, the indices of a batch of one row's copies
    -- in groups of equal bits
    relative_rms DOUBLE NULL -- rms of row 0 alone minus a float64 computation of it, over the rms
    -- of the latter
    seconds DOUBLE -- wall time of the probe, seconds
    note VARCHAR -- why a question was not asked, or not at every batch size; empty otherwise
    refusal VARCHAR -- why the machine does not have the operation, one sentence; empty if it was
    -- measured
    """,
)
OpRow = dict[str, Any]
"""A row by its columns, without `probe`; batch_classes and row_positions as lists."""
_JSON = ("batch_classes", "row_positions")
_EMPTY = {"modules": "", "elements": 0, "rows_tried": 1, "seconds": 0.0, "note": "", "refusal": ""}


def title(row: OpRow) -> str:
    """Return the name of a row's operation, with the backend of an attention."""
    return f"{row['op']} ({row['backend']})" if row["backend"] else row["op"]


def whole_row(**columns: Any) -> OpRow:
    """Return a row; columns that were not probed are empty."""
    return dict.fromkeys(OP.names[1:]) | _EMPTY | {name: [] for name in _JSON} | columns


def insert_ops(database: Database, rows: Sequence[OpRow]) -> None:
    """Insert the rows in their order."""
    columns = {name: [row[name] for row in rows] for name in OP.names[1:]}
    columns |= {name: list(map(json.dumps, columns[name])) for name in _JSON}
    OP.insert(database, probe=np.arange(len(rows)), **columns)


def read_ops(database: Database) -> list[OpRow]:
    """Read the rows in their order."""
    rows = database.table("SELECT * EXCLUDE (probe) FROM op ORDER BY probe").to_pylist()
    with database.decoding("list of probes"):
        return [row | {name: json.loads(row[name]) for name in _JSON} for row in rows]


def answers(row: OpRow) -> dict[str, str]:
    """Words for the three questions: `same`, what differs, `not asked` or why the machine lacks the
    operation.
    """
    if row["refusal"]:
        return {
            "run to run": f"not available: {row['refusal']}",
            "batch size": "",
            "row position": "",
        }
    repeat, batch, position = (
        {True: "same", None: "not asked"}.get(row[question], "")
        for question in ("is_repeatable", "is_batch_invariant", "is_position_invariant")
    )
    if not repeat:
        repeat = (
            f"{row['differing_calls']:,} of {row['calls']:,} calls differ, up to"
            f" {row['worst_max_ulps']:,} ULPs"
        )
    if not batch:
        sizes = sorted(size for each in row["batch_classes"][1:] for size in each["batches"])
        share = f"{row['batch_neq']:,} of {row['elements'] * row['rows_tried']:,} elements"
        batch = (
            f"differs at {', '.join(map(str, sizes))}: {share}, up to {row['batch_max_ulps']:,}"
            " ULPs"
        )
    if not position:
        uneven = [str(each["batch"]) for each in row["row_positions"] if len(each["groups"]) > 1]
        position = f"differs in batches of {', '.join(uneven)}"
    return {"run to run": repeat, "batch size": batch, "row position": position}
