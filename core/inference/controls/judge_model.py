"""Judge a pair: run its controls, compare it with this model's own rounding floor, and say rounding or bug
(docs/verdict_calibration.md).

A side is a path of the grammar, or any callable: an engine, a kernel, a cache of one's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ...errors import CaptureError
from ...judging.divergence import Divergence, mean_squares
from ...judging.ladder.ladder import PAIR, Ladder
from ...judging.ladder.noise_ratio import LARGEST_RATIO_16_BITS, FloorTest, floor_test, is_larger_everywhere
from ...judging.ladder.places import place_of
from ...judging.ladder.structure import BLOCKS, structure_in_16_bits, structure_of
from ...judging.ladder.verdict import Verdict, conclude
from ...judging.sixteen_bits import SixteenTest, fault_of_16_bits_alone, limits_in_words
from ...runs.file.evidence import (
    FAILED,
    FLOAT32,
    MISSING,
    NOTED,
    OWN_DTYPE,
    PASSED,
    AloneFigures,
    Check,
    Evidence,
    OtherPromptsFigures,
    OtherRowFigures,
    OtherRowFloorFigures,
    PairFigures,
    RerunFigures,
    Unmeasured,
)
from ...runs.file.records import NONDETERMINISTIC, ROUNDING, UNDECIDED, FloorRows
from ...text import three_digits
from ..models.dtypes import WIDENING, in_float32, in_float64
from ..models.model import LoadedModel, has_experts, loaded_from
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.engine_side import parts_of
from ..paths.engines import PLAIN, Engine, RunnableSide, digests_of, divergences_of, measure, side_of
from .answer_precision import Narrow, narrow_evidence
from .judging_session import JudgingSession
from .modules_alone import first_module_apart, first_not_finite, module_rows
from .precisions.catalogue import Precision
from .precisions.in_16_bits import sixteen_bits_alone
from .precisions.lowered import Lowered, Question, lowered_of_pair
from .rounding_floor import check_prompts, not_finite_of

SEEDS = 4
FLOAT64 = "float64"
_DOUBTFUL = 1.5  # float32 floors; the largest of the trial's 1,076 pairs of the same function was 1.09
_FLOAT64_OVER_FLOAT32 = 2.0**-29  # unit roundoffs
_FLOAT64_NOISE = 2.0**-40  # of a module's output: far above what float64 rounds, far below what float32 does
_COARSER = 8  # times that bfloat16 is than float16
_RERUNS = 4  # pairs of calls of a side that does not repeat itself; the largest difference counts, for races are rare


@dataclass(frozen=True)
class Judgement:
    """A verdict with what a run keeps of it besides its evidence."""

    verdict: Verdict
    floors: tuple[FloorRows, ...]


def judge(
    model: LoadedModel | PreTrainedModel,
    prompts: Sequence[Sequence[int] | torch.Tensor],
    *,
    reference: str | Engine = "prefill",
    variant: str | Engine,
    seeds: Sequence[int] = range(SEEDS),
    precisions: Sequence[Precision] = (),
    tokenizer: Any = None,
    on_progress: Callable[[str], None] | None = None,
) -> Verdict:
    """Rounding, or a bug? Runs every control by itself.

    A side is a path ("decode+batch:8") or any callable (model, token_ids[positions]) -> logits[positions, vocab]; it is
    called with the model in its own dtype and again with the same weights in float32. One with a third parameter
    `watch` may hand in what its modules put out, `watch("model.layers.0.self_attn", tensor[positions, features])`, so
    that the module is named. `prompts` are token ids; `precisions` are those that a side is known to keep something in,
    tried before the ones that engines offer. CaptureError if something cannot be run at all; a control that cannot is
    missing.
    """
    loaded = model if isinstance(model, LoadedModel) else loaded_from(model, tokenizer)
    ids = [tuple(int(token) for token in prompt) for prompt in prompts]
    options: dict[str, Any] = {"seeds": seeds, "precisions": precisions, "on_progress": on_progress}
    return judge_pair(loaded, ids, reference, variant, **options).verdict


def judge_pair(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    reference: str | Engine,
    variant: str | Engine,
    *,
    seeds: Sequence[int] = range(SEEDS),
    precisions: Sequence[Precision] = (),
    on_progress: Callable[[str], None] | None = None,
    session: JudgingSession | None = None,
    captured: tuple[str, str] | None = None,
) -> Judgement:
    """Judge as `judge` does, with the figures by position. session: of this model and these prompts, if several
    pairs are judged; captured: sha256 of both sides' bits as they were captured before in the model's dtype, which
    counts as one of the two calls that a side has to repeat itself in.
    """
    check_prompts(loaded, prompts)
    session = session or JudgingSession(loaded, prompts)
    if session.loaded is not loaded or session.prompts != [tuple(ids) for ids in prompts]:
        raise CaptureError("judging: the session is of another model or of other prompts.")
    if len(set(seeds)) < max(2, len(seeds)):
        raise CaptureError(f"judging: seeds are {list(seeds)}; expected at least two, and none twice.")
    with (
        quiet(),
        torch.inference_mode(),
        foreign_errors_stop("judging", "shorten the prompts or choose a smaller model"),
    ):
        ladder = _ModelLadder(session, (side_of(reference), side_of(variant)), list(seeds), on_progress)
        try:
            return ladder.climb(tuple(precisions), captured)
        finally:
            session.forget(ladder.sides[1])


class _ModelLadder(Ladder):
    """A pair on trial with its model. tests: by rung; measured: mean squares by dtype; narrow: sides of 16 bits."""

    def __init__(
        self,
        session: JudgingSession,
        sides: tuple[RunnableSide, RunnableSide],
        seeds: list[int],
        say: Callable[[str], None] | None,
    ) -> None:
        super().__init__((sides[0].name, sides[1].name), [len(ids) for ids in session.prompts])
        self.session, self.sides, self.seeds, self.say = session, sides, seeds, say or (lambda _: None)
        self.loaded, self.prompts = session.loaded, session.prompts
        self.kept = session.kept(sides[0]), session.kept(sides[1])
        # sizes that a fault may begin at multiples of
        self.blocks = sorted({*BLOCKS, *(int(v) for side in sides for v in side.block_sizes)})
        self.tests: dict[str, FloorTest] = {}
        self.measured: dict[str, Any] = {}
        self.narrow: list[Narrow] = []
        self.of_16_bits: list[Evidence] = []
        self.fits_float32 = True
        self.lowered: list[Lowered] = []

    @property
    def deciding(self) -> FloorTest | None:
        return self.tests.get(FLOAT64, self.tests.get(FLOAT32))

    def climb(self, precisions: Sequence[Precision], captured: tuple[str, str] | None) -> Judgement:
        """Every rung in turn."""
        loaded, count = self.loaded, len(self.seeds)
        self.say(f"both sides in {loaded.dtype}")
        own, digests = measure(loaded, self.prompts, self.kept)
        if captured is None:
            self.say("both sides once more")
            (variant,) = digests_of(loaded, self.prompts, self.sides[1:])
            captured = self.session.digest(loaded, self.sides[0]), variant
        unsteady = [side for side, a, b in zip(self.sides, digests, captured, strict=True) if a != b]
        control = " and ".join(f"'{name}'" for name in self.names) + ", each called twice"
        self.rerun(control, self.names, RerunFigures(not_repeatable=tuple(side.name for side in unsteady)))
        self._other_neighbours(digests[1])
        if loaded.dtype != "float32":
            self.say(f"{count} reorderings in {loaded.dtype}")
            self._own_dtype(own)
        self.say(f"both sides and {count} reorderings in float32")
        for side in self.sides:
            with suppress(CaptureError):  # a side that cannot be asked is for the float32 comparison to report
                self.narrow += [one for one in [self.session.narrow(side)] if one is not None]
        self._in_float32(own)
        if unsteady:
            self._rerun_size(unsteady)
        if FLOAT32 in self.tests and _asks_for_float64(loaded, self.tests[FLOAT32]):
            self.say(f"both sides and {count} reorderings in float64")
            self._in_float64()
        self._other_row(digests[1])
        is_identical = digests[0] == digests[1]
        self._lower_precision(precisions)
        sixteen = None if is_identical else self._sixteen_bits(precisions)
        return self._concluded(is_identical=is_identical, sixteen=sixteen)

    def _concluded(self, *, is_identical: bool, sixteen: SixteenTest | None) -> Judgement:
        deciding = self.deciding
        first, ratio = None, self.tests[OWN_DTYPE].noise_ratio if OWN_DTYPE in self.tests else None
        if sixteen is not None or (self.broken is not None and (deciding is None or not deciding.nonfinite)):
            rows = sixteen.outliers if sixteen is not None else self.broken.rows if self.broken is not None else None
            assert rows is not None
            shown = structure_of(rows, self.lengths, self.blocks)
            first, ratio = shown.first, None if sixteen is None else sixteen.ratio
            self.evidence.append(structure_in_16_bits(shown, self.loaded.dtype, self.lengths))
            if sixteen is None:
                self._overflow(is_sound_in_float32=deciding is not None and deciding.is_passed)
        elif deciding is not None:
            first, ratio = self.stands_out(deciding, self.blocks), deciding.noise_ratio
            if not deciding.is_passed:
                bugs = [each.evidence.side for each in self.lowered if each.evidence.outcome == FAILED]
                self.evidence += self._module_rows(deciding, bugs)
        if first is None and self.broken is not None:
            first, ratio = self.broken.place(self.lengths), None
        if self.lowered and all(each.evidence.outcome in (PASSED, FAILED) for each in self.lowered):
            # the fault's own place, not the precision's
            first = next((each.place for each in self.lowered if each.evidence.outcome == FAILED), None)
        verdict = conclude(self.evidence, is_bit_identical=is_identical, noise_ratio=ratio, first_place=first)
        more: Sequence[str] = ()
        if self.of_16_bits and deciding is None and verdict.name in (UNDECIDED, NONDETERMINISTIC):
            more = [row.says for row in self.of_16_bits]  # how much 16 bits would have shown
        elif verdict.name in (ROUNDING, NONDETERMINISTIC):
            more = limits_in_words(self.of_16_bits)
        return Judgement(replace(verdict, because=" ".join([verdict.because, *more])), tuple(self.floors))

    def _module_rows(self, test: FloorTest, bugs: Sequence[str | None]) -> list[Evidence]:
        is_below = FLOAT64 in self.tests
        return module_rows(
            self.prompts, self.loaded, self.sides, test.worst_row, bugs, self.say, is_below_float32=is_below
        )

    def _overflow(self, *, is_sound_in_float32: bool) -> None:
        """Add to the row of logits that are not finite in 16 bits where it begins, and what float32 says."""
        failed = [n for n, row in enumerate(self.evidence) if row.rung == OWN_DTYPE and row.outcome == FAILED]
        if self.broken is None or not failed:
            return
        dtype, module = self.loaded.dtype, None
        side = self.sides[0 if not np.isfinite(self.broken.values[0]) else 1]
        with suppress(CaptureError):
            module = first_not_finite(self.loaded, self.prompts[self.broken.place(self.lengths)[0]], side)
        largest = torch.finfo(self.loaded.torch_dtype).max
        what = f"Overflow of {dtype} (largest {largest:,.0f})" if dtype == "float16" else "It is not finite first"
        says = [f"{what} at {module}."] if module else []
        if is_sound_in_float32:
            way_out = "use bfloat16, or sdpa attention" if dtype == "float16" else "compute it in float32"
            says.append(f"In float32 '{side.name}' is finite and both sides agree: {way_out}.")
        row = self.evidence[failed[0]]
        self.evidence[failed[0]] = replace(row, says=" ".join([row.says, *says]))

    # ---- rungs

    def _other_neighbours(self, digest: str) -> None:
        """Run with other contents in the other rows: the prompt's own bits must not move."""
        side = self.sides[1]
        if side.rows < 2:
            return
        changed = side.with_modifier("neighbours", "same" if side.value_of("neighbours") == "random" else "random")
        self.say("other neighbours")
        (found,) = digests_of(self.loaded, self.prompts, [changed])
        says = (
            "Other prompts in the other rows, as many and as long, do not change a bit of this one's.",
            "What the other rows hold changes this one's bits; in a mixture of experts the rows share the experts'"
            " products, so that alone is no leak.",
            "What the other rows hold changes this one's logits, though their number and length are the same: data"
            " leaks between rows.",
        )
        figures = OtherPromptsFigures(rows=side.rows, bit_identical=found == digest)
        control = f"'{changed.name}' against '{side.name}'"
        self.neighbours(side.name, control, figures, says, has_experts=has_experts(self.loaded.model))

    def _other_row(self, digest: str) -> None:
        """Run the prompt in another row. Kernels may sum rows in different orders, which is compared with the floor."""
        side, dtype = self.sides[1], next((name for name in (FLOAT64, "float32") if name in self.measured), None)
        if side.rows < 2:
            return None
        here = int(side.value_of("row") or 0)
        there = (here + side.rows // 2) % side.rows if here else side.rows - 1
        moved = side.with_modifier("row", there)
        self.say("another row")
        (found,) = digests_of(self.loaded, self.prompts, [moved])
        of_rows: dict[str, Any] = {"rows": side.rows, "row": here, "other_row": there, "bit_identical": found == digest}
        control, gives = f"'{moved.name}' against '{side.name}'", f"Row {there} of {side.rows} gives"
        if found == digest:
            says = f"{gives} the same bits as row {here}."
            return self.add(Check.OTHER_ROW, control, OtherRowFigures(**of_rows), PASSED, says, side.name)
        try:
            if dtype is None:
                raise CaptureError("there is no floor.")
            with WIDENING[dtype](self.loaded) as widened:
                apart = divergences_of(widened, self.prompts, (self.kept[1], moved))
        except CaptureError:
            says = f"{gives} other bits than row {here}; whether by more than rounding takes a floor."
            return self.add(Check.OTHER_ROW, control, OtherRowFigures(**of_rows), NOTED, says, side.name)
        broken = not_finite_of(self.loaded, apart, (side.name, moved.name))
        test = floor_test(mean_squares(apart), self.measured[dtype], not_finite=broken)
        figures = OtherRowFloorFigures(
            **of_rows,
            compute_dtype=dtype,
            noise_ratio=test.noise_ratio,
            worst_position_ratio=test.finite_worst,
            positions_beyond=len(test.outliers),
            nonfinite_mismatch=test.nonfinite,
        )
        says = f"{gives} other bits than row {here}, by {test.ratio:.2f} times the rounding floor in {dtype}."
        if not test.is_passed:
            far = f"up to {three_digits(max(test.ratio, test.worst))} times the rounding floor in {dtype}"
            far = far if broken is None else f"in {dtype}, {broken.says(self.lengths)}"
            says = (
                f"The same prompt in row {there} of {side.rows} gives other logits than in row {here}: {far}. What is"
                " computed depends on the row."
            )
        outcome = PASSED if test.is_passed else FAILED
        return self.add(Check.OTHER_ROW_FLOOR, control, figures, outcome, says, side.name)

    def _rerun_size(self, unsteady: Sequence[RunnableSide]) -> None:
        """Compare the difference of a side from itself with the noise floor in the same dtype."""
        loaded = self.loaded
        if loaded.dtype not in self.measured:
            return
        self.say("how far a rerun goes")
        calls = [divergences_of(loaded, self.prompts, (side, side)) for side in unsteady for _ in range(_RERUNS)]
        squares = np.max([mean_squares(found) for found in calls], axis=0)
        mismatches = max(sum(one.nonfinite_mismatch for one in found) for found in calls)
        if not squares.any() and not mismatches:
            return  # it did not happen again
        is_narrow = loaded.dtype != "float32"
        own_rounding = self.session.own_rounding() if is_narrow else None
        test = floor_test(squares, self.measured[loaded.dtype], is_16_bits=is_narrow, own_rounding=own_rounding)
        self.rerun_size(squares, mismatches, test, has_experts=has_experts(loaded.model))

    def _own_dtype(self, own: Sequence[Divergence]) -> None:
        own_rounding = self.session.own_rounding()
        self.fits_float32 = own_rounding is not None
        self._against_floor(self.loaded, own, OWN_DTYPE, own_rounding=own_rounding)
        row = self.evidence[-1]
        if own_rounding is None and row.outcome == FAILED and not self.tests[OWN_DTYPE].nonfinite:
            doubt = (
                "Reorderings alone do not show all that rounding to 16 bits does, and float32, which would, does not"
                " fit."
            )
            self.evidence[-1] = replace(row, outcome=NOTED, says=f"{row.says} {doubt}")

    def _against_floor(
        self, loaded: LoadedModel, pair: Sequence[Divergence], rung: str, *, key: str = "", own_rounding: Any = None
    ) -> None:
        """Add the pair's row in the dtype of `loaded`, and its test; missing if maps cannot be reordered."""
        dtype, (reference, variant) = loaded.dtype, self.names
        control = (
            f"'{variant}' against '{reference}' in {dtype}, beside {len(self.seeds)} reorderings of every linear map"
        )
        control += "".join(f"; in '{side}' {parts}" for side in self.names if (parts := parts_of(side, dtype)))
        broken = not_finite_of(loaded, pair, self.names)
        self.broken = self.broken or broken
        try:
            floor = self.session.floor(loaded, self.seeds)
        except CaptureError as error:
            if broken is not None:
                return self.not_finite(broken, rung, dtype, control)
            says = f"The rounding floor in {dtype} cannot be measured: {error}"
            return self.add(PAIR[rung], control, Unmeasured(), MISSING, says)
        if own_rounding is not None:
            control += f", and the same forward in {dtype} and in float32"
        self.measured[dtype] = floor.squares
        self.tests[key or rung] = self.against_floor(
            rung,
            dtype,
            control,
            mean_squares(pair),
            floor.squares,
            not_finite=broken,
            own_rounding=own_rounding,
            maps=floor.maps,
            floor_row_ulps=floor.row_ulps,
        )
        return None

    def _in_float32(self, own: Sequence[Divergence]) -> None:
        """The deciding rung: the pair in float32."""
        if self.loaded.dtype == "float32":
            self._against_floor(self.loaded, own, FLOAT32)
        elif self.narrow:
            self.evidence.append(narrow_evidence(self.narrow, self.names))
        else:
            try:
                with in_float32(self.loaded) as widened:
                    self._against_floor(widened, divergences_of(widened, self.prompts, self.kept), FLOAT32)
            except CaptureError as error:
                control = f"'{self.names[1]}' against '{self.names[0]}' in float32"
                says = f"The pair cannot be run in float32: {error}"
                self.add(Check.WIDE_PAIR, control, Unmeasured(), MISSING, says)

    def _in_float64(self) -> None:
        """The pair and its floor in float64, which take the float32 rung's place; what float32 showed is noted."""
        place = next(number for number, row in enumerate(self.evidence) if row.rung == FLOAT32)
        single, is_torn = self.evidence[place], has_experts(self.loaded.model)
        outcome = NOTED
        try:
            compiled = next((side.name for side in self.sides if side.is_one_piece), None)
            if compiled is not None:
                raise CaptureError(f"'{compiled}' is compiled.")
            with in_float64(self.loaded) as widened:
                self._pair_in_float64(widened)
            if part := self._part_in_float32():
                raise _StaysInFloat32Error(part)
            doubt = "Rounding seldom goes as far, and a fault can be as small"
            if is_torn:
                doubt = "Near ties of the router between two experts make that uncertain in a mixture of experts"
            doubt += ", so float64 decides."
        except _StaysInFloat32Error as error:
            outcome, doubt = single.outcome, f"{error} So float32 decides."
        except CaptureError as error:
            outcome = PASSED if single.outcome == PASSED else MISSING
            doubt = "Rounding seldom goes as far, and a fault can be as small"
            if is_torn:
                does = "hide a fault behind the floor" if outcome == PASSED else "do that to the pair without a fault"
                doubt = f"A near tie of the router between two experts can {does}"
            doubt += f"; float64, which would tell, cannot be had: {error}"
        self.evidence[place] = replace(single, outcome=outcome, says=f"{single.says} {doubt}")

    def _pair_in_float64(self, widened: LoadedModel) -> None:
        """Add the pair's row in float64. CaptureError if a side keeps float32 and rounds there as it did before."""
        is_wide = [False, False]

        def see(side: int, logits: torch.Tensor) -> None:
            wide = logits.cpu().numpy()  # torch would not narrow in there
            is_wide[side] = is_wide[side] or bool((wide.astype(np.float32) != wide).any())

        pair = divergences_of(widened, self.prompts, self.kept, see)
        narrow = [name for name, is_it in zip(self.names, is_wide, strict=True) if not is_it]
        if narrow:
            raise _StaysInFloat32Error(f"'{narrow[0]}' computes in float32 whatever it is asked.")
        self._against_floor(widened, pair, FLOAT32, key=FLOAT64)

    def _part_in_float32(self) -> str | None:
        """Say why float64 decides nothing and take its row back: it differs by as much as float32 rounds; else None."""
        test = self.tests.get(FLOAT64)
        if test is None or test.is_passed or test.nonfinite:
            return None
        median = float(np.median(test.by_position))
        in_float32 = median * _FLOAT64_OVER_FLOAT32
        if median <= test.largest_ratio or in_float32 > test.largest_ratio:
            return None
        rows = self._module_rows(test, [])
        if any(_is_in_one_place(row.figures) for row in rows if isinstance(row.figures, AloneFigures)):
            return None
        del self.tests[FLOAT64], self.measured[FLOAT64]
        self.floors = [floor for floor in self.floors if floor.compute_dtype != FLOAT64]
        self.evidence = [
            row
            for row in self.evidence
            if not (isinstance(row.figures, PairFigures) and row.figures.compute_dtype == FLOAT64)
        ]
        first = None
        with suppress(CaptureError), in_float64(self.loaded) as widened:
            prompt, _ = place_of(test.worst_row, self.lengths)
            first = first_module_apart(widened, self.prompts[prompt], self.sides, _FLOAT64_NOISE)
        where = f" from {first} on" if first else ""
        return (
            f"In float64 the pair differs{where} by {three_digits(in_float32)} times what float32 rounds: a part of a"
            " side stays in float32."
        )

    def _lower_precision(self, precisions: Sequence[Precision]) -> None:
        """Decide whether one side of a pair beyond its floor is the same function in a lower precision."""
        deciding = self.deciding
        if deciding is None or deciding.is_passed or deciding.nonfinite or "float32" not in self.measured:
            return
        question = Question(self.prompts, self.seeds, self.blocks, self.say, precisions)
        fails_in_own_dtype = OWN_DTYPE in self.tests and not self.tests[OWN_DTYPE].is_passed
        try:
            self.lowered = lowered_of_pair(
                question, self.session, self.sides, self.measured, fails_in_own_dtype=fails_in_own_dtype
            )
        except CaptureError as error:
            control = f"'{self.names[1]}' against '{self.names[0]}' in precisions that engines offer"
            says = f"Whether a lower precision explains it cannot be tried: {error}"
            self.add(Check.PRECISIONS, control, Unmeasured(), MISSING, says)
        self.evidence += [each.evidence for each in self.lowered]

    def _sixteen_bits(self, precisions: Sequence[Precision]) -> SixteenTest | None:
        """Compare each side's error in 16 bits with that of roundings drawn anew. -> the test that failed"""
        wide = {row.outcome for row in self.evidence if row.rung == FLOAT32}
        sides = [self.session.kept(side) for side in self.sides if side.path != PLAIN.path]
        if self.loaded.dtype == "float32" or FAILED in wide or not sides or not self.fits_float32:
            return None
        if self.broken is not None:  # NaN needs no draws
            return None
        other = next((one for one in self.narrow if one.dtype != self.loaded.dtype), None)
        own = self.tests.get(OWN_DTYPE)
        if other is not None and own is not None:
            says = (
                f"'{other.side}' computes in {other.dtype}, the model is loaded in {self.loaded.dtype}, and rounding to"
                f" one is no measure of the other: load the model in {other.dtype}."
            )
            control = f"rounding in {other.dtype} drawn anew"
            self.of_16_bits = [Evidence(Check.DRAWN, control, Unmeasured(), MISSING, says, other.side)]
            if own.ratio <= _COARSER * LARGEST_RATIO_16_BITS and not own.nonfinite:
                self.evidence = [replace(row, outcome=NOTED) if row.rung == OWN_DTYPE else row for row in self.evidence]
            self.evidence += self.of_16_bits
            return None
        is_sound_in_float32 = PASSED in wide
        question = Question(self.prompts, self.seeds, self.blocks, self.say, precisions)
        self.of_16_bits, failed, self.lowered = sixteen_bits_alone(
            question, self.loaded, sides, self.session.draws, decides=not is_sound_in_float32
        )
        if is_sound_in_float32:
            self.of_16_bits = [fault_of_16_bits_alone(row, self.loaded.dtype) for row in self.of_16_bits]
        self.evidence += [*self.of_16_bits, *(each.evidence for each in self.lowered)]
        return next((test for test in failed if test is not None), None)


class _StaysInFloat32Error(CaptureError):
    """A side keeps float32, or a part of it does, so float64 is no control."""


def _is_in_one_place(figures: AloneFigures) -> bool:
    """Return whether modules are beyond their rounding that are at most half of their kind: one layer's fault."""

    def kinds(names: Sequence[str]) -> Counter[str]:
        return Counter(re.sub(r"\.\d+(?=\.|$)", "", name) for name in names)

    of_kind = kinds(figures.modules)
    return any(2 * count <= of_kind[kind] for kind, count in kinds(figures.modules_beyond).items())


def _asks_for_float64(loaded: LoadedModel, test: FloorTest) -> bool:
    """Return whether the float32 comparison of this model may mean nothing.

    If two experts' scores nearly tie, rounding picks another expert and the position jumps, in the pair or in the
    floor; in float64 such a tie is 2^29 times nearer. Of any other model a pair that passes and is larger than rounding
    nearly ever is may be a fault of a few units in the last place.
    """
    if has_experts(loaded.model):
        return not test.nonfinite and not is_larger_everywhere(test)
    return test.is_passed and test.ratio > _DOUBTFUL
