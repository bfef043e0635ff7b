"""Overview of a pair: the position that says most about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def telling_place(table: pd.DataFrame, prompt: int | None = None) -> tuple[int, int]:
    """(prompt, position) to open a pair at: its first flip, else the smallest margin that the differences there could
    turn, else the largest difference, of which NaN or infinity on one side only is the largest; the beginning where
    nothing differs.

    table: the pair's figures by position, as `run.positions` gives them; prompt: the only one to look in.
    """
    rows = table if prompt is None else table[table["prompt"] == prompt]
    largest = rows["max_abs"].fillna(0.0).to_numpy(float)
    could_turn = rows["could_flip"].to_numpy(bool) & (largest > 0)
    if rows["is_flip"].any():
        chosen = int(rows["is_flip"].to_numpy(bool).argmax())
    elif could_turn.any():
        margins = rows[["reference_margin", "variant_margin"]].min(axis=1).to_numpy(float)
        chosen = int(np.where(could_turn, margins, np.inf).argmin())
    else:
        is_mismatch = rows["nonfinite_mismatch"].to_numpy(float) > 0
        chosen = int(np.where(is_mismatch, np.inf, largest).argmax())
    row = rows.iloc[chosen]
    return int(row["prompt"]), int(row["position"])
