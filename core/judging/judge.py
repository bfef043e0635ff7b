"""Judge a pair: is its difference rounding, a bug, or nondeterminism?

Evidence comes from `Controls`, which a model answers by running, a dump by reading and lists of top tokens by queries.
Nothing is judged by a constant number of logits or ULPs: a difference is compared with what rounding does to this
checkpoint on these prompts. docs/explanation/calibration.md has the measurements behind every limit.
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
from ..runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    SAMPLER,
    STRUCTURE,
    VALIDITY,
    AloneFigures,
    Check,
    CheckFigures,
    DrawnFigures,
    Evidence,
    FromModelFigures,
    NotFiniteFigures,
    OtherPromptsFigures,
    OtherRowFigures,
    OtherRowFloorFigures,
    PairFigures,
    RerunFigures,
    ShrinkFigures,
    Unmeasured,
    Verdict,
)
from ..runs.file.records import FloorRows
from ..text import multiple, number, plural, three_digits
from .places import NotFinite, place_in_words
from .statistic import BLOCKS, Errors, FloorTest, Limits, floor_test
from .structure import outliers_evidence, structure_of
from .verdict import conclude

# Limits, in noise floors (rms over rms), each with what it was measured on.
# float32 and float64: 1,076 pairs of the same function reach 1.09 over all; the smallest fault of the trial is 13.
WIDE = Limits(over_all=4.0, at_a_place=4.0, uses_own_spread=True)
# 16 bits, each side's error over that of roundings drawn anew: engines that round more often (partial sums of ranks,
# unfused kernels) reach 1.5; a place stands out from twice on, whatever the draws say.
DRAWN = Limits(over_all=2.0, at_a_place=2.0)
JUMPS = 0.1  # of positions, at which experts may be further: norms in float64 move 1 of 42 positions by 28x
# 16 bits, the pair over reorderings of sums: kernels round more often than the model, which reordering does not show,
# and single positions jump by orders of magnitude in rounding too, so they are not tested.
OWN = Limits(over_all=10.0, at_a_place=float("inf"))
# The same if an engine computes in the other 16-bit dtype: bfloat16 is 8 times coarser than float16.
OTHER_16_BITS = Limits(over_all=80.0, at_a_place=float("inf"))
# Lists over a model's reorderings: of twenty tokens a mean square varies more than of a vocabulary, so one position may
# be further. Beyond the limits a list is undecided: a cache or activations of fewer bits are no bug.
LISTS = Limits(over_all=4.0, at_a_place=10.0)
# An uploaded floor may not hold the fault on trial, which would make rounding of it (rms over rms).
FLOOR_START = 10.0  # its first path to the pair's float32 reference, over its other paths
FLOOR_KINDS = 8.0  # largest difference between two paths over the smallest: a fault in one path; real ones reach 5.5
FLOOR_UNEVEN = 50.0  # the same at one position; real ones reach 21
FLOOR_SHRINKS = 0.02  # of what precisions differ by, least shrinking from 16 bits to the floor; real ones 0.19 and more
FLOOR_OF_SPREAD = 1e-4  # of a float32 run, over what logits vary by in a row; rounding reaches 4e-6 in 30 layers
MOVING_FLOOR = 0.9  # share of positions that two of its paths have to move
OTHER_PATH = 0.75  # share of positions at which two paths have to differ to be two
# The arrays alone, rms in row ULPs: (largest of harmless paths, of a bug, least that one position is compared with).
# Harmless paths of dense models reach 1.7 in 16 bits and 9.3 in float32, mixtures of experts 10 in bfloat16.
ROW_ULPS = {"bfloat16": (2, 24, 0.25), "float16": (2, 24, 0.25), "float32": (32, 1000, 1)}
STANDS_OUT_MOST, STANDS_OUT = 20, 100  # one position over the median one: 15 in dense models, 50 with experts
KL = 0.25  # mean, nats: harmless up to 0.0017 in dense models, 0.022 with experts
FOREIGN = 10.0  # a side further than this from the model's own logits is not what the model computes
# float64 rounds 2^-29 of what float32 does. A pair that differs by what float32 rounds stays in float32 somewhere.
_FLOAT32_OVER_FLOAT64 = 2.0**29
_OF_ONE_TOKEN = 0.9  # of the squared difference at a position: the fault is in one column of the vocabulary
_LONGEST = 25  # words of a verdict's sentence
_OF_ARRAYS = (VALIDITY, SAMPLER, RERUN, NEIGHBOURS, STRUCTURE)  # groups that need no model and no other dtype


@dataclass(frozen=True)
class Pair:
    """Two sides in one dtype. squares: mean squares of their difference [positions]."""

    squares: NDArray[np.float64]
    not_finite: NotFinite | None = None
    is_identical: bool = False


@dataclass(frozen=True)
class NoiseFloor:
    """What rounding does in one dtype. squares: mean squares of draws [draws, positions]; control: how they were made;
    maps: linear maps that were reordered; row_ulps: 99.9th percentile of the draws; None if not measured.
    """

    squares: NDArray[np.float64]
    control: str
    maps: int | None = None
    row_ulps: float | None = None


@dataclass(frozen=True)
class Rerun:
    """Sides that were called twice. unstable: those whose bits differ; squares: the largest difference of a side from
    itself [positions], None if not measured; mismatches: logits that are not finite in one call only.
    """

    control: str
    sides: tuple[str, ...]
    unstable: tuple[str, ...]
    squares: NDArray[np.float64] | None = None
    mismatches: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OtherRows:
    """A side computed with other prompts in the other rows, or in another row. figures: of the check; difference: of
    the logits in a dtype with a noise floor, None if the bits are the same or it cannot be measured.
    """

    side: str
    control: str
    figures: OtherPromptsFigures | OtherRowFigures
    dtype: str = ""
    difference: Pair | None = None


@dataclass(frozen=True)
class Exact:
    """Errors in 16 bits to the model's float32 forward. errors: of each side; draws: of forwards with roundings drawn
    anew; own_paths: errors of the model's own paths, which must look like one more draw, or the draws measure nothing;
    has_experts: a router that nearly ties may choose another expert at a position, in sound sides too.
    """

    errors: Mapping[str, Errors]
    draws: Sequence[Errors]
    own_paths: Callable[[], Mapping[str, Errors]]
    model: str = "the model"
    has_experts: bool = False


@dataclass(frozen=True)
class Lowered:
    """Evidence on the lower precision of one side. place: (prompt, position) of a fault on top of it."""

    evidence: Evidence
    place: tuple[int, int] | None = None


class NotAvailableError(CaptureError):
    """A control that cannot be had, with the reason."""


class StaysInFloat32Error(NotAvailableError):
    """A side, or a part of it, computes in float32 whatever it is asked, so float64 shows nothing more."""


class Controls:
    """What can be asked about one pair; what a source cannot answer stays as it is here.

    Each method raises NotAvailableError, or the CaptureError that stopped it, with the reason for a reader who can mend
    it; '' if there is nothing to say. blocks: sizes that a fault may begin at multiples of; only_16_bits: sides that
    compute in 16 bits whatever they are asked, and the dtype; available: controls that were given; causes: sentences of
    simple causes that explain the difference, best first.
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

    def validity(self) -> list[Evidence]:
        """Can the sides be compared at all, and is each emitted token the argmax?"""
        return []

    def pair(self, dtype: str) -> Pair:
        """Both sides in a dtype."""
        raise NotAvailableError("")

    def floor(self, dtype: str) -> NoiseFloor:
        """What rounding does in a dtype."""
        raise NotAvailableError("")

    def rerun(self) -> Rerun:
        """The sides called again."""
        raise NotAvailableError("")

    def neighbours(self) -> list[OtherRows]:
        """A side with other prompts in the other rows of its batch, and in another row."""
        return []

    def exact(self) -> Exact:
        """Errors of the sides in 16 bits to the model's float32 forward."""
        raise NotAvailableError("")

    def from_model(self) -> Mapping[str, NDArray[np.float64]]:
        """Mean squares of each recorded side to the model's own prefill, in the dtype of the pair. [positions]"""
        raise NotAvailableError("")

    def without_floor(self, wide: Pair) -> list[Evidence]:
        """What the pair in float32 says without a noise floor."""
        return []

    def lower_precision(
        self, dtype: str, tests: Mapping[str, FloorTest], *, also_in_16_bits: bool
    ) -> Sequence[Lowered]:
        """Is a side that failed in a dtype the same function in a lower precision? tests: by dtype, or by side."""
        return []

    def modules(self, row: int, bugs: Sequence[str | None], dtype: str) -> list[Evidence]:
        """Which modules alone differ. row: the worst position; bugs: sides with a fault on top of a precision."""
        return []

    def differences(self, row: int, dtype: str) -> NDArray[np.float64] | None:
        """Squared differences of the two sides at one position. [vocab]"""
        return None

    def source_of(self, mismatch: NotFinite) -> str:
        """The first module that is not finite; '' if unknown."""
        return ""

    def differing(self) -> list[Evidence]:
        """Positions that differ at all."""
        return []

    def arrays_alone(self) -> Evidence | None:
        """What the arrays say without any control."""
        return None


