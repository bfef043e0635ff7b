"""What the chart by position draws of a pair: its difference and noise floor at each position, and
what exceeds the limit of one position.
"""

import numpy as np

from ...checks.pair import PairFigures
from ...numerics.arrays import DataFrame
from ...numerics.statistic import scale_of
from ..reader import RunReader


def floor_ratios(run: RunReader, pair: int, figures: PairFigures) -> DataFrame:
    """Return prompt, position and ratio to the floor of one check, NaN if a logit is NaN or
    infinite on one side; no rows if the floor is not stored by position.
    """
    floors = run.rows("floor_position", pair=pair, compute_dtype=figures.compute_dtype)
    if floors.empty:
        return floors
    ratios = floors["pair_rms"] / np.sqrt(scale_of(floors["floor_rms"].to_numpy() ** 2))
    # over the finite logits alone a ratio would look small
    if figures.nonfinite_mismatch:
        is_mismatch = run.positions(pair)["nonfinite_mismatch"] > 0
        ratios[is_mismatch] = np.nan
    return floors.assign(ratio=ratios)


def floor_checks(run: RunReader, pair: int) -> list[PairFigures]:
    """Return the figures of the checks that have a floor, the deciding one last."""
    return [row.figures for row in run.evidence(pair) if isinstance(row.figures, PairFigures)]


def by_position(run: RunReader, pair: int, table: DataFrame) -> DataFrame:
    """Return `table` with the noise floor in its own dtype, `floor_rms`, and the ratio to the
    deciding floor, `ratio`, both NaN if there is none, and whether that is an outlier.

    table: the pair's figures by position, of all prompts or of one.
    """
    places = ["prompt", "position"]
    drawn = table[[*places, "max_abs", "rms", "is_flip", "nonfinite_mismatch"]]
    checks = floor_checks(run, pair)
    if not checks:
        return drawn.assign(floor_rms=np.nan, ratio=np.nan, is_outlier=False)
    own = run.rows("floor_position", pair=pair, compute_dtype=run.header.compute_dtype)
    drawn = drawn.merge(own.drop(columns="pair_rms"), "left", places)
    ratios = floor_ratios(run, pair, checks[-1]).reindex(columns=[*places, "ratio"])
    drawn = drawn.merge(ratios, "left", places)
    limit = checks[-1].position_ratio_allowed or np.inf
    return drawn.assign(is_outlier=drawn["ratio"] > limit)


def telling_prompts(drawn: DataFrame, selected: int, most: int) -> list[int]:
    """Return the prompts to draw, in their order: the selected one and those with the largest
    difference.
    """
    largest = drawn.groupby("prompt")["max_abs"].max().sort_values(ascending=False, kind="stable")
    others = [int(prompt) for prompt in largest.index if prompt != selected]
    return sorted([selected, *others[: most - 1]])


def cells(drawn: DataFrame, most: int) -> tuple[DataFrame, int]:
    """Return at most so many cells of a prompt, and the positions of each: the largest difference
    with its position, RMS of pair and floor over the cell.
    """
    step = max(1, -(-len(drawn) // most))
    if step == 1:
        return drawn, step
    cell = np.arange(len(drawn)) // step
    cells = drawn.loc[drawn["max_abs"].fillna(-1.0).groupby(cell).idxmax()]
    names = ["rms", "floor_rms"]
    squares = drawn[names] ** 2
    cells[names] = squares.groupby(cell).mean().to_numpy() ** 0.5
    return cells, step
