"""Module outputs of a pair: which module differs first, how the difference grows, at which
positions.

Modules are in the order in which they run, and of that, not of what depends on what: keys and
values of one norm come one after the other.
"""

from typing import Any

import numpy as np

from ...numerics.arrays import DataFrame, Record
from ...text import code, out_of, plural
from ..reader import RunReader

RESIDUAL, HEAD = "residual", "head"
NARROW = ("bfloat16", "float16")
# times the noise floor: the limit of rounding in the verdict on logits
BEYOND_FLOOR = 4.0

# Over all prompts or one; only modules that every prompt has. Sizes are null if no element is
# finite on both sides although one side is; ratio is infinite if the floor is 0 and rms is not.
_MODULES = """
WITH chosen AS (SELECT * FROM layer WHERE pair = $1 AND ($2::INTEGER IS NULL OR prompt = $2)),
sums AS (
    SELECT ordinal, any_value(module) AS module, any_value(kind) AS kind, any_value(block) AS block,
        any_value(dtype) AS dtype, sum(positions)::BIGINT AS positions,
        sum(elements)::BIGINT AS elements,
        sum(neq)::BIGINT AS neq, greatest(sum(finite), 1)::DOUBLE AS finite,
        CASE WHEN sum(finite) > 0 OR sum(nonfinite_mismatch) = 0 THEN 1 END AS is_sized,
        max(max_abs) AS max_abs, fsum(rms * rms * finite) AS squares, max(max_ulps) AS max_ulps,
        CASE WHEN count(floor_rms) = count(*) THEN fsum(floor_rms * floor_rms * finite) END
            AS floor_squares,
        fsum(mean_ulps * finite) AS ulps, max(max_row_ulps) AS max_row_ulps,
        fsum(coalesce(rms_row_ulps * rms_row_ulps, 0) * finite) AS row_squares,
        sum(nonfinite_mismatch)::BIGINT AS nonfinite_mismatch,
        min(prompt) FILTER (neq > 0) AS first_prompt,
        arg_min(first_position, prompt) FILTER (neq > 0) AS first_position
    FROM chosen GROUP BY ordinal HAVING count(*) = (SELECT count(DISTINCT prompt) FROM chosen)),
sizes AS (
    SELECT *, sqrt(squares / finite) AS size, sqrt(floor_squares / finite) AS floor_rms FROM sums)
SELECT ordinal, module, kind, block, dtype, positions, elements, neq,
    neq / greatest(elements, 1) AS neq_share,
    max_abs * is_sized AS max_abs, size * is_sized AS rms, floor_rms,
    is_sized * CASE WHEN floor_rms > 0 THEN size / floor_rms
        WHEN size > 0 THEN 'inf'::DOUBLE ELSE floor_rms END AS ratio,
    max_ulps * is_sized AS max_ulps, ulps / finite * is_sized AS mean_ulps,
    max_row_ulps * is_sized AS max_row_ulps,
    CASE WHEN max_row_ulps IS NOT NULL THEN sqrt(row_squares / finite) * is_sized END
        AS rms_row_ulps,
    nonfinite_mismatch, first_prompt, first_position
FROM sizes ORDER BY ordinal
"""
# of a cell; ratio: to the floor of the whole module, at one position that of a 16-bit format is
# often 0
MEASURES = {
    "ratio": (
        "CASE WHEN floor_rms IS NULL THEN NULL WHEN rms = 0 THEN 0"
        " WHEN floor_rms = 0 THEN 'inf'::DOUBLE ELSE rms / floor_rms END"
    ),
    "neq_share": "neq / width",
    "max_row_ulps": "max_row_ulps",
    "max_ulps": "max_ulps::DOUBLE",
}
_EXPRESSIONS = MEASURES | {"state": "state::DOUBLE"}  # of a choice (choices.py)
_CELLS = """
WITH cells AS ({cells}), place AS (
    SELECT position,
        (row_number() OVER (ORDER BY position) - 1) // ceil(count(*) OVER () / $1)::BIGINT AS cell
    FROM (SELECT DISTINCT position FROM cells))
SELECT "row", cell, min(position) AS first_position, max(position) AS last_position,
    max({measure}) AS value, bool_or(neq > 0 AND max_ulps = 0) AS is_mismatch
FROM cells JOIN place USING (position) GROUP BY ALL ORDER BY "row", cell
"""
_HERE = """
SELECT p.* EXCLUDE floor_rms, ordinal AS "row", whole.floor_rms,
    whole.elements / whole.positions AS width
FROM layer_position AS p JOIN layer AS whole USING (pair, prompt, ordinal)
WHERE pair = $2 AND prompt = $3
"""


