"""Near ties of a pair in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...numerics.divergence import NEAR_TIE_ROW_ULPS
from ...text import number, out_of, plural

if TYPE_CHECKING:
    import pandas as pd


def sentence(table: pd.DataFrame, dtype: str) -> str:
    """A sentence on how many positions are near ties, how many of them flip, and the nearest one, in markdown.

    table: rows of the pair's figures by position.
    """
    near, total = table[table["near_tie"]], len(table)
    if near.empty:
        margins = table[["reference_margin", "variant_margin"]].min(axis=1)
        if margins.isna().all():
            return f"**No position of {total:,} has a finite margin**, so nothing says which could flip."
        closest = table.loc[margins.idxmin()]
        return (
            f"**No position of {total:,} is a near tie** (margin at most {NEAR_TIE_ROW_ULPS} row ULPs): the smallest"
            f" margin is {number(float(margins.min()))} logits, at position {closest['position']}, where logits differ"
            f" by at most {number(float(closest['max_abs']))}."
        )
    flips = int(near["is_flip"].sum())
    steps = near[["reference_margin_ulps", "variant_margin_ulps"]].min(axis=None)
    one = len(near) == 1
    said = "and it flips" if flips == 1 else "and it does not flip"
    if not one:
        said = "none of which flips" if not flips else f"{flips:,} of which flip{'s' if flips == 1 else ''}"
    return (
        f"**{out_of(len(near), total)} positions {'is a near tie' if one else 'are near ties'}** (margin at most"
        f" {NEAR_TIE_ROW_ULPS} row ULPs), {said}; the smallest margin is {plural(int(steps), 'ULP')} of {dtype}."
    )