def judge(controls: Controls, earlier: Verdict | None = None) -> Verdict:
    """Ask every control in order and conclude. earlier: a verdict by other controls, for checks not made now."""
    trial = _Trial(controls)
    trial.evidence += controls.validity()  # and the sampler: is each emitted token the argmax?
    own = trial.own_pair()
    trial.in_float32(own)  # decides
    if controls.has_experts:
        trial.in_float64()
    trial.in_16_bits(own)  # decides too
    trial.rerun()
    trial.neighbours()
    trial.lower_precision()
    return trial.conclusion(own, earlier)


class _Trial:
    """A pair on trial. tests: of the pair by dtype; drawn: of each side in 16 bits; floors: noise floors by dtype."""

    def __init__(self, controls: Controls) -> None:
        self.controls, self.names, self.lengths = controls, controls.names, controls.lengths
        self.dtype, self.is_16_bits = controls.dtype, controls.dtype not in ("float32", "float64")
        self.evidence: list[Evidence] = []
        self.rows: list[FloorRows] = []
        self.tests: dict[str, FloorTest] = {}
        self.floors: dict[str, NDArray[np.float64]] = {}
        self.drawn: dict[str, FloorTest] = {}
        self.not_finite: NotFinite | None = None
        self.lowered: Sequence[Lowered] = []

    def add(
        self, check: Check, control: str, figures: CheckFigures, outcome: str, says: str, side: str | None = None
    ) -> None:
        self.evidence.append(Evidence(check, control, figures, outcome, says, side))

    def not_available(self, check: Check, control: str, reason: str, side: str | None = None) -> None:
        figures = Unmeasured()
        if check is Check.WIDE_PAIR:
            figures = Unmeasured(controls=self.controls.available, computes_in=dict(self.controls.only_16_bits) or None)
        self.add(check, control, figures, MISSING, reason, side)

    # ---- checks, in order

    def own_pair(self) -> Pair:
        """Compare the pair in its own dtype; in 16 bits with reorderings, and what is not finite there."""
        own = self.controls.pair(self.dtype)
        if self.is_16_bits:
            limits = OWN
            if any(dtype != self.dtype for dtype in self.controls.only_16_bits.values()):
                limits = OTHER_16_BITS
            self.compare(self.dtype, own, limits)
            self.from_model()
        return own

    def in_float32(self, own: Pair) -> None:
        """Compare the pair in float32 with the noise floor: of a sound pair it is one more order of summation."""
        control = f"'{self.names[1]}' compared with '{self.names[0]}' in float32"
        try:
            pair = self.controls.pair("float32") if self.is_16_bits else own
        except CaptureError as error:
            return self.not_available(Check.WIDE_PAIR, control, f"{error}") if str(error) else None
        if not self.compare("float32", pair, WIDE):
            self.evidence += self.controls.without_floor(pair)
        elif not self.is_16_bits:
            self.from_model()
        return None

    def in_float64(self) -> None:
        """Compare a mixture of experts in float64: in float32 near ties of the router choose other experts."""
        single = self.tests.get("float32")
        if single is None or single.nonfinite or single.is_larger_everywhere:
            return
        index = next(n for n, row in enumerate(self.evidence) if row.check is Check.WIDE_PAIR)
        try:
            pair, floor = self.controls.pair("float64"), self.controls.floor("float64")
            double = floor_test(pair.squares, floor.squares, WIDE, not_finite=pair.not_finite)
            median = float(np.median(double.by_position))
            if not double.is_passed and WIDE.over_all < median <= WIDE.over_all * _FLOAT32_OVER_FLOAT64:
                raise StaysInFloat32Error("in float64 the pair differs by what float32 rounds")
        except StaysInFloat32Error:
            return
        except CaptureError as error:
            if not single.is_passed:
                says = f"Near ties of the router make float32 uncertain, and float64 is not available: {error}"
                self.evidence[index] = replace(self.evidence[index], outcome=MISSING, says=says)
            return
        size = f"In float32 the difference is {multiple(single.ratio)} the noise floor"
        says = f"{size}; near ties of the router make it uncertain, so float64 decides."
        self.evidence[index] = replace(self.evidence[index], outcome=NOTED, says=says)
        self.floors["float64"] = floor.squares
        self.compare("float64", pair, WIDE)

    def in_16_bits(self, own: Pair) -> None:
        """Compare each side's error to the model's float32 forward with that of roundings drawn anew."""
        if not self.is_16_bits or own.is_identical or own.not_finite is not None:
            return
        other = next(
            (f"'{side}' computes in {d}" for side, d in self.controls.only_16_bits.items() if d != self.dtype), ""
        )
        try:
            if other:
                raise NotAvailableError(f"{other}: load the model in that dtype to compare its rounding.")
            exact = self.controls.exact()
        except CaptureError as error:
            if str(error):
                self.not_available(Check.DRAWN, f"roundings to {self.dtype} drawn anew", f"{error}")
            return
        rows = []
        for name, errors in exact.errors.items():
            row, test = error_evidence(name, errors, exact, self.dtype, self.lengths, self.controls.blocks)
            rows.append(row)
            self.drawn[name] = test
        is_alone = "float32" not in self.tests
        rows = checked_by_own_paths(rows, exact, self.dtype, self.lengths, self.controls.blocks, always=is_alone)
        failed = [row for row in rows if row.outcome == FAILED]
        if len(rows) > 1 and len(failed) == len(rows):
            says = f"Neither side is what {exact.model} computes in {self.dtype}: another checkpoint, or other weights."
            rows = [replace(row, outcome=MISSING, says=says) for row in rows]
        self.drawn = {str(row.side): self.drawn[str(row.side)] for row in rows if row.outcome in (PASSED, FAILED)}
        self.evidence += rows

    def rerun(self) -> None:
        """Does each side give the same bits when it is called again? If not, how far in noise floors?"""
        try:
            rerun = self.controls.rerun()
        except NotAvailableError:
            return
        figures, names = RerunFigures(not_repeatable=rerun.unstable, **rerun.figures), _quote(rerun.unstable)
        others = [name for name in self.names if name not in rerun.sides]
        says = "Each side repeats its own bits."
        if rerun.unstable and rerun.squares is not None and self.dtype in self.floors:
            says = self._rerun_size(rerun, rerun.squares, figures)
        elif rerun.unstable:
            size = figures.rerun_row_ulps
            far = "" if size is None else f": two calls differ by up to {number(size, 3)} row ULPs"
            says = f"{names} {'does' if len(rerun.unstable) == 1 else 'do'} not repeat the same bits{far}."
        elif others:
            says = f"{_quote(rerun.sides)} repeats its own bits; {_quote(others)} has no rerun."
        self.add(Check.AGAIN, rerun.control, figures, FAILED if rerun.unstable else PASSED, says)

    def _rerun_size(self, rerun: Rerun, squares: NDArray[np.float64], figures: RerunFigures) -> str:
        """Compare the difference of a side from itself with the noise floor in the same dtype; fill in the figures."""
        limits = OWN if self.is_16_bits else WIDE
        test = floor_test(squares, self.floors[self.dtype], limits)
        at_one = limits.over_all if not self.controls.has_experts or not self.is_16_bits else np.inf
        at_one = max(at_one, test.position.allowed if np.isfinite(test.position.allowed) else 0.0)
        worst = test.worst or 0.0
        is_beyond = bool(rerun.mismatches) or test.is_larger or worst > at_one
        figures.rerun_rms_logits = float(np.sqrt(squares.mean()))
        figures.rerun_noise_ratio = None if rerun.mismatches else test.noise_ratio
        figures.largest_ratio_allowed = limits.over_all
        figures.rerun_worst_position_ratio = None if rerun.mismatches else worst
        figures.beyond_noise_floor = is_beyond
        names, size = _quote(rerun.unstable), f"{multiple(test.ratio)} the noise floor"
        if rerun.mismatches:
            count = plural(rerun.mismatches, "logit is", "logits are")
            return f"{names}: {count} NaN or infinite in one of two calls."
        if is_beyond:
            place = place_in_words(test.worst_row, self.lengths)
            return (
                f"{names} differs between two calls by {size}, up to {multiple(worst)} at {place}, more than rounding."
            )
        return f"{names} differs between two calls by {size}, as rounding does."

    def neighbours(self) -> None:
        """Do other prompts in the batch, or another row of it, change a side's logits?"""
        for each in self.controls.neighbours():
            if isinstance(each.figures, OtherPromptsFigures):
                self._other_prompts(each)
            else:
                self._other_row(each)

    def lower_precision(self) -> None:
        """Is a side that fails the same function in a lower precision?"""
        dtype = next((name for name in ("float64", "float32") if name in self.tests), "")
        test = self.tests.get(dtype)
        if test is not None and test.is_passed:
            test = None
        fails_in_own = any(row.group == OWN_DTYPE and row.outcome == FAILED for row in self.evidence)
        if test is None and any(not each.is_passed for each in self.drawn.values()):
            dtype, tests = self.dtype, {side: each for side, each in self.drawn.items() if not each.is_passed}
        elif test is not None:
            tests = {dtype: test}
        else:
            return
        if any(each.nonfinite for each in tests.values()):
            return
        try:
            self.lowered = self.controls.lower_precision(dtype, tests, also_in_16_bits=fails_in_own)
        except CaptureError as error:
            if str(error):
                self.not_available(Check.PRECISIONS, "lower precisions that engines offer", f"{error}")
        self.evidence += [each.evidence for each in self.lowered]

    # ---- one row each

    def compare(self, dtype: str, pair: Pair, limits: Limits) -> bool:
        """Add the row of a pair and its noise floor in one dtype; return whether there is one."""
        is_wide = dtype in ("float32", "float64")
        control = f"'{self.names[1]}' compared with '{self.names[0]}' in {dtype}"
        self.not_finite = self.not_finite or pair.not_finite
        try:
            floor = self.controls.floor(dtype)
        except CaptureError as error:
            if pair.not_finite is not None:
                check = Check.WIDE_NOT_FINITE if is_wide else Check.OWN_NOT_FINITE
                self.add(check, control, *self._not_finite(pair.not_finite, dtype))
            elif str(error):
                self.not_available(Check.WIDE_PAIR if is_wide else Check.OWN_PAIR, control, f"{error}")
            return False
        squares = self.floors[dtype] = floor.squares
        test = self.tests[dtype] = floor_test(pair.squares, squares, limits, not_finite=pair.not_finite)
        self.rows.append(FloorRows(dtype, np.sqrt(pair.squares), np.sqrt(squares.mean(axis=0))))
        first = test.not_finite
        figures = PairFigures(
            compute_dtype=dtype,
            noise_ratio=test.noise_ratio,
            largest_ratio_allowed=limits.over_all,
            pair_rms_logits=float(np.sqrt(pair.squares.mean())),
            floor_rms_logits=float(np.sqrt(squares.mean())),
            seed_ratios=test.seed_ratios,
            worst_position_ratio=test.worst,
            position_ratio_allowed=_finite(test.position.allowed),
            positions=len(pair.squares),
            positions_beyond=len(test.outliers),
            log_spread=test.spread,
            nonfinite_mismatch=test.nonfinite,
            linear_maps=floor.maps,
            floor_row_ulps=floor.row_ulps,
            first_nonfinite=None if first is None else (*first.place(self.lengths), first.token),
        )
        says = _says(test, f"In {dtype} the difference is {multiple(test.ratio)} the noise floor", self.lengths)
        if first is not None:
            says = _not_finite_text(first, dtype, self.lengths)
        outcome = PASSED if test.is_passed else FAILED
        check = Check.WIDE_PAIR if is_wide else Check.OWN_PAIR
        self.add(check, f"{control}, over {floor.control}", figures, outcome, says)
        return True

    def _not_finite(self, mismatch: NotFinite, dtype: str) -> tuple[NotFiniteFigures, str, str]:
        figures = NotFiniteFigures(
            compute_dtype=dtype,
            noise_ratio=None,
            nonfinite_mismatch=mismatch.logits,
            positions_beyond=len(mismatch.rows),
            first_nonfinite=(*mismatch.place(self.lengths), mismatch.token),
        )
        return figures, FAILED, _not_finite_text(mismatch, dtype, self.lengths)

    def from_model(self) -> None:
        """Is each recorded side what the model computes for these tokens? If neither is, its floor says nothing."""
        try:
            squares = self.controls.from_model()
        except NotAvailableError:
            return
        floor = max(float(self.floors[self.dtype].mean()), np.finfo(float).tiny)
        ratios = {name: float(np.sqrt(squares[name].mean() / floor)) for name in self.names}
        figures = FromModelFigures(
            reference_noise_ratio=ratios[self.names[0]], variant_noise_ratio=ratios[self.names[1]]
        )
        says, far = foreign(ratios)
        if says:
            control = f"each side compared with the model's own prefill in {self.dtype}"
            self.add(Check.FROM_MODEL, control, figures, MISSING if far is None else FAILED, says, far)

    def _other_prompts(self, each: OtherRows) -> None:
        figures = each.figures
        assert isinstance(figures, OtherPromptsFigures)
        outcome = PASSED if figures.bit_identical else NOTED if self.controls.has_experts else FAILED
        says = f"Other prompts in the batch do not change a bit of '{each.side}'."
        if outcome == NOTED:
            says = (
                f"Other prompts change bits of '{each.side}': in a mixture of experts rows share products, so no leak."
            )
        elif outcome == FAILED:
            says = f"Other prompts in the batch change the logits of '{each.side}': data leaks between rows."
        self.add(Check.OTHER_PROMPTS, each.control, figures, outcome, says, each.side)

    def _other_row(self, each: OtherRows) -> None:
        of_rows = each.figures
        assert isinstance(of_rows, OtherRowFigures)
        name = f"Row {of_rows.other_row} of {of_rows.rows}"
        if each.difference is None:
            same = of_rows.bit_identical
            says = f"{name} gives {'the same' if same else 'other'} bits {'as' if same else 'than'} row {of_rows.row}."
            self.add(Check.OTHER_ROW, each.control, of_rows, PASSED if same else NOTED, says, each.side)
            return
        mismatch = each.difference.not_finite
        test = floor_test(each.difference.squares, self.floors[each.dtype], WIDE, not_finite=mismatch)
        figures = OtherRowFloorFigures(
            **structs.asdict(of_rows),
            compute_dtype=each.dtype,
            noise_ratio=test.noise_ratio,
            worst_position_ratio=test.worst,
            positions_beyond=len(test.outliers),
            nonfinite_mismatch=test.nonfinite,
        )
        size = f"{multiple(max(test.ratio, test.worst or 0.0))} the noise floor in {each.dtype}"
        says = f"{name} differs from row {of_rows.row} by {size}, as rounding does."
        if mismatch is not None:
            says = f"{name} differs from row {of_rows.row}: {mismatch.says(self.lengths)}."
        elif not test.is_passed:
            says = f"{name} differs from row {of_rows.row} by up to {size}: the result depends on the row."
        outcome = PASSED if test.is_passed else FAILED
        self.add(Check.OTHER_ROW_FLOOR, each.control, figures, outcome, says, each.side)

    # ---- conclusion

    def conclusion(self, own: Pair, earlier: Verdict | None) -> Verdict:
        """Add the first places, carry over what earlier controls showed, and name the verdict."""
        controls, lengths = self.controls, self.lengths
        wide = next((self.tests[name] for name in ("float64", "float32") if name in self.tests), None)
        failed = next((each for each in self.drawn.values() if not each.is_passed), None)
        deciding, dtype = wide, "float64" if "float64" in self.tests else "float32"
        if failed is not None and (wide is None or wide.is_passed):
            deciding, dtype = failed, self.dtype
        ratio = None if deciding is None else deciding.noise_ratio
        if deciding is None and self.dtype in self.tests:
            ratio = self.tests[self.dtype].noise_ratio
        first, module, undeclared = None, "", ""
        if self.not_finite is not None and (deciding is None or not deciding.nonfinite):
            first, ratio = self.not_finite.place(lengths), None
            module = controls.source_of(self.not_finite)
        elif deciding is not None and not deciding.is_passed:
            first = structure_of(deciding.outliers, lengths, controls.blocks).first
        elif deciding is None:
            self._without_floor(controls)
            first = next((figures.worst_position for figures in self._shrinking()), None)
        if deciding is not None and deciding is wide and not deciding.is_passed:
            bugs = [each.evidence.side for each in self.lowered if each.evidence.outcome == FAILED]
            rows = controls.modules(deciding.worst_row, bugs, dtype)
            self.evidence += rows
            alone = [row.figures for row in rows if isinstance(row.figures, AloneFigures)]
            module = next((figures.first_module for figures in alone if figures.first_module), "")
            for figures in alone:
                if figures.bits is not None and figures.first is not None:
                    first = figures.first  # of a fault on top of the noise
                elif figures.bits is not None:
                    part = f"{figures.kind} in {figures.blocks} blocks computes to {figures.bits:.0f} bits"
                    size = f"{multiple(deciding.ratio)} the noise floor in {dtype}"
                    undeclared = f"{size}: a bug, or an undeclared lower precision ({part})."
        if self.lowered and all(each.evidence.outcome in (PASSED, FAILED) for each in self.lowered):
            # the fault's own place, not the precision's
            first = next((each.place for each in self.lowered if each.evidence.outcome == FAILED), None)
        if deciding is not None and not deciding.is_passed and (deciding.nonfinite or not self.not_finite):
            places = structure_of(deciding.outliers, lengths, controls.blocks)
            self.evidence.append(outliers_evidence(places, first, deciding, dtype, lengths))
        if earlier is not None and self._carry_over(earlier.evidence):
            ratio, first = earlier.noise_ratio, earlier.first_place
        if not own.is_identical and not any(
            row.group == FLOAT32 and row.outcome in (PASSED, FAILED) for row in self.evidence
        ):
            self._add_arrays_alone()
        verdict = conclude(
            self.evidence,
            is_bit_identical=own.is_identical,
            noise_ratio=ratio,
            first_place=first,
            causes=controls.causes,
        )
        token = None if deciding is None or not verdict.is_bug_suspected else self._token(deciding, dtype)
        sentence = self._sentence(verdict, [each for each in (token, module) if each])
        if undeclared and any(row.group == FLOAT32 and row.says == verdict.because for row in verdict.evidence):
            sentence = undeclared
        return replace(verdict, because=sentence, floors=tuple(self.rows))

    def _without_floor(self, controls: Controls) -> None:
        """Add the differing positions, unless a place that does not shrink says more."""
        if self._shrinking():
            self.evidence = [row for row in self.evidence if row.check is not Check.NARROWING or row.outcome == FAILED]
        else:
            self.evidence += controls.differing()

    def _shrinking(self) -> list[ShrinkFigures]:
        """Figures of a pair that does not shrink from 16 bits to float32."""
        rows = [row.figures for row in self.evidence if row.outcome == FAILED]
        return [figures for figures in rows if isinstance(figures, ShrinkFigures)]

    def _token(self, test: FloorTest, dtype: str) -> str:
        """`token 31`, if the difference is in one column of the vocabulary; else ''."""
        if test.nonfinite or not len(test.outliers):
            return ""
        tokens = set()
        for row in {int(test.outliers[0]), test.worst_row}:
            squares = self.controls.differences(row, dtype)
            if squares is None or squares.max() < _OF_ONE_TOKEN * squares.sum():
                return ""
            tokens.add(int(squares.argmax()))
        return f"token {tokens.pop()}" if len(tokens) == 1 else ""

    def _sentence(self, verdict: Verdict, sources: Sequence[str]) -> str:
        """Return the verdict's sentence with its first place, if it fits. sources: a token, a module."""
        sentence = verdict.because
        if not verdict.is_bug_suspected:
            return sentence
        clauses = []
        if verdict.first_place is not None and "position" not in sentence:
            prompt, position = verdict.first_place
            clauses.append(f", from {place_in_words(sum(self.lengths[:prompt]) + position, self.lengths)}")
        clauses += [f", at {source}" for source in sources if source not in sentence]
        for clause in clauses:
            longer = f"{sentence.rstrip('.')}{clause}."
            if len(longer.split()) <= _LONGEST:
                sentence = longer
        return sentence

    def _add_arrays_alone(self) -> None:
        """Screen the arrays themselves. If any other control was given, they can accuse and not excuse."""
        screened = self.controls.arrays_alone()
        is_alone = all(row.group in _OF_ARRAYS or row.outcome == MISSING for row in self.evidence)
        if screened is not None and (is_alone or screened.outcome == FAILED):
            self.evidence.append(screened)

    def _carry_over(self, earlier: Sequence[Evidence]) -> bool:
        """Add the evidence of earlier controls on every check not made now; return whether it decides."""
        is_open = not any(row.group == FLOAT32 and row.outcome in (PASSED, FAILED) for row in self.evidence)
        decided = [row for row in earlier if row.group == FLOAT32 and row.outcome in (PASSED, FAILED)]
        if is_open and decided:
            self.evidence = [row for row in self.evidence if row.group != FLOAT32] + decided
        own = {row.group for row in self.evidence}
        self.evidence += [row for row in earlier if row.group in {RERUN, NEIGHBOURS, OWN_DTYPE} - own]
        precision_rows = [row for row in earlier if row.group == PRECISION and row.outcome == PASSED]
        if precision_rows and PRECISION not in own:  # shown in 16 bits, which hide a fault on top of it
            says = (
                "In 16 bits it is a lower precision, which float32 does not show: give the model and float32 at once."
            )
            self.evidence = [
                replace(row, outcome=MISSING, says=says) if row.group == FLOAT32 and row.outcome == FAILED else row
                for row in self.evidence
            ]
        return bool(is_open and decided)


