"""A pair on trial: rows of evidence and floors, rung by rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from ...runs.file.evidence import (
    FAILED,
    FLOAT32,
    NOTED,
    OWN_DTYPE,
    PASSED,
    Check,
    CheckFigures,
    Evidence,
    NotFiniteFigures,
    OtherPromptsFigures,
    PairFigures,
    RerunFigures,
)
from ...runs.file.records import FloorRows
from ...text import three_digits
from .noise_ratio import FloorTest, floor_test
from .places import NotFinite, place_in_words
from .structure import BLOCKS, structure_evidence, structure_of

# The check of a rung that holds a pair against its floor, and that of a pair that needs none.
PAIR = {OWN_DTYPE: Check.OWN_PAIR, FLOAT32: Check.WIDE_PAIR}
_NOT_FINITE = {OWN_DTYPE: Check.OWN_NOT_FINITE, FLOAT32: Check.WIDE_NOT_FINITE}


class Ladder:
    """One pair on trial, over what its source can supply: a model everything, a dump what was brought beside it.

    names: of reference and variant; lengths: of the prompts, in positions. `evidence` and `floors` fill up from rung to
    rung; broken: what is NaN or infinite on one side only, in the first dtype where anything is.
    """

    def __init__(self, names: tuple[str, str], lengths: Sequence[int]) -> None:
        self.names, self.lengths = names, list(lengths)
        self.evidence: list[Evidence] = []
        self.floors: list[FloorRows] = []
        self.broken: NotFinite | None = None

    def add(
        self, check: Check, control: str, figures: CheckFigures, outcome: str, says: str, side: str | None = None
    ) -> None:
        """Add one row of evidence."""
        self.evidence.append(Evidence(check, control, figures, outcome, says, side))

    def rerun(self, control: str, called: Sequence[str], figures: RerunFigures, beside: str = "") -> None:
        """Add whether each side that was called again gives the same bits. beside: how far those are that do not, in a
        sentence.
        """
        moved = figures.not_repeatable
        who, rest = (" and ".join(f"'{name}'" for name in names) for names in (moved, set(self.names) - set(called)))
        says = "Each side gives the same bits when it is called again."
        if moved:
            does = "does" if len(moved) == 1 else "do"
            says = f"{who} {does} not give the same bits twice: something in it is nondeterministic.{beside}"
        elif rest:
            says = f"'{called[0]}' gives the same bits when it is called again; {rest} was not called again."
        self.add(Check.AGAIN, control, figures, FAILED if moved else PASSED, says)

    def rerun_size(self, rerun: NDArray[np.float64], mismatches: int, floor: FloorTest, *, has_experts: bool) -> None:
        """Add to the rerun's row how large the difference of a side from itself is. rerun: its largest mean squares
        [positions]; mismatches: logits that are NaN or infinite in one call only; floor: the test of it. In 16 bits
        rounding moves single positions of a mixture of experts by any amount.
        """
        place = next(number for number, row in enumerate(self.evidence) if row.check is Check.AGAIN)
        row = self.evidence[place]
        assert isinstance(row.figures, RerunFigures)
        worst = 0.0 if floor.finite_worst is None else floor.finite_worst
        at_one = np.inf if has_experts and not np.isfinite(floor.threshold) else floor.threshold_or(floor.largest_ratio)
        beyond = bool(mismatches) or not floor.is_passed or worst > at_one
        figures = structs.replace(
            row.figures,
            rerun_rms_logits=float(np.sqrt(rerun.mean())),
            rerun_noise_ratio=None if mismatches else floor.noise_ratio,
            largest_ratio_allowed=floor.largest_ratio,
            rerun_worst_position_ratio=None if mismatches else worst,
            beyond_noise_floor=beyond,
        )
        if mismatches:
            says = f"{mismatches:,} logits are NaN or infinite in one call only: that is no rounding."
        elif beyond:
            says = (
                f"The calls differ by {three_digits(floor.ratio)} times the noise floor, up to {three_digits(worst)}"
                f" times at {place_in_words(floor.worst_row, self.lengths)}: more than another order of sums can do, as"
                " of a buffer that is read while something else writes it."
            )
        else:
            says = (
                f"The calls differ by {three_digits(floor.ratio)} times the noise floor, as another order of sums does."
            )
        self.evidence[place] = replace(row, figures=figures, says=f"{row.says} {says}")

    def neighbours(
        self, side: str, control: str, figures: OtherPromptsFigures, says: tuple[str, str, str], *, has_experts: bool
    ) -> None:
        """Add whether other requests in the other rows leave a side's bits alone. says: that they do; that they do not,
        in a mixture of experts, whose rows share products; that data leaks.
        """
        outcome = PASSED if figures.bit_identical else NOTED if has_experts else FAILED
        self.add(Check.OTHER_PROMPTS, control, figures, outcome, says[(PASSED, NOTED, FAILED).index(outcome)], side)

    def against_floor(
        self,
        rung: str,
        dtype: str,
        control: str,
        pair: NDArray[np.float64],
        floor: NDArray[np.float64],
        *,
        not_finite: NotFinite | None = None,
        own_rounding: NDArray[np.float64] | None = None,
        maps: int = 0,
        whose: str = "this model's own rounding floor",
        floor_row_ulps: float | None = None,
    ) -> FloorTest:
        """Hold a pair [positions] against its floor [seeds, positions], both mean squares; see `floor_test`.

        maps: linear maps reordered, 0 if none; whose: the floor in words; floor_row_ulps: its 99.9th percentile, None
        where not measured.
        """
        is_16_bits = dtype not in ("float32", "float64")
        test = floor_test(pair, floor, not_finite=not_finite, is_16_bits=is_16_bits, own_rounding=own_rounding)
        mean = floor.mean(axis=0) if own_rounding is None else np.maximum(floor.mean(axis=0), own_rounding)
        self.floors.append(FloorRows(dtype, np.sqrt(pair), np.sqrt(mean)))
        figures = PairFigures(
            compute_dtype=dtype,
            noise_ratio=test.noise_ratio,
            largest_ratio_allowed=test.largest_ratio,
            pair_rms_logits=float(np.sqrt(pair.mean())),
            floor_rms_logits=float(np.sqrt(mean.mean())),
            seed_ratios=test.seed_ratios,
            worst_position_ratio=test.finite_worst,
            position_ratio_allowed=test.threshold if np.isfinite(test.threshold) else None,
            positions=len(pair),
            positions_beyond=len(test.outliers),
            log_spread=test.spread,
            nonfinite_mismatch=test.nonfinite,
            linear_maps=maps or None,
            floor_row_ulps=floor_row_ulps,
            first_nonfinite=None if not_finite is None else (*not_finite.place(self.lengths), not_finite.token),
        )
        says = _floor_says(test, dtype, self.lengths, whose)
        self.add(PAIR[rung], control, figures, PASSED if test.is_passed else FAILED, says)
        return test

    def not_finite(self, broken: NotFinite, rung: str, dtype: str, control: str) -> None:
        """Add the row of a pair of which no floor is needed: one side holds a NaN or an infinity that the other has
        not.
        """
        figures = NotFiniteFigures(
            compute_dtype=dtype,
            noise_ratio=None,
            nonfinite_mismatch=broken.logits,
            positions_beyond=len(broken.rows),
            first_nonfinite=(*broken.place(self.lengths), broken.token),
        )
        self.add(_NOT_FINITE[rung], control, figures, FAILED, _broken_says(broken, dtype, self.lengths))

    def stands_out(self, test: FloorTest, blocks: Sequence[int] = BLOCKS) -> tuple[int, int] | None:
        """Add where positions stand out from the floor that decided. -> (prompt, position) of the first"""
        shown = structure_of(test.outliers, self.lengths, blocks)
        self.evidence.append(structure_evidence(shown, test, self.lengths))
        return shown.first


def _floor_says(test: FloorTest, dtype: str, lengths: Sequence[int], whose: str) -> str:
    if test.not_finite is not None:
        return _broken_says(test.not_finite, dtype, lengths)
    if test.ratio > test.largest_ratio:
        return (
            f"In {dtype} the pair is {three_digits(test.ratio)} times {whose}; rounding stays below"
            f" {test.largest_ratio:g}."
        )
    if len(test.outliers):
        where = place_in_words(int(test.outliers[0]), lengths)
        count = "one position stands" if len(test.outliers) == 1 else f"{len(test.outliers):,} positions stand"
        return (
            f"In {dtype} the pair as a whole is {test.ratio:.2f} times the rounding floor, but {count} out, {where}"
            f" first: up to {three_digits(test.worst)} times the floor there, where rounding stays below"
            f" {test.threshold:.3g}."
        )
    stands_out = ", and no position stands out" if np.isfinite(test.threshold) else ""
    return f"In {dtype} the pair is {test.ratio:.2f} times {whose}{stands_out}."


def _broken_says(broken: NotFinite, dtype: str, lengths: Sequence[int]) -> str:
    return f"In {dtype}, {broken.says(lengths)}. Such a difference has no size, so no ratio is given."
