"""Flips and near ties of a pair, what the sides wrote after a flip, and the position to open a pair
at.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ...numerics.arrays import DataFrame, Floats
from ...numerics.divergence import NEAR_TIE_ROW_ULPS
from ...numerics.formats import FloatFormat, bits_of, ordinals, values_at, values_of
from ...numerics.totals import beyond_noise, dominating
from ...text import all_of, number, opening, out_of, plural
from ..reader import RunReader
from .choices import first_flips
from .elements import rank_of

STORED_RANKS = 20  # of each side and position in the table top_token
# rows of logits read for tokens outside them: 1 to 3 ms each at a vocabulary of 128256
MOST_READ = 256
SIDES = ("reference", "variant")
MARGINS = ["reference_margin", "variant_margin"]  # columns of a table by position
# of the points of the chart of near ties
KINDS = ("no flip possible", "could flip", "flip", "NaN or infinity on one side")
# times the median position: sound dense pairs reach 5.7
_UNUSUAL = 12
MOST_GRID_LINES = 64  # beyond that they would be a grey field

# Logit and rank (1 is the argmax) of either side's argmax on both sides, if it is among the stored
# top tokens.
_FLIPS = f"""
SELECT p.prompt, p.position, is_flip, near_tie, reference_token, variant_token,
    reference_margin, variant_margin, reference_margin_ulps, variant_margin_ulps,
    max_abs, kl, nonfinite_mismatch,
    r.text AS reference_text, v.text AS variant_text,
    {
    ", ".join(
        f"{t}_{s}.logit AS {t}_{s}_logit, {t}_{s}.rank + 1 AS {t}_{s}_rank"
        for t in SIDES
        for s in SIDES
    )
},
    reference.logsumexp AS reference_logsumexp, variant.logsumexp AS variant_logsumexp
FROM position AS p
LEFT JOIN vocabulary AS r ON r.token_id = reference_token
LEFT JOIN vocabulary AS v ON v.token_id = variant_token
{
    " ".join(
        f"LEFT JOIN side_position AS {s} ON {s}.side = {side} AND {s}.prompt = p.prompt"
        f" AND {s}.position = p.position "
        + " ".join(
            f"LEFT JOIN top_token AS {t}_{s} ON {t}_{s}.side = {side} AND {t}_{s}.prompt = p.prompt"
            f" AND {t}_{s}.position = p.position AND {t}_{s}.token_id = {t}_token"
            for t in SIDES
        )
        for s, side in zip(SIDES, ("0", "$1 + 1"), strict=True)
    )
}
WHERE p.pair = $1 AND (is_flip OR ($2 AND near_tie)) ORDER BY p.prompt, p.position
"""
# is_confirmed: the stored logits of that position have the two generated tokens as their argmaxes.
# They have not if a path computes the same tokens differently from call to call.
_CONTINUATIONS = """
WITH step AS (
    SELECT v.prompt, v.side, count(*) AS compared,
        min(v.step) FILTER (v.token_id != r.token_id) AS parting
    FROM generated_token AS v JOIN generated_token AS r USING (prompt, step)
    WHERE r.side = 0 AND v.side > 0 GROUP BY ALL)
SELECT g.prompt, side.name AS variant, g.side - 1 AS pair, g.given_positions,
    coalesce(compared, 0) AS compared_tokens, coalesce(parting, compared, 0) AS agreed_tokens,
    g.given_positions - 1 + parting AS parting_position,
    a.token_id AS reference_token, b.token_id AS variant_token,
    p.reference_margin_ulps, p.variant_margin_ulps, p.max_abs,
    p.reference_token = a.token_id AND p.variant_token = b.token_id AS is_confirmed,
    whole.text AS reference_continuation, g.text AS variant_continuation
FROM generation AS g JOIN side ON side.side = g.side
JOIN generation AS whole ON whole.side = 0 AND whole.prompt = g.prompt
LEFT JOIN step ON step.side = g.side AND step.prompt = g.prompt
LEFT JOIN generated_token AS a ON a.side = 0 AND a.prompt = g.prompt AND a.step = parting
LEFT JOIN generated_token AS b ON b.side = g.side AND b.prompt = g.prompt AND b.step = parting
LEFT JOIN position AS p ON p.pair = g.side - 1 AND p.prompt = g.prompt
    AND p.position = g.given_positions - 1 + parting
