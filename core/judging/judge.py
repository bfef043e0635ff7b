"""Judge a pair: is its difference rounding, a bug, or nondeterminism?

Controls are asked in order, and `conclude` names the verdict. docs/explanation/calibration.md has
the measurements behind every limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from ..errors import CaptureError
from ..numerics.side_divergence import SINGLE_LOGIT
from ..numerics.statistic import FloorTest, Limits, floor_test
from ..runs.file import evidence
from ..runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NOTED,
    PASSED,
    Check,
    Evidence,
    Unmeasured,
    Verdict,
)
from ..runs.file.records import FloorRows
from ..text import multiple, number, plural, three_digits
from .conclude import conclude
from .controls import (
    Controls,
    NotAvailableError,
    OtherRows,
    Pair,
    PrecisionVerdict,
    Rerun,
    Squares,
    StaysInFloat32Error,
)
from .drawn import error_rows
from .limits import FOREIGN, OTHER_16_BITS, OWN, WIDE
from .places import (
    NotFinite,
    beyond_in_words,
    outliers_evidence,
    place_in_words,
    place_of,
    structure_of,
)

# float64 rounds 2^-29 of what float32 does. A pair that differs by what float32 rounds stays in
# float32 somewhere.
_FLOAT32_OVER_FLOAT64 = 2.0**29
# of the squared difference at a position: the fault is in one column of the vocabulary
_OF_ONE_TOKEN = 0.9
_INDEXER = (
    "Near ties of the sparse-attention indexer choose other keys: this difference shows neither"
    " rounding nor a bug."
)
_WIDE_DTYPES = ("float64", "float32")  # that decide, the first that could be compared
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


@dataclass(frozen=True)
class _Comparison:
    """A pair and its noise floor in one dtype. rows: of evidence; floor, test: None if there is no
    floor.
    """

    pair: Pair
    rows: list[Evidence]
    floor: Squares | None = None
    test: FloorTest | None = None


class _Trial:
    """A pair on trial. comparisons: with its noise floor, by dtype; error_tests: of each side in 16
    bits.
    """

    def __init__(self, controls: Controls) -> None:
        self.controls, self.names, self.lengths = controls, controls.names, controls.lengths
        self.dtype, self.is_16_bits = controls.dtype, controls.dtype not in _WIDE_DTYPES
        self.evidence = controls.validity()  # and the sampler: is each emitted token the argmax?
        self.own = controls.pair(controls.dtype)
        self.comparisons: dict[str, _Comparison] = {}
        self.error_tests: dict[str, FloorTest] = {}
        self.precisions: Sequence[PrecisionVerdict] = []

    def test(self, dtype: str) -> FloorTest | None:
        """Return the pair in a dtype compared with its noise floor, None if it was not."""
        return self.comparisons[dtype].test if dtype in self.comparisons else None

    @property
    def wide_dtype(self) -> str:
        """The dtype that decides: float64, float32, or '' if neither could be compared."""
        return next((dtype for dtype in _WIDE_DTYPES if self.test(dtype) is not None), "")

    @property
    def is_open(self) -> bool:
        """True if float32 decides nothing."""
        return not any(_is_decided_by_float32(row) for row in self.evidence)

    def floor(self, dtype: str) -> Squares | None:
        return self.comparisons[dtype].floor if dtype in self.comparisons else None

    def compare(self, dtype: str, pair: Pair, limits: Limits) -> bool:
        """Compare a pair with its noise floor; return whether there is one."""
        comparison = self.comparisons[dtype] = _compare(self.controls, dtype, pair, limits)
        self.evidence += comparison.rows
        return comparison.test is not None

    # ---- checks, in order

    def in_own_dtype(self) -> None:
        """Compare the pair in 16 bits with reorderings, and see what is not finite there."""
        self.evidence += _single_logits(self.controls, self.own)
        if self.is_16_bits:
            is_other = any(dtype != self.dtype for dtype in self.controls.only_16_bits.values())
            self.compare(self.dtype, self.own, OTHER_16_BITS if is_other else OWN)
            self.from_model()

    def in_float32(self) -> None:
        """Compare the pair in float32 with the noise floor: of a sound pair it is one more order of
        summation.
        """
        try:
            pair = self.controls.pair("float32") if self.is_16_bits else self.own
        except CaptureError as error:
            control = f"'{self.names[1]}' compared with '{self.names[0]}' in float32"
            self.evidence += _unmeasured(self.controls, Check.WIDE_PAIR, control, error)
            return
        if not self.compare("float32", pair, WIDE):
            self.evidence += self.controls.without_floor(pair)
        elif not self.is_16_bits:
            self.from_model()

    def in_float64(self) -> None:
        """Compare a mixture of experts in float64: in float32 near ties of the router choose other
        experts.
        """
        single = self.test("float32")
        if single is None or not single.is_finite or single.is_larger_everywhere:
            return
        size = f"In float32 the RMS difference is {multiple(single.ratio)} the noise floor"
        outcome = NOTED
        says = f"{size}; near ties of the router make it uncertain, so float64 decides."
        index = next(n for n, row in enumerate(self.evidence) if row.check is Check.WIDE_PAIR)
        try:
            pair, floor = self.controls.pair("float64"), self.controls.floor("float64")
            double = floor_test(pair.sizes, floor.squares, WIDE)
            median = float(np.median(double.by_position))
            is_of_float32 = WIDE.over_all < median <= WIDE.over_all * _FLOAT32_OVER_FLOAT64
            if not double.is_passed and is_of_float32:
                return
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
            control = f"randomized rounding to {self.dtype}"
            self.evidence += _unmeasured(self.controls, Check.DRAWN, control, error)
            return
        tests = error_rows(
            exact,
            self.dtype,
            self.lengths,
            self.controls.blocks,
            always_check_draws=self.test("float32") is None,
        )
        if len(tests) > 1 and all(row.outcome == FAILED for row, _ in tests):
            says = (
                f"Neither side is what {exact.model} computes in {self.dtype}: a different"
                " checkpoint?"
            )
            tests = [(replace(row, outcome=MISSING, says=says), test) for row, test in tests]
        for row, test in tests:
            self.evidence.append(row)
            if row.outcome in (PASSED, FAILED):
                self.error_tests[str(row.side)] = test

    def from_model(self) -> None:
        """Is each recorded side what the model computes for these tokens? If neither is, its floor
        says nothing.
        """
        try:
            squares = self.controls.from_model()
        except NotAvailableError:
            return
        floor_squares = self.floor(self.dtype)
        if floor_squares is None:
            return
        floor = max(float(floor_squares.mean()), np.finfo(float).tiny)
        reference, variant = (float(np.sqrt(squares[name].mean() / floor)) for name in self.names)
        says, far = foreign({self.names[0]: reference, self.names[1]: variant})
        if says:
            figures = evidence.FromModelFigures(
                reference_noise_ratio=reference,
                variant_noise_ratio=variant,
            )
            control = f"each side compared with the model's own prefill in {self.dtype}"
            outcome = MISSING if far is None else FAILED
            self.evidence.append(Evidence(Check.FROM_MODEL, control, figures, outcome, says, far))

    def rerun(self) -> None:
        """Check whether each side repeats its bits when it is called again; if not, how far in
        noise floors.
        """
        try:
            rerun = self.controls.rerun()
        except NotAvailableError:
            return
        floor = self.floor(self.dtype)
        if rerun.unstable and rerun.squares is not None and floor is not None:
            row = _rerun_over_floor(self.controls, rerun, rerun.squares, floor)
        else:
            row = rerun_evidence(rerun, self.names)
        self.evidence.append(row)

    def neighbours(self) -> None:
        """Do other prompts in the batch, or another row of it, change a side's logits?"""
        for each in self.controls.neighbours():
            if isinstance(each.figures, evidence.OtherPromptsFigures):
                row = _other_prompts(each, each.figures, has_experts=self.controls.has_experts)
            elif each.difference is None:
                row = _other_row(each, each.figures)
            else:
                row = _other_row_over_floor(self.controls, each, each.figures, each.difference)
            self.evidence.append(row)

    def lower_precision(self) -> None:
        """Is a side that fails the same function in a lower precision?"""
        dtype, wide = self.wide_dtype, self.test(self.wide_dtype)
        if wide is not None and not wide.is_passed:
            tests = {dtype: wide}
        else:
            dtype = self.dtype
            tests = {side: each for side, each in self.error_tests.items() if not each.is_passed}
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
            control = "lower precisions that engines offer"
            self.evidence += _unmeasured(self.controls, Check.PRECISIONS, control, error)
        self.evidence += [each.evidence for each in self.precisions]

    # ---- conclusion

    def conclusion(self, earlier: Verdict | None) -> Verdict:
        """Add the first places, carry over what earlier controls showed, and name the verdict."""
        deciding, dtype = self.deciding_test()
        measure = deciding or self.test(self.dtype)
        ratio = None if measure is None else measure.noise_ratio
        mismatches = [each.pair.not_finite for each in self.comparisons.values()]
        not_finite = next((each for each in mismatches if each is not None), None)
        if deciding is not None and not deciding.is_finite:
            not_finite = None  # its own outliers say where
        if not_finite is not None:
            ratio = None
        place, module = self.place_and_module(deciding, dtype, not_finite)
        if earlier is not None:
            is_decided = self.is_open and any(map(_is_decided_by_float32, earlier.evidence))
            self.carry_over(earlier.evidence, is_decided=is_decided)
            if is_decided:
                ratio, place = earlier.noise_ratio, earlier.first_place
        self.add_arrays_alone()
        self.leave_choices_open()
        verdict = conclude(
            self.evidence,
            is_bit_identical=self.own.is_identical,
            noise_ratio=ratio,
            first_place=place,
            lengths=self.lengths,
            find_token=partial(self.token, deciding, dtype),
            module=module,
            causes=self.controls.causes,
        )
        return replace(verdict, floors=self.floor_rows)

    def deciding_test(self) -> tuple[FloorTest | None, str]:
        """Return the comparison that decides, None if there is none, and its dtype: in 16 bits if
        the widest passed and an error did not.
        """
        wide = self.test(self.wide_dtype)
        failed = [each for each in self.error_tests.values() if not each.is_passed]
        if failed and (wide is None or wide.is_passed):
            return failed[0], self.dtype
        return wide, self.wide_dtype

    def place_and_module(
        self,
        deciding: FloorTest | None,
        dtype: str,
        not_finite: NotFinite | None,
    ) -> tuple[tuple[int, int] | None, str]:
        """Return where the fault begins, and the first module that has it, '' if unknown; add what
        shows it. not_finite: of a pair that decides by that.
        """
        controls, module = self.controls, ""
        is_beyond = deciding is not None and not deciding.is_passed
        outliers = np.zeros(0, np.int64) if deciding is None else deciding.outliers
        structure = structure_of(outliers, self.lengths, controls.blocks)
        place = structure.first
        if not_finite is not None:
            place, module = not_finite.place(self.lengths), controls.source_of(not_finite)
        elif deciding is None:
            place = self.place_without_floor()
        is_wide = deciding is self.test(self.wide_dtype)
        if deciding is not None and is_beyond and is_wide and not controls.chooses_keys:
            alone = self.modules_alone(deciding, dtype)
            module = next(filter(None, (each.first_module for each in alone)), module)
            on_top = [each.first for each in alone if each.bits is not None and each.first]
            place = on_top[-1] if on_top else place  # of a fault on top of a lower precision
        outcomes = {each.evidence.outcome for each in self.precisions}
        if outcomes and outcomes <= {PASSED, FAILED}:
            # the fault's own place, not the precision's
            faults = [each.place for each in self.precisions if each.evidence.outcome == FAILED]
            place = next(iter(faults), None)
        if deciding is not None and is_beyond and not_finite is None:
            self.evidence.append(outliers_evidence(structure, place, deciding, dtype, self.lengths))
        for row in self.evidence:
            if place is None and isinstance(row.figures, evidence.SingleLogitFigures):
                place = row.figures.first
        return place, module

    @property
    def floor_rows(self) -> tuple[FloorRows, ...]:
        return tuple(
            FloorRows(dtype, np.sqrt(each.pair.squares), np.sqrt(each.floor.mean(axis=0)))
            for dtype, each in self.comparisons.items()
            if each.floor is not None
        )

    def place_without_floor(self) -> tuple[int, int] | None:
        """Return a place that does not shrink from 16 bits to float32, else add the positions that
        differ.
        """
        for row in self.evidence:
            if isinstance(row.figures, evidence.ShrinkFigures) and row.outcome == FAILED:
                self.evidence = [
                    each
                    for each in self.evidence
                    if each.check is not Check.NARROWING or each.outcome == FAILED
                ]
                return row.figures.worst_position
        self.evidence += self.controls.differing()
        return None

    def modules_alone(self, test: FloorTest, dtype: str) -> list[evidence.AloneFigures]:
        """Add what each module alone shows, and return it."""
        faulty = [each.evidence.side for each in self.precisions if each.evidence.outcome == FAILED]
        rows = self.controls.modules(test.position.worst_place, faulty, dtype)
        self.evidence += rows
        return [row.figures for row in rows if isinstance(row.figures, evidence.AloneFigures)]

    def token(self, test: FloorTest | None, dtype: str) -> int | None:
        """Return the token at which all of the difference is, None if it is at several."""
        if test is None or not test.is_finite or not len(test.outliers):
            return None
        tokens = set()
        for row in {int(test.outliers[0]), test.position.worst_place}:
            squares = self.controls.differences(row, dtype)
            if squares is None or squares.max() < _OF_ONE_TOKEN * squares.sum():
                return None
            tokens.add(int(squares.argmax()))
        return tokens.pop() if len(tokens) == 1 else None

    def leave_choices_open(self) -> None:
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

    def add_arrays_alone(self) -> None:
        """Screen the arrays themselves, if nothing in 16 bits or float32 decides.

        If any other control was given, they can accuse and not excuse.
        """
        is_drawn = any(row.check is Check.DRAWN for row in self.evidence)
        is_decided = not self.is_open and (is_drawn or not self.is_16_bits)
        if self.own.is_identical or is_decided:
            return
        screening = self.controls.arrays_alone()
        is_alone = all(row.group in _OF_ARRAYS or row.outcome == MISSING for row in self.evidence)
        if screening is not None and (is_alone or screening.outcome == FAILED):
            self.evidence.append(screening)

    def carry_over(self, earlier: Sequence[Evidence], *, is_decided: bool) -> None:
        """Add the evidence of earlier controls on every check not made now. is_decided: by float32
        then, and not now.
        """
        if is_decided:
            self.evidence = [row for row in self.evidence if row.group != FLOAT32]
            self.evidence += filter(_is_decided_by_float32, earlier)
        own = {row.group for row in self.evidence}
        others = {evidence.RERUN, evidence.NEIGHBOURS, evidence.OWN_DTYPE} - own
        self.evidence += [row for row in earlier if row.group in others]
        is_lower = any(row.group == evidence.PRECISION and row.outcome == PASSED for row in earlier)
        if not is_lower or evidence.PRECISION in own:
            return
        # shown in 16 bits, which hide a fault on top of it
        says = (
            "In 16 bits it is a lower precision, which float32 does not show: give the model"
            " and float32 at once."
        )
        for index, row in enumerate(self.evidence):
            if row.group == FLOAT32 and row.outcome == FAILED:
                self.evidence[index] = replace(row, outcome=MISSING, says=says)


