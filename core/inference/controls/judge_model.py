"""Judge a pair: run its controls, hold it against this model's own rounding floor, and say rounding or bug
(docs/verdict_calibration.md).

A side is a path of the grammar, or any callable: an engine, a kernel, a cache of one's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from ...errors import CaptureError
from ...judging.divergence import Divergence, mean_squares
from ...judging.ladder.ladder import PAIR, Ladder
from ...judging.ladder.noise_ratio import LARGEST_RATIO_16_BITS, FloorTest, floor_test, is_larger_everywhere
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
    ModulesFigures,
    OtherPromptsFigures,
    PairFigures,
    RerunFigures,
    Unmeasured,
)
from ...runs.file.records import IDENTICAL, NONDETERMINISTIC, ROUNDING, UNDECIDED, FloorRows
from ...text import three_digits
from ..invariant.rung import one_order_evidence
from ..models.float64 import in_float64
from ..models.model import LoadedModel, has_experts, loaded_from
from ..models.torch_errors import foreign_errors_stop, quiet
from ..paths.engine_side import parts_of
from ..paths.engines import Engine, RunnableSide, Whole, digests_of, divergences_of, measure, side_of
from .answer_precision import PLAIN, Narrow, narrow_evidence
from .judging_session import JudgingSession
from .module_rungs import first_not_finite, module_rows
from .other_row import other_row_evidence
from .precisions.catalogue import Precision
from .precisions.in_16_bits import sixteen_bits_alone
from .precisions.lowered_side import Lowered
from .precisions.trial import PrecisionTrial
from .rounding_floor import check_prompts, in_float32, not_finite_of

SEEDS = 4
FLOAT64 = "float64"
SEEDS_OF_MODULES = (
    2  # a module's floor is a mean over all of its elements at many positions: two seeds agree to a few per cent
)
_DOUBTFUL = 1.5  # float32 floors; the largest of the trial's 1,076 pairs of the same function was 1.09
_FLOAT64_OVER_FLOAT32 = 2.0**-29  # unit roundoffs
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
    until_decided: bool = True,
) -> Verdict:
    """Rounding, or a bug? Runs every control by itself.

    A side is a path ("decode+batch:8") or any callable (model, token_ids[positions]) -> logits[positions, vocab]; it is
    called with the model in its own dtype and again with the same weights in float32. One with a third parameter
    `watch` may hand in what its modules put out, `watch("model.layers.0.self_attn", tensor[positions, features])`, so
    that the module is named. `prompts` are token ids; `precisions` are those that a side is known to keep something in,
    beside the ones that engines offer and that are tried anyway. until_decided: as for `judge_pair`. CaptureError where
    something cannot be run at all; what only a control needs is noted as missing instead.
    """
    loaded = model if isinstance(model, LoadedModel) else loaded_from(model, tokenizer)
    ids = [tuple(int(token) for token in prompt) for prompt in prompts]
    return judge_pair(
        loaded,
        ids,
        reference,
        variant,
        seeds=seeds,
        precisions=precisions,
        on_progress=on_progress,
        until_decided=until_decided,
    ).verdict


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
    until_decided: bool = False,
) -> Judgement:
    """Judge as `judge` does, with the figures by position. session: of this model and these prompts, where several
    pairs are judged; captured: sha256 of both sides' bits as they were captured before in the model's dtype, which
    counts as one of the two calls that a side has to repeat itself in.

    until_decided: a pair that is rounding or identical by every rung that can decide is asked nothing more, which
    leaves out its distance from float64, its growth over modules and every sum in one order; the verdict is the same.
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
        ladder = _ModelLadder(
            session, (side_of(reference), side_of(variant)), list(seeds), on_progress or (lambda _: None)
        )
        ladder.precisions, ladder.captured, ladder.is_brief = tuple(precisions), captured, until_decided
        try:
            return ladder.climb()
        finally:
            session.forget(ladder.sides[1])


