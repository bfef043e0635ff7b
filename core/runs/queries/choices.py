"""Choices of a pair: experts or keys that a side takes and the other does not, and how close each
was.

Of a module that chooses several times in a forward, as groups of experts first, only the last
choice counts.
"""

import re

from ...checks.choices import ChoicesFigures
from ...numerics.arrays import DataFrame, Record
from ...numerics.formats import LOGIT_FORMATS, format_named
from ...text import number, out_of, percent, plural, visible
from ..reader import RunReader
from .layers import pool, records

# of row ULPs of the compute dtype, if no check says how far rounding moves the scores: sides of
# tiny models of eight families move them by 26 in float32 (one by 170), by 5 in bfloat16
NEAR_TIE_ROW_ULPS = 16.0
# a layer's number, and what is between it and the module's own name
_IN_LAYER = re.compile(r".*?\.(\d+)\.(?:.*\.)?")
_BITS = ", ".join(f"('{fmt.name}', {fmt.mantissa_bits})" for fmt in LOGIT_FORMATS.values())
# $2: pair; $3: the limit in row ULPs of a dtype with $4 bits of mantissa
_CHOICES = f"""
    SELECT r.prompt, r.ordinal, r.module, r.position, r.dtype, bits, r.ids != v.ids AS is_flip,
        greatest(r.margin_row_ulps, v.margin_row_ulps) AS margin_row_ulps,
        CASE WHEN r.ids = v.ids THEN 0
            WHEN greatest(r.margin_row_ulps, v.margin_row_ulps) <= $3 * 2 ** (bits - $4) THEN 1
            ELSE 2 END AS state
    FROM choice AS r JOIN choice AS v USING (prompt, module, call, position)
    JOIN (VALUES {_BITS}) AS format(dtype, bits) ON format.dtype = r.dtype
    WHERE r.side = 0 AND v.side = $2 + 1
        AND call = (SELECT max(call) FROM choice WHERE side = 0 AND module = r.module)
"""
_BY_MODULE = f"""
WITH choices AS ({_CHOICES})
SELECT module, count(*) FILTER (NOT is_flip) / count(*) AS agreement_share, count(*) AS choices,
    count(*) FILTER (is_flip) AS differing, count(*) FILTER (state = 1) AS near_ties,
    count(*) FILTER (state = 2) AS beyond, min(margin_row_ulps) AS smallest_margin_row_ulps,
    max(margin_row_ulps) FILTER (is_flip) AS largest_flip_row_ulps,
    min(prompt) FILTER (is_flip) AS first_prompt,
    arg_min(position, (prompt, position)) FILTER (is_flip) AS first_position,
    any_value(dtype) AS dtype, $3 * 2 ** (any_value(bits) - $4) AS near_tie_row_ulps, ordinal,
    arg_min(margin_row_ulps, (prompt, position)) FILTER (is_flip) AS first_margin_row_ulps,
    arg_min(state, (prompt, position)) FILTER (is_flip) AS first_state
FROM choices WHERE $1::INTEGER IS NULL OR prompt = $1 GROUP BY ordinal, module ORDER BY ordinal
"""
_HERE = f'SELECT *, ordinal AS "row", 0 AS neq, 0 AS max_ulps FROM ({_CHOICES}) WHERE prompt = $5'
_FIRST_FLIPS = f"""
SELECT prompt, min(position) AS position FROM ({_CHOICES})
WHERE is_flip AND ($1::INTEGER IS NULL OR prompt = $1) GROUP BY prompt
"""


def _check(run: RunReader, pair: int) -> ChoicesFigures | None:
    """Return the figures of the pair's check of choices in the dtype of the run."""
    evidence = run.evidence(pair)
    figures = [row.figures for row in evidence if isinstance(row.figures, ChoicesFigures)]
    dtype = run.header.compute_dtype
    return next((each for each in figures if each.compute_dtype == dtype), None)