def _is_decided_by_float32(row: Evidence) -> bool:
    return row.group == FLOAT32 and row.outcome in (PASSED, FAILED)


# ---- one row each


def _unmeasured(
    controls: Controls,
    check: Check,
    control: str,
    error: CaptureError,
) -> list[Evidence]:
    """Return why a check cannot be made, nothing if there is nothing to say."""
    if not str(error):
        return []
    figures = Unmeasured()
    if check is Check.WIDE_PAIR:
        narrow = dict(controls.only_16_bits) or None
        figures = Unmeasured(controls=controls.available, computes_in=narrow)
    return [Evidence(check, control, figures, MISSING, str(error))]


def _compare(controls: Controls, dtype: str, pair: Pair, limits: Limits) -> _Comparison:
    """Compare a pair with its noise floor in one dtype."""
    names, lengths, is_wide = controls.names, controls.lengths, dtype in _WIDE_DTYPES
    control = f"'{names[1]}' compared with '{names[0]}' in {dtype}"
    check = Check.WIDE_PAIR if is_wide else Check.OWN_PAIR
    mismatch, says = pair.not_finite, ""
    first_nonfinite = None
    if mismatch is not None:
        first_nonfinite = mismatch.first(lengths)
        says = f"In {dtype}, {mismatch.says(lengths)}."
    try:
        floor = controls.floor(dtype)
    except CaptureError as error:
        if mismatch is None or first_nonfinite is None:
            return _Comparison(pair, _unmeasured(controls, check, control, error))
        check = Check.WIDE_NOT_FINITE if is_wide else Check.OWN_NOT_FINITE
        alone = evidence.NotFiniteFigures(
            compute_dtype=dtype,
            noise_ratio=None,
            nonfinite_mismatch=mismatch.logits,
            positions_beyond=len(mismatch.rows),
            first_nonfinite=first_nonfinite,
        )
        return _Comparison(pair, [Evidence(check, control, alone, FAILED, says)])
    test = floor_test(pair.sizes, floor.squares, limits)
    limit = test.position.limit
    figures = evidence.PairFigures(
        compute_dtype=dtype,
        noise_ratio=test.noise_ratio,
        largest_ratio_allowed=limits.over_all,
        pair_rms_logits=float(np.sqrt(pair.squares.mean())),
        floor_rms_logits=float(np.sqrt(floor.squares.mean())),
        seed_ratios=test.seed_ratios,
        worst_position_ratio=test.worst,
        position_ratio_allowed=limit if np.isfinite(limit) else None,
        positions=len(pair.squares),
        positions_beyond=len(test.outliers),
        log_spread=test.spread,
        nonfinite_mismatch=0 if mismatch is None else mismatch.logits,
        linear_maps=floor.maps,
        floor_row_ulps=floor.row_ulps,
        first_nonfinite=first_nonfinite,
    )
    if mismatch is None:
        prefix = f"In {dtype}" if dtype == controls.dtype else f"Recomputed in {dtype},"
        size = f"{prefix} the RMS difference is {multiple(test.ratio)} the noise floor"
        says = beyond_in_words(test, size, lengths)
    outcome = PASSED if test.is_passed else FAILED
    row = Evidence(check, f"{control}, over {floor.control}", figures, outcome, says)
    return _Comparison(pair, [row], floor.squares, test)


