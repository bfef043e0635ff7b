"""Judge a pair: is its difference rounding, a bug, or nondeterminism?

Evidence comes from `Controls`, which a model answers by running, a dump by reading and lists of top
tokens by queries. Nothing is judged by a constant number of logits or ULPs: a difference is
compared with what rounding does to this checkpoint on these prompts.
docs/explanation/calibration.md has the measurements behind every limit.
"""

# ruff: noqa: ARG002  (a control that is not available takes arguments for those that are)

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from ..errors import CaptureError
from ..runs.file import evidence
from ..runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NOTED,
    PASSED,
    Check,
    CheckFigures,
    Evidence,
    Verdict,
)
from ..runs.file.records import FloorRows
from ..text import multiple, number, plural, three_digits
from .divergence import SINGLE_LOGIT
from .places import NotFinite, outliers_evidence, place_in_words, place_of, structure_of, words_of
from .statistic import BLOCKS, FloorTest, Limits, Places, floor_test, smallest_fault
from .verdict import conclude

Squares = NDArray[np.float64]
"""Mean squares of differences, logits^2."""

# Limits, in noise floors (rms over rms), each with what it was measured on.
# float32 and float64: 1,076 pairs of the same function reach 1.09 over all; the smallest fault of
# the trial is 13.
WIDE = Limits(over_all=4.0, at_a_place=4.0, uses_own_spread=True)
# 16 bits, each side's error over that of randomized rounding: engines that round more often
# (partial sums of ranks, unfused kernels) reach 1.5; a place stands out from twice on, whatever the
# draws say.
DRAWN = Limits(over_all=2.0, at_a_place=2.0)
# that goes with the logits; sound kernels reach 1.5 times that of draws
SYSTEMATIC = "systematic error"
SYSTEMATIC_OVER_DRAWS = 1.5  # the largest of the draws: these differ from one another by up to 1.4
# of positions, at which experts may be further: norms in float64 move 1 of 42 positions by 28x
JUMPS = 0.1
# 16 bits, the pair over reorderings of sums: kernels round more often than the model, which
# reordering does not show, and single positions jump by orders of magnitude in rounding too, so
# they are not tested.
OWN = Limits(over_all=10.0, at_a_place=float("inf"))
# The same if an engine computes in the other 16-bit dtype: bfloat16 is 8 times coarser than
# float16.
OTHER_16_BITS = Limits(over_all=80.0, at_a_place=float("inf"))
# Lists over a model's reorderings: of twenty tokens a mean square varies more than of a vocabulary,
# so one position may be further. Beyond the limits a list is undecided: a cache or activations of
# fewer bits are no bug.
LISTS = Limits(over_all=4.0, at_a_place=10.0)
# An uploaded floor may not hold the fault on trial, which would make rounding of it (rms over rms).
FLOOR_START = 10.0  # its first path to the pair's float32 reference, over its other paths
# largest difference between two paths over the smallest: a fault in one path; real ones reach 5.5
FLOOR_KINDS = 8.0
FLOOR_UNEVEN = 50.0  # the same at one position; real ones reach 21
# of what precisions differ by, least shrinking from 16 bits to the floor; real ones 0.19 and more
FLOOR_SHRINKS = 0.02
# of a float32 run, over what logits vary by in a row; rounding reaches 4e-6 in 30 layers
FLOOR_OF_SPREAD = 1e-4
OTHER_PATH = 0.75  # share of positions at which two paths have to differ to be two
# The arrays alone, rms in row ULPs: (largest of harmless paths, of a bug, least that one position
# is compared with). Harmless paths of dense models reach 1.7 in 16 bits and 9.3 in float32,
# mixtures of experts 10 in bfloat16.
ROW_ULPS = {"bfloat16": (2, 24, 0.25), "float16": (2, 24, 0.25), "float32": (32, 1000, 1)}
# one position over the median one: 15 in dense models, 50 with experts
STANDS_OUT_MOST, STANDS_OUT = 20, 100
KL = 0.25  # mean, nats: harmless up to 0.0017 in dense models, 0.022 with experts
# a side further than this from the model's own logits is not what the model computes
FOREIGN = 10.0
# float64 rounds 2^-29 of what float32 does. A pair that differs by what float32 rounds stays in
# float32 somewhere.
_FLOAT32_OVER_FLOAT64 = 2.0**29
# of the squared difference at a position: the fault is in one column of the vocabulary
_OF_ONE_TOKEN = 0.9
_INDEXER = (
    "Near ties of the sparse-attention indexer choose other keys: this difference shows neither"
    " rounding nor a bug."
)
_LONGEST = 25  # words of a verdict's sentence
# groups that compare the size of a difference with that of rounding
_BY_SIZE = (evidence.SCREENING, evidence.OWN_DTYPE, FLOAT32)
# groups that need no model and no other dtype
_OF_ARRAYS = (
    evidence.VALIDITY,
    evidence.SAMPLER,
    evidence.RERUN,
    evidence.NEIGHBOURS,
    evidence.STRUCTURE,
)