def _about(run: RunReader, pair: int) -> tuple[int, float, int]:
    """Return the pair, the limit of a near tie in row ULPs of the compute dtype, and bits of that
    dtype. The limit is that of the check of choices, if the pair has it.
    """
    figures = _check(run, pair)
    limit = NEAR_TIE_ROW_ULPS
    if figures and figures.rounding_row_ulps:
        limit = figures.largest_gap_allowed * figures.rounding_row_ulps
    return pair, limit, format_named(run.header.compute_dtype).mantissa_bits


def by_module(run: RunReader, pair: int, prompt: int | None = None) -> DataFrame:
    """Return one row per module that chooses, of all prompts together or of one. Margins are the
    larger of both sides, in row ULPs of dtype.
    """
    return run.query(_BY_MODULE, prompt, *_about(run, pair))


def cells(run: RunReader, pair: int, prompt: int, most: int = 200) -> DataFrame:
    """Return the states of choices over modules x positions of a prompt, as
    core.runs.queries.layers.pool; of a cell the worst.
    """
    return pool(run, _HERE, "state", most, *_about(run, pair), prompt)


def short_names(table: DataFrame) -> dict[int, str]:
    """Return `layer 3 gate` for each module of `by_module`, by its ordinal."""
    names = table["module"].map(visible).str.replace(_IN_LAYER, r"layer \1 ", regex=True)
    return dict(zip(table["ordinal"], names, strict=True))


def first_flips(run: RunReader, pair: int) -> dict[int, int]:
    """Return the first position of each prompt at which a choice differs, if one does."""
    if pair not in run.pairs_with_choices:
        return {}
    rows = run.query(_FIRST_FLIPS, None, *_about(run, pair))
    return dict(rows.to_numpy().tolist())


def first_flip(table: DataFrame) -> Record | None:
    """Return the row of the module that first chooses otherwise: at the first position, and there
    the first. table: of `by_module`; None if none does.
    """
    differing = table[table["differing"] > 0]
    order = differing.sort_values(["first_prompt", "first_position", "ordinal"])
    return next(iter(records(order)), None)


def sentence(run: RunReader, pair: int, table: DataFrame) -> str:
    """Say how many choices differ, how close the first one was, and how much of the difference of
    the logits goes through choices, if that was measured; in markdown. table: of `by_module`.
    """
    total = table["choices"].sum()
    first = first_flip(table)
    if first is None:
        return f"Both sides make the same choices: {plural(total, 'choice')}, none differs."
    flips = table["differing"].sum()
    beyond = table["beyond"].sum()
    says = (
        f"**{out_of(flips, total)} choices differ**:"
        f" {flips - beyond:,} at near ties, {beyond:,} beyond. The first is at"
        f" `{first['module']}`, position {first['first_position']:,}"
        f"{run.header.of_prompt(first['first_prompt'])}:"
        f" {'a near tie' if first['first_state'] == 1 else 'beyond a near tie'}, margin"
        f" {number(first['first_margin_row_ulps'])} row ULPs of {first['dtype']}."
    )
    figures = _check(run, pair)
    if figures and figures.replayed_share is not None:
        says += (
            " With the model's choices replayed on both sides, the RMS difference of the logits is"
            f" {percent(figures.replayed_share)} of what it is with each side's own choices."
        )
    return says


def rule(run: RunReader, pair: int, table: DataFrame) -> str:
    """Say what a near tie is, and what to read into others."""
    figures = _check(run, pair)
    reason = "the limit without a verdict"
    if figures and figures.rounding_row_ulps:
        times = number(figures.largest_gap_allowed)
        reason = f"{times}x what rounding moves the scores, as the verdict measured it"
    limits = dict(zip(table["dtype"], table["near_tie_row_ulps"], strict=True))
    sizes = " = ".join(f"{number(size)} row ULPs of {dtype}" for dtype, size in limits.items())
    return (
        "Near tie: on both sides the scores of the last chosen and the first left out differ by at"
        f" most {sizes}; {reason}. Behind the first choice that differs, inputs differ too,"
        " so later ones may be beyond without a bug."
    )


def choices_json(run: RunReader, pair: int) -> Record:
    """Return a pair's choices as JSON, an object per module."""
    return {"variant": run.pairs[pair].variant, "by_module": records(by_module(run, pair))}