class _ModelLadder(Ladder):
    """One pair on trial, whose model is at hand.

    tests: of the pair, by rung, FLOAT64 where that takes float32's place; measured: mean squares of the reorderings by
    dtype.
    """

    def __init__(
        self,
        session: JudgingSession,
        sides: tuple[RunnableSide, RunnableSide],
        seeds: list[int],
        say: Callable[[str], None],
    ) -> None:
        super().__init__((sides[0].name, sides[1].name), [len(ids) for ids in session.prompts])
        self.session, self.sides, self.seeds, self.say = session, sides, seeds, say
        self.loaded, self.prompts = session.loaded, session.prompts
        self.tests: dict[str, FloorTest] = {}
        self.measured: dict[str, NDArray[np.float64]] = {}
        self.narrow: list[Narrow] = []
        self.of_16_bits: list[Evidence] = []
        self.fits_float32 = True
        self.lowered: list[Lowered] = []
        self.precisions: tuple[Precision, ...] = ()
        self.captured: tuple[str, str] | None = None
        self.is_brief = False
        self.unsteady: list[RunnableSide] = []

    def climb(self) -> Judgement:
        """Every rung in turn."""
        loaded, count = self.loaded, len(self.seeds)
        if not self.is_brief:  # most pairs are rounding, and a brief judgement of those looks at no module
            self.session.watch(*self.sides, "float32")
        self.say(f"both sides in {loaded.dtype}")
        own, digests = measure(loaded, self.prompts, self._kept_sides, self._reference_in(loaded))
        again = self.captured or self._once_more()
        control = " and ".join(f"'{name}'" for name in self.names) + ", each called twice"
        moved = [name for name, a, b in zip(self.names, digests, again, strict=True) if a != b]
        self.rerun(control, self.names, RerunFigures(not_repeatable=tuple(moved)))
        self._other_neighbours(digests[1])
        self.unsteady = [side for side in self.sides if side.name in moved]
        if loaded.dtype != "float32":
            self.say(f"{count} reorderings in {loaded.dtype}")
            self._own_dtype(own)
        self.say(f"both sides and {count} reorderings in float32")
        self.narrow = self._narrow_sides()
        self._microscope(own)
        if self.unsteady:
            self._rerun_size()
        if FLOAT32 in self.tests and _asks_for_float64(loaded, self.tests[FLOAT32]):
            self.say(f"both sides and {count} reorderings in float64")
            self._second_microscope()
        if (row := other_row_evidence(self.session, self.sides[1], digests[1], self.measured, self.say)) is not None:
            self.evidence.append(row)
        self._lower_precision()
        is_identical = digests[0] == digests[1]
        sixteen = None if is_identical else self._sixteen_bits()
        so_far = conclude(self.evidence, is_bit_identical=is_identical).name
        is_over = self.is_brief and so_far in (ROUNDING, IDENTICAL)
        if FLOAT32 in self.tests and not is_over:
            self.say("a forward in float64")
            self._symmetry()
        if not self.narrow and not is_over:  # its row says already that the engine cannot be asked
            self._one_order(differ=not is_identical)
        return self._concluded(is_identical=is_identical, sixteen=sixteen, is_over=is_over)

    def _once_more(self) -> tuple[str, str]:
        """Digests of another call of both sides."""
        self.say("both sides once more")
        (variant,) = digests_of(self.loaded, self.prompts, self.sides[1:])
        return self.session.digest(self.loaded, self.sides[0]), variant

    def _concluded(self, *, is_identical: bool, sixteen: SixteenTest | None, is_over: bool) -> Judgement:
        deciding = self.tests.get(FLOAT64, self.tests.get(FLOAT32))
        first, ratio = None, self.tests[OWN_DTYPE].noise_ratio if OWN_DTYPE in self.tests else None
        if sixteen is not None:
            shown = structure_of(sixteen.outliers, self.lengths, self.blocks)
            first, ratio = shown.first, sixteen.ratio
            self.evidence.append(structure_in_16_bits(shown, self.loaded.dtype, self.lengths))
        elif self.broken is not None and (deciding is None or not deciding.nonfinite):
            shown = structure_of(self.broken.rows, self.lengths, self.blocks)
            first, ratio = shown.first, None
            self.evidence.append(structure_in_16_bits(shown, self.loaded.dtype, self.lengths))
            self._overflow(is_sound_in_float32=deciding is not None and deciding.is_passed)
        elif deciding is not None:
            first, ratio = self.stands_out(deciding, self.blocks), deciding.noise_ratio
            if not is_over:
                dtype = FLOAT64 if FLOAT64 in self.tests else "float32"
                bugs = [each.evidence.side for each in self.lowered if each.evidence.outcome == FAILED]
                seeds = self.seeds[:SEEDS_OF_MODULES]
                self.evidence += module_rows(self.session, self.sides, seeds, deciding, dtype, bugs, self.say)
        if first is None and self.broken is not None:
            first, ratio = self.broken.place(self.lengths), None
        if self.lowered and all(each.evidence.outcome in (PASSED, FAILED) for each in self.lowered):
            # the fault's own place, not the precision's
            first = next((each.place for each in self.lowered if each.evidence.outcome == FAILED), None)
        verdict = conclude(self.evidence, is_bit_identical=is_identical, noise_ratio=ratio, first_place=first)
        if self.of_16_bits and deciding is None and verdict.name in (UNDECIDED, NONDETERMINISTIC):
            # how much 16 bits would have shown
            verdict = replace(verdict, because=" ".join([verdict.because, *(row.says for row in self.of_16_bits)]))
        elif verdict.name in (ROUNDING, NONDETERMINISTIC):
            verdict = replace(verdict, because=" ".join([verdict.because, *limits_in_words(self.of_16_bits)]))
        return Judgement(verdict, tuple(self.floors))

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

    @property
    def blocks(self) -> list[int]:
        """Sizes that a fault may begin at multiples of."""
        return sorted({*BLOCKS, *(int(v) for side in self.sides for v in side.block_sizes)})

    @property
    def _kept_sides(self) -> tuple[RunnableSide, RunnableSide]:
        return self.session.kept(self.sides[0]), self.session.kept(self.sides[1])

    def _reference_in(self, model: LoadedModel) -> Whole:
        """Gives the reference's logits in the dtype of `model`."""
        return lambda ids: self.session.reference(model, self.sides[0], ids)

    # ---- rungs

    def _other_neighbours(self, digest: str) -> None:
        """Run with other contents in the other rows, their number and length held fixed: the prompt's own bits must not
        move.
        """
        side = self.sides[1]
        if side.rows < 2:
            return
        changed = side.with_modifier("neighbours", "same" if side.value_of("neighbours") == "random" else "random")
        self.say("other neighbours")
        control = f"'{changed.name}' against '{side.name}'"
        (found,) = digests_of(self.loaded, self.prompts, [changed])
        figures = OtherPromptsFigures(rows=side.rows, bit_identical=found == digest)
        says = (
            "Other prompts in the other rows, as many and as long, do not change a bit of this one's.",
            "What the other rows hold changes this one's bits; in a mixture of experts the rows share the experts'"
            " products, so that alone is no leak.",
            "What the other rows hold changes this one's logits, though their number and length are the same: data"
            " leaks between rows.",
        )
        self.neighbours(side.name, control, figures, says, has_experts=has_experts(self.loaded.model))

    def _rerun_size(self) -> None:
        """Compare the difference of a side from itself with the noise floor in the same dtype."""
        loaded = self.loaded
        if loaded.dtype not in self.measured:
            return
        self.say("how far a rerun goes")
        calls = [divergences_of(loaded, self.prompts, (side, side)) for side in self.unsteady for _ in range(_RERUNS)]
        squares = np.max([mean_squares(found) for found in calls], axis=0)
        mismatches = max(sum(one.nonfinite_mismatch for one in found) for found in calls)
        if not squares.any() and not mismatches:
            return  # it did not happen again
        is_narrow = loaded.dtype != "float32"
        own_rounding = self.session.own_rounding() if is_narrow else None
        floor = self.measured[loaded.dtype]
        test = floor_test(squares, floor, is_16_bits=is_narrow, own_rounding=own_rounding)
        self.rerun_size(squares, mismatches, test, has_experts=has_experts(loaded.model))

    def _own_dtype(self, own: Sequence[Divergence]) -> None:
        own_rounding = self.session.own_rounding()
        self.fits_float32 = own_rounding is not None
        self._against_floor(self.loaded, own, None, OWN_DTYPE, own_rounding=own_rounding)
        row = self.evidence[-1]
        if own_rounding is None and row.outcome == FAILED and not self.tests[OWN_DTYPE].nonfinite:
            doubt = (
                "Reorderings alone do not show all that rounding to 16 bits does, and float32, which would, does not"
                " fit."
            )
            self.evidence[-1] = replace(row, outcome=NOTED, says=f"{row.says} {doubt}")

    def _against_floor(
        self,
        loaded: LoadedModel,
        pair: Sequence[Divergence],
        dtype: str | None,
        rung: str,
        *,
        key: str | None = None,
        own_rounding: NDArray[np.float64] | None = None,
    ) -> None:
        """Adds the pair's row of the rung, and its test under `key` or the rung; missing where this model's maps cannot
        be reordered.
        """
        shown = dtype or loaded.dtype
        reference, variant = self.sides
        control = (
            f"'{variant.name}' against '{reference.name}' in {shown}, beside {len(self.seeds)} reorderings of every"
            " linear map"
        )
        for side in self.names:
            if parts := parts_of(side, shown):
                control += f"; in '{side}' {parts}"
        broken = not_finite_of(loaded, pair, self.names)
        self.broken = self.broken or broken
        try:
            floor = self.session.floor(loaded, self.seeds, dtype=dtype)
        except CaptureError as error:
            if broken is not None:
                return self.not_finite(broken, rung, shown, control)
            says = f"The rounding floor in {shown} cannot be measured: {error}"
            return self.add(PAIR[rung], control, Unmeasured(), MISSING, says)
        squares = np.stack([mean_squares(of_seed) for of_seed in floor.divergences])
        if own_rounding is not None:
            control += f", and the same forward in {shown} and in float32"
        self.measured[shown] = squares
        self.tests[key or rung] = self.against_floor(
            rung,
            shown,
            control,
            mean_squares(pair),
            squares,
            not_finite=broken,
            own_rounding=own_rounding,
            maps=floor.maps,
            floor_row_ulps=floor.row_ulps,
        )
        return None

    def _narrow_sides(self) -> list[Narrow]:
        """Sides that compute in 16 bits whatever they are asked; a side that cannot be asked is for the float32 rung to
        report.
        """
        found = []
        for side in self.sides:
            with suppress(CaptureError):
                found.append(self.session.narrow(side))
        return [one for one in found if one is not None]

    def _sixteen_bits(self) -> SixteenTest | None:
        """Compare the error of each side in 16 bits with that of roundings drawn anew: a fault of the 16-bit kernels
        alone leaves the pair in float32 as it is. -> the test that failed
        """
        wide = {row.outcome for row in self.evidence if row.rung == FLOAT32}
        sides = [self.session.kept(side) for side in self.sides if side.path != PLAIN.path]
        if self.loaded.dtype == "float32" or FAILED in wide or not sides or not self.fits_float32:
            return None
        if self.broken is not None:  # NaN needs no draws
            return None
        other = next((one for one in self.narrow if one.dtype != self.loaded.dtype), None)
        if other is not None and OWN_DTYPE in self.tests:
            says = (
                f"'{other.side}' computes in {other.dtype}, the model is loaded in {self.loaded.dtype}, and rounding to"
                f" one is no measure of the other: load the model in {other.dtype}."
            )
            control = f"rounding in {other.dtype} drawn anew"
            self.of_16_bits = [Evidence(Check.DRAWN, control, Unmeasured(), MISSING, says, other.side)]
            if self.tests[OWN_DTYPE].ratio <= _COARSER * LARGEST_RATIO_16_BITS and not self.tests[OWN_DTYPE].nonfinite:
                self.evidence = [replace(row, outcome=NOTED) if row.rung == OWN_DTYPE else row for row in self.evidence]
            self.evidence += self.of_16_bits
            return None
        is_sound_in_float32 = PASSED in wide
        self.of_16_bits, failed, self.lowered = sixteen_bits_alone(
            self.loaded,
            self.prompts,
            sides,
            self.blocks,
            self.precisions,
            self.say,
            self.session.draws,
            decides=not is_sound_in_float32,
        )
        if is_sound_in_float32:
            self.of_16_bits = [fault_of_16_bits_alone(row, self.loaded.dtype) for row in self.of_16_bits]
        self.evidence += [*self.of_16_bits, *(each.evidence for each in self.lowered)]
        return next((test for test in failed if test is not None), None)

    def _microscope(self, own: Sequence[Divergence]) -> None:
        """The deciding rung: the pair in float32."""
        if self.loaded.dtype == "float32":
            self._against_floor(self.loaded, own, None, FLOAT32)
            return
        if self.narrow:
            self.evidence += narrow_evidence(self.narrow, self.sides)
            return
        try:
            with in_float32(self.loaded) as widened:
                pair, _ = measure(widened, self.prompts, self._kept_sides, self._reference_in(widened))
        except CaptureError as error:
            control = f"'{self.sides[1].name}' against '{self.sides[0].name}' in float32"
            says = f"The pair cannot be run in float32: {error}"
            self.add(Check.WIDE_PAIR, control, Unmeasured(), MISSING, says)
            return
        self._against_floor(self.loaded, pair, "float32", FLOAT32)

    def _second_microscope(self) -> None:
        """The pair and its floor in float64, which take the float32 rung's place; what float32 showed is noted."""
        place = next(number for number, row in enumerate(self.evidence) if row.rung == FLOAT32)
        single = self.evidence[place]
        try:
            compiled = next((side.name for side in self.sides if side.is_one_piece), None)
            if compiled is not None:
                raise CaptureError(f"'{compiled}' is compiled.")
            if not self.is_brief:
                self.session.watch(*self.sides, FLOAT64)
            with in_float64(self.loaded) as widened:
                self._pair_in_float64(widened)
            if part := self._part_in_float32():
                raise _StaysInFloat32Error(part)
        except _StaysInFloat32Error as error:
            self.evidence[place] = replace(single, says=f"{single.says} {error} So float32 decides.")
            return
        except CaptureError as error:
            outcome, doubt = (
                (PASSED, "hide a fault behind the floor")
                if single.outcome == PASSED
                else (MISSING, "do that to the pair without a fault")
            )
            doubt = (
                f"A near tie of the router between two experts can {doubt}"
                if has_experts(self.loaded.model)
                else "Rounding seldom goes as far, and a fault can be as small"
            )
            says = f"{single.says} {doubt}; float64, which would tell, cannot be had: {error}"
            self.evidence[place] = replace(single, outcome=outcome, says=says)
            return
        because = (
            "Near ties of the router between two experts make that uncertain in a mixture of experts"
            if has_experts(self.loaded.model)
            else "Rounding seldom goes as far, and a fault can be as small"
        )
        self.evidence[place] = replace(single, outcome=NOTED, says=f"{single.says} {because}, so float64 decides.")

    def _pair_in_float64(self, widened: LoadedModel) -> None:
        """Adds the pair's row in float64. CaptureError where it would be of no use: a side that keeps float32 inside
        rounds there as it did before, which beside a floor of float64 would look like a fault.
        """
        is_wide = [False, False]

        def see(side: int, logits: torch.Tensor) -> None:
            wide = logits.cpu().numpy()  # torch would not narrow in there
            is_wide[side] = is_wide[side] or bool((wide.astype(np.float32) != wide).any())

        pair = divergences_of(widened, self.prompts, self._kept_sides, self._reference_in(widened), see)
        narrow = [name for name, is_it in zip(self.names, is_wide, strict=True) if not is_it]
        if narrow:
            raise _StaysInFloat32Error(f"'{narrow[0]}' computes in float32 whatever it is asked.")
        self._against_floor(widened, pair, None, FLOAT32, key=FLOAT64)

    def _part_in_float32(self) -> str | None:
        """Say why float64 decides nothing of the pair that was just measured in it, whose row is taken back then: its
        difference is as large as float32 rounds, so a table, constant or sum of a side stayed in float32. None where
        float64 decides: the pair is closer to the exact result, as it should be, or further away than float32 rounds,
        or single modules are wrong by more than their own rounding.
        """
        test = self.tests.get(FLOAT64)
        if test is None or test.is_passed or test.nonfinite:
            return None
        median = float(np.median(test.by_position))
        in_float32 = median * _FLOAT64_OVER_FLOAT32
        if median <= test.largest_ratio or in_float32 > test.largest_ratio:
            return None
        rows = module_rows(self.session, self.sides, self.seeds[:SEEDS_OF_MODULES], test, FLOAT64, [], self.say)
        if any(_is_in_one_place(row.figures) for row in rows if isinstance(row.figures, AloneFigures)):
            return None
        first = next((row.figures.first_module for row in rows if isinstance(row.figures, ModulesFigures)), None)
        del self.tests[FLOAT64], self.measured[FLOAT64]
        self.floors = [floor for floor in self.floors if floor.compute_dtype != FLOAT64]
        wide = next(row for row in self.evidence if row.rung == FLOAT32 and _dtype_of(row) == FLOAT64)
        self.evidence.remove(wide)
        where = f" from {first} on" if first else ""
        return (
            f"In float64 the pair differs{where} by {three_digits(in_float32)} times what float32 rounds: a part of a"
            " side stays in float32."
        )

    def _lower_precision(self) -> None:
        """Decide whether one side of a pair beyond its floor is the same function in a lower precision."""
        deciding = self.tests.get(FLOAT64, self.tests.get(FLOAT32))
        if deciding is None or deciding.is_passed or deciding.nonfinite or "float32" not in self.measured:
            return
        trial = PrecisionTrial(
            self.session, self.sides, self.measured, self.seeds, self.blocks, self.precisions, self.say
        )
        fails_in_own_dtype = OWN_DTYPE in self.tests and not self.tests[OWN_DTYPE].is_passed
        try:
            self.lowered = trial.run(self.seeds[:SEEDS_OF_MODULES] if fails_in_own_dtype else [])
        except CaptureError as error:
            control = f"'{self.sides[1].name}' against '{self.sides[0].name}' in precisions that engines offer"
            says = f"Whether a lower precision explains it cannot be tried: {error}"
            self.add(Check.PRECISIONS, control, Unmeasured(), MISSING, says)
            return
        self.evidence += [each.evidence for each in self.lowered]

    def _one_order(self, *, differ: bool) -> None:
        """The pair with every sum in one order, in float32 where that was decided and the pair differs there, else in
        its own dtype.

        differ: do the sides differ in their own dtype? For float64 there are no kernels of fixed order.
        """
        loaded, deciding = self.loaded, self.tests.get(FLOAT64, self.tests.get(FLOAT32))
        is_wide = deciding is not None and bool(deciding.by_position.any())
        if not differ and not is_wide:
            return
        dtype = "float32" if is_wide else loaded.dtype
        self.say(f"both sides with every sum in one order, in {dtype}")
        try:
            with in_float32(loaded) if is_wide else nullcontext(loaded) as widened:
                row = one_order_evidence(
                    widened, self.sides, None if deciding is None else deciding.is_passed, self.session.digest
                )
        except CaptureError:
            return
        if row is not None:
            self.evidence.append(row)

    def _symmetry(self) -> None:
        """Hold both sides against float64: of two that only round, neither is further from it."""
        control = "both sides in float32 against a plain forward of the same weights in float64"
        try:
            with foreign_errors_stop("float64", "choose a smaller model"):
                errors = (self.session.error(self.sides[0]), self.session.error(self.sides[1]))
        except CaptureError as error:
            says = f"A forward in float64 is not to be had: {error}"
            self.add(Check.FROM_FLOAT64, control, Unmeasured(), MISSING, says)
            return
        self.from_float64(control, errors)