@dataclass(frozen=True)
class Pair:
    """Two sides in one dtype. squares: mean squares of their difference [positions]; peaks: the
    largest difference over the others there [positions], None if not measured.
    """

    squares: Squares
    not_finite: NotFinite | None = None
    is_identical: bool = False
    peaks: NDArray[np.float64] | None = None

    @property
    def sizes(self) -> Squares:
        """`squares`, infinite if a logit is not finite on one side only."""
        return (
            self.squares
            if self.not_finite is None
            else np.where(self.not_finite.by_row > 0, np.inf, self.squares)
        )


@dataclass(frozen=True)
class NoiseFloor:
    """What rounding does in one dtype. squares: mean squares of draws [draws, positions]; control:
    how they were made; maps: linear maps that were reordered; row_ulps: 99.9th percentile of the
    draws; None if not measured.
    """

    squares: Squares
    control: str
    maps: int | None = None
    row_ulps: float | None = None


@dataclass(frozen=True)
class Rerun:
    """Sides that were called twice. unstable: those whose bits differ; squares: the largest
    difference of a side from itself [positions], None if not measured; mismatches: logits that are
    not finite in one call only.
    """

    control: str
    sides: tuple[str, ...]
    unstable: tuple[str, ...]
    squares: Squares | None = None
    mismatches: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherRows:
    """A side computed with other prompts in the other rows, or in another row. figures: of the
    check; difference: of the logits in a dtype with a noise floor, None if the bits are the same or
    it cannot be measured.
    """

    side: str
    control: str
    figures: evidence.OtherPromptsFigures | evidence.OtherRowFigures
    dtype: str = ""
    difference: Pair | None = None


@dataclass(frozen=True)
class Errors:
    """Errors in 16 bits to the model's float32 forward. squares: their mean squares, infinite if a
    logit is not finite, unlike there [positions]; systematic: `SystematicError.size`.
    """

    squares: Squares
    systematic: float = 0.0


@dataclass(frozen=True)
class Exact:
    """Errors of each side, and of draws, which are forwards with randomized rounding.

    own_paths: errors of the model's own paths, which must look like one more draw, or the draws
    measure nothing; has_experts: a router that nearly ties may choose another expert at a position,
    in sound sides too.
    """

    errors: Mapping[str, Errors]
    draws: Sequence[Errors]
    own_paths: Callable[[], Mapping[str, Errors]]
    model: str = "the model"
    has_experts: bool = False


@dataclass(frozen=True)
class PrecisionVerdict:
    """Evidence on the lower precision of one side. place: (prompt, position) of a fault on top of
    it.
    """

    evidence: Evidence
    place: tuple[int, int] | None = None


class NotAvailableError(CaptureError):
    """A control that cannot be had, with the reason for a reader who can mend it; '' if there is
    nothing to say.
    """


class StaysInFloat32Error(NotAvailableError):
    """A side, or a part of it, computes in float32 whatever it is asked, so float64 shows nothing
    more.
    """


class Controls:
    """What can be asked about one pair; what a source cannot answer stays as it is here.

    A method raises NotAvailableError, or the CaptureError that stopped it. blocks: sizes that a
    fault may begin at multiples of; only_16_bits: sides that compute in 16 bits whatever they are
    asked, and the dtype; available: controls that were given; causes: sentences of common causes
    that explain the difference, best first.
    """

    names: tuple[str, str]
    lengths: list[int]
    dtype: str
    has_experts: bool = False
    blocks: Sequence[int] = BLOCKS
    available: tuple[str, ...] | None = None

    @property
    def only_16_bits(self) -> Mapping[str, str]:
        return {}

    @property
    def causes(self) -> Sequence[str]:
        return ()

    @property
    def chooses_keys(self) -> bool:
        """True if attention chooses its keys: near ties move a sound side by more than rounding."""
        return False

    def validity(self) -> list[Evidence]:
        """Can the sides be compared at all, and is each emitted token the argmax?"""
        return []

    def pair(self, dtype: str) -> Pair:
        """Both sides in a dtype."""
        raise NotAvailableError("")

    def floor(self, dtype: str) -> NoiseFloor:
        """Return what rounding does in a dtype."""
        raise NotAvailableError("")

    def rerun(self) -> Rerun:
        """Call the sides again."""
        raise NotAvailableError("")

    def neighbours(self) -> list[OtherRows]:
        """Compute a side with other prompts in the other rows of its batch, and in another row."""
        return []

    def exact(self) -> Exact:
        """Errors of the sides in 16 bits to the model's float32 forward."""
        raise NotAvailableError("")

    def from_model(self) -> Mapping[str, Squares]:
        """Mean squares of each recorded side to the model's own prefill, in the dtype of the pair.
        [positions]
        """
        raise NotAvailableError("")

    def without_floor(self, wide: Pair) -> list[Evidence]:
        """Return what the pair in float32 says without a noise floor."""
        return []

    def lower_precision(
        self,
        dtype: str,
        tests: Mapping[str, FloorTest],
        *,
        also_in_16_bits: bool,
    ) -> Sequence[PrecisionVerdict]:
        """Is a side that failed in a dtype the same function in a lower precision? tests: by dtype,
        or by side.
        """
        return []

    def modules(self, row: int, bugs: Sequence[str | None], dtype: str) -> list[Evidence]:
        """Which modules alone differ. row: the worst position; bugs: sides with a fault on top of a
        precision.
        """
        return []

    def differences(self, row: int, dtype: str) -> Squares | None:
        """Squared differences of the two sides at one position. [vocab]"""
        return None

    def source_of(self, mismatch: NotFinite) -> str:
        """Return the first module that is not finite; '' if unknown."""
        return ""

    def differing(self) -> list[Evidence]:
        """Positions that differ at all."""
        return []

    def arrays_alone(self) -> Evidence | None:
        """Return what the arrays say without any control."""
        return None