def _single_logits(controls: Controls, pair: Pair) -> list[Evidence]:
    """Return the first logit that differs far more than the others at its position: rounding moves
    them alike.
    """
    peaks = pair.peaks
    if peaks is None or peaks.max() <= SINGLE_LOGIT:
        return []
    rows = np.flatnonzero(peaks > SINGLE_LOGIT)
    row = int(rows[0])
    squares = controls.differences(row, controls.dtype)
    assert squares is not None  # what has peaks has logits
    token, place = int(squares.argmax()), place_in_words(row, controls.lengths)
    reach = f"{three_digits(float(peaks[row]))}x the others at {place}"
    figures = evidence.SingleLogitFigures(
        compute_dtype=controls.dtype,
        ratio_to_others=float(peaks[row]),
        largest_ratio_allowed=SINGLE_LOGIT,
        positions_beyond=len(rows),
        first=place_of(row, controls.lengths),
        token=token,
    )
    control = "logits compared with the others at their position"
    says = f"Token {token} differs by {reach}: rounding moves no logit alone."
    return [Evidence(Check.SINGLE_LOGIT, control, figures, FAILED, says)]


def rerun_evidence(rerun: Rerun, names: Sequence[str]) -> Evidence:
    """Return whether each side repeats its bits. names: of both sides."""
    figures = evidence.RerunFigures(not_repeatable=rerun.unstable, **rerun.figures)
    others = [name for name in names if name not in rerun.sides]
    says = "Both sides are bitwise reproducible from run to run."
    if rerun.unstable:
        size = figures.rerun_row_ulps
        far = "" if size is None else f": two calls differ by up to {number(size, 3)} row ULPs"
        verb = "is" if len(rerun.unstable) == 1 else "are"
        says = f"{_quote(rerun.unstable)} {verb} not bitwise reproducible{far}."
    elif others:
        says = f"{_quote(rerun.sides)} is bitwise reproducible; {_quote(others)} has no rerun."
    outcome = FAILED if rerun.unstable else PASSED
    return Evidence(Check.AGAIN, rerun.control, figures, outcome, says)


