"""Elements of a run for a page, put together from the file: the logits at a position, one logit, the worst elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import UsageError
from ...numerics.elements import distances, mismatch_mark
from ...numerics.formats import values_of
from ..reader import RunReader

if TYPE_CHECKING:
    import pandas as pd


def row_of(run: RunReader, prompt: int, position: int) -> int:
    """The row of a position: prompts lie one after another."""
    return sum(p.positions for p in run.header.prompts[:prompt]) + position


def place_of(run: RunReader, row: int) -> tuple[int, int]:
    """(prompt, position) of a row."""
    first = 0
    for index, prompt in enumerate(run.header.prompts):
        if first <= row < first + prompt.positions:
            return index, row - first
        first += prompt.positions
    raise UsageError(f"row {row} asked for; the run has {first} rows.")


def _texts(run: RunReader, token_ids: Iterable[int]) -> pd.Series:
    """Token texts, None where unknown; of dtype object, because a text column would turn None into NaN."""
    import pandas as pd

    return pd.Series([run.vocabulary.get(int(token)) for token in token_ids], dtype=object)


def top_of_both(run: RunReader, pair: int, prompt: int, position: int, count: int = 8) -> pd.DataFrame:
    """The tokens that are among the `count` best of either side, best of the reference first.

    Columns: token_id, text (null if unknown), reference_logit, variant_logit, reference_rank, variant_rank (1 is the
    argmax), and the probabilities of both sides. If the run keeps no logits: of tokens that are among the stored best
    of both sides.
    """
    import pandas as pd

    sides = (0, pair + 1)
    tops = [run.top_tokens(side, prompt, position) for side in sides]
    ids = list(dict.fromkeys([*tops[0]["token_id"][:count], *tops[1]["token_id"][:count]]))
    row = row_of(run, prompt, position)
    stored = [top.set_index("token_id") for top in tops]
    if not run.has_all_logits:
        ids = [token for token in ids if all(token in top.index for top in stored)]
    table = {"token_id": ids, "text": _texts(run, ids)}
    for name, side, top in zip(("reference", "variant"), sides, stored, strict=True):
        if run.has_all_logits:
            logits = values_of(run.at(side, prompt, position), run.header.format).astype(np.float64)
            chosen = logits[ids]
            table[f"{name}_rank"] = [rank_of(logits, token) for token in ids]
        else:
            chosen = top["logit"].loc[ids].to_numpy(np.float64)
            table[f"{name}_rank"] = top["rank"].loc[ids].tolist()
        table[f"{name}_logit"] = chosen
        with np.errstate(invalid="ignore"):  # +inf - +inf: the probability is undefined
            table[f"{name}_probability"] = np.exp(chosen - run.logsumexp(side)[row])
    return pd.DataFrame(table)


def rank_of(logits: NDArray[np.float64], token: int) -> int:
    """The token's place by its logit, 1 is the argmax: equal ones stand in order of their ids, NaNs come last in order
    of theirs.
    """
    value = logits[token]
    if np.isnan(value):
        return 1 + int((~np.isnan(logits)).sum() + np.isnan(logits[:token]).sum())
    return 1 + int((logits > value).sum() + (logits[:token] == value).sum())


def worst_elements(
    run: RunReader, pair: int, prompt: int, position: int, count: int = 12, *, by_ulps: bool = False
) -> pd.DataFrame:
    """The elements of a position that are furthest apart, by absolute difference or by ULPs: token_id, text, both
    logits, difference, row_ulps, ulps.

    A NaN or infinity that is not met by the same comes first, with null for the last three.
    """
    import pandas as pd

    fmt = run.header.format
    bits = [run.at(side, prompt, position) for side in (0, pair + 1)]
    reference, variant = (values_of(b, fmt).astype(np.float64) for b in bits)
    ulps = distances(bits[0], bits[1], fmt)
    is_mismatch = ulps == mismatch_mark(fmt)
    with np.errstate(invalid="ignore"):
        difference = np.where(ulps == 0, 0.0, variant - reference)
    size = np.where(is_mismatch, np.inf, ulps.astype(np.float64) if by_ulps else np.abs(difference))
    row = row_of(run, prompt, position)
    spacing = run.spacing(pair, (row, row + 1))
    order = np.argsort(-size, kind="stable")[: min(count, int((ulps > 0).sum()))]
    return pd.DataFrame(
        {
            "token_id": order,
            "text": _texts(run, order),
            "reference_logit": reference[order],
            "variant_logit": variant[order],
            "difference": np.where(is_mismatch[order], np.nan, difference[order]),
            "row_ulps": np.where(is_mismatch[order], np.nan, np.abs(difference[order]) / spacing),
            "ulps": pd.array(np.where(is_mismatch[order], 0, ulps[order]).astype(np.int64), "Int64"),
        }
    ).assign(ulps=lambda table: table["ulps"].mask(is_mismatch[order]))