def judge(controls: Controls, earlier: Verdict | None = None) -> Verdict:
    """Ask every control in order and conclude. earlier: a verdict by other controls, for checks not
    made now.
    """
    trial = _Trial(controls)
    trial.in_own_dtype()
    trial.in_float32()  # decides
    if controls.has_experts:
        trial.in_float64()
    trial.in_16_bits()  # decides too
    trial.rerun()
    trial.neighbours()
    trial.lower_precision()
    return trial.conclusion(earlier)


class _Trial:
    """A pair on trial. tests: of the pair by dtype; error_tests: of each side in 16 bits; floors:
    noise floors by dtype.
    """

    def __init__(self, controls: Controls) -> None:
        self.controls, self.names, self.lengths = controls, controls.names, controls.lengths
        self.dtype, self.is_16_bits = controls.dtype, controls.dtype not in ("float32", "float64")
        self.evidence = controls.validity()  # and the sampler: is each emitted token the argmax?
        self.own = controls.pair(controls.dtype)
        self.rows: list[FloorRows] = []
        self.tests: dict[str, FloorTest] = {}
        self.floors: dict[str, Squares] = {}
        self.error_tests: dict[str, FloorTest] = {}
        self.not_finite: NotFinite | None = None
        self.precisions: Sequence[PrecisionVerdict] = []

    def add(
        self,
        check: Check,
        control: str,
        figures: CheckFigures,
        outcome: str,
        says: str,
        side: str | None = None,
    ) -> None:
        self.evidence.append(Evidence(check, control, figures, outcome, says, side))

    def not_available(self, check: Check, control: str, error: CaptureError) -> None:
        """Add why a check cannot be made, unless there is nothing to say."""
        figures = evidence.Unmeasured()
        if check is Check.WIDE_PAIR:
            narrow = dict(self.controls.only_16_bits) or None
            figures = evidence.Unmeasured(controls=self.controls.available, computes_in=narrow)
        if str(error):
            self.add(check, control, figures, MISSING, str(error))

    @property
    def wide_dtype(self) -> str:
        """The dtype that decides: float64, float32, or '' if neither could be compared."""
        return next((name for name in ("float64", "float32") if name in self.tests), "")

    @property
    def is_open(self) -> bool:
        """True if float32 decides nothing."""
        return not any(
            row.group == FLOAT32 and row.outcome in (PASSED, FAILED) for row in self.evidence
        )

    # ---- checks, in order

    def in_own_dtype(self) -> None:
        """Compare the pair in 16 bits with reorderings, and see what is not finite there."""
        self.single_logits()
        if self.is_16_bits:
            is_other = any(dtype != self.dtype for dtype in self.controls.only_16_bits.values())
            self.compare(self.dtype, self.own, OTHER_16_BITS if is_other else OWN)
            self.from_model()

    def single_logits(self) -> None:
        """Add the first logit that differs far more than the others at its position: rounding moves
        them alike.
        """
        peaks = self.own.peaks
        if peaks is None or peaks.max() <= SINGLE_LOGIT:
            return
        rows = np.flatnonzero(peaks > SINGLE_LOGIT)
        row = int(rows[0])
        squares = self.controls.differences(row, self.dtype)
        assert squares is not None  # what has peaks has logits
        place, token = place_of(row, self.lengths), int(squares.argmax())
        reach = (
            f"{three_digits(float(peaks[row]))}x the others at {place_in_words(row, self.lengths)}"
        )
        says = f"Token {token} differs by {reach}: rounding moves no logit alone."
        figures = evidence.SingleLogitFigures(
            compute_dtype=self.dtype,
            ratio_to_others=float(peaks[row]),
            largest_ratio_allowed=SINGLE_LOGIT,
            positions_beyond=len(rows),
            first=place,
            token=token,
        )
        self.add(
            Check.SINGLE_LOGIT,
            "logits compared with the others at their position",
            figures,
            FAILED,
            says,
        )

    def in_float32(self) -> None:
        """Compare the pair in float32 with the noise floor: of a sound pair it is one more order of
        summation.
        """
        try:
            pair = self.controls.pair("float32") if self.is_16_bits else self.own
        except CaptureError as error:
            control = f"'{self.names[1]}' compared with '{self.names[0]}' in float32"
            self.not_available(Check.WIDE_PAIR, control, error)
            return
        if not self.compare("float32", pair, WIDE):
            self.evidence += self.controls.without_floor(pair)
        elif not self.is_16_bits:
            self.from_model()

    def in_float64(self) -> None:
        """Compare a mixture of experts in float64: in float32 near ties of the router choose other
        experts.
        """
        single = self.tests.get("float32")
        if single is None or not single.is_finite or single.is_larger_everywhere:
            return
        size = f"In float32 the RMS difference is {multiple(single.ratio)} the noise floor"
        outcome, says = (
            NOTED,
            f"{size}; near ties of the router make it uncertain, so float64 decides.",
        )
        index = next(n for n, row in enumerate(self.evidence) if row.check is Check.WIDE_PAIR)
        try:
            pair, floor = self.controls.pair("float64"), self.controls.floor("float64")
            double = floor_test(pair.sizes, floor.squares, WIDE)
            median = float(np.median(double.by_position))
            if (
                not double.is_passed
                and WIDE.over_all < median <= WIDE.over_all * _FLOAT32_OVER_FLOAT64
            ):
                return  # in float64 the pair differs by what float32 rounds
            self.compare("float64", pair, WIDE)
        except StaysInFloat32Error:
            return
        except CaptureError as error:
            if single.is_passed:
                return
            says = (
                "Near ties of the router make float32 uncertain, and float64 is not available:"
                f" {error}"
            )
            outcome = MISSING
        self.evidence[index] = replace(self.evidence[index], outcome=outcome, says=says)

    def in_16_bits(self) -> None:
        """Compare each side's error to the model's float32 forward with that of randomized
        rounding.
        """
        if not self.is_16_bits or self.own.is_identical or self.own.not_finite is not None:
            return
        try:
            for side, dtype in self.controls.only_16_bits.items():
                if dtype != self.dtype:
                    says = (
                        f"'{side}' computes in {dtype}: load the model in that dtype to compare its"
                        " rounding."
                    )
                    raise NotAvailableError(says)
            exact = self.controls.exact()
        except CaptureError as error:
            self.not_available(Check.DRAWN, f"randomized rounding to {self.dtype}", error)
            return
        tests = error_rows(
            exact,
            self.dtype,
            self.lengths,
            self.controls.blocks,
            always_check_draws="float32" not in self.tests,
        )
        rows = [row for row, _ in tests]
        if len(rows) > 1 and all(row.outcome == FAILED for row in rows):
            says = (
                f"Neither side is what {exact.model} computes in {self.dtype}: a different"
                " checkpoint?"
            )
            rows = [replace(row, outcome=MISSING, says=says) for row in rows]
        self.error_tests = {
            str(row.side): test
            for row, (_, test) in zip(rows, tests, strict=True)
            if row.outcome in (PASSED, FAILED)
        }
        self.evidence += rows

    def rerun(self) -> None:
        """Check whether each side repeats its bits when it is called again; if not, how far in
        noise floors.
        """
        try:
            rerun = self.controls.rerun()
        except NotAvailableError:
            return
        figures, names = (
            evidence.RerunFigures(not_repeatable=rerun.unstable, **rerun.figures),
            _quote(rerun.unstable),
        )
        others = [name for name in self.names if name not in rerun.sides]
        says = "Both sides are bitwise reproducible from run to run."
        if rerun.unstable and rerun.squares is not None and self.dtype in self.floors:
            says = f"{names} {self._rerun_size(rerun, rerun.squares, figures)}"
        elif rerun.unstable:
            size = figures.rerun_row_ulps
            far = "" if size is None else f": two calls differ by up to {number(size, 3)} row ULPs"
            says = (
                f"{names} {'is' if len(rerun.unstable) == 1 else 'are'} not bitwise"
                f" reproducible{far}."
            )
        elif others:
            says = f"{_quote(rerun.sides)} is bitwise reproducible; {_quote(others)} has no rerun."
        self.add(Check.AGAIN, rerun.control, figures, FAILED if rerun.unstable else PASSED, says)

    def _rerun_size(self, rerun: Rerun, squares: Squares, figures: evidence.RerunFigures) -> str:
        """Compare the difference of a side from itself with the noise floor in the same dtype; fill
        in the figures.
        """
        limits = OWN if self.is_16_bits else WIDE
        test = floor_test(squares, self.floors[self.dtype], limits)
        at_one = limits.over_all if not self.controls.has_experts or not self.is_16_bits else np.inf
        at_one = max(at_one, test.position.limit if np.isfinite(test.position.limit) else 0.0)
        worst = test.worst or 0.0
        figures.rerun_rms_logits = float(np.sqrt(squares.mean()))
        figures.largest_ratio_allowed = limits.over_all
        figures.beyond_noise_floor = (
            bool(rerun.mismatches) or test.ratio > limits.over_all or worst > at_one
        )
        if rerun.mismatches:
            return (
                f"has {plural(rerun.mismatches, 'logit')} that are NaN or infinite in one of two"
                " calls."
            )
        figures.rerun_noise_ratio, figures.rerun_worst_position_ratio = test.noise_ratio, worst
        size = f"differs between two calls by {multiple(test.ratio)} the noise floor"
        if not figures.beyond_noise_floor:
            return f"{size}, as rounding does."
        if self.controls.chooses_keys:
            figures.beyond_noise_floor = False
            return f"{size}: other keys, by near ties of the indexer?"
        place = place_in_words(test.position.worst_place, self.lengths)
        return f"{size}, up to {multiple(worst)} at {place}, more than rounding."

    def neighbours(self) -> None:
        """Do other prompts in the batch, or another row of it, change a side's logits?"""
        for each in self.controls.neighbours():
            figures, side = each.figures, f"'{each.side}'"
            if isinstance(figures, evidence.OtherRowFigures):
                self._other_row(each, figures)
                continue
            outcome, says = PASSED, f"Other prompts in the batch do not change a bit of {side}."
            if not figures.bit_identical and self.controls.has_experts:
                shared = "in a mixture of experts rows share products, so no leak"
                outcome, says = NOTED, f"Other prompts change bits of {side}: {shared}."
            elif not figures.bit_identical:
                says = (
                    f"Other prompts in the batch change the logits of {side}: data leaks between"
                    " rows."
                )
                outcome = FAILED
            self.add(Check.OTHER_PROMPTS, each.control, figures, outcome, says, each.side)

    def _other_row(self, each: OtherRows, rows: evidence.OtherRowFigures) -> None:
        name = f"Row {rows.other_row} of {rows.rows}"
        if each.difference is None:
            says = (
                f"{name} gives {'the same bits as' if rows.bit_identical else 'other bits than'}"
                f" row {rows.row}."
            )
            self.add(
                Check.OTHER_ROW,
                each.control,
                rows,
                PASSED if rows.bit_identical else NOTED,
                says,
                each.side,
            )
            return
        mismatch = each.difference.not_finite
        test = floor_test(each.difference.sizes, self.floors[each.dtype], WIDE)
        figures = evidence.OtherRowFloorFigures(
            **structs.asdict(rows),
            compute_dtype=each.dtype,
            noise_ratio=test.noise_ratio,
            worst_position_ratio=test.worst,
            positions_beyond=len(test.outliers),
            nonfinite_mismatch=0 if mismatch is None else mismatch.logits,
        )
        size = f"{multiple(max(test.ratio, test.worst or 0.0))} the noise floor in {each.dtype}"
        says = f"{name} differs from row {rows.row} by {size}, as rounding does."
        if mismatch is not None:
            says = f"{name} differs from row {rows.row}: {mismatch.says(self.lengths)}."
        elif not test.is_passed:
            says = (
                f"{name} differs from row {rows.row} by up to {size}: the result depends on the"
                " row."
            )
        outcome = PASSED if test.is_passed else FAILED
        if outcome == FAILED and mismatch is None and self.controls.chooses_keys:
            outcome, says = (
                NOTED,
                f"{name} differs from row {rows.row}: other keys, by near ties of the indexer?",
            )
        self.add(Check.OTHER_ROW_FLOOR, each.control, figures, outcome, says, each.side)

    def lower_precision(self) -> None:
        """Is a side that fails the same function in a lower precision?"""
        dtype, tests = self.wide_dtype, self.tests
        if dtype and not tests[dtype].is_passed:
            tests = {dtype: tests[dtype]}
        else:
            dtype, tests = (
                self.dtype,
                {side: each for side, each in self.error_tests.items() if not each.is_passed},
            )
        if not tests or not all(each.is_finite for each in tests.values()):
            return
        if self.controls.chooses_keys:
            return
        fails_in_own = any(
            row.group == evidence.OWN_DTYPE and row.outcome == FAILED for row in self.evidence
        )
        try:
            self.precisions = self.controls.lower_precision(
                dtype,
                tests,
                also_in_16_bits=fails_in_own,
            )
        except CaptureError as error:
            self.not_available(Check.PRECISIONS, "lower precisions that engines offer", error)
        self.evidence += [each.evidence for each in self.precisions]

    # ---- one row each

    def compare(self, dtype: str, pair: Pair, limits: Limits) -> bool:
        """Add the row of a pair and its noise floor in one dtype; return whether there is one."""
        is_wide, first = dtype in ("float32", "float64"), pair.not_finite
        control = f"'{self.names[1]}' compared with '{self.names[0]}' in {dtype}"
        mismatch: dict[str, Any] = {"nonfinite_mismatch": 0}
        says = ""
        if first is not None:
            self.not_finite, says = (
                self.not_finite or first,
                f"In {dtype}, {first.says(self.lengths)}.",
            )
            mismatch = {"nonfinite_mismatch": first.logits}
            mismatch["first_nonfinite"] = (*first.place(self.lengths), first.token)
        try:
            floor = self.controls.floor(dtype)
        except CaptureError as error:
            if first is None:
                self.not_available(Check.WIDE_PAIR if is_wide else Check.OWN_PAIR, control, error)
            else:
                mismatch |= {"noise_ratio": None, "positions_beyond": len(first.rows)}
                alone = evidence.NotFiniteFigures(compute_dtype=dtype, **mismatch)
                self.add(
                    Check.WIDE_NOT_FINITE if is_wide else Check.OWN_NOT_FINITE,
                    control,
                    alone,
                    FAILED,
                    says,
                )
            return False
        squares = self.floors[dtype] = floor.squares
        test = self.tests[dtype] = floor_test(pair.sizes, squares, limits)
        self.rows.append(FloorRows(dtype, np.sqrt(pair.squares), np.sqrt(squares.mean(axis=0))))
        limit = test.position.limit
        figures = evidence.PairFigures(
            compute_dtype=dtype,
            noise_ratio=test.noise_ratio,
            largest_ratio_allowed=limits.over_all,
            pair_rms_logits=float(np.sqrt(pair.squares.mean())),
            floor_rms_logits=float(np.sqrt(squares.mean())),
            seed_ratios=test.seed_ratios,
            worst_position_ratio=test.worst,
            position_ratio_allowed=limit if np.isfinite(limit) else None,
            positions=len(squares[0]),
            positions_beyond=len(test.outliers),
            log_spread=test.spread,
            linear_maps=floor.maps,
            floor_row_ulps=floor.row_ulps,
            **mismatch,
        )
        if first is None:
            prefix = f"In {dtype}" if dtype == self.dtype else f"Recomputed in {dtype},"
            size = f"{prefix} the RMS difference is {multiple(test.ratio)} the noise floor"
            says = _says(test, size, self.lengths)
        outcome, check = (
            PASSED if test.is_passed else FAILED,
            Check.WIDE_PAIR if is_wide else Check.OWN_PAIR,
        )
        self.add(check, f"{control}, over {floor.control}", figures, outcome, says)
        return True

    def from_model(self) -> None:
        """Is each recorded side what the model computes for these tokens? If neither is, its floor
        says nothing.
        """
        try:
            squares = self.controls.from_model()
        except NotAvailableError:
            return
        floor = max(float(self.floors[self.dtype].mean()), np.finfo(float).tiny)
        ratios = {name: float(np.sqrt(squares[name].mean() / floor)) for name in self.names}
        figures = evidence.FromModelFigures(
            reference_noise_ratio=ratios[self.names[0]],
            variant_noise_ratio=ratios[self.names[1]],
        )
        says, far = foreign(ratios)
        if says:
            control = f"each side compared with the model's own prefill in {self.dtype}"
            self.add(
                Check.FROM_MODEL,
                control,
                figures,
                MISSING if far is None else FAILED,
                says,
                far,
            )

    # ---- conclusion

    def conclusion(self, earlier: Verdict | None) -> Verdict:
        """Add the first places, carry over what earlier controls showed, and name the verdict."""
        controls, lengths, dtype = self.controls, self.lengths, self.wide_dtype
        deciding = wide = self.tests.get(dtype)
        error_test = next((each for each in self.error_tests.values() if not each.is_passed), None)
        if error_test is not None and (wide is None or wide.is_passed):
            deciding, dtype = error_test, self.dtype
        measure = deciding or self.tests.get(self.dtype)
        ratio, first = None if measure is None else measure.noise_ratio, None
        sources, doubt = [], ""
        is_broken = self.not_finite is not None and (deciding is None or deciding.is_finite)
        if is_broken:
            assert self.not_finite is not None
            first, ratio = self.not_finite.place(lengths), None
            sources = [controls.source_of(self.not_finite)]
        elif deciding is None:
            first = self._without_floor()
        elif not deciding.is_passed:
            places = structure_of(deciding.outliers, lengths, controls.blocks)
            first = places.first
        if (
            deciding is not None
            and deciding is wide
            and not deciding.is_passed
            and not controls.chooses_keys
        ):
            faulty = [
                each.evidence.side for each in self.precisions if each.evidence.outcome == FAILED
            ]
            rows = controls.modules(deciding.position.worst_place, faulty, dtype)
            self.evidence += rows
            alone = [row.figures for row in rows if isinstance(row.figures, evidence.AloneFigures)]
            sources = [figures.first_module for figures in alone if figures.first_module][
                :1
            ] or sources
            for figures in (each for each in alone if each.bits is not None):
                first = figures.first or first  # of a fault on top of the noise
                if figures.first is None:
                    part = (
                        f"{figures.kind} of {figures.blocks} layers computes to {figures.bits:.0f}"
                        " bits"
                    )
                    size = f"{multiple(deciding.ratio)} the noise floor in {dtype}"
                    doubt = f"{size}: a bug, or an undeclared lower precision ({part})."
        if self.precisions and all(
            each.evidence.outcome in (PASSED, FAILED) for each in self.precisions
        ):
            # the fault's own place, not the precision's
            first = next(
                (each.place for each in self.precisions if each.evidence.outcome == FAILED),
                None,
            )
        if deciding is not None and not deciding.is_passed and not is_broken:
            self.evidence.append(outliers_evidence(places, first, deciding, dtype, lengths))
        singles = [
            row.figures.first
            for row in self.evidence
            if isinstance(row.figures, evidence.SingleLogitFigures)
        ]
        first = first or next(iter(singles), None)
        if earlier is not None and self._carry_over(earlier.evidence):
            ratio, first = earlier.noise_ratio, earlier.first_place
        has_16_bits = any(row.check is Check.DRAWN for row in self.evidence)
        if not self.own.is_identical and (self.is_open or (self.is_16_bits and not has_16_bits)):
            self._add_arrays_alone()
        self._leave_choices_open()
        verdict = conclude(
            self.evidence,
            is_bit_identical=self.own.is_identical,
            noise_ratio=ratio,
            first_place=first,
            causes=controls.causes,
        )
        sentence = verdict.because
        if verdict.is_bug_suspected:
            token = "" if deciding is None else self._token(deciding, dtype)
            sentence = self._sentence(sentence, first, [token, *sources])
        if doubt and any(
            row.group == FLOAT32 and row.says == verdict.because for row in verdict.evidence
        ):
            sentence = doubt
        return replace(verdict, because=sentence, floors=tuple(self.rows))

    def _leave_choices_open(self) -> None:
        """Let no size decide if one failed and attention chooses its keys.

        A NaN is not made by a choice.
        """

        def is_by_size(row: Evidence) -> bool:
            return row.group in _BY_SIZE and not getattr(row.figures, "nonfinite_mismatch", 0)

        has_failed = any(row.outcome == FAILED and is_by_size(row) for row in self.evidence)
        if not has_failed or not self.controls.chooses_keys:
            return
        for index, row in enumerate(self.evidence):
            if is_by_size(row) and row.outcome != NOTED:
                self.evidence[index] = replace(row, outcome=MISSING, says=_INDEXER)

    def _without_floor(self) -> tuple[int, int] | None:
        """Return a place that does not shrink from 16 bits to float32, else add the positions that
        differ.
        """
        rows = [row.figures for row in self.evidence if row.outcome == FAILED]
        shrinking = [figures for figures in rows if isinstance(figures, evidence.ShrinkFigures)]
        if not shrinking:
            self.evidence += self.controls.differing()
            return None
        self.evidence = [
            row
            for row in self.evidence
            if row.check is not Check.NARROWING or row.outcome == FAILED
        ]
        return shrinking[0].worst_position

    def _token(self, test: FloorTest, dtype: str) -> str:
        """`token 31`, if the difference is in one column of the vocabulary; else ''."""
        tokens = set()
        for row in (
            {int(test.outliers[0]), test.position.worst_place}
            if test.is_finite and len(test.outliers)
            else ()
        ):
            squares = self.controls.differences(row, dtype)
            if squares is None or squares.max() < _OF_ONE_TOKEN * squares.sum():
                return ""
            tokens.add(int(squares.argmax()))
        return f"token {tokens.pop()}" if len(tokens) == 1 else ""

    def _sentence(
        self,
        sentence: str,
        first: tuple[int, int] | None,
        sources: Sequence[str],
    ) -> str:
        """Return a sentence with its first place, if it fits. sources: a token, a module, '' if
        unknown.
        """
        clauses = [f", at {source}" for source in sources if source and source not in sentence]
        if first is not None and "position" not in sentence:
            clauses.insert(0, f", from {words_of(first, self.lengths)}")
        for clause in clauses:
            longer = f"{sentence.rstrip('.')}{clause}."
            sentence = longer if len(longer.split()) <= _LONGEST else sentence
        return sentence

    def _add_arrays_alone(self) -> None:
        """Screen the arrays themselves.

        If any other control was given, they can accuse and not excuse.
        """
        screening = self.controls.arrays_alone()
        is_alone = all(row.group in _OF_ARRAYS or row.outcome == MISSING for row in self.evidence)
        if screening is not None and (is_alone or screening.outcome == FAILED):
            self.evidence.append(screening)

    def _carry_over(self, earlier: Sequence[Evidence]) -> bool:
        """Add the evidence of earlier controls on every check not made now; return whether it
        decides.
        """
        deciding = [
            row for row in earlier if row.group == FLOAT32 and row.outcome in (PASSED, FAILED)
        ]
        is_decided = self.is_open and bool(deciding)
        if is_decided:
            self.evidence = [row for row in self.evidence if row.group != FLOAT32] + deciding
        own = {row.group for row in self.evidence}
        others = {evidence.RERUN, evidence.NEIGHBOURS, evidence.OWN_DTYPE} - own
        self.evidence += [row for row in earlier if row.group in others]
        is_lower = any(row.group == evidence.PRECISION and row.outcome == PASSED for row in earlier)
        # shown in 16 bits, which hide a fault on top of it
        if is_lower and evidence.PRECISION not in own:
            says = (
                "In 16 bits it is a lower precision, which float32 does not show: give the model"
                " and float32 at once."
            )
            self.evidence = [
                (
                    replace(row, outcome=MISSING, says=says)
                    if row.group == FLOAT32 and row.outcome == FAILED
                    else row
                )
                for row in self.evidence
            ]
        return is_decided


