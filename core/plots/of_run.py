"""Figures of a run by name."""

import pandas as pd
import plotly.graph_objects as go

from ..errors import UsageError
from ..rl.queries import summary
from ..runs.queries import choices
from ..runs.queries.by_position import floor_checks, floor_ratios
from ..runs.queries.layers import modules
from ..runs.reader import RunReader
from ..text import clean
from .layers import module_growth, position_map
from .near_ties import near_tie_scatter
from .pairs import floor_ratio, runs_by_position, ulp_histogram
from .rl import density, ratios, steps
from .static import StaticFigure

_OF_ROLLOUTS = {
    "ratios": (ratios, "histogram"),
    "density": (density, "density"),
    "steps": (steps, "steps"),
}
NAMES = ("margins", "positions", "ulps", "noise floor", "modules", "choices", *_OF_ROLLOUTS)


def figure_of(run: RunReader, name: str, pair: int, prompt: int) -> go.Figure:
    """Return one of NAMES of a pair; `positions` of all variants; `positions` and `noise floor` of
    one prompt.

    Raises:
        UsageError: no such figure, or the run has nothing to draw in it.
    """
    header = run.header
    figure: go.Figure | None = None
    if name == "margins" and header.has_tokens:
        texts = [each.token_texts for each in header.prompts]
        figure = near_tie_scatter(run.positions(pair), texts, header.unit)
    elif name == "positions":
        lines = [(each.variant, run.positions(each.index)) for each in run.pairs]
        figure = runs_by_position(lines, prompt, "max_abs", f"largest difference, {header.unit}")
    elif name == "ulps" and (histogram := run.histogram(pair)):
        figure = ulp_histogram(histogram, header.compute_dtype)
    elif name == "modules" and len(table := modules(run, pair)):
        figure = module_growth(table)
    elif name == "choices" and pair in run.pairs_with_choices:
        cells = choices.cells(run, pair, prompt)
        names = choices.short_names(choices.by_module(run, pair))
        figure = position_map(
            cells, names, names, "state", choices.first_flips(run, pair).get(prompt, 0)
        )
    elif name == "noise floor" and (checks := floor_checks(run, pair)):
        # the last check that has a floor
        check = checks[-1]
        floors = floor_ratios(run, pair, check)
        if len(floors):
            table = run.positions_of(pair, prompt)
            figure = floor_ratio(
                floors[floors["prompt"] == prompt],
                check.position_ratio_allowed or None,
                check.compute_dtype,
                table.loc[table["is_flip"], "position"].to_numpy(int),
            )
    elif name in _OF_ROLLOUTS and run.has_rollouts:
        draw, stored = _OF_ROLLOUTS[name]
        if rows := summary(run, stored):
            figure = draw(pd.DataFrame(rows))
    if figure is not None:
        return StaticFigure(figure)
    missing = (
        f"run '{clean(header.name)}' has nothing to draw as '{name}'"
        if name in NAMES
        else f"no figure '{name}'"
    )
    raise UsageError(f"{missing}; figures are {', '.join(NAMES)}.")