def foreign(ratios: Mapping[str, float]) -> tuple[str, str | None]:
    """A sentence if a side is not what the model computes, else ''; the side's name if it is only one.

    ratios: of each side to the model, in noise floors.
    """
    near, far = sorted(ratios, key=ratios.__getitem__)
    ratio, away = three_digits(ratios[near]), three_digits(ratios[far])
    if ratios[near] > FOREIGN:
        sizes = f"they are {ratio} and {away} noise floors away"
        return f"Neither side is what the model computes: {sizes}. Another checkpoint, or other tokens?", None
    if ratios[far] > FOREIGN:
        return f"'{far}' is not what the model computes: {away} noise floors away; '{near}' is, at {ratio}.", far
    return "", None


def error_evidence(
    name: str, errors: Errors, exact: Exact, dtype: str, lengths: Sequence[int], blocks: Sequence[int] = BLOCKS
) -> tuple[Evidence, FloorTest]:
    """The row of one side's error in 16 bits over that of roundings drawn anew, and its test."""
    test = floor_test(errors, exact.draws, DRAWN, lengths=() if exact.has_experts else lengths, blocks=blocks)
    position = test.position
    figures = DrawnFigures(
        compute_dtype=dtype,
        noise_ratio=test.ratio,
        largest_ratio_allowed=DRAWN.over_all,
        draws=len(exact.draws),
        model_ways_ratios=(),
        worst_position_ratio=position.worst,
        position_ratio_allowed=position.allowed,
        positions=sum(lengths),
        positions_beyond=len(test.outliers),
        nonfinite_mismatch=test.nonfinite,
        fault_seen_at_one_position=test.smallest_fault("position"),
        fault_seen_over_all=test.smallest_fault() or 0.0,
        outliers={each.kind: tuple(map(int, each.outliers[:8])) for each in test.places if len(each.outliers)},
    )
    control = (
        f"'{name}' in {dtype} compared with the model's float32 forward, over {len(exact.draws)} forwards whose"
        " roundings are drawn anew"
    )
    size = f"In {dtype} the error of '{name}' to float32 is {multiple(test.ratio)} that of rounding"
    says = _says(test, size, lengths)
    if test.nonfinite:
        says = f"In {dtype} {plural(test.nonfinite, 'logit')} of '{name}' are NaN or infinite, unlike in float32."
    elif test.is_passed:
        one, all_ = figures.fault_seen_at_one_position or 0.0, figures.fault_seen_over_all
        says = f"{size}; a fault of {one:.2g}x at one position, {all_:.2g}x over all would show."
    outcome = PASSED if test.is_passed else FAILED
    if outcome == FAILED and exact.has_experts and not test.nonfinite and len(test.outliers) <= JUMPS * sum(lengths):
        rest = np.delete(errors.squares, test.outliers).mean()
        if rest <= DRAWN.over_all**2 * np.mean([np.delete(draw.squares, test.outliers) for draw in exact.draws]):
            outcome, says = NOTED, f"{says.removesuffix('.')}: another expert, by a near tie of the router?"
    return Evidence(Check.DRAWN, control, figures, outcome, says, name), test


