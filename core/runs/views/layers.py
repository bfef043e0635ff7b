"""Module outputs of a pair for a page: which differs first, how the difference grows, at which positions.

Views of the tables `layer` and `layer_position`. A table here is what `RunReader.layers` returns, or its rows of one
prompt. Modules are in the order in which they run, and of that, not of what depends on what: keys and values of one
norm come one after the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import StoreError, UsageError
from ...text import code, out_of, plural
from ..reader import RunReader
from .kernels import KernelPlace, where_it_starts

if TYPE_CHECKING:
    import pandas as pd

MEASURES = ("ratio", "neq_share", "max_row_ulps", "max_ulps")
RESIDUAL, HEAD = "residual", "head"


NARROW = ("bfloat16", "float16")


def says_little(dtype: str) -> str:
    """Warning that a floor in 16 bits says little, where a pair is above it."""
    return f"{dtype} noise floors are unreliable in early layers; capture in float32 for finer resolution."


@dataclass(frozen=True)
class ModuleFigures:
    """One module's output on both sides, over the positions looked at.

    Elements differ and ULPs (of `dtype`) count as in the metric contract; max_abs, rms and floor_rms are in the unit of
    the output; they are NaN, and ULPs and ratio None, if no element is finite on both sides although one side is.
    first_prompt, first_position: the lowest place at which an element differs, None where none does. ratio: rms over
    floor_rms, None without a floor, infinite where the floor is 0 and rms is not; row ULPs are None in a file that is
    older than them, and where no output has a finite element.
    """

    ordinal: int
    module: str
    kind: str
    block: int | None
    dtype: str
    positions: int
    elements: int
    neq: int
    neq_share: float
    max_abs: float
    rms: float
    floor_rms: float | None
    ratio: float | None
    max_ulps: int | None
    mean_ulps: float | None
    max_row_ulps: float | None
    rms_row_ulps: float | None
    nonfinite_mismatch: int
    first_prompt: int | None
    first_position: int | None


@dataclass(frozen=True)
class LayerSummary:
    """Summary of a pair's modules. first: the first module with an element that differs; largest: the one with the
    largest ratio (of those whose floor is not 0); last: what the model gives in the end; positions: looked at, of all
    prompts of the table; has_floor: is there a floor of any module.
    """

    modules: int
    positions: int
    first: ModuleFigures | None
    largest: ModuleFigures | None
    last: ModuleFigures
    has_floor: bool


@dataclass(frozen=True)
class LayerGrid:
    """One measure of one prompt. Cell (i, j) is module number i of `modules`, positions `positions[edges[j]]` to before
    `positions[edges[j + 1]]` of those looked at, pooled by maximum: nothing that differs is lost. [modules, cells]

    is_mismatch: something differs there by no finite distance, so a NaN or infinity is not met by the same.
    """

    measure: str
    modules: tuple[ModuleFigures, ...]
    positions: NDArray[np.int64]
    edges: NDArray[np.int64]
    cells: NDArray[np.float64]
    is_mismatch: NDArray[np.bool_]


def modules_of(table: pd.DataFrame) -> list[ModuleFigures]:
    """One a module, all prompts of the table together, in the order in which they run. Only those that every prompt
    has.
    """
    if table.empty:
        return []
    finite = table["finite"].to_numpy(float)
    floor = table["floor_rms"].to_numpy(float, na_value=np.nan)
    weighed = table.assign(
        squares=table["rms"].to_numpy(float) ** 2 * finite,
        floor_squares=np.nan_to_num(floor) ** 2 * finite,
        ulps=table["mean_ulps"].to_numpy(float) * finite,
        row_squares=np.nan_to_num(table["rms_row_ulps"].to_numpy(float)) ** 2 * finite,
        is_floorless=np.isnan(floor),
    )
    sums = ["positions", "elements", "neq", "finite", "squares", "floor_squares"]
    sums += ["ulps", "row_squares", "nonfinite_mismatch"]
    how = dict.fromkeys(("module", "kind", "block", "dtype"), "first") | dict.fromkeys(sums, "sum")
    how |= {"prompt": "count", "is_floorless": "any"}
    how |= dict.fromkeys(("max_abs", "max_ulps", "max_row_ulps"), "max")
    rows = weighed.groupby("ordinal", sort=True).agg(how).reset_index()
    rows = rows[rows["prompt"] == table["prompt"].nunique()]
    differing = (
        table[table["neq"] > 0].sort_values(["ordinal", "prompt"]).drop_duplicates("ordinal").set_index("ordinal")
    )
    first = differing[["prompt", "first_position"]].reindex(rows["ordinal"])
    return [
        _figures(row, prompt, position)
        for row, prompt, position in zip(rows.to_dict("records"), first["prompt"], first["first_position"], strict=True)
    ]


def _figures(row: dict, first_prompt: Any, first_position: Any) -> ModuleFigures:
    total = max(1.0, float(row["finite"]))
    rms, elements, neq = float(np.sqrt(row["squares"] / total)), int(row["elements"]), int(row["neq"])
    is_nan = row["finite"] == 0 and row["nonfinite_mismatch"] > 0
    is_unknown = is_nan or row["max_row_ulps"] != row["max_row_ulps"]
    floor_rms = None if row["is_floorless"] else float(np.sqrt(row["floor_squares"] / total))
    return ModuleFigures(
        ordinal=int(row["ordinal"]),
        module=str(row["module"]),
        kind=str(row["kind"]),
        block=_whole(row["block"]),
        dtype=str(row["dtype"]),
        positions=int(row["positions"]),
        elements=elements,
        neq=neq,
        neq_share=neq / max(1, elements),
        max_abs=np.nan if is_nan else float(row["max_abs"]),
        rms=np.nan if is_nan else rms,
        floor_rms=floor_rms,
        ratio=None if is_nan else _ratio(rms, floor_rms),
        max_ulps=None if is_nan else int(row["max_ulps"]),
        mean_ulps=None if is_nan else float(row["ulps"]) / total,
        max_row_ulps=None if is_unknown else float(row["max_row_ulps"]),
        rms_row_ulps=None if is_unknown else float(np.sqrt(row["row_squares"] / total)),
        nonfinite_mismatch=int(row["nonfinite_mismatch"]),
        first_prompt=_whole(first_prompt),
        first_position=_whole(first_position),
    )


def _whole(value: Any) -> int | None:
    import pandas as pd

    return None if pd.isna(value) else int(value)


def _ratio(rms: float, floor_rms: float | None) -> float | None:
    if floor_rms is None:
        return None
    return rms / floor_rms if floor_rms > 0 else (float("inf") if rms > 0 else 0.0)


def summarize(table: pd.DataFrame) -> LayerSummary | None:
    """Summarize a table of modules; None where there is nothing to compare: the capture was not asked to."""
    return summary_of(modules_of(table))


def summary_of(modules: list[ModuleFigures]) -> LayerSummary | None:
    """Summarize modules as `modules_of` has them; None where there are none."""
    if not modules:
        return None
    above = [each for each in modules if each.ratio is not None and np.isfinite(each.ratio) and each.ratio > 0]
    return LayerSummary(
        modules=len(modules),
        positions=max(each.positions for each in modules),
        first=next((each for each in modules if each.neq), None),
        largest=max(above, key=lambda each: each.ratio or 0.0, default=None),
        last=modules[-1],
        has_floor=any(each.floor_rms is not None for each in modules),
    )


def count_at_first(run: RunReader, pair: int, first: ModuleFigures | None) -> tuple[int, int]:
    """Return how many elements of a module differ at its first place, of how many; (0, 0) of None."""
    if first is None or first.first_prompt is None:
        return 0, 0
    along = run.layer_positions(pair, first.first_prompt, first.ordinal)
    neq = along.loc[along["position"] == first.first_position, "neq"]
    return int(neq.sum()), first.elements // max(1, first.positions)


def sentence(found: LayerSummary, names_prompt: bool, counted: tuple[int, int]) -> str:
    """A sentence on the module that differs first, where, and on how much differs in the end, in markdown. counted: of
    `count_at_first`.
    """
    first = found.first
    if first is None:
        return f"No module differs: {plural(found.modules, 'output')}, equal on both sides."
    prompt = f"prompt {first.first_prompt}, " if names_prompt else ""
    said = (
        f"**`{code(first.module)}`** ({_word(first.kind)}) **is the first module that differs, at"
        f" {prompt}position {first.first_position}**: {out_of(*counted)} of its elements there."
    )
    if found.last is not first:
        differ = "differs" if found.last.neq == 1 else "differ"
        said += f" Overall {out_of(found.last.neq, found.last.elements)} of the {_word(found.last.module)} {differ}."
    return said


def _word(text: str) -> str:
    """A word as it is; as code where a file of others has anything else."""
    return text if text.isalpha() else f"`{code(text)}`"


def kernels_where_it_starts(run: RunReader, pair: int) -> KernelPlace | None:
    """The first module that differs and what ran there on both sides; None where the run does not hold both, or no
    module differs.
    """
    listed = run.kernels.get(0), run.kernels.get(pair + 1)
    modules = modules_of(run.layers(pair))
    found = summary_of(modules)
    if listed[0] is None or listed[1] is None or found is None or found.first is None:
        return None
    first = found.first
    order = [each.module for each in modules]
    return where_it_starts(
        listed[0], listed[1], order, first.module, first.first_prompt or 0, first.first_position or 0
    )


def grid(run: RunReader, pair: int, prompt: int, measure: str, *, max_columns: int = 400) -> LayerGrid:
    """A measure of MEASURES over modules x positions of one prompt; at most `max_columns` cells a module.

    ratio: rms at the position over the floor_rms of the module in this prompt; NaN where it has no floor, infinite
    where that is 0 and the pair differs.
    """
    if measure not in MEASURES:
        raise UsageError(f"{measure} of modules asked for; there are {', '.join(MEASURES)}.")
    table = run.layers(pair)
    modules = modules_of(table[table["prompt"] == prompt])
    rows = run.layer_positions(pair, prompt)
    rows = rows[rows["ordinal"].isin([each.ordinal for each in modules])]
    ordinals, i = np.unique(rows["ordinal"].to_numpy(np.int64), return_inverse=True)
    positions, j = np.unique(rows["position"].to_numpy(np.int64), return_inverse=True)
    count = run.header.prompts[prompt].positions
    if len(ordinals) != len(modules) or (len(positions) and not 0 <= positions[0] <= positions[-1] < count):
        raise StoreError(f"{run.path.name}: its modules by position are not those of the prompt; the file is damaged.")
    width = max(1, -(-len(positions) // max_columns))
    edges = np.minimum(np.arange(-(-len(positions) // width) + 1) * width, len(positions))
    neq, ulps = rows["neq"].to_numpy(np.int64), rows["max_ulps"].to_numpy(np.int64)
    values = ulps.astype(float)
    if measure == "max_row_ulps":
        values = rows["max_row_ulps"].to_numpy(float)
    elif measure == "neq_share":
        values = neq / np.array([each.elements / max(1, each.positions) for each in modules])[i]
    elif measure == "ratio":  # of the whole module: at one position the floor of a 16-bit format is often 0 by chance
        floor = np.array([np.nan if each.floor_rms is None else each.floor_rms for each in modules])[i]
        values = ratios(rows["rms"].to_numpy(float), floor)
    cells = np.full((len(modules), len(edges) - 1), -1.0)
    known = ~np.isnan(values)
    np.maximum.at(cells, (i[known], j[known] // width), values[known])
    is_mismatch = np.zeros(cells.shape, bool)
    np.logical_or.at(is_mismatch, (i, j // width), (neq > 0) & (ulps == 0))
    return LayerGrid(measure, tuple(modules), positions, edges, np.where(cells < 0, np.nan, cells), is_mismatch)


def ratios(rms: NDArray[np.float64], floor_rms: NDArray[np.float64]) -> NDArray[np.float64]:
    """rms over floor: NaN without a floor, 0 where nothing differs, infinite where the floor alone is 0. Same shape."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isnan(floor_rms), np.nan, np.where(rms == 0, 0.0, rms / floor_rms))


def module_named(modules: list[ModuleFigures] | tuple[ModuleFigures, ...], name: str) -> ModuleFigures | None:
    return next((each for each in modules if each.module == name), None)


def layers_json(run: RunReader, pair: int, prompt: int | None = None) -> dict | None:
    """A pair's modules as JSON: the summary, and one object a module; infinite ratios and NaN are null. prompt: only
    that one's. None if there are none.
    """
    table = run.layers(pair)
    table = table if prompt is None else table[table["prompt"] == prompt]
    modules = modules_of(table)
    summary = summary_of(modules)
    if summary is None:
        return None
    first = summary.first
    return {
        "reference": run.pairs[pair].reference,
        "variant": run.pairs[pair].variant,
        "prompts": sorted({int(each) for each in table["prompt"]}),
        "positions": summary.positions,
        "first_module": first and first.module,
        "first_prompt": first and first.first_prompt,
        "first_position": first and first.first_position,
        "furthest_above_floor": summary.largest and summary.largest.module,
        "by_module": [
            {
                name: None if isinstance(value, float) and not np.isfinite(value) else value
                for name, value in asdict(each).items()
            }
            for each in modules
        ],
    }
