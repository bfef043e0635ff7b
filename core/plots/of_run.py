"""Figures of a run by name."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from ..checks.pair import PairFigures
from ..errors import UsageError
from ..rl.queries import summary
from ..runs.queries.layers import modules
from ..runs.reader import RunReader
from ..text import clean
from .layers import module_growth
from .near_ties import near_tie_scatter
from .pairs import floor_ratio, floor_ratios, runs_by_position, ulp_histogram
from .rl import density, ratios, steps

_OF_ROLLOUTS = {
    "ratios": (ratios, "histogram"),
    "density": (density, "density"),
    "steps": (steps, "steps"),
}
NAMES = ("margins", "positions", "ulps", "noise floor", "modules", *_OF_ROLLOUTS)


def figure_of(run: RunReader, name: str, pair: int, prompt: int) -> go.Figure:
    """Return one of NAMES of a pair; `positions` of all variants; `positions` and `noise floor` of
    one prompt.

    Raises:
        UsageError: no such figure, or the run has nothing to draw in it.
    """
    header, judged = (
        run.header,
        [each.figures for each in run.evidence(pair) if isinstance(each.figures, PairFigures)],
    )
    if name == "margins":
        return near_tie_scatter(run.positions(pair), [each.token_texts for each in header.prompts])
    if name == "positions":
        lines = [(each.variant, run.positions(each.index)) for each in run.pairs]
        return runs_by_position(lines, prompt, "max_abs", f"largest difference, {header.unit}")
    if name == "ulps" and (histogram := run.histogram(pair)):
        return ulp_histogram(histogram, header.compute_dtype)
    if name == "modules" and len(table := modules(run, pair)):
        return module_growth(table)
    if name == "noise floor" and judged and len(floors := floor_ratios(run, pair, judged[-1])):
        table, limit = run.positions_of(pair, prompt), judged[-1].position_ratio_allowed or None
        flips = table.loc[table["is_flip"], "position"].to_numpy(int)
        return floor_ratio(
            floors[floors["prompt"] == prompt],
            limit,
            judged[-1].compute_dtype,
            flips,
        )
    draw, stored = _OF_ROLLOUTS.get(name, (None, ""))
    if draw is not None and run.has_rollouts() and len(table := pd.DataFrame(summary(run, stored))):
        return draw(table)
    missing = (
        f"run '{clean(header.name)}' has nothing to draw as '{name}'"
        if name in NAMES
        else f"no figure '{name}'"
    )
    raise UsageError(f"{missing}; figures are {', '.join(NAMES)}.")
