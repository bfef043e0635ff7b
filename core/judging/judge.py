"""Judge a pair: is its difference rounding, a bug, or nondeterminism?

Controls are asked in order, and `conclude` names the verdict. docs/explanation/calibration.md has
the measurements behind every limit.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from ..checks.choices import ChoicesFigures
from ..checks.drawn import DRAWN, error_rows
from ..checks.from_model import from_model_row
from ..checks.lower_precision import PRECISIONS, PrecisionVerdict
from ..checks.modules_alone import AloneFigures
from ..checks.modules_in_16_bits import ModuleRoundingFigures
from ..checks.narrowing import AGAINST_EXACT, NARROWING
from ..checks.other_rows import other_rows_row
from ..checks.outliers import outliers_row, structure_of
from ..checks.pair import (
    CHOOSES_KEYS,
    OTHER_16_BITS,
    OWN,
    PRECISION_IS_OPEN,
    WIDE,
    WIDE_DTYPES,
    WIDE_PAIR,
    Pair,
    not_finite_row,
    pair_check,
    pair_control,
    pair_row,
    uncertain_row,
)
from ..checks.rerun import rerun_over_floor, rerun_row
from ..checks.shrink import ShrinkFigures
from ..checks.single_logit import SingleLogitFigures, single_logit_row
from ..errors import CaptureError
from ..evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NEIGHBOURS,
    NOTED,
    OWN_DTYPE,
    PASSED,
    PRECISION,
    RERUN,
    SCREENING,
    Check,
    Evidence,
    Unmeasured,
)
from ..numerics.arrays import Floats
from ..numerics.statistic import FloorTest, Limits, floor_test
from ..places import NotFinite
from ..verdict import FloorRows, Verdict
from .conclude import conclude
from .controls import Controls, NotAvailableError, StaysInFloat32Error

# float64 rounds 2^-29 of what float32 does. A pair that differs by what float32 rounds stays in
# float32 somewhere.
_FLOAT32_OVER_FLOAT64 = 2.0**29
# of the squared difference at a position: the fault is in one column of the vocabulary
_OF_ONE_TOKEN = 0.9
# A position that rounding moved by 2e-6 in ten of twelve draws and by 2e-5 in two was 7.5 floors of
# four draws away (Qwen3-Next). Faults at one position begin at 13.
_UNSTABLE = 12.0
# groups that compare the size of a difference with that of rounding
_BY_SIZE = (SCREENING, OWN_DTYPE, FLOAT32)
# groups that need a model or another dtype
_OF_CONTROLS = (OWN_DTYPE, FLOAT32, PRECISION)


def judge(controls: Controls, earlier: Verdict | None = None) -> Verdict:
    """Ask every control in order and conclude. earlier: a verdict by other controls, for checks not
    made now.
    """
    trial = _Trial(controls)
    trial.in_own_dtype()
    trial.in_float32()  # decides
    if controls.has_experts and not controls.replays:
        trial.in_float64()
    trial.in_16_bits()  # decides too
    trial.choices()
    trial.rerun()
    trial.neighbours()
    trial.lower_precision()
    return trial.conclusion(earlier)


class _Trial:
    """A pair on trial. floors, tests: its noise floor and the comparison with it by dtype;
    floor_rows: both at every position; wide_dtype: that decides: float64, float32, or '' if neither
    could be compared; not_finite: of the first dtype that has such logits; error_tests: of each
    side in 16 bits.
    """

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self.lengths = controls.lengths
        self.dtype = controls.dtype
        self.is_16_bits = controls.dtype not in WIDE_DTYPES
        self.evidence = controls.validity()  # and the sampler: is each emitted token the argmax?
        self.own = controls.pair(controls.dtype)
        self.floors: dict[str, Floats] = {}
        self.tests: dict[str, FloorTest] = {}
        self.floor_rows: list[FloorRows] = []
        self.wide_dtype = ""
        self.not_finite: NotFinite | None = None
        self.error_tests: dict[str, FloorTest] = {}
        self.precisions: Sequence[PrecisionVerdict] = []

    @property
    def wide(self) -> FloorTest | None:
        """The comparison in the dtype that decides."""
        return self.tests.get(self.wide_dtype)

    @property
    def is_open(self) -> bool:
        """True if float32 decides nothing."""
        return not any(map(_is_decided_by_float32, self.evidence))

    def has_failed(self, *groups: str) -> bool:
        return any(row.group in groups and row.outcome == FAILED for row in self.evidence)

    def add(self, row: Evidence | None) -> None:
        """Add a row of evidence, if there is one."""
        if row:
            self.evidence.append(row)

    def add_missing(self, check: Check, control: str, error: CaptureError) -> None:
        """Say why a check cannot be made, nothing if there is nothing to say."""
        if not str(error):
            return
        figures = Unmeasured()
        if check == WIDE_PAIR:
            figures = Unmeasured(
                controls=self.controls.available,
                computes_in=dict(self.controls.only_16_bits) or None,
            )
        self.add(Evidence(check, control, figures, MISSING, str(error)))

    def compare(self, dtype: str, pair: Pair, limits: Limits) -> bool:
        """Compare a pair with its noise floor; return whether there is one."""
        controls = self.controls
        self.not_finite = self.not_finite or pair.not_finite
        try:
            floor = controls.floor(dtype)
        except CaptureError as error:
            if pair.not_finite:
                self.add(not_finite_row(controls, dtype, pair.not_finite))
            else:
                self.add_missing(pair_check(dtype), pair_control(controls, dtype), error)
            return False
        row, test = pair_row(controls, dtype, pair, floor, limits)
        is_beyond_at_few = not test.is_passed and test.ratio <= limits.over_all
        # few draws may miss what rounding does at an unstable position
        if is_beyond_at_few and test.position.worst <= _UNSTABLE:
            with suppress(CaptureError):
                floor = controls.larger_floor(dtype)
                row, test = pair_row(controls, dtype, pair, floor, limits)
        self.add(row)
        self.floors[dtype] = floor.squares
        self.tests[dtype] = test
        if dtype in WIDE_DTYPES:
            self.wide_dtype = dtype
        floor_rms = np.sqrt(floor.squares.mean(axis=0))
        self.floor_rows.append(FloorRows(dtype, np.sqrt(pair.squares), floor_rms))
        # is each recorded side what the model computes? If neither is, its floor says nothing
        if dtype == self.dtype and (squares := controls.from_model()):
            self.add(from_model_row(controls, squares, floor.squares))
        return True

    # ---- checks, in order

    def in_own_dtype(self) -> None:
        """Compare the pair in 16 bits with reorderings, and see what is not finite there."""
        self.add(single_logit_row(self.controls, self.own.peaks, self.controls.differences))
        if self.is_16_bits:
            is_other = any(dtype != self.dtype for dtype in self.controls.only_16_bits.values())
            self.compare(self.dtype, self.own, OTHER_16_BITS if is_other else OWN)

    def in_float32(self) -> None:
        """Compare the pair in float32 with the noise floor: of a sound pair it is one more order of
        summation.
        """
        try:
            pair = self.controls.pair("float32") if self.is_16_bits else self.own
        except CaptureError as error:
            self.add_missing(WIDE_PAIR, pair_control(self.controls, "float32"), error)
            return
        if not self.compare("float32", pair, WIDE):
            self.evidence += self.controls.without_floor(pair)

    def in_float64(self) -> None:
        """Compare a mixture of experts in float64: in float32 near ties of the router choose other
        experts.
        """
        single = self.tests.get("float32")
        if not single or not single.is_finite or single.is_larger_everywhere:
            return
        reason: str | None = None
        index = next(n for n, row in enumerate(self.evidence) if row.check == WIDE_PAIR)
        try:
            pair = self.controls.pair("float64")
            double = floor_test(pair.sizes, self.controls.floor("float64").squares, WIDE)
            over_limit = np.median(double.by_position) / WIDE.over_all
            if not double.is_passed and 1 < over_limit <= _FLOAT32_OVER_FLOAT64:
                return
            self.compare("float64", pair, WIDE)
        except StaysInFloat32Error:
            return
        except CaptureError as error:
            if single.is_passed:
                return
            reason = str(error)
        self.evidence[index] = uncertain_row(self.evidence[index], single.ratio, reason)

    def in_16_bits(self) -> None:
        """Compare each side's error to the model's float32 forward with that of randomized
        rounding.
        """
        if not self.is_16_bits or self.own.is_identical or self.own.not_finite:
            return
        try:
            for side, dtype in self.controls.only_16_bits.items():
                if dtype != self.dtype:
                    raise NotAvailableError(
                        f"'{side}' computes in {dtype}: load the model in that dtype to compare its"
                        " rounding.",
                    )
            exact = self.controls.exact()
        except CaptureError as error:
            self.add_missing(DRAWN, f"randomized rounding to {self.dtype}", error)
            return
        tests = error_rows(
            exact,
            self.dtype,
            self.lengths,
            self.controls.blocks,
            always_check_draws="float32" not in self.tests,
        )
        for row, test in tests:
            self.add(row)
            if row.outcome in (PASSED, FAILED):
                self.error_tests[str(row.side)] = test
        outcomes = {row.outcome for row, _ in tests}
        # a fault in float32 too is looked for in its modules alone
        is_of_16_bits = FAILED in outcomes and self.wide and self.wide.is_passed
        if outcomes <= {PASSED} or is_of_16_bits:
            self.evidence += self.controls.module_rounding()

    def choices(self) -> None:
        """Compare the experts that each side takes with the model's; a side that is beyond rounding
        takes others anyway.
        """
        is_beyond = self.has_failed(*_BY_SIZE)
        for row in self.controls.choices():
            self.add(replace(row, outcome=NOTED) if is_beyond and row.outcome == FAILED else row)

    def rerun(self) -> None:
        """Check whether each side repeats its bits when it is called again; if not, how far in
        noise floors.
        """
        try:
            rerun = self.controls.rerun()
        except NotAvailableError:
            return
        floor = self.floors.get(self.dtype)
        if rerun.unstable and rerun.squares is not None and floor is not None:
            self.add(rerun_over_floor(self.controls, rerun, rerun.squares, floor))
        else:
            self.add(rerun_row(rerun, self.controls.names))

    def neighbours(self) -> None:
        """Do other prompts in the batch, or another row of it, change a side's logits?"""
        for rows in self.controls.neighbours():
            floor = self.controls.floor(rows.dtype).squares if rows.difference else None
            self.add(other_rows_row(self.controls, rows, floor))

    def lower_precision(self) -> None:
        """Is a side that fails the same function in a lower precision?"""
        dtype = self.wide_dtype
        if self.wide and not self.wide.is_passed:
            tests = {dtype: self.wide}
        else:
            dtype = self.dtype
            tests = {side: each for side, each in self.error_tests.items() if not each.is_passed}
        is_infinite = not all(each.is_finite for each in tests.values())
        if not tests or is_infinite or self.controls.chooses_keys:
            return
        try:
            self.precisions = self.controls.lower_precision(
                dtype,
                tests,
                also_in_16_bits=self.has_failed(OWN_DTYPE),
            )
        except CaptureError as error:
            self.add_missing(PRECISIONS, "lower precisions that engines offer", error)
        self.evidence += [each.evidence for each in self.precisions]

    # ---- conclusion

    def conclusion(self, earlier: Verdict | None) -> Verdict:
        """Add the first places, carry over what earlier controls showed, and name the verdict."""
        deciding = self.wide
        dtype = self.wide_dtype
        failed = [each for each in self.error_tests.values() if not each.is_passed]
        # in 16 bits if the widest passed and an error did not
        if failed and (not deciding or deciding.is_passed):
            deciding = failed[0]
            dtype = self.dtype
        measure = deciding or self.tests.get(self.dtype)
        ratio = measure.noise_ratio if measure else None
        # if a difference that decides has no size, its own outliers say where
        not_finite = None if deciding and not deciding.is_finite else self.not_finite
        takes_others = any(
            isinstance(row.figures, ChoicesFigures) and row.outcome == FAILED
            for row in self.evidence
        )
        if not_finite or takes_others:
            ratio = None
        place, module = self.place_and_module(deciding, dtype, not_finite)
        if earlier is not None:
            is_decided = self.is_open and any(map(_is_decided_by_float32, earlier.evidence))
            self.carry_over(earlier.evidence, is_decided=is_decided)
            if is_decided:
                ratio = earlier.noise_ratio
                place = earlier.first_place
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
            has_experts=self.controls.has_experts and not self.controls.replays,
        )
        return replace(verdict, floors=tuple(self.floor_rows))

    def place_and_module(
        self,
        deciding: FloorTest | None,
        dtype: str,
        not_finite: NotFinite | None,
    ) -> tuple[tuple[int, int] | None, str]:
        """Return where the fault begins, and the first module that has it, '' if unknown; add what
        shows it. not_finite: of a pair that decides by that.
        """
        controls = self.controls
        module = ""
        beyond = None if not deciding or deciding.is_passed else deciding
        outliers = deciding.outliers if deciding else np.zeros(0, np.int64)
        structure = structure_of(outliers, self.lengths, controls.blocks)
        place = structure.first
        faults = [each for each in self.precisions if each.evidence.outcome == FAILED]
        if not_finite:
            place = not_finite.place(self.lengths)
            module = controls.source_of(not_finite)
        elif not deciding:
            place = self.place_without_floor()
        if beyond and beyond is self.wide and not controls.chooses_keys:
            sides = [each.evidence.side for each in faults]
            rows = controls.modules(beyond.position.worst_place, sides, dtype)
            self.evidence += rows
            alone = [row.figures for row in rows if isinstance(row.figures, AloneFigures)]
            module = next((each.first_module for each in alone if each.first_module), module)
            on_top = [each.first for each in alone if each.bits is not None and each.first]
            place = on_top[-1] if on_top else place  # of a fault on top of a lower precision
        elif beyond and not not_finite:
            for row in self.evidence:
                # in 16 bits
                if isinstance(row.figures, ModuleRoundingFigures):
                    module = module or next(iter(row.figures.modules_beyond), "")
        outcomes = {each.evidence.outcome for each in self.precisions}
        if outcomes and outcomes <= {PASSED, FAILED}:
            # the fault's own place, not the precision's
            place = faults[0].place if faults else None
            if any(each.is_of_choices for each in faults):
                module = ""  # alone, modules show the precision
        if beyond and not not_finite:
            self.add(outliers_row(structure, place, beyond, dtype, self.lengths))
        for row in self.evidence:
            # what a cause moves everywhere is largest, not first, where one logit stands out
            is_of_cause = isinstance(row.figures, SingleLogitFigures) and bool(controls.causes)
            if place or is_of_cause:
                continue
            if isinstance(row.figures, SingleLogitFigures | ChoicesFigures):
                place = row.figures.first
        return place, module

    def place_without_floor(self) -> tuple[int, int] | None:
        """Return a place that does not shrink from 16 bits to float32, else add the positions that
        differ.
        """
        for row in self.evidence:
            if isinstance(row.figures, ShrinkFigures) and row.outcome == FAILED:
                self.evidence = [
                    each
                    for each in self.evidence
                    if each.check != NARROWING or each.outcome == FAILED
                ]
                return row.figures.worst_position
        self.evidence += self.controls.differing()
        return None

    def token(self, test: FloorTest | None, dtype: str) -> int | None:
        """Return the token at which all of the difference is, None if it is at several."""
        if not test or not test.is_finite or not len(test.outliers):
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
        by_size = {}
        for index, row in enumerate(self.evidence):
            is_of_a_nan = getattr(row.figures, "nonfinite_mismatch", 0)
            if row.group in _BY_SIZE and row.outcome != NOTED and not is_of_a_nan:
                by_size[index] = row
        has_failed = any(row.outcome == FAILED for row in by_size.values())
        if has_failed and self.controls.chooses_keys:
            for index, row in by_size.items():
                self.evidence[index] = replace(row, outcome=MISSING, says=CHOOSES_KEYS)

    def add_arrays_alone(self) -> None:
        """Screen the arrays themselves, if nothing in 16 bits or float32 decides.

        If any other control was given, they can accuse and not excuse.
        """
        is_drawn = any(row.check == DRAWN for row in self.evidence)
        is_decided = not self.is_open and (is_drawn or not self.is_16_bits)
        if self.own.is_identical or is_decided:
            return
        screening = self.controls.arrays_alone()
        is_alone = all(
            row.group not in _OF_CONTROLS or row.outcome == MISSING or row.check == AGAINST_EXACT
            for row in self.evidence
        )
        if screening and (is_alone or screening.outcome == FAILED):
            self.add(screening)

    def carry_over(self, earlier: Sequence[Evidence], *, is_decided: bool) -> None:
        """Add the evidence of earlier controls on every check not made now. is_decided: by float32
        then, and not now.
        """
        if is_decided:
            self.evidence = [row for row in self.evidence if row.group != FLOAT32]
            self.evidence += filter(_is_decided_by_float32, earlier)
        own = {row.group for row in self.evidence}
        others = {RERUN, NEIGHBOURS, OWN_DTYPE} - own
        self.evidence += [row for row in earlier if row.group in others]
        is_lower = any(row.group == PRECISION and row.outcome == PASSED for row in earlier)
        if not is_lower or PRECISION in own:
            return
        # shown in 16 bits, which hide a fault on top of it
        for index, row in enumerate(self.evidence):
            if row.group == FLOAT32 and row.outcome == FAILED:
                self.evidence[index] = replace(row, outcome=MISSING, says=PRECISION_IS_OPEN)


def _is_decided_by_float32(row: Evidence) -> bool:
    return row.group == FLOAT32 and row.outcome in (PASSED, FAILED)