class _StaysInFloat32Error(CaptureError):
    """A side keeps float32, or a part of it does, so float64 is no control."""


def _is_in_one_place(figures: AloneFigures) -> bool:
    """Return whether modules are beyond their own rounding that are at most half of their kind: a fault of one layer. A
    kernel that sums a long product in one chain rounds more in all of them.
    """

    def kinds(names: Sequence[str]) -> Counter[str]:
        return Counter(re.sub(r"\.\d+(?=\.|$)", "", name) for name in names)

    of_kind = kinds(figures.modules)
    return any(2 * count <= of_kind[kind] for kind, count in kinds(figures.modules_beyond).items())


def _dtype_of(row: Evidence) -> str | None:
    return row.figures.compute_dtype if isinstance(row.figures, PairFigures) else None


def _asks_for_float64(loaded: LoadedModel, test: FloorTest) -> bool:
    """True where the float32 rung of this model may mean nothing, one way or the other.

    A router that chooses experts is no continuous function: where two experts' scores nearly tie, rounding picks
    another expert and the position jumps, in the pair (which then fails) or in the reorderings (whose floor then hides
    a fault). In float64 such a tie has to be 2^29 times nearer, and a fault is as large as it was. What is larger at
    every position alike is no matter of ties. Of any other model a pair that passes and is larger than rounding nearly
    ever is may be a fault of a few units in the last place.
    """
    if has_experts(loaded.model):
        return not test.nonfinite and not is_larger_everywhere(test)
    return test.is_passed and test.ratio > _DOUBTFUL