def foreign(ratios: Mapping[str, float]) -> tuple[str, str | None]:
    """Return a sentence if a side is not what the model computes, else ''; the side's name if it is
    only one.

    ratios: of each side to the model, in noise floors.
    """
    near, far = sorted(ratios, key=ratios.__getitem__)
    ratio, away = three_digits(ratios[near]), three_digits(ratios[far])
    if ratios[near] > FOREIGN:
        sizes = f"they are {ratio} and {away} noise floors away"
        return (
            (
                f"Neither side is what the model computes: {sizes}. Another checkpoint, or other"
                " tokens?"
            ),
            None,
        )
    if ratios[far] > FOREIGN:
        return (
            (
                f"'{far}' is not what the model computes: {away} noise floors away; '{near}' is, at"
                f" {ratio}."
            ),
            far,
        )
    return "", None


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
    test = floor_test(
        errors.squares,
        np.stack([draw.squares for draw in draws]),
        DRAWN,
        lengths=lengths,
        blocks=blocks,
    )
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
    one, all_ = smallest_fault(test.position.limit), smallest_fault(DRAWN.over_all)
    nonfinite = int(np.isinf(test.by_position).sum())
    figures = evidence.DrawnFigures(
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
        fault_seen_at_one_position=one,
        fault_seen_over_all=all_,
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
    outcome, says = FAILED, _says(test, size, lengths)
    if test.is_passed:
        outcome = PASSED
        says = (
            f"{size}; this check detects faults from {one:.2g}x at one position, {all_:.2g}x"
            " overall."
        )
    elif nonfinite:
        says = (
            f"In {dtype} '{name}' is NaN or infinite at {plural(nonfinite, 'position')}, unlike in"
            " float32."
        )
    elif exact.has_experts and len(test.outliers) <= JUMPS * len(test.by_position):
        draws = np.stack([draw.squares for draw in exact.draws])
        rest, draws = (
            np.delete(each, test.outliers, axis=-1) for each in (exact.errors[name].squares, draws)
        )
        if rest.mean() <= DRAWN.over_all**2 * draws.mean():
            outcome, says = (
                NOTED,
                f"{says.removesuffix('.')}: another expert, by a near tie of the router?",
            )
    return Evidence(Check.DRAWN, control, figures, outcome, says, name)


def _says(test: FloorTest, size: str, lengths: Sequence[int]) -> str:
    """Say how large a difference is, and what lies beyond the limits. size: `In float32 the RMS
    difference is ...`.
    """
    exceeding = [each for each in test.places if len(each.outliers)]
    if test.ratio > test.limits.over_all or not exceeding:
        return f"{size} (limit for rounding: {test.limits.over_all:g}x)."
    most = exceeding[0]
    place = f"{multiple(most.worst)} at {most.kind} {most.worst_place}"
    if most.kind == SYSTEMATIC:
        place = f"{multiple(most.worst)} in its systematic part"
    elif most is test.position:
        first, is_one = place_in_words(int(test.outliers[0]), lengths), len(test.outliers) == 1
        place = (
            f"{multiple(most.worst)} at {first}"
            if is_one
            else f"up to {multiple(most.worst)} from {first}"
        )
    return f"{size}, but {place} (limit for rounding: {most.limit:.3g}x)."


def _quote(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
