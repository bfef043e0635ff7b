"""Sparse pairs as tables for pages: figures by position, the lists of a position, changes by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..topk.pairing import ListPair, ListPosition

if TYPE_CHECKING:
    import pandas as pd


def figures_by_position(pair: ListPair) -> pd.DataFrame:
    """One row a compared position: prompt, position, tokens, margins, the largest change that was sent (`max_abs`).

    is_flip and could_flip are true where what was sent says so; is_flip_open and could_flip_open where it does not say.
    Margins are NaN where the runner-up was not sent; *_margin_ulps are NaN where the side shows no grid.
    """
    import pandas as pd

    rows = [_row(place, pair) for place in pair.positions]
    return pd.DataFrame(rows, index=pd.RangeIndex(len(rows)))


def _row(place: ListPosition, pair: ListPair) -> dict[str, object]:
    figures = place.figures
    row: dict[str, object] = {
        "prompt": place.prompt,
        "position": place.position,
        "is_generated": place.is_generated,
        "is_flip": figures.is_flip is True,
        "is_flip_open": figures.is_flip is None,
        "could_flip": figures.could_flip is True,
        "could_flip_open": figures.could_flip is None,
        "nonfinite_mismatch": 0,
        "listed": figures.common,
        "differing": int(figures.neq.low),
        "max_abs": figures.max_abs.low,
        "max_kl_low": float("nan") if figures.kl is None else figures.kl.low,
        "chosen_change": float("nan") if place.chosen_change is None else place.chosen_change,
    }
    for side, top, ulps in (
        ("reference", figures.reference, place.reference_ulps),
        ("variant", figures.variant, place.variant_ulps),
    ):
        row[f"{side}_token"] = top.token
        row[f"{side}_text"] = None if top.token is None else pair.texts.get(top.token)
        row[f"{side}_margin"] = float("nan") if top.margin is None else top.margin
        row[f"{side}_margin_ulps"] = float("nan") if ulps is None else float(ulps.ulps)
    return row


def telling_position(table: pd.DataFrame) -> tuple[int, int]:
    """(prompt, position) to open a sparse pair at: its first flip, else its largest change."""
    flips = table["is_flip"].to_numpy(bool)
    chosen = int(flips.argmax()) if flips.any() else int(table["max_abs"].to_numpy(float).argmax())
    return int(table["prompt"].iloc[chosen]), int(table["position"].iloc[chosen])


def lists_of(place: ListPosition, pair: ListPair) -> pd.DataFrame:
    """The tokens that either side sent at a position, the reference's best first: token_id, text, both values, both
    ranks from 1 (none where the token is not among the best that were sent), change.
    """
    import pandas as pd

    columns: dict[int, dict[str, object]] = {}
    for side, row in (("reference", place.reference), ("variant", place.variant)):
        known = len(row.values) if row.is_full else row.best
        for rank, (token, value) in enumerate(zip(row.token_ids.tolist(), row.values.tolist(), strict=True)):
            one = columns.setdefault(token, {"token_id": token, "text": pair.texts.get(token)})
            one[side] = value
            one[f"{side}_rank"] = rank + 1 if rank < known else None
    names = ["token_id", "text", "reference", "variant", "reference_rank", "variant_rank"]
    table = pd.DataFrame(list(columns.values()), columns=names)
    table["change"] = table["variant"].astype(float) - table["reference"].astype(float)
    return table.sort_values(["reference", "variant"], ascending=False, na_position="last", ignore_index=True)


def changes_by_rank(pair: ListPair, prompt: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(positions [rows], changes [rows, ranks]): variant minus reference of the token of each of the reference's best
    ranks; NaN where the variant did not send it, or the reference sent fewer.
    """
    places = [place for place in pair.positions if place.prompt == prompt]
    ranks = max((place.reference.best for place in places), default=0)
    found = np.full((len(places), ranks), np.nan)
    for index, place in enumerate(places):
        best = place.reference.token_ids[: place.reference.best]
        _, here, there = np.intersect1d(best, place.variant.token_ids, assume_unique=True, return_indices=True)
        found[index, here] = place.variant.values[there] - place.reference.values[here]
    return np.array([place.position for place in places], np.int64), found