def modules(run: RunReader, pair: int, prompt: int | None = None) -> DataFrame:
    """Return one row per module, of all prompts together or of one.

    No rows if the capture did not compare modules.
    """
    return run.query(_MODULES, pair, prompt)


def cells(run: RunReader, pair: int, prompt: int, measure: str, most: int = 200) -> DataFrame:
    """Return one of MEASURES over modules x positions of a prompt, as `pool` has them. row: the
    module's ordinal.
    """
    return pool(run, _HERE, measure, most, pair, prompt)


def pool(run: RunReader, cells: str, measure: str, most: int, *values: object) -> DataFrame:
    """Pool rows of positions by maximum, at most `most` cells a row: row, cell, first_position,
    last_position, value, is_mismatch (NaN or infinity on one side). cells: their query, of `values`
    from $2 on.
    """
    return run.query(_CELLS.format(cells=cells, measure=_EXPRESSIONS[measure]), most, *values)


def first_module(table: DataFrame) -> Any | None:
    """Return the first module that differs, None if none does."""
    return next((row for row in table.itertuples(index=False) if row.neq), None)


def furthest_module(table: DataFrame) -> Any | None:
    """Return the module with the largest ratio to its noise floor, of those with a floor that is
    not 0.
    """
    finite = table[(table["ratio"] > 0) & np.isfinite(table["ratio"])]
    largest = finite.nlargest(1, "ratio")
    return next(largest.itertuples(index=False), None)


def first_beyond(table: DataFrame) -> Any | None:
    """Return the first module beyond its noise floor, None if none is.

    A floor of 0 counts, but not in 16 bits: there rounding may leave a reordering without a trace.
    """
    is_beyond = table["ratio"] > BEYOND_FLOOR
    says_nothing = np.isinf(table["ratio"]) & table["dtype"].isin(NARROW)
    return next(table[is_beyond & ~says_nothing].itertuples(index=False), None)


def says_little(row: Any) -> str:
    """Warn that a floor in 16 bits says little, if a pair is above it; else ''."""
    if row is None or row.ratio <= 1 or row.dtype not in NARROW:
        return ""
    return (
        f" In early layers a {row.dtype} noise floor is too small to be reliable; capture with"
        " `--dtype float32`."
    )


def sentence(run: RunReader, pair: int, table: DataFrame) -> str:
    """Say which module differs first, at which position, and how much differs in the end. table: of
    `modules`.
    """
    first, last = first_module(table), table.iloc[-1]
    if first is None:
        return f"No module differs: {plural(len(table), 'output')}, equal on both sides."
    along = run.rows("layer_position", pair=pair, prompt=first.first_prompt, ordinal=first.ordinal)
    neq = along.loc[along["position"] == first.first_position, "neq"].sum()
    of_prompt = run.header.of_prompt(first.first_prompt)
    text = (
        f"**`{code(first.module)}`** ({kind_word(first.kind)}) **is the first module whose output"
        f" differs at all, at position {first.first_position:,}{of_prompt}**:"
        f" {out_of(neq, first.elements // first.positions)} of its elements there."
    )
    if last["ordinal"] == first.ordinal:
        return text
    last_name = last["module"] if last["module"].isalpha() else f"`{code(last['module'])}`"
    return f"{text} Of the {last_name}, {out_of(last['neq'], last['elements'])} differ."


def kind_word(kind: str) -> str:
    """Return a kind of module as people read it; of a file from elsewhere it may be anything."""
    if kind == RESIDUAL:
        return "decoder layer"
    return kind if kind.replace(" ", "").isalnum() else "module"


def layers_json(run: RunReader, pair: int) -> Record | None:
    """Return a pair's modules as JSON: the summary and one object per module, infinite ratios null.

    None if none.
    """
    table = modules(run, pair)
    if table.empty:
        return None
    first, furthest = first_module(table), furthest_module(table)
    prompts = run.query("SELECT DISTINCT prompt FROM layer WHERE pair = ? ORDER BY prompt", pair)
    return {
        "reference": run.pairs[pair].reference,
        "variant": run.pairs[pair].variant,
        "prompts": prompts["prompt"].tolist(),
        "positions": int(table["positions"].max()),
        "first_module": first and first.module,
        "first_prompt": first and int(first.first_prompt),
        "first_position": first and int(first.first_position),
        "furthest_above_floor": furthest and furthest.module,
        "by_module": records(table),
    }


def records(table: DataFrame) -> list[Record]:
    """Return the rows of a table as JSON has them: null if undefined or infinite."""
    plain = table.replace([np.inf, -np.inf], np.nan).astype(object)
    return plain.where(plain.notna(), None).to_dict("records")
