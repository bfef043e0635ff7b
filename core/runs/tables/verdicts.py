"""Rows that a verdict rests on, into a run file that is being written."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..file.database import Database
from ..file.records import Evidence, FloorRows


def insert_evidence(
    database: Database, pair: int, places: NDArray[np.int32], evidence: Sequence[Evidence], floors: Sequence[FloorRows]
) -> None:
    """Evidence of a pair and its floors by position; `places`: prompt and position of every row of the run. [rows,
    2]
    """
    for row in evidence:
        figures = json.dumps(row.figures, allow_nan=False)
        values = [pair, row.rung, row.control, figures, row.outcome, row.says]
        database.execute("INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?)", values)
    for floor in floors:
        columns = {
            "pair": np.full(len(places), pair, np.int32),
            "compute_dtype": pa.array([floor.compute_dtype] * len(places), pa.string()),
            "prompt": places[:, 0],
            "position": places[:, 1],
            "pair_rms": floor.pair_rms,
            "floor_rms": floor.floor_rms,
        }
        database.insert("floor_position", pa.table(columns))