def _rerun_over_floor(
    controls: Controls,
    rerun: Rerun,
    squares: Squares,
    floor: Squares,
) -> Evidence:
    """Compare the difference of a side from itself with the noise floor in the same dtype."""
    is_16_bits = controls.dtype not in _WIDE_DTYPES
    limits = OWN if is_16_bits else WIDE
    test = floor_test(squares, floor, limits)
    worst, limit = test.worst or 0.0, test.position.limit
    # in 16 bits a near tie of a router may move one position as far as it likes
    at_one = np.inf if controls.has_experts and is_16_bits else limits.over_all
    if np.isfinite(limit):
        at_one = max(at_one, limit)
    is_beyond = bool(rerun.mismatches) or test.ratio > limits.over_all or worst > at_one
    sizes: dict[str, Any] = {}
    size = f"differs between two calls by {multiple(test.ratio)} the noise floor"
    if rerun.mismatches:
        logits = plural(rerun.mismatches, "logit")
        says = f"has {logits} that are NaN or infinite in one of two calls."
    else:
        sizes = {"rerun_noise_ratio": test.noise_ratio, "rerun_worst_position_ratio": worst}
        if not is_beyond:
            says = f"{size}, as rounding does."
        elif controls.chooses_keys:
            is_beyond = False
            says = f"{size}: other keys, by near ties of the indexer?"
        else:
            place = place_in_words(test.position.worst_place, controls.lengths)
            says = f"{size}, up to {multiple(worst)} at {place}, more than rounding."
    sizes["rerun_rms_logits"] = float(np.sqrt(squares.mean()))
    figures = evidence.RerunFigures(
        not_repeatable=rerun.unstable,
        largest_ratio_allowed=limits.over_all,
        beyond_noise_floor=is_beyond,
        **{**rerun.figures, **sizes},
    )
    says = f"{_quote(rerun.unstable)} {says}"
    return Evidence(Check.AGAIN, rerun.control, figures, FAILED, says)


