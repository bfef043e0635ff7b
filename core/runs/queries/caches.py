"""Key/value caches of a pair: how much of them differs, by layer and head, by layer and position.

Layers and heads are those that keep a cache: a model may have others between them.
"""

from ...numerics.arrays import DataFrame, Record
from ...text import out_of, plural, series
from ..file.records import RunHeader
from ..reader import RunReader
from .layers import pool, records

_FIGURES = """
    sum(elements)::BIGINT AS elements, sum(neq)::BIGINT AS neq,
    sum(neq) / greatest(sum(elements), 1) AS neq_share,
    max(max_abs) AS max_abs, sqrt(fsum(rms * rms * finite) / greatest(sum(finite), 1)) AS rms,
    max(max_ulps) AS max_ulps, fsum(mean_ulps * finite) / greatest(sum(finite), 1) AS mean_ulps,
    max(max_row_ulps) AS max_row_ulps,
    sqrt(fsum(rms_row_ulps * rms_row_ulps * finite) / greatest(sum(finite), 1)) AS rms_row_ulps,
    sum(nonfinite_mismatch)::BIGINT AS nonfinite_mismatch"""
_MERGED = f"""
SELECT {{by}}, {_FIGURES}, min(first_position) AS first_position
FROM kv WHERE pair = $1 AND ($2::INTEGER IS NULL OR prompt = $2) GROUP BY {{by}} ORDER BY {{by}}
"""
# Keys of layer 0 depend on nothing but the embedding, the first norm, one product and the rotation:
# a difference there is the kernel's own. Latents count as keys.
_SUMMARY = f"""
WITH part(name, kinds, layers) AS (VALUES ('together', 'key value state', NULL),
    ('keys', 'key', NULL), ('values', 'value', NULL), ('states', 'state', NULL),
    ('layer_0_keys', 'key', 0)),
chosen AS (
    SELECT *, (layer, prompt, first_position, head) AS place
    FROM kv JOIN part ON contains(kinds, CASE WHEN kind = 'value' THEN kind
            WHEN kind = 'latent' OR kind LIKE '%key' THEN 'key' ELSE 'state' END)
        AND (layers IS NULL OR layer = layers)
    WHERE pair = $1)
SELECT prompt AS of_prompt, name, {_FIGURES}, min(layer) FILTER (neq > 0) AS first_layer,
    string_agg(DISTINCT layer || ' ' || kind, ',') FILTER (neq > 0) AS differing,
    arg_min(prompt, place) FILTER (neq > 0) AS first_prompt,
    arg_min(first_position, place) FILTER (neq > 0) AS first_position,
    arg_min(head, place) FILTER (neq > 0) AS first_head,
    arg_min(first_element, place) FILTER (neq > 0) AS first_element
FROM chosen GROUP BY GROUPING SETS ((name), (name, prompt)) ORDER BY of_prompt NULLS FIRST
"""
MEASURES = ("neq_share", "max_row_ulps", "max_ulps")  # of a cell by position
_HERE = """
SELECT p.*, layer AS "row", whole.elements / count(*) OVER (PARTITION BY layer) AS width
FROM kv_position AS p JOIN (
    SELECT layer, sum(elements) AS elements
    FROM kv WHERE pair = $2 AND prompt = $3 AND kind = $4 GROUP BY layer
) AS whole USING (layer) WHERE pair = $2 AND prompt = $3 AND kind = $4
"""


def merge(run: RunReader, pair: int, prompt: int | None, *by: str) -> DataFrame:
    """Return figures of a pair's caches by layer, kind, head or prompt, of all prompts together or
    of one.
    """
    return run.query(_MERGED.format(by=", ".join(by)), pair, prompt)


def cells(
    run: RunReader,
    pair: int,
    prompt: int,
    kind: str,
    measure: str,
    most: int = 200,
) -> DataFrame:
    """Return one of MEASURES over layers x positions of a prompt, as
    core.runs.queries.layers.pool.
    """
    return pool(run, _HERE, measure, most, pair, prompt, kind)


def summaries(run: RunReader, pair: int) -> dict[int | None, Record]:
    """Return figures of a pair's caches by prompt, None is all prompts: `together`, `keys`,
    `values`, `states` and `layer_0_keys`, each None if no such cache is stored. Empty if the pair
    has no caches.
    """
    parts = ("together", "keys", "values", "states", "layer_0_keys")
    by_prompt: dict[int | None, Record] = {}
    for row in records(run.query(_SUMMARY, pair)):
        of_prompt = by_prompt.setdefault(row.pop("of_prompt"), dict.fromkeys(parts))
        # "0 key,0 value,1 key"
        places = [place.partition(" ") for place in (row.pop("differing") or "").split(",")]
        row["first_kinds"] = sorted(
            kind for layer, _, kind in places if layer == str(row["first_layer"])
        )
        of_prompt[row.pop("name")] = row
    return by_prompt


def sentence(header: RunHeader, summary: Record, of_prompt: str = "") -> str:
    """Say how much of the caches differs, and its first place, in markdown. summary: one of
    `summaries`; of_prompt: ` of prompt 0` if it is of one of several.
    """
    together, first = summary["together"], summary["layer_0_keys"]
    if not together["neq"]:
        return (
            "Nothing differs: both caches are equal in all"
            f" {plural(together['elements'], 'element')}{of_prompt}."
        )
    kinds = series([f"{kind}s" for kind in together["first_kinds"]])
    prompt = ""
    if header.has_several_prompts and not of_prompt:
        prompt = f"prompt {together['first_prompt']}, "
    element = ""
    if together["first_element"] is not None:
        # a file of 1.0.0 has none
        element = f", element {together['first_element']}"
    text = (
        f"**{out_of(together['neq'], together['elements'])} elements{of_prompt}"
        f" {'differs' if together['neq'] == 1 else 'differ'}**, first in layer"
        f" {together['first_layer']} ({kinds}), {prompt}head {together['first_head']}, position"
        f" {together['first_position']}{element}."
    )
    if first is None or not first["neq"]:
        return text
    return (
        f"{text} **{first['neq']:,} of {first['elements']:,}** elements of layer 0's keys differ."
    )


def caches_json(run: RunReader, pair: int) -> Record | None:
    """Return a pair's caches as JSON: summary, the same of every prompt, and one object per layer,
    kind and head of a prompt. None if there are none.
    """
    by_prompt = summaries(run, pair)
    if not by_prompt:
        return None
    return {
        "reference": run.pairs[pair].reference,
        "variant": run.pairs[pair].variant,
        "compute_dtype": run.header.compute_dtype,
        "summary": by_prompt.pop(None),
        "by_prompt": [{"prompt": prompt, **one} for prompt, one in by_prompt.items()],
        "by_head": records(
            run.query(
                "SELECT * EXCLUDE pair, neq / greatest(elements, 1) AS neq_share FROM kv WHERE pair"
                " = ? ORDER BY prompt, layer, kind, head",
                pair,
            ),
        ),
    }
