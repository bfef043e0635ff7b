"""Is the difference of a pair, in one dtype, as large as its noise floor?

Limits are in noise floors, rms over rms (docs/explanation/calibration.md).
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from ..evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NOTED,
    OWN_DTYPE,
    PASSED,
    Check,
    Evidence,
    Limit,
    Mismatches,
    Outliers,
    Positions,
    RatioFigures,
    Subject,
    WorstRatio,
)
from ..numerics.arrays import Floats
from ..numerics.statistic import FloorTest, Limits, floor_test, rms_of
from ..places import NotFinite, beyond_in_words
from ..text import multiple
from ..verdict import ROUNDING

WIDE_DTYPES = ("float64", "float32")  # that decide, the first that could be compared
# float32 and float64: 1,076 pairs of the same function reach 1.09 over all; the smallest fault of
# the trial is 13.
WIDE = Limits(over_all=4.0, at_a_place=4.0, uses_own_spread=True)
# 16 bits, the pair over reorderings of sums: kernels round more often than the model, which
# reordering does not show, and single positions jump by orders of magnitude in rounding too, so
# they are not tested.
OWN = Limits(over_all=10.0, at_a_place=float("inf"))
# The same if an engine computes in the other 16-bit dtype: bfloat16 is 8 times coarser than
# float16.
OTHER_16_BITS = Limits(over_all=80.0, at_a_place=float("inf"))
# of a size that decides nothing, for attention chooses its keys
CHOOSES_KEYS = (
    "Near ties of the sparse-attention indexer choose other keys: this difference shows neither"
    " rounding nor a bug."
)
# of the failed row in float32 of a side that is a lower precision in 16 bits
PRECISION_IS_OPEN = (
    "In 16 bits it is a lower precision, which float32 does not show: give the model and float32"
    " at once."
)


@dataclass(frozen=True)
class Pair:
    """Two sides in one dtype. squares: mean squares of their difference [positions]; peaks: the
    largest difference over the others there [positions], None if not measured.
    """

    squares: Floats
    not_finite: NotFinite | None = None
    is_identical: bool = False
    peaks: Floats | None = None

    @property
    def sizes(self) -> Floats:
        """`squares`, infinite if a logit is not finite on one side only."""
        if not self.not_finite:
            return self.squares
        return np.where(self.not_finite.by_row > 0, np.inf, self.squares)


@dataclass(frozen=True)
class NoiseFloor:
    """What rounding does in one dtype. squares: mean squares of draws [draws, positions]; control:
    how they were made; maps: linear maps that were reordered; row_ulps: 99.9th percentile of the
    draws; None if not measured.
    """

    squares: Floats
    control: str
    maps: int | None = None
    row_ulps: float | None = None


class PairFigures(RatioFigures):
    """A pair compared with its noise floor."""

    largest_ratio_allowed: Limit
    pair_rms_logits: Annotated[float, "RMS of the pair, logits"]
    floor_rms_logits: Annotated[float, "RMS of the floor, logits"]
    seed_ratios: Annotated[
        tuple[float, ...],
        "RMS of each noise-floor forward / mean of the others",
    ]
    worst_position_ratio: WorstRatio
    position_ratio_allowed: Annotated[float | None, "limit of the ratio at one position"]
    positions: Positions
    positions_beyond: Outliers
    log_spread: Annotated[float, "spread of log ratios (standard deviation)"]
    nonfinite_mismatch: Mismatches
    linear_maps: Annotated[int | None, "linear layers with reordered reduction"] = None
    floor_row_ulps: Annotated[float | None, "99.9th percentile of the floor, row ULPs"] = None
    first_nonfinite: Annotated[
        tuple[int, int, int] | None,
        "first of them (prompt, position, token id)",
    ] = None

    @property
    def names_position(self) -> bool:
        # a size beyond the limit over all says no position
        has_outliers = self.positions_beyond > 0 and self.ratio <= self.largest_ratio_allowed
        return has_outliers or self.nonfinite_mismatch > 0


class NotFiniteFigures(RatioFigures):
    """A pair that needs no floor: one side holds a NaN or an infinity that the other has not."""

    names_position = True

    nonfinite_mismatch: Mismatches
    positions_beyond: Annotated[int, "positions with one"]
    first_nonfinite: Annotated[tuple[int, int, int], "first of them (prompt, position, token id)"]


OWN_PAIR = Check("the pair", OWN_DTYPE, PairFigures)
OWN_NOT_FINITE = Check("the pair, not finite", OWN_DTYPE, NotFiniteFigures)
WIDE_PAIR = Check("the widened pair", FLOAT32, PairFigures, ROUNDING)
WIDE_NOT_FINITE = Check("the widened pair, not finite", FLOAT32, NotFiniteFigures)


def pair_check(dtype: str) -> Check:
    """Return the check that compares a pair in a dtype."""
    return WIDE_PAIR if dtype in WIDE_DTYPES else OWN_PAIR


def pair_control(subject: Subject, dtype: str) -> str:
    """Say what is compared in a dtype."""
    reference, variant = subject.names
    return f"'{variant}' compared with '{reference}' in {dtype}"


def not_finite_row(subject: Subject, dtype: str, mismatch: NotFinite) -> Evidence:
    """Return the row on logits of a pair that are not finite on one side only, if there is no
    floor.
    """
    return Evidence(
        WIDE_NOT_FINITE if dtype in WIDE_DTYPES else OWN_NOT_FINITE,
        pair_control(subject, dtype),
        NotFiniteFigures(
            compute_dtype=dtype,
            noise_ratio=None,
            nonfinite_mismatch=mismatch.logits,
            positions_beyond=len(mismatch.rows),
            first_nonfinite=mismatch.first(subject.lengths),
        ),
        FAILED,
        f"In {dtype}, {mismatch.says(subject.lengths)}.",
    )


def pair_row(
    subject: Subject,
    dtype: str,
    pair: Pair,
    floor: NoiseFloor,
    limits: Limits,
) -> tuple[Evidence, FloorTest]:
    """Compare a pair with its noise floor in a dtype."""
    lengths, mismatch = subject.lengths, pair.not_finite
    test = floor_test(pair.sizes, floor.squares, limits, shares_scale=subject.shares_scale)
    limit = test.position.limit
    if mismatch:
        says = f"In {dtype}, {mismatch.says(lengths)}."
    else:
        prefix = f"In {dtype}" if dtype == subject.dtype else f"Recomputed in {dtype},"
        forced = " with the model's choices on both sides" if subject.replays else ""
        size = f"{prefix} the RMS difference{forced} is {multiple(test.ratio)} the noise floor"
        says = beyond_in_words(test, size, lengths)
    return Evidence(
        pair_check(dtype),
        f"{pair_control(subject, dtype)}, over {floor.control}",
        PairFigures(
            compute_dtype=dtype,
            noise_ratio=test.noise_ratio,
            largest_ratio_allowed=limits.over_all,
            pair_rms_logits=rms_of(pair.squares),
            floor_rms_logits=rms_of(floor.squares),
            seed_ratios=test.seed_ratios,
            worst_position_ratio=test.worst,
            position_ratio_allowed=limit if np.isfinite(limit) else None,
            positions=len(pair.squares),
            positions_beyond=len(test.outliers),
            log_spread=test.spread,
            nonfinite_mismatch=mismatch.logits if mismatch else 0,
            linear_maps=floor.maps,
            floor_row_ulps=floor.row_ulps,
            first_nonfinite=mismatch.first(lengths) if mismatch else None,
        ),
        PASSED if test.is_passed else FAILED,
        says,
    ), test


def uncertain_row(row: Evidence, ratio: float, reason: str | None) -> Evidence:
    """Return the row of a mixture of experts in float32, in which near ties of the router choose
    other experts. reason: why float64 is not available, None if it decides.
    """
    if reason is not None:
        says = (
            "Near ties of the router make float32 uncertain, and float64 is not available:"
            f" {reason}"
        )
        return replace(row, outcome=MISSING, says=says)
    size = f"In float32 the RMS difference is {multiple(ratio)} the noise floor"
    says = f"{size}; near ties of the router make it uncertain, so float64 decides."
    return replace(row, outcome=NOTED, says=says)