def _other_prompts(
    rows: OtherRows,
    figures: evidence.OtherPromptsFigures,
    *,
    has_experts: bool,
) -> Evidence:
    side, outcome = f"'{rows.side}'", PASSED
    says = f"Other prompts in the batch do not change a bit of {side}."
    if not figures.bit_identical and has_experts:
        shared = "in a mixture of experts rows share products, so no leak"
        outcome, says = NOTED, f"Other prompts change bits of {side}: {shared}."
    elif not figures.bit_identical:
        outcome = FAILED
        says = f"Other prompts in the batch change the logits of {side}: data leaks between rows."
    return Evidence(Check.OTHER_PROMPTS, rows.control, figures, outcome, says, rows.side)


def _other_row(rows: OtherRows, figures: evidence.OtherRowFigures) -> Evidence:
    outcome, bits = NOTED, "other bits than"
    if figures.bit_identical:
        outcome, bits = PASSED, "the same bits as"
    says = f"Row {figures.other_row} of {figures.rows} gives {bits} row {figures.row}."
    return Evidence(Check.OTHER_ROW, rows.control, figures, outcome, says, rows.side)


def _other_row_over_floor(
    controls: Controls,
    rows: OtherRows,
    bits: evidence.OtherRowFigures,
    difference: Pair,
) -> Evidence:
    """Compare the logits of two rows of a batch with the noise floor."""
    mismatch = difference.not_finite
    test = floor_test(difference.sizes, controls.floor(rows.dtype).squares, WIDE)
    figures = evidence.OtherRowFloorFigures(
        **structs.asdict(bits),
        compute_dtype=rows.dtype,
        noise_ratio=test.noise_ratio,
        worst_position_ratio=test.worst,
        positions_beyond=len(test.outliers),
        nonfinite_mismatch=0 if mismatch is None else mismatch.logits,
    )
    size = f"{multiple(max(test.ratio, test.worst or 0.0))} the noise floor in {rows.dtype}"
    differs = f"Row {bits.other_row} of {bits.rows} differs from row {bits.row}"
    outcome, says = FAILED, f"{differs} by up to {size}: the result depends on the row."
    if mismatch is not None:
        says = f"{differs}: {mismatch.says(controls.lengths)}."
    elif test.is_passed:
        outcome, says = PASSED, f"{differs} by {size}, as rounding does."
    elif controls.chooses_keys:
        outcome, says = NOTED, f"{differs}: other keys, by near ties of the indexer?"
    return Evidence(Check.OTHER_ROW_FLOOR, rows.control, figures, outcome, says, rows.side)


def foreign(ratios: Mapping[str, float]) -> tuple[str, str | None]:
    """Return a sentence if a side is not what the model computes, else ''; the side's name if it is
    only one.

    ratios: of each side to the model, in noise floors.
    """
    near, far = sorted(ratios, key=ratios.__getitem__)
    ratio, away = three_digits(ratios[near]), three_digits(ratios[far])
    if ratios[near] > FOREIGN:
        sizes = f"they are {ratio} and {away} noise floors away"
        says = (
            f"Neither side is what the model computes: {sizes}. Another checkpoint, or other"
            " tokens?"
        )
        return says, None
    if ratios[far] > FOREIGN:
        says = (
            f"'{far}' is not what the model computes: {away} noise floors away; '{near}' is, at"
            f" {ratio}."
        )
        return says, far
    return "", None


def _quote(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
