"""Every flip of a pair with what each side made of both tokens: probabilities and ranks, from the stored best tokens
where they suffice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...numerics.divergence import NEAR_TIE_ROW_ULPS
from ...numerics.formats import FloatFormat, bits_of, ordinals, values_at, values_of
from ...text import number, plural
from ..reader import RunReader
from .elements import rank_of

if TYPE_CHECKING:
    import pandas as pd

STORED_RANKS = 20  # of each side and position in the table top_token
MOST_READ = 256  # rows of logits read for tokens outside them: 1 to 3 ms each at a vocabulary of 128256

SIDES = ("reference", "variant")
NOISE_MARGIN = 2  # of harmless flips up to 1 in dense models, and 8 with experts (docs/verdict_calibration.md)
MOST_GRID_LINES = 64  # beyond that they would be a grey field


@dataclass(frozen=True)
class Candidates:
    """Two tokens between which an argmax is decided. tokens: the reference's candidate, the variant's; logits [sides,
    tokens]; grid: every value of the compute dtype from one step below the lowest of them to one above the highest,
    empty where these are too many or a logit is not finite; steps: between the lowest and the highest, None where one
    is not finite.
    """

    tokens: tuple[int, int]
    logits: NDArray[np.float64]
    grid: NDArray[np.float64]
    steps: int | None


def candidates(top: pd.DataFrame, fmt: FloatFormat) -> Candidates | None:
    """The argmaxes of both sides; where they are one token, that and the runner-up nearest to it. None where a side has
    fewer than two tokens.

    top: the best tokens of both sides, see core.runs.views.elements.top_of_both.
    """
    if len(top) < 2:
        return None
    best = [int(np.argmin(top[f"{side}_rank"])) for side in SIDES]
    if best[0] == best[1]:
        gaps = [top[f"{side}_logit"].iloc[best[0]] - top[f"{side}_logit"] for side in SIDES]
        nearest = np.minimum(*(gap.to_numpy(float) for gap in gaps))
        nearest[best[0]] = np.inf
        best[1] = int(np.argmin(nearest))
    logits = np.stack([top[f"{side}_logit"].to_numpy(float)[best] for side in SIDES])
    tokens = (int(top["token_id"].iloc[best[0]]), int(top["token_id"].iloc[best[1]]))
    if not np.isfinite(logits).all():
        return Candidates(tokens, logits, np.empty(0), None)
    places = ordinals(bits_of(logits.astype(fmt.values)), fmt)
    low, high = int(places.min()), int(places.max())
    edge = fmt.first_nonfinite
    # Logits of different signs can be 2**32 ordinals apart, so the size is asked before the grid is made.
    is_small = high - low + 3 <= MOST_GRID_LINES
    grid = np.arange(max(low - 1, 1 - edge), min(high + 2, edge)) if is_small else np.empty(0, np.int64)
    return Candidates(tokens, logits, values_at(grid, fmt).astype(np.float64), high - low)


_FIGURES = [
    *("prompt", "position", "is_flip", "near_tie", "reference_token", "variant_token"),
    *("reference_margin", "variant_margin", "reference_margin_ulps", "variant_margin_ulps"),
    *("max_abs", "kl", "nonfinite_mismatch"),
]


def beyond_noise(table: pd.DataFrame) -> NDArray[np.bool_]:
    """Mask the flips that the pair's usual differences do not explain: both margins are more than NOISE_MARGIN times
    the median over positions of the largest difference, in row ULPs, or more than 2 row ULPs if that is larger. [rows]

    table: the pair's figures by position, of all prompts.
    """
    flips = table["is_flip"].to_numpy(bool)
    if not flips.any():
        return flips
    difference, in_row_ulps = (table[name].to_numpy(float) for name in ("max_abs", "max_row_ulps"))
    margins = np.fmin(*(table[f"{side}_margin"].to_numpy(float) for side in SIDES))
    typical = max(NOISE_MARGIN * float(np.nanmedian(in_row_ulps)), NEAR_TIE_ROW_ULPS)
    with np.errstate(divide="ignore", invalid="ignore"):
        return flips & (margins * in_row_ulps / difference > typical)


def noise_sentence(table: pd.DataFrame, listed: int = 3) -> str:
    """`7 of 8 flips lie within the noise; beyond it: position 12 (margin 3.25 logits).`; '' if there is no flip.

    table: the pair's figures by position, of all prompts.
    """
    count, beyond = int(table["is_flip"].sum()), table[beyond_noise(table)]
    if not count:
        return ""
    if beyond.empty:
        return f"{'The flip lies' if count == 1 else f'All {count:,} flips lie'} within the noise."
    several = table["prompt"].any()
    places = [
        f"{f'prompt {row.prompt}, ' if several else ''}position {row.position}"
        f" (margin {number(np.fmin(row.reference_margin, row.variant_margin), 3)} logits)"
        for row in beyond.head(listed).itertuples()
    ]
    more = f" and {len(beyond) - listed:,} more" if len(beyond) > listed else ""
    return (
        f"{count - len(beyond):,} of {plural(count, 'flip')} {'lies' if count - len(beyond) == 1 else 'lie'} within the"
        f" noise; beyond it: {'; '.join(places)}{more}."
    )


def sentence(table: pd.DataFrame) -> str:
    """A sentence on how many positions flip and which of them noise explains, in markdown; table: figures by
    position.
    """
    flips, total = table[table["is_flip"]], len(table)
    count = len(flips)
    if not count:
        return f"No flips: both sides have the same argmax at all {plural(total, 'position')}."
    first = flips.iloc[0]
    said = f"**{plural(count, 'flip')} in {plural(total, 'position')}**, "
    said += f"{'' if count == 1 else 'the first '}at position {first['position']}"
    said += f" of prompt {first['prompt']}" if table["prompt"].any() else ""
    return f"{said}. {noise_sentence(table)}"


def flip_table(
    run: RunReader, pair: int, table: pd.DataFrame, *, near_ties: bool = False, most_read: int = MOST_READ
) -> pd.DataFrame:
    """One row a flip, with `near_ties` one a near tie too, in the order of `table`, the pair's figures by position.

    Beside those figures: `reference_text` and `variant_text` of the two argmaxes (null where unknown);
    `T_token_S_probability` of side T's argmax on side S, `T_token_probability_change` from the reference to the
    variant; `T_token_S_rank`, 1 is the argmax, of T's argmax on the other side S. Null where a side is all NaN, where a
    probability is undefined, and where a token is not among a side's stored best and `most_read` rows of logits were
    read already, or the row's were not kept.
    """
    import pandas as pd

    chosen = table["is_flip"].to_numpy(bool)
    if near_ties:
        chosen = chosen | table["near_tie"].to_numpy(bool)
    rows = np.flatnonzero(chosen)
    found = table.iloc[rows][_FIGURES].reset_index(drop=True)
    vocabulary = run.vocabulary
    tokens = {side: found[f"{side}_token"] for side in SIDES}
    for side, ids in tokens.items():
        texts = [None if pd.isna(token) else vocabulary.get(int(token)) for token in ids]
        found[f"{side}_text"] = pd.Series(texts, dtype=object)
    probability: dict[tuple[str, str], NDArray[np.float64]] = {}
    rank: dict[tuple[str, str], NDArray[np.int64]] = {}
    left = most_read
    for on, index in zip(SIDES, (0, pair + 1), strict=True):
        wanted = np.stack([tokens[side].fillna(-1).to_numpy(np.int64) for side in SIDES])
        logits, ranks, left = _of_tokens(run, index, rows, wanted, left)
        with np.errstate(invalid="ignore"):  # +inf - +inf: the probability is undefined
            shares = np.exp(logits - run.logsumexp(index)[rows])
        for place, side in enumerate(SIDES):
            probability[side, on], rank[side, on] = shares[place], ranks[place]
    for side in SIDES:
        for on in SIDES:
            found[f"{side}_token_{on}_probability"] = probability[side, on]
        found[f"{side}_token_probability_change"] = probability[side, "variant"] - probability[side, "reference"]
        other = SIDES[1 - SIDES.index(side)]
        found[f"{side}_token_{other}_rank"] = pd.array(rank[side, other], "Int64")
        found.loc[rank[side, other] == 0, f"{side}_token_{other}_rank"] = pd.NA
    return found


def _of_tokens(
    run: RunReader, side: int, rows: NDArray[np.int64], wanted: NDArray[np.int64], left: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], int]:
    """(logits, NaN where unknown; ranks, 1 is the argmax, 0 where unknown; how many rows may still be read) of tokens
    on one side.

    rows: [n]; wanted: [k, n] token ids, -1 for none. Logits and ranks are [k, n].
    """
    logits = np.full(wanted.shape, np.nan)
    ranks = np.zeros(wanted.shape, np.int64)
    if not len(rows):
        return logits, ranks, left
    best = run.best_tokens(side, STORED_RANKS)
    vocab = run.header.vocab
    starts = np.cumsum([0, *(prompt.positions for prompt in run.header.prompts)])
    stored_rows = starts[best["prompt"].to_numpy(np.int64)] + best["position"].to_numpy(np.int64)
    keys = stored_rows * vocab + best["token_id"].to_numpy(np.int64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    asked = rows * vocab + wanted
    place = np.minimum(np.searchsorted(keys, asked), max(len(keys) - 1, 0))
    is_stored = (keys[place] == asked) & (wanted >= 0) if len(keys) else np.zeros(wanted.shape, bool)
    at = order[place[is_stored]] if len(keys) else np.zeros(0, np.int64)
    logits[is_stored] = best["logit"].to_numpy(float)[at]
    ranks[is_stored] = best["rank"].to_numpy(np.int64)[at] + 1  # the file counts from 0
    places = run.header.places()
    for column in np.flatnonzero((~is_stored & (wanted >= 0)).any(axis=0)):
        if left == 0 or not run.has_all_logits:
            break
        left -= 1
        values = values_of(run.at(side, *places[rows[column]]), run.header.format).astype(np.float64)
        for line in np.flatnonzero(~is_stored[:, column] & (wanted[:, column] >= 0)):
            token = int(wanted[line, column])
            logits[line, column] = values[token]
            ranks[line, column] = rank_of(values, token)
    return logits, ranks, left