WHERE g.side > 0 ORDER BY g.prompt, g.side
"""


def flip_table(
    run: RunReader,
    pair: int,
    *,
    near_ties: bool = False,
) -> DataFrame:
    """Return one row per flip, and per near tie with `near_ties`, with figures of the position and
    both argmaxes.

    Of T's argmax: `T_text`, `T_token_S_probability` on side S, `T_token_probability_change` from
    the reference to the variant, `T_token_S_rank` on the other side S. Null if a side is all NaN, a
    probability is undefined, or a token is not among a side's stored top tokens and MOST_READ
    rows of logits were read, or the run did not keep them. `behind_choice`, if a choice differs:
    one of the prompt does, there or before.
    """
    table = run.query(_FLIPS, pair, near_ties)
    columns = {name: table.pop(name) for name in table.filter(regex="_(logit|rank|logsumexp)$")}
    rows_left = MOST_READ if run.has_all_logits else 0
    for on, side in zip(SIDES, (0, pair + 1), strict=True):
        unknown = {
            of: columns[f"{of}_{on}_logit"].isna() & table[f"{of}_token"].notna() for of in SIDES
        }
        # a token that is not among the stored ones: its logit is read, for so many rows
        rows = np.flatnonzero(unknown["reference"] | unknown["variant"])[:rows_left]
        rows_left -= len(rows)
        for row in rows:
            bits = run.at(side, table["prompt"][row], table["position"][row])
            values = values_of(bits, run.header.format).astype(np.float64)
            for of in SIDES:
                if unknown[of][row]:
                    token = table[f"{of}_token"][row]
                    columns[f"{of}_{on}_logit"][row] = values[token]
                    columns[f"{of}_{on}_rank"][row] = rank_of(values, token)
    for of, other in (SIDES, SIDES[::-1]):
        shares = []
        for on in SIDES:
            # +inf - +inf: the probability is undefined
            with np.errstate(invalid="ignore"):
                shares.append(np.exp(columns[f"{of}_{on}_logit"] - columns[f"{on}_logsumexp"]))
            table[f"{of}_token_{on}_probability"] = shares[-1]
        table[f"{of}_token_probability_change"] = shares[1] - shares[0]
        table[f"{of}_token_{other}_rank"] = columns[f"{of}_{other}_rank"].astype("Int64")
    if first := first_flips(run, pair):
        start = table["prompt"].map(first).fillna(np.inf).to_numpy(float)
        table["behind_choice"] = table["position"].to_numpy(float) >= start
    return table


def continuations(run: RunReader) -> DataFrame:
    """Return one row per continued prompt and variant: tokens in common with the reference's
    continuation, and both tokens and the figures of the position at which they diverge, null if
    none. No rows for a run that only scored its prompts.
    """
    return run.query(_CONTINUATIONS)


def outcome(table: DataFrame) -> str:
    """Say how many continued prompts diverge, and the earliest position. table: `continuations` of
    one pair.
    """
    parted = table[table["parting_position"].notna()]
    tokens = plural(table["compared_tokens"].max(), "generated token")
    if parted.empty:
        of_each = f" of each of {len(table)} prompts" if len(table) > 1 else ""
        return f"the sides agree in all of {tokens}{of_each}."
    first = parted.loc[parted["agreed_tokens"].idxmin()]
    place = f"position {first['parting_position']:,} of prompt {first['prompt']}"
    return (
        f"**{len(parted)} of {plural(len(table), 'prompt')} diverge** within {tokens}, the earliest"
        f" after {plural(first['agreed_tokens'], 'token')} in common, at {place}."
    )


def margin_texts(table: DataFrame, unit: str) -> tuple[str, list[str]]:
    """Return the margins of both sides by position, `1 / 3`, and their unit. unit: of differences.

    Lists of servers seldom show the dtype that ULPs are of.
    """
    margins = table[MARGINS]
    ulps = table[[f"{side}_margin_ulps" for side in SIDES]]
    if ulps.notna().any(axis=None):
        margins, unit = ulps, "ULPs"
    # numbers of Python: whole ones have all digits
    margins = margins.convert_dtypes().astype(object)
    rows = margins.where(margins.notna(), None).itertuples(index=False)
    return unit, [" / ".join(map(number, row)) for row in rows]


def flips_sentence(table: DataFrame) -> str:
    """Say how many positions flip and which of them noise does not explain, in markdown. table:
    figures by position.
    """
    flips, total = table[table["is_flip"]], len(table)
    if flips.empty:
        unknown = table[[f"{side}_token" for side in SIDES]].isna().any(axis=1).sum()
        if unknown:
            places = out_of(unknown, total)
            return f"No known flips: at {places} positions a side has no known argmax."
        everywhere = all_of(total, total, "position")
        return f"No flips: both sides have the same argmax at {everywhere}."

    def place(row: Any) -> str:
        of = f" of prompt {row['prompt']}" if table["prompt"].any() else ""
        return f"position {row['position']:,}{of}"

    text = (
        f"**{plural(len(flips), 'flip')} in {plural(total, 'position')}**, first at"
        f" {place(flips.iloc[0])}."
    )
    # lists have no row ULPs
    if table["max_row_ulps"].isna().all():
        return text
    far = table[beyond_noise(table)]
    usual = table.loc[table["max_row_ulps"] > 0, "max_row_ulps"].median()
    unusual = flips[flips["max_row_ulps"] > _UNUSUAL * usual]
    stands_out = ""
    # its margins are small, but the fault itself may be what made them so
    if not unusual.empty:
        times = number(float(unusual["max_row_ulps"].max() / usual))
        where = f"{len(unusual):,} of these positions differ up to {times}x"
        if len(unusual) == 1:
            where = f"{opening(place(unusual.iloc[0]))} differs {times}x"
        stands_out = f" {where} as much as most."
    if far.empty:
        are, near = "All are", "near ties"
        if len(flips) == 1:
            are, near = "It is", "a near tie"
        if flips["near_tie"].all():
            # a bug may move the variant to a near tie from anywhere
            margins = flips["reference_margin"] * flips["max_row_ulps"] / flips["max_abs"]
            only_variant = int((~(margins <= NEAR_TIE_ROW_ULPS)).sum())
            sides = "on the reference"
            if only_variant == len(flips):
                sides = "on the variant only"
            elif only_variant:
                sides = f"on at least one side, {only_variant:,} on the variant only"
            return f"{text} {are} {near} {sides}.{stands_out}"
        return text + (stands_out or f" {are} within the usual difference of the sides.")
    first = (
        f"{place(far.iloc[0])}, margin {number(far.iloc[0][MARGINS].astype(float).min())} logits"
    )
    if len(far) == 1:
        return f"{text} 1 flip is no near tie ({first})."
    return f"{text} {len(far):,} flips are no near ties (first at {first})."


def near_ties_sentence(table: DataFrame, of_prompt: str = "") -> str:
    """Say how many positions are near ties, how many of them flip, and the smallest margin, in
    markdown. table: figures by position; of_prompt: of which, if there are several.
    """
    # lists have no row ULPs
    is_list = table["max_row_ulps"].isna().all()
    near = table[table["could_flip" if is_list else "near_tie"].fillna(False).astype(bool)]
    positions = "position" if len(table) == 1 else "positions"
    what = "is a near tie" if 1 in (len(near), len(table)) else "are near ties"
    limit = f"(margin at most {NEAR_TIE_ROW_ULPS} row ULPs)"
    if is_list:
        what, limit = "could flip", "by what was sent"
    flips = near["is_flip"].sum()
    smallest = table[MARGINS].min(axis=None)
    return (
        f"**{out_of(len(near), len(table))} {positions}{of_prompt} {what}** {limit}, with"
        f" {plural(flips, 'flip')}; the smallest margin is {number(smallest)}."
    )


def margin_points(table: DataFrame) -> tuple[DataFrame, float | None, float | None]:
    """Return the positions of the chart of near ties, and where it has differences and margins of
    0, None if it has none. table: figures by position.

    Added columns: `margin`, the smaller one of the two sides; `difference`, the largest; `x` and
    `y`, both as they are drawn; `kind`, one of KINDS.
    """
    table = table.dropna(subset=MARGINS, how="all")
    # the bound is a theorem about finite numbers
    is_odd = table["nonfinite_mismatch"] > 0
    # equal logits cannot flip, although a tie is within twice their difference of 0
    could_flip = table["could_flip"].astype(bool) & (table["max_abs"] > 0)
    known = [is_odd, table["is_flip"].astype(bool), could_flip]
    margin = table[MARGINS].min(axis=1).to_numpy(float)
    difference = table["max_abs"].to_numpy(float)
    x, x_zero = _above_zero(difference)
    y, y_zero = _above_zero(margin)
    kind = np.select(known, KINDS[:0:-1], KINDS[0])
    points = table.assign(margin=margin, difference=difference, x=x, y=y, kind=kind)
    return points, x_zero, y_zero


def _above_zero(values: Floats) -> tuple[Floats, float | None]:
    """(values with zeros moved to where a log axis can show them, that place or None)."""
    is_positive = values > 0
    if is_positive.all():
        return values, None
    place = values[is_positive].min() / 10**0.5 if is_positive.any() else 1e-3
    return np.where(is_positive, values, place), place


class Candidates(NamedTuple):
    """Tokens between which an argmax is decided. logits [sides, tokens]; grid: every value of the
    compute dtype from one step below the lowest to one above the highest, empty if these are too
    many or a logit is not finite; steps: between the lowest and the highest, None if one is not
    finite.
    """

    tokens: tuple[int, ...]
    logits: Floats
    grid: Floats
    steps: int | None


def candidates(top: DataFrame, fmt: FloatFormat) -> Candidates | None:
    """Return the argmaxes of both sides, or one and the runner-up nearest to it if they are the
    same token; None if a side has fewer than two tokens. top: of
    core.runs.queries.elements.top_of_sides.
    """
    if len(top) < 2:
        return None
    best = [top[f"{side}_rank"].argmin() for side in SIDES]
    if best[0] == best[1]:
        gaps = [top[f"{side}_logit"].iloc[best[0]] - top[f"{side}_logit"] for side in SIDES]
        nearest = np.minimum(*(gap.to_numpy(float) for gap in gaps))
        nearest[best[0]] = np.inf
        best[1] = nearest.argmin()
    return on_grid(top.iloc[best], SIDES, fmt)


def on_grid(top: DataFrame, sides: Iterable[str], fmt: FloatFormat) -> Candidates:
    """Return all tokens of `top` as candidates, by the columns of these sides."""
    logits = np.stack([top[f"{side}_logit"].to_numpy(float) for side in sides])
    tokens = tuple(top["token_id"].tolist())
    if not logits.size or not np.isfinite(logits).all():
        return Candidates(tokens, logits, np.empty(0), None)
    places = ordinals(bits_of(logits.astype(fmt.values)), fmt)
    low, high = int(places.min()), int(places.max())
    edge = fmt.first_nonfinite
    # Logits of different signs can differ by 2**32 ordinals, so the size is checked before the grid
    # is made.
    grid = np.arange(0)
    if high - low + 3 <= MOST_GRID_LINES:
        grid = np.arange(max(low - 1, 1 - edge), min(high + 2, edge))
    return Candidates(tokens, logits, values_at(grid, fmt).astype(np.float64), high - low)


def telling_place(table: DataFrame, prompt: int | None = None) -> tuple[int, int]:
    """Return (prompt, position) to open a pair at: the position that dominates the difference, else
    the first flip beyond the noise, else the first flip, else the smallest margin that the
    differences there could turn, else the largest difference; the beginning if nothing differs.

    table: the pair's figures by position, of all prompts; prompt: the only one to look in.
    """
    # over all prompts
    table = table.assign(is_beyond=beyond_noise(table))
    if prompt is not None:
        table = table[table["prompt"] == prompt]
    is_mismatch = table["nonfinite_mismatch"].to_numpy(float) > 0
    rms = np.where(is_mismatch, np.inf, table["rms_row_ulps"].to_numpy(float))
    largest = table["max_abs"].fillna(0.0).to_numpy(float)
    could_turn = table["could_flip"].to_numpy(bool) & (largest > 0)
    index = dominating(rms)
    if index is None:
        scores = np.where(np.isinf(rms), np.inf, largest)
        if could_turn.any():
            scores = -np.where(could_turn, table[MARGINS].min(axis=1).to_numpy(float), np.inf)
        for flips in (table["is_flip"], table["is_beyond"]):
            if flips.any():
                scores = flips.to_numpy(bool)
        index = int(scores.argmax())
    prompt, position = table[["prompt", "position"]].iloc[index].tolist()
    return prompt, position
