"""Rows that a verdict rests on."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..file.database import Database
from ..file.evidence import Check, Evidence, figures_of
from ..file.records import FloorRows
from ..file.table import Table

EVIDENCE = Table(
    "evidence",
    """
    -- what supports a verdict: one row per check
    pair INTEGER -- index of the pair
    rung VARCHAR -- group of the check
    checked VARCHAR -- what was checked, which says what the figures are
    side_name VARCHAR NULL -- side that the row is about; null: the pair
    control VARCHAR -- what was run for it
    figures VARCHAR -- JSON object of the check's figures, empty if it could not be made
    outcome VARCHAR -- passed, failed, not available or informative
    says VARCHAR -- what that says, in a line
    """,
)

FLOOR_POSITION = Table(
    "floor_position",
    """
    -- a judged pair and its noise floor, by position
    pair INTEGER -- index of the pair
    compute_dtype VARCHAR -- dtype in which both were computed for the judgment
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index in its prompt
    pair_rms DOUBLE -- root mean square of variant minus reference, logits
    floor_rms DOUBLE -- the same of reorderings of the reference, over all seeds, logits
    """,
)


def insert_evidence(
    database: Database, pair: int, places: NDArray[np.int32], evidence: Sequence[Evidence], floors: Sequence[FloorRows]
) -> None:
    """Insert evidence of a pair and its floors. places: prompt and position of every row of the run. [rows, 2]"""
    if evidence:
        EVIDENCE.insert_records(
            database,
            evidence,
            pair=pair,
            rung=[row.group for row in evidence],
            checked=[row.check.value for row in evidence],
            side_name=[row.side for row in evidence],
            figures=[json.dumps(row.figures.to_json(), allow_nan=False) for row in evidence],
        )
    for floor in floors:
        FLOOR_POSITION.insert(database, pair=pair, prompt=places[:, 0], position=places[:, 1], **vars(floor))


def delete_evidence(database: Database, pair: int) -> None:
    """Delete all evidence of a pair, its floor by position included."""
    for table in (EVIDENCE, FLOOR_POSITION):
        database.execute(f"DELETE FROM {table.name} WHERE pair = ?", [pair])


def read_evidence(database: Database) -> dict[int, list[Evidence]]:
    """Evidence of every judged pair, by its number, in the order of the checks."""
    sql = "SELECT pair, checked, control, figures, outcome, says, side_name FROM evidence"
    of_pairs: dict[int, list[Evidence]] = {}
    with database.decoding("evidence"):
        for pair, checked, control, figures, *rest in database.rows(sql):
            row = Evidence(Check(checked), control, figures_of(Check(checked), figures), *rest)
            of_pairs.setdefault(pair, []).append(row)
        return {pair: sorted(rows, key=lambda row: row.order) for pair, rows in of_pairs.items()}
