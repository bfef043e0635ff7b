"""Overview of a pair: the position that says most about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .flips import beyond_noise

if TYPE_CHECKING:
    import pandas as pd


def dominating(rms: NDArray[np.float64]) -> int | None:
    """Return the row that holds more than half of a pair's squared difference, and is 10 times the median row; None if
    there is none.

    rms: by row, row ULPs; infinite if the row has NaN or infinity on one side only.
    """
    finite = np.nan_to_num(rms, posinf=1e150)
    largest, squares = int(finite.argmax()), finite**2
    is_far = finite[largest] > 10 * np.median(finite) and squares[largest] > 0.5 * squares.sum()
    return largest if len(squares) > 1 and is_far else None


def telling_place(table: pd.DataFrame, prompt: int | None = None) -> tuple[int, int]:
    """(prompt, position) to open a pair at: the position that dominates the difference, else the first flip beyond the
    noise, else the first flip, else the smallest margin that the differences there could turn, else the largest
    difference; the beginning if nothing differs.

    table: the pair's figures by position, as `run.positions` gives them; prompt: the only one to look in.
    """
    rms = np.where(table["nonfinite_mismatch"].to_numpy(float) > 0, np.inf, table["rms_row_ulps"].to_numpy(float))
    flips = np.stack([beyond_noise(table), table["is_flip"].to_numpy(bool)])
    if prompt is not None:
        is_here = (table["prompt"] == prompt).to_numpy()
        table, rms, flips = table[is_here], rms[is_here], flips[:, is_here]
    largest = table["max_abs"].fillna(0.0).to_numpy(float)
    could_turn = table["could_flip"].to_numpy(bool) & (largest > 0)
    chosen = dominating(rms)
    if chosen is None and flips.any():
        chosen = int(flips[0 if flips[0].any() else 1].argmax())
    elif chosen is None and could_turn.any():
        margins = table[["reference_margin", "variant_margin"]].min(axis=1).to_numpy(float)
        chosen = int(np.where(could_turn, margins, np.inf).argmin())
    elif chosen is None:
        chosen = int(np.where(np.isinf(rms), np.inf, largest).argmax())
    row = table.iloc[chosen]
    return int(row["prompt"]), int(row["position"])
