"""Error against float32: each side's error in 16 bits over that of randomized rounding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from msgspec import structs

from ..evidence import (
    FAILED,
    MISSING,
    NOTED,
    OWN_DTYPE,
    PASSED,
    Check,
    Evidence,
    Limit,
    Outliers,
    Positions,
    RatioFigures,
    WorstRatio,
)
from ..numerics.arrays import Floats
from ..numerics.statistic import (
    BLOCKS,
    SYSTEMATIC,
    FloorTest,
    Limits,
    Places,
    floor_test,
    rms_of,
    smallest_fault,
)
from ..places import beyond_in_words
from ..text import multiple, plural
from ..verdict import LIKELY_ROUNDING

# 16 bits, each side's error over that of randomized rounding: engines that round more often
# (partial sums of ranks, unfused kernels) reach 1.5; a place stands out from twice on, whatever the
# draws say.
DRAWN_LIMITS = Limits(over_all=2.0, at_a_place=2.0)
# times the draws at a position, from which on the model's own forward is the measure there: in
# sample_runs/model one position of 58 reaches 2.2, and decode 2.5, where draws allow 2.3
_OWN_STANDS_OUT = 1.5
# sound kernels reach 1.5 times that of draws, the largest of which differ by up to 1.4
_SYSTEMATIC_OVER_DRAWS = 1.5
# of positions, at which experts may be further: norms in float64 move 1 of 42 positions by 28x
_JUMPS = 0.1


@dataclass(frozen=True)
class Errors:
    """Errors in 16 bits to the model's float32 forward. squares: their mean squares, infinite if a
    logit is not finite, unlike there [positions]; systematic: `SystematicError.size`.
    """

    squares: Floats
    systematic: float = 0.0


@dataclass(frozen=True)
class Exact:
    """Errors of each side, and of draws, which are forwards with randomized rounding.

    own_paths: errors of the model's own paths, which must look like one more draw, or the draws
    measure nothing; own: errors of its plain forward, None if unknown; has_experts: a router that
    nearly ties may choose another expert at a position, in sound sides too; shares_scale: as of
    `floor_test`; wide, roundings: in words, what the sides are compared with and what the draws
    are.
    """

    errors: Mapping[str, Errors]
    draws: Sequence[Errors]
    own_paths: Callable[[], Mapping[str, Errors]]
    own: Errors | None = None
    model: str = "the model"
    has_experts: bool = False
    limits: Limits = DRAWN_LIMITS
    shares_scale: bool = False
    wide: str = "the model's float32 forward"
    roundings: str = "forwards with randomized rounding"


class DrawnFigures(RatioFigures, kw_only=True):
    """An engine's error against the model's float32 forward, compared with that of random
    roundings.
    """

    leaves_16_bits_open = True

    noise_ratio: Annotated[float | None, "RMS error / RMS error of rounding"]
    largest_ratio_allowed: Limit
    draws: Annotated[int, "forwards with randomized rounding"]
    model_ways_ratios: Annotated[
        tuple[float, ...],
        "RMS error of the model's own paths / of these forwards, near 1",
    ]
    worst_position_ratio: WorstRatio
    position_ratio_allowed: Annotated[float, "limit of the ratio at one position"]
    positions: Positions
    positions_beyond: Outliers
    nonfinite_mismatch: Annotated[int, "positions NaN or infinite, unlike in float32"]
    fault_seen_at_one_position: Annotated[
        float | None,
        "smallest detectable fault at one position, x rounding error",
    ] = None
    fault_seen_over_all: Annotated[float, "smallest detectable fault overall, x rounding error"]
    beyond: Annotated[Mapping[str, tuple[int, ...]], "outliers, by kind of place"]

    @property
    def names_position(self) -> bool:
        # a size beyond the limit over all says no position
        has_outliers = self.positions_beyond > 0 and self.ratio <= self.largest_ratio_allowed
        return has_outliers or self.nonfinite_mismatch > 0


DRAWN = Check("error against float32", OWN_DTYPE, DrawnFigures, LIKELY_ROUNDING)


def error_rows(
    exact: Exact,
    dtype: str,
    lengths: Sequence[int],
    blocks: Sequence[int],
    *,
    always_check_draws: bool,
) -> list[tuple[Evidence, FloorTest]]:
    """Return the row of each side's error in 16 bits over that of randomized rounding, and its
    test.

    If a row fails, a path of the model itself has to look like its randomized rounding, or no row
    decides. always_check_draws: also if every row passes, because the draws alone decide.
    """
    test_of = partial(
        error_test,
        draws=exact.draws,
        lengths=() if exact.has_experts else lengths,
        blocks=blocks,
        own=exact.own,
        limits=exact.limits,
        shares_scale=exact.shares_scale,
    )
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
        if odd:
            says = (
                f"The model's own '{odd}' does not look like its randomized rounding, which is no"
                " measure here."
            )
            rows = [replace(row, outcome=MISSING, says=says) for row in rows]
    if len(rows) > 1 and all(row.outcome == FAILED for row in rows):
        says = f"Neither side is what {exact.model} computes in {dtype}: a different checkpoint?"
        rows = [replace(row, outcome=MISSING, says=says) for row in rows]
    return list(zip(rows, tests.values(), strict=True))


def error_test(
    errors: Errors,
    draws: Sequence[Errors],
    lengths: Sequence[int] = (),
    blocks: Sequence[int] = BLOCKS,
    *,
    own: Errors | None = None,
    limits: Limits = DRAWN_LIMITS,
    shares_scale: bool = False,
) -> FloorTest:
    """Compare errors with draws of rounding. lengths: of prompts; without them positions alone are
    tested. own: errors of the model's plain forward; shares_scale: as of `floor_test`.
    """
    squares = np.stack([draw.squares for draw in draws])
    difference = errors.squares
    # where kernels round in a way that draws do not have, the model's own forward does so too; one
    # that is no draw itself may have the fault
    if own and error_test(own, draws, lengths, blocks).is_passed:
        drawn = np.maximum(squares.mean(axis=0), np.finfo(np.float64).tiny)
        over_drawn = own.squares / drawn
        stands_out = np.isfinite(over_drawn) & (over_drawn > _OWN_STANDS_OUT**2)
        difference = np.where(stands_out, difference / over_drawn, difference)
    test = floor_test(
        difference,
        squares,
        limits,
        lengths=lengths,
        blocks=blocks,
        shares_scale=shares_scale,
    )
    systematic = np.array([draw.systematic for draw in draws])
    typical = rms_of(np.square(systematic))
    if not lengths or not typical:
        return test
    ratio = errors.systematic / typical
    limit = max(limits.over_all, _SYSTEMATIC_OVER_DRAWS * systematic.max() / typical)
    return replace(
        test,
        groups=(
            *test.groups,
            Places(SYSTEMATIC, ratio, 0, limit, np.flatnonzero([ratio > limit])),
        ),
    )


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
        largest_ratio_allowed=exact.limits.over_all,
        draws=len(exact.draws),
        model_ways_ratios=(),
        worst_position_ratio=test.worst,
        position_ratio_allowed=test.position.limit,
        positions=len(test.by_position),
        positions_beyond=len(test.outliers),
        nonfinite_mismatch=nonfinite,
        fault_seen_at_one_position=smallest_fault(test.position.limit),
        fault_seen_over_all=smallest_fault(exact.limits.over_all),
        beyond={
            each.kind: tuple(each.outliers[:8].tolist())
            for each in test.places
            if len(each.outliers)
        },
    )
    roundings = f"{len(exact.draws)} {exact.roundings}"
    size = (
        f"In {dtype} the RMS error of '{name}' vs. float32 is {multiple(test.ratio)} the rounding"
        " error"
    )
    outcome = PASSED if test.is_passed else FAILED
    says = beyond_in_words(test, size, lengths)
    if nonfinite:
        says = (
            f"In {dtype} '{name}' is NaN or infinite at {plural(nonfinite, 'position')}, unlike in"
            " float32."
        )
    elif (
        outcome == FAILED
        and exact.has_experts
        and len(test.outliers) <= _JUMPS * len(test.by_position)
    ):
        rest = np.delete(exact.errors[name].squares, test.outliers)
        draws = np.delete([draw.squares for draw in exact.draws], test.outliers, axis=-1)
        if rest.mean() <= exact.limits.over_all**2 * draws.mean():
            outcome = NOTED
            says = f"{says.removesuffix('.')}: another expert, by a near tie of the router?"
    return Evidence(
        DRAWN,
        f"'{name}' in {dtype} compared with {exact.wide}, over {roundings}",
        figures,
        outcome,
        says,
        name,
    )
