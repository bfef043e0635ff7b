"""Logits of a run at one position: the top tokens of both sides, and every element or the largest
differences.
"""

from collections.abc import Mapping

import numpy as np

from ... import places
from ...errors import UsageError
from ...numerics.arrays import DataFrame, Floats
from ...numerics.formats import ordinals, values_of
from ..reader import RunReader

_WORST = 12  # elements


def place_of(run: RunReader, row: int) -> tuple[int, int]:
    """Return (prompt, position) of a row."""
    if not 0 <= row < run.header.rows:
        raise UsageError(f"row {row} does not exist; the run has {run.header.rows} rows.")
    return places.place_of(row, run.header.lengths)


def with_texts(run: RunReader, table: DataFrame) -> DataFrame:
    """Return a table with `text` behind its `token_id`, None if unknown; as objects, or None would
    become NaN.
    """
    import pandas as pd

    texts = pd.Series([run.vocabulary.get(token) for token in table["token_id"]], dtype=object)
    table = table.reset_index(drop=True)
    table.insert(1, "text", texts)
    return table


def with_argmax_texts(run: RunReader, table: DataFrame) -> DataFrame:
    """Return figures by position with `reference_text` and `variant_text` of the argmaxes, None if
    unknown.
    """
    sides = "reference", "variant"
    texts = {f"{side}_text": table[f"{side}_token"].map(run.vocabulary) for side in sides}
    return table.assign(**texts)


def top_of_sides(
    run: RunReader,
    sides: Mapping[str, int],
    prompt: int,
    position: int,
    count: int = 8,
) -> DataFrame:
    """Return the tokens that are among the `count` best of a side, best of the first side first:
    token_id, text, and of each side logit, rank (1 is the argmax) and probability. sides: indices
    by the name that their columns begin with.

    If the run keeps no logits: of tokens that are among the stored top tokens of all sides; of
    lists every token that a side sent, null if it did not.
    """
    import pandas as pd

    tops = run.top_tokens([*sides.values()], prompt, position)
    ids = list(dict.fromkeys(token for top in tops for token in top.index[:count]))
    if run.has_all_logits:
        bits = run.at_sides([*sides.values()], prompt, position)
        for place, row in enumerate(values_of(bits, run.header.format).astype(np.float64)):
            of_ids = pd.DataFrame({"logit": row[ids]}, ids)
            of_ids["rank"] = [rank_of(row, token) for token in ids]
            # +inf - +inf: the probability is undefined
            with np.errstate(invalid="ignore"):
                of_ids["probability"] = np.exp(row[ids] - tops[place]["logsumexp"].max())
            tops[place] = of_ids
    elif not run.header.is_list:
        ids = [token for token in ids if all(token in top.index for top in tops)]
        tops = [top.loc[ids] for top in tops]
    figures = ["rank", "logit", "probability"]
    tables = [top[figures].add_prefix(f"{side}_") for side, top in zip(sides, tops, strict=True)]
    every = pd.concat(tables, axis=1).rename_axis("token_id").reset_index()
    if run.header.is_list:
        every = every.sort_values([f"{side}_rank" for side in sides])
    return with_texts(run, every)


def rank_of(logits: Floats, token: int) -> int:
    """Return the token's place by its logit, 1 is the argmax: equal ones stand in order of their
    ids, NaNs come last in order of theirs.
    """
    value = logits[token]
    if np.isnan(value):
        return 1 + int((~np.isnan(logits)).sum() + np.isnan(logits[:token]).sum())
    return 1 + int((logits > value).sum() + (logits[:token] == value).sum())


def every_element(run: RunReader, pair: int, prompt: int, position: int) -> DataFrame:
    """Return every logit of a position, one row per token id: token_id, both logits, difference
    (variant - reference), row_ulps, ulps; the last three null if a NaN or infinity is on one side
    only.
    """
    import pandas as pd

    fmt = run.header.format
    bits = run.at_sides((0, pair + 1), prompt, position)
    row = sum(run.header.lengths[:prompt]) + position
    # signalling NaNs and infinity less infinity raise the flag
    with np.errstate(invalid="ignore"):
        reference, variant = (values_of(side, fmt).astype(np.float64) for side in bits)
        is_same = (reference == variant) | (np.isnan(reference) & np.isnan(variant))
        is_mismatch = ~is_same & ~(np.isfinite(reference) & np.isfinite(variant))
        difference = np.where(is_same, 0.0, np.where(is_mismatch, np.nan, variant - reference))
        row_ulps = np.abs(difference) / run.spacing(pair, (row, row + 1))
    steps = np.abs(ordinals(bits[0], fmt) - ordinals(bits[1], fmt))
    ulps = pd.array(np.where(is_same, 0, steps), "Int64")
    ulps[is_mismatch] = pd.NA
    return pd.DataFrame(
        {
            "token_id": np.arange(len(ulps)),
            "reference_logit": reference,
            "variant_logit": variant,
            "difference": difference,
            "row_ulps": row_ulps,
            "ulps": ulps,
        },
    )


def worst_elements(
    run: RunReader,
    pair: int,
    prompt: int,
    position: int,
    *,
    by_ulps: bool,
) -> DataFrame:
    """Return the elements of a position that differ most, by absolute difference or by ULPs, with
    their texts; a NaN or infinity on one side only comes first.
    """
    table = every_element(run, pair, prompt, position)
    size = table["ulps" if by_ulps else "difference"].astype(float).abs().fillna(np.inf)
    worst = table.iloc[np.argsort(-size.to_numpy(), kind="stable")[:_WORST]]
    return with_texts(run, worst[worst["ulps"].fillna(1) > 0])
