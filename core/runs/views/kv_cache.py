"""Key/value caches of a pair for a page: how much of them differs, by layer and head, by layer and position.

Views of the tables `kv` and `kv_position`. A table here is what `RunReader.kv` returns, or some of its rows: of one
prompt, say. Layers and heads are those that keep a cache: a model may have others between them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import StoreError, UsageError
from ...text import out_of, plural
from ..reader import RunReader
from ..tables.kv_cache import KINDS

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("neq_share", "max_row_ulps", "max_ulps", "rms")


@dataclass(frozen=True)
class CacheFigures:
    """Some elements of two caches compared.

    Elements differ and `max_ulps` counts as in the metric contract; `max_abs` and `rms` are in the unit of the cache;
    row ULPs are None in a file that is older than them, and where no key or value has a finite element.
    `first_layer` is the lowest layer in which an element differs, `first_kinds` whether keys or values do there;
    `first_prompt`, `first_position` and `first_head` are the first place in that layer. None and () if nothing differs.
    """

    elements: int
    neq: int
    neq_share: float
    max_abs: float
    rms: float
    max_ulps: int
    mean_ulps: float
    max_row_ulps: float | None
    rms_row_ulps: float | None
    nonfinite_mismatch: int
    first_layer: int | None
    first_kinds: tuple[str, ...]
    first_prompt: int | None
    first_position: int | None
    first_head: int | None


@dataclass(frozen=True)
class CacheSummary:
    """The whole caches, their keys, their values, and the keys of layer 0: those depend on nothing but the embedding,
    the first norm, one product and the rotation, so a difference there is the kernel's own. None for a model whose
    layer 0 keeps no cache.
    """

    together: CacheFigures
    keys: CacheFigures
    values: CacheFigures
    layer_0_keys: CacheFigures | None


@dataclass(frozen=True)
class HeadGrid:
    """A measure of keys or of values. `cells` [layers, heads], NaN where a layer has no such head; `is_mismatch`: a NaN
    or infinity is not met by the same.
    """

    kind: str
    layers: NDArray[np.int64]
    heads: NDArray[np.int64]
    cells: NDArray[np.float64]
    is_mismatch: NDArray[np.bool_]


@dataclass(frozen=True)
class PositionGrid:
    """Keys or values of one prompt. Cell (i, j) is layer `layers[i]`, positions `edges[j]` to `edges[j + 1]` (half
    open), pooled by maximum: nothing that differs is lost. [layers, cells] each, NaN where no position is held by both
    caches.

    neq_share: differing elements over the elements of one position; max_ulps; max_row_ulps, NaN too where a file is
    older than it; is_mismatch: a NaN or infinity alone differs there.
    """

    kind: str
    layers: NDArray[np.int64]
    edges: NDArray[np.int64]
    neq_share: NDArray[np.float64]
    max_ulps: NDArray[np.float64]
    max_row_ulps: NDArray[np.float64]
    is_mismatch: NDArray[np.bool_]


def summarize(table: pd.DataFrame) -> CacheSummary | None:
    """Summarize a table of caches; None where there is nothing to compare: a side kept no cache."""
    if table.empty:
        return None
    first = table[(table["kind"] == "key") & (table["layer"] == 0)]
    return CacheSummary(
        together=_figures(table),
        keys=_figures(table[table["kind"] == "key"]),
        values=_figures(table[table["kind"] == "value"]),
        layer_0_keys=None if first.empty else _figures(first),
    )


def sentence(found: CacheSummary, names_prompt: bool) -> str:
    """A sentence on how much of the caches differs and where it begins, in markdown."""
    together, first = found.together, found.layer_0_keys
    if not together.neq:
        return f"Nothing differs: both caches are equal in all {plural(together.elements, 'element')}."
    kinds = " and ".join(f"{kind}s" for kind in together.first_kinds)
    prompt = f"prompt {together.first_prompt}, " if names_prompt else ""
    text = (
        f"**{out_of(together.neq, together.elements)} elements {'differs' if together.neq == 1 else 'differ'}**, first"
        f" in layer {together.first_layer}'s {kinds}: {prompt}head {together.first_head}, position"
        f" {together.first_position}."
    )
    if first is None:
        return text
    if not first.neq:
        return f"{text} Layer 0's keys are all equal."
    return f"{text} **{first.neq:,} of {first.elements:,}** elements of layer 0's keys differ."


def _figures(table: pd.DataFrame) -> CacheFigures:
    if table.empty:
        return CacheFigures(0, 0, 0.0, 0.0, 0.0, 0, 0.0, None, None, 0, None, (), None, None, None)
    row = merged(table.assign(all=0), ["all"]).astype(object).iloc[0].to_dict()
    figures = {name: _plain_value(row[name]) for name in CacheFigures.__dataclass_fields__ if name in row}
    differing = table[table["neq"] > 0].sort_values(["layer", "prompt", "first_position", "head"])
    if differing.empty:
        place: dict[str, Any] = dict.fromkeys(("layer", "prompt", "position", "head"))
    else:
        first = differing.iloc[0]
        place = {name: int(first[name]) for name in ("layer", "prompt", "head")}
        place["position"] = int(first["first_position"])
    kinds = set(differing.loc[differing["layer"] == place["layer"], "kind"])
    firsts = {f"first_{name}": value for name, value in place.items()}
    return CacheFigures(**(figures | firsts), first_kinds=tuple(kind for kind in KINDS if kind in kinds))


def _plain_value(value: Any) -> Any:
    """Python's number, None if null."""
    import pandas as pd

    return None if pd.isna(value) else getattr(value, "item", lambda: value)()