def checked_by_own_paths(
    rows: list[Evidence], exact: Exact, dtype: str, lengths: Sequence[int], blocks: Sequence[int], *, always: bool
) -> list[Evidence]:
    """The rows, or none of them decides because a path of the model itself does not look like its roundings drawn
    anew. always: ask also if every row passed, because the draws alone decide.
    """
    if not always and all(row.outcome == PASSED for row in rows):
        return rows
    tests = {
        name: error_evidence(name, own, exact, dtype, lengths, blocks)[1] for name, own in exact.own_paths().items()
    }
    ratios = tuple(test.ratio for test in tests.values())
    odd = next((name for name, test in tests.items() if not test.is_passed), None)
    checked = []
    for row in rows:
        row = replace(row, figures=structs.replace(row.figures, model_ways_ratios=ratios))
        if odd is not None:
            says = f"The model's own '{odd}' does not look like its roundings drawn anew, so they are no measure here."
            row = replace(row, outcome=MISSING, says=says)
        checked.append(row)
    return checked


def _says(test: FloorTest, size: str, lengths: Sequence[int]) -> str:
    """Say how large a difference is, and what lies beyond the limits. size: `In float32 the difference is 3x ...`."""
    limit = f"(rounding: at most {test.limits.over_all:g}x)"
    if test.ratio > test.limits.over_all:
        return f"{size} {limit}."
    exceeding = [each for each in (test.position, *test.places) if len(each.outliers)]
    if not exceeding:
        return f"{size} {limit}."
    most = exceeding[0]
    place = f"{multiple(most.worst)} at {most.kind} {most.worst_place}"
    if most is test.position:
        first, is_one = place_in_words(int(test.outliers[0]), lengths), len(test.outliers) == 1
        place = f"{multiple(most.worst)} at {first}" if is_one else f"up to {multiple(most.worst)} from {first} on"
    return f"{size}, but {place} (rounding: at most {most.allowed:.3g}x)."


def _not_finite_text(mismatch: NotFinite, dtype: str, lengths: Sequence[int]) -> str:
    return f"In {dtype}, {mismatch.says(lengths)}."


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _quote(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
