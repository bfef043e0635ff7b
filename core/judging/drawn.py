"""Error against float32: each side's error in 16 bits over that of randomized rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from ..numerics.statistic import BLOCKS, SYSTEMATIC, FloorTest, Places, floor_test, smallest_fault
from ..runs.file.evidence import FAILED, MISSING, NOTED, PASSED, Check, DrawnFigures, Evidence
from ..text import multiple, plural
from .controls import Errors, Exact
from .limits import DRAWN
from .places import beyond_in_words

# sound kernels reach 1.5 times that of draws, the largest of which differ by up to 1.4
SYSTEMATIC_OVER_DRAWS = 1.5
# of positions, at which experts may be further: norms in float64 move 1 of 42 positions by 28x
JUMPS = 0.1


def error_rows(
    exact: Exact,
    dtype: str,
    lengths: Sequence[int],
    blocks: Sequence[int] = BLOCKS,
    *,
    always_check_draws: bool,
) -> list[tuple[Evidence, FloorTest]]:
    """Return the row of each side's error in 16 bits over that of randomized rounding, and its
    test.

    If a row fails, a path of the model itself has to look like its randomized rounding, or no row
    decides. always_check_draws: also if every row passes, because the draws alone decide.
    """

    def test_of(errors: Errors) -> FloorTest:
        return error_test(errors, exact.draws, () if exact.has_experts else lengths, blocks)

    tests = {name: test_of(errors) for name, errors in exact.errors.items()}
    rows = [_error_row(name, test, exact, dtype, lengths) for name, test in tests.items()]
    if always_check_draws or any(row.outcome != PASSED for row in rows):
        own = {name: test_of(errors) for name, errors in exact.own_paths().items()}
        ratios = tuple(test.ratio for test in own.values())
        rows = [
            replace(row, figures=structs.replace(row.figures, model_ways_ratios=ratios))
            for row in rows
        ]
        odd = next((name for name, test in own.items() if not test.is_passed), None)
        if odd is not None:
            says = (
                f"The model's own '{odd}' does not look like its randomized rounding, which is no"
                " measure here."
            )
            rows = [replace(row, outcome=MISSING, says=says) for row in rows]
    return list(zip(rows, tests.values(), strict=True))


def error_test(
    errors: Errors,
    draws: Sequence[Errors],
    lengths: Sequence[int] = (),
    blocks: Sequence[int] = BLOCKS,
) -> FloorTest:
    """Compare errors with draws of rounding. lengths: of prompts; without them positions alone are
    tested.
    """
    squares = np.stack([draw.squares for draw in draws])
    test = floor_test(errors.squares, squares, DRAWN, lengths=lengths, blocks=blocks)
    systematic = np.array([draw.systematic for draw in draws])
    typical = float(np.sqrt(np.square(systematic).mean()))
    if not lengths or not typical:
        return test
    ratio = errors.systematic / typical
    limit = max(DRAWN.over_all, SYSTEMATIC_OVER_DRAWS * float(systematic.max()) / typical)
    places = Places(SYSTEMATIC, ratio, 0, limit, np.flatnonzero([ratio > limit]))
    return replace(test, groups=(*test.groups, places))


def _error_row(
    name: str,
    test: FloorTest,
    exact: Exact,
    dtype: str,
    lengths: Sequence[int],
) -> Evidence:
    nonfinite = int(np.isinf(test.by_position).sum())
    figures = DrawnFigures(
        compute_dtype=dtype,
        noise_ratio=test.noise_ratio,
        largest_ratio_allowed=DRAWN.over_all,
        draws=len(exact.draws),
        model_ways_ratios=(),
        worst_position_ratio=test.worst,
        position_ratio_allowed=test.position.limit,
        positions=len(test.by_position),
        positions_beyond=len(test.outliers),
        nonfinite_mismatch=nonfinite,
        fault_seen_at_one_position=smallest_fault(test.position.limit),
        fault_seen_over_all=smallest_fault(DRAWN.over_all),
        outliers={
            each.kind: tuple(each.outliers[:8].tolist())
            for each in test.places
            if len(each.outliers)
        },
    )
    forwards = f"{len(exact.draws)} forwards with randomized rounding"
    control = f"'{name}' in {dtype} compared with the model's float32 forward, over {forwards}"
    size = (
        f"In {dtype} the RMS error of '{name}' vs. float32 is {multiple(test.ratio)} the rounding"
        " error"
    )
    outcome, says = FAILED, beyond_in_words(test, size, lengths)
    if test.is_passed:
        outcome = PASSED
        says = (
            f"{size}; this check detects faults from {figures.fault_seen_at_one_position:.2g}x at"
            f" one position, {figures.fault_seen_over_all:.2g}x overall."
        )
    elif nonfinite:
        says = (
            f"In {dtype} '{name}' is NaN or infinite at {plural(nonfinite, 'position')}, unlike in"
            " float32."
        )
    elif exact.has_experts and _is_rounding_but_for_jumps(test, exact, name):
        outcome = NOTED
        says = f"{says.removesuffix('.')}: another expert, by a near tie of the router?"
    return Evidence(Check.DRAWN, control, figures, outcome, says, name)


def _is_rounding_but_for_jumps(test: FloorTest, exact: Exact, name: str) -> bool:
    """Return whether a side's error is that of rounding but for few positions."""
    if len(test.outliers) > JUMPS * len(test.by_position):
        return False
    rest = np.delete(exact.errors[name].squares, test.outliers)
    draws = np.delete([draw.squares for draw in exact.draws], test.outliers, axis=-1)
    return bool(rest.mean() <= DRAWN.over_all**2 * draws.mean())