def merged(table: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Rows of equal `by` as one: sums, maxima, means over finite elements. Columns of `by`, then those of `kv` and
    `neq_share`.
    """
    weights = table["finite"].to_numpy(float)
    weighed = table.assign(
        rms=table["rms"].to_numpy() ** 2 * weights,
        mean_ulps=table["mean_ulps"].to_numpy() * weights,
        rms_row_ulps=table["rms_row_ulps"].to_numpy(float) ** 2 * weights,
    )
    how: dict[str, Any] = {
        "elements": "sum",
        "neq": "sum",
        "finite": "sum",
        "max_abs": "max",
        "rms": "sum",
        "max_ulps": "max",
        "mean_ulps": "sum",
        "max_row_ulps": "max",
        "rms_row_ulps": _sum_of_known,
        "nonfinite_mismatch": "sum",
        "first_position": "min",
    }
    rows = weighed.groupby(by, sort=True).agg(how).reset_index()
    finite = np.maximum(rows["finite"].to_numpy(float), 1)
    rows["rms"] = np.sqrt(rows["rms"].to_numpy() / finite)
    rows["mean_ulps"] = rows["mean_ulps"].to_numpy() / finite
    rows["rms_row_ulps"] = np.sqrt(rows["rms_row_ulps"].to_numpy(float) / finite)
    total = np.maximum(rows["elements"].to_numpy(float), 1)
    rows.insert(len(by) + 2, "neq_share", rows["neq"].to_numpy(float) / total)
    return rows


def _sum_of_known(values: pd.Series) -> float:
    """NaN where none is known."""
    return float(values.sum(min_count=1))


def by_layer(table: pd.DataFrame) -> pd.DataFrame:
    """One row a layer and kind, keys before values, all heads and prompts of the table together."""
    return merged(table, ["layer", "kind"])


def by_head(table: pd.DataFrame, kind: str, measure: str) -> HeadGrid:
    """A measure of MEASURES over layers and heads, all prompts of the table together."""
    if kind not in KINDS or measure not in MEASURES:
        raise UsageError(f"{measure} of {kind}s asked for; there are {', '.join(MEASURES)} of {' and '.join(KINDS)}.")
    rows = merged(table[table["kind"] == kind], ["layer", "head"])
    layers, i = np.unique(rows["layer"].to_numpy(np.int64), return_inverse=True)
    heads, j = np.unique(rows["head"].to_numpy(np.int64), return_inverse=True)
    cells = np.full((len(layers), len(heads)), np.nan)
    cells[i, j] = rows[measure].to_numpy(float)
    is_mismatch = np.zeros(cells.shape, bool)
    is_mismatch[i, j] = rows["nonfinite_mismatch"].to_numpy(np.int64) > 0
    return HeadGrid(kind, layers, heads, cells, is_mismatch)


def by_position(run: RunReader, pair: int, prompt: int, *, max_columns: int = 400) -> dict[str, PositionGrid]:
    """Layers x positions of one prompt, for each kind that has rows; at most `max_columns` cells a layer."""
    positions = run.header.prompts[prompt].positions
    width = -(-positions // max_columns)
    edges = np.minimum(np.arange(-(-positions // width) + 1) * width, positions)
    heads = run.kv(pair)
    heads = heads[heads["prompt"] == prompt]
    table = run.kv_positions(pair, prompt)
    grids = {}
    for kind in KINDS:
        rows = table[table["kind"] == kind]
        if rows.empty:
            continue
        layer, place = rows["layer"].to_numpy(np.int64), rows["position"].to_numpy(np.int64)
        neq, ulps = rows["neq"].to_numpy(np.int64), rows["max_ulps"].to_numpy(np.int64)
        in_row_ulps = rows["max_row_ulps"].to_numpy(float)
        if place.min() < 0 or place.max() >= positions:
            held_by = f"a cache of positions {place.min()} to {place.max()} is not one of a prompt of {positions}"
            raise StoreError(f"{run.path.name}: {held_by}; the file is damaged.")
        layers, i = np.unique(layer, return_inverse=True)
        held = np.bincount(i)  # positions of each layer
        elements = heads[heads["kind"] == kind].groupby("layer")["elements"].sum().reindex(layers).to_numpy(float)
        share = neq / (elements / held)[i]
        at = (i, place // width)
        shape = (len(layers), len(edges) - 1)
        grids[kind] = PositionGrid(
            kind,
            layers,
            edges,
            _pooled(share, at, shape),
            _pooled(ulps, at, shape),
            _pooled(np.where(np.isnan(in_row_ulps), -1.0, in_row_ulps), at, shape),
            _pooled((neq > 0) & (ulps == 0), at, shape) > 0,
        )
    return grids


def _pooled(values: NDArray, at: tuple[NDArray, NDArray], shape: tuple[int, int]) -> NDArray[np.float64]:
    """Maximum of the values that fall into each cell; NaN where none does that is not negative."""
    cells = np.full(shape, -1.0)
    np.maximum.at(cells, at, values.astype(float))
    cells[cells < 0] = np.nan
    return cells


def kv_json(run: RunReader, pair: int) -> dict | None:
    """A pair's caches as plain numbers: summary, the same of every prompt, and one object a layer, kind and head of
    every prompt.

    None where there is nothing to compare.
    """
    table = run.kv(pair)
    summary = summarize(table)
    if summary is None:
        return None
    prompts = sorted({int(prompt) for prompt in table["prompt"]})
    rows = table.assign(neq_share=table["neq"].to_numpy(float) / np.maximum(table["elements"].to_numpy(float), 1))
    return {
        "reference": run.pairs[pair].reference,
        "variant": run.pairs[pair].variant,
        "compute_dtype": run.header.compute_dtype,
        "summary": _plain(summary),
        "by_prompt": [{"prompt": p, **_plain(summarize(table[table["prompt"] == p]))} for p in prompts],
        "by_head": [{name: _plain_value(value) for name, value in row.items()} for row in rows.to_dict("records")],
    }


def _plain(summary: CacheSummary | None) -> dict:
    """JSON has lists, no tuples: equal after a round trip."""
    return {} if summary is None else json.loads(json.dumps(asdict(summary)))
