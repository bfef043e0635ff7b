"""The verdict of an uploaded dump: the rungs that can be computed from it, those that its controls add, and what is
still missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import FLOAT32 as FLOAT32_FORMAT
from ..runs.figures import Figures
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
    Check,
    DrawnFigures,
    Evidence,
    FromModelFigures,
    NarrowingFigures,
    OnlyInFloat32Figures,
    OtherPromptsFigures,
    RerunFigures,
    ShrinkFigures,
    Unmeasured,
)
from ..runs.file.records import BUG_SUSPECTED, INVALID_DUMP, NONDETERMINISTIC, ROUNDING, UNDECIDED, Generation
from ..runs.revision import PairVerdict
from ..text import three_digits
from .divergence import Divergence
from .explain.causes import explain
from .explain.rows import rows_of_run
from .ladder.ladder import Ladder
from .ladder.noise_ratio import LARGEST_RATIO_16_BITS, FloorTest, floor_test
from .ladder.places import place_in_words
from .ladder.shrink import SHRINKS_LIKE_ROUNDING, SHRINKS_TOO_MUCH, shrink_test
from .ladder.structure import structure_in_16_bits, structure_of
from .ladder.verdict import conclude
from .screening import screen
from .sixteen_bits import fault_of_16_bits_alone, first_beyond, limits_in_words, of_neither_side
from .uploaded_controls import FOREIGN, NO_CONTROLS, Controls, ModelControls
from .uploaded_floor import earlier_model_floor, usable_floor, ways_in_words
from .validity import not_finite, not_finite_of, sampling, structure

_OF_ARRAYS = (VALIDITY, SAMPLER, RERUN, NEIGHBOURS, STRUCTURE)  # rungs that need no model and no other dtype


def judge_upload(
    figures: Figures,
    validity: Sequence[Sequence[Evidence]],
    generations: Sequence[Generation],
    controls: Controls = NO_CONTROLS,
    earlier: Sequence[PairVerdict] = (),
) -> list[PairVerdict]:
    """One verdict a pair. `validity`: of every pair (core.judging.validity), which is measured while the dump is read;
    `earlier`: results of controls that were given before, used for each check that the controls of now leave open.
    """
    sampled = sampling(figures, generations)
    before = {verdict.pair: verdict for verdict in earlier}
    return [
        _DumpLadder(figures, pair, controls, before.get(pair)).climb(
            [*validity[pair], *(sampled[side] for side in (0, pair + 1) if side in sampled)]
        )
        for pair in range(len(figures.header.sides) - 1)
    ]


class _DumpLadder(Ladder):
    """One pair of a dump. before: its verdict by controls that were given earlier."""

    def __init__(self, figures: Figures, pair: int, controls: Controls, before: PairVerdict | None) -> None:
        header = figures.header
        names = (header.sides[0].name, header.sides[pair + 1].name)
        super().__init__(names, [prompt.positions for prompt in header.prompts])
        self.figures, self.pair, self.header, self.controls = figures, pair, header, controls
        self.before = before
        self.positions = figures.positions(pair)
        self.squares: NDArray[np.float64] = self.positions["rms"].to_numpy(float) ** 2
        self.broken = not_finite_of(figures, pair)
        self.drawn: list[Evidence] = []  # how much 16 bits would have shown
        self.floor_of_float32: NDArray[np.float64] | None = None

    def climb(self, evidence: Sequence[Evidence]) -> PairVerdict:
        """Every rung that can be supplied, after the evidence of the dump itself."""
        controls = self.controls
        is_identical = bool(self.positions["bit_identical"].all())
        self.evidence += evidence
        self._rerun()
        self._neighbours()
        ratio: float | None = None
        first: tuple[int, int] | None = None
        given = controls.float32.get(self.names[1])
        has_floor = controls.floor is not None or controls.model is not None
        if not is_identical or (given is not None and has_floor):  # sides equal in 16 bits may differ in float32
            self._narrowing()
            if controls.model is not None:
                self._own_dtype(controls.model)
            failed = [row for row in self.drawn if row.outcome == FAILED]
            ratio = next((row.figures.noise_ratio for row in failed if isinstance(row.figures, DrawnFigures)), None)
            deciding = self._float32()
            if deciding is not None and (ratio is None or not deciding.is_passed):
                ratio = deciding.noise_ratio
            if failed and any(row.rung == FLOAT32 and row.outcome == PASSED for row in self.evidence):
                dtype = self.header.compute_dtype
                shown = structure_of(first_beyond(failed[0]), self.lengths)
                first = shown.first
                self.evidence = [fault_of_16_bits_alone(row, dtype) if row in failed else row for row in self.evidence]
                self.evidence.append(structure_in_16_bits(shown, dtype, self.lengths))
            elif deciding is not None and len(deciding.outliers):
                first = self.stands_out(deciding)
            else:
                self.evidence += structure(self.figures, self.pair)
        elif given is not None:
            self._only_in_float32(given)
        self._rerun_size()
        if self.broken is not None:
            first = first or self.broken.place(self.lengths)
        if self.before is not None:
            ratio, first = self._carry_over(self.before, ratio, first)
        self._of_16_bits_alone()
        if not is_identical and not any(row.rung == FLOAT32 and row.outcome != MISSING for row in self.evidence):
            screened = screen(self.header, self.positions, self.causes, has_experts=controls.has_experts)
            is_alone = controls.model is None and all(
                row.rung in _OF_ARRAYS or row.outcome == MISSING for row in self.evidence
            )
            if is_alone or screened.outcome == FAILED:  # beside a control the arrays excuse nothing
                self.evidence.append(screened)
        verdict = conclude(self.evidence, is_bit_identical=is_identical, noise_ratio=ratio, first_place=first)
        limits = [row.says for row in self.drawn] if verdict.name in (UNDECIDED, NONDETERMINISTIC) else []
        if any(row.rung == FLOAT32 and row.outcome == PASSED for row in self.evidence):
            limits = limits_in_words(self.drawn) if verdict.name in (ROUNDING, NONDETERMINISTIC) else []
        causes = self.causes[:1] if verdict.name in (UNDECIDED, BUG_SUSPECTED, INVALID_DUMP) else []
        if verdict.because.startswith(tuple(self.causes if causes else [])):
            causes = []
        because = " ".join([*causes, verdict.because, *limits])
        return PairVerdict(
            self.pair,
            verdict.name,
            because,
            verdict.noise_ratio,
            verdict.evidence,
            tuple(self.floors),
            verdict.first_place,
        )

    @cached_property
    def causes(self) -> list[str]:
        """Sentences of the simple causes that explain the difference, best first."""
        if self.positions["bit_identical"].all() or not self.figures.has_all_logits:
            return []
        causes = explain(rows_of_run(self.figures, self.pair)).causes
        return [cause.says for cause in causes if cause.is_fault]

    def _rerun(self) -> None:
        again = {name: self.controls.rerun[name] for name in self.names if name in self.controls.rerun}
        if not again:
            return
        moved = [name for name, found in again.items() if not found.is_bit_identical]
        pair = float(np.sqrt(self.squares.mean()))
        most = max((again[name].rms_of_positions for name in moved), default=0.0)
        ulps = max((again[name].largest_row_ulps or 0.0 for name in moved), default=0.0) or None
        figures = RerunFigures(
            not_repeatable=tuple(moved),
            called_again=tuple(again),
            pair_rms_logits=pair,
            rerun_rms_logits=most,
            rerun_neq={name: found.neq for name, found in again.items()},
            rerun_row_ulps=ulps,
        )
        beside = f" The pair is {pair / most:.2f} times as far apart as a side from itself." if most > 0 else ""
        if ulps is not None:
            beside += f" The calls differ by up to {three_digits(ulps)} row ULPs."
        control = " and ".join(f"'{name}'" for name in again) + ", uploaded again from another call"
        self.rerun(control, list(again), figures, beside)

    def _rerun_size(self) -> None:
        """Compare the difference of a side from itself with the noise floor in the dump's dtype, if one is known."""
        again = [self.controls.rerun[name] for name in self.names if name in self.controls.rerun]
        moved = [found for found in again if not found.is_bit_identical]
        is_narrow = self.header.format is not FLOAT32_FORMAT
        model = self.controls.model if is_narrow else None
        floor = model.own if model is not None else None if is_narrow else self.floor_of_float32
        if not moved or floor is None or not floor.mean() > 0:
            return
        squares = np.max([found.mean_squares for found in moved], axis=0)
        own_rounding = model.own_rounding if model is not None else None
        test = floor_test(squares, floor, is_16_bits=is_narrow, own_rounding=own_rounding)
        mismatches = max(found.nonfinite_mismatch for found in moved)
        self.rerun_size(squares, mismatches, test, has_experts=self.controls.has_experts)

    def _neighbours(self) -> None:
        for name in (name for name in self.names if name in self.controls.neighbours):
            found = self.controls.neighbours[name]
            figures = OtherPromptsFigures(
                bit_identical=bool(found.is_bit_identical), neq=found.neq, rms_logits=found.rms_of_positions
            )
            says = (
                f"The other requests that it was called beside do not change a bit of '{name}'.",
                f"What the other rows hold changes bits of '{name}'; in a mixture of experts the rows share the"
                " experts' products, so that alone is no leak.",
                f"What the other rows hold changes the logits of '{name}'; if their number and length were the"
                " same, data leaks between rows. (A mixture of experts may do that; say so with"
                " --mixture-of-experts.)",
            )
            control = f"'{name}' beside other requests, uploaded as a dump of its own"
            self.neighbours(name, control, figures, says, has_experts=self.controls.has_experts)

    def _only_in_float32(self, given: Divergence) -> None:
        """Sides that are equal in the run's dtype, beside the same in float32, without a floor."""
        control = f"the same pair in float32; in {self.header.compute_dtype} it is equal bit for bit"
        figures = OnlyInFloat32Figures(neq=given.neq, pair_rms_logits=given.rms_of_positions)
        if not given.neq:
            return self.add(Check.ONLY_IN_FLOAT32, control, figures, PASSED, "The two sides are equal in float32 too.")
        far = f"{given.rms_of_positions:.3g} logits (rms) apart"
        says = f"In float32 the two sides are {far}; whether that is rounding takes a floor."
        return self.add(Check.ONLY_IN_FLOAT32, control, figures, NOTED, says)

    def _narrowing(self) -> None:
        """Add whether one side is further from itself in float32 than the other is. A fault of the 16-bit kernels alone
        does not show in float32.
        """
        dtype, narrowing = self.header.compute_dtype, self.controls.narrowing
        if any(name not in narrowing for name in self.names):
            return
        far = {name: float(np.sqrt(narrowing[name].mean())) for name in self.names}
        reference, variant = far.values()
        measured = NarrowingFigures(reference_to_float32_logits=reference, variant_to_float32_logits=variant)
        near, further = sorted(self.names, key=far.__getitem__)
        low, high = far[near], far[further]
        is_alike = high <= LARGEST_RATIO_16_BITS * max(low, np.finfo(np.float64).tiny)
        times = three_digits(high / low) if low else "infinitely many"
        says = (
            f"Rounding to {dtype} moves both sides about equally far from float32: {reference:.3g} and {variant:.3g}"
            " logits."
            if is_alike
            else f"'{further}' in {dtype} is {times} times as far from itself in float32 as '{near}' is: more than"
            f" rounding to {dtype} does: there it computes another function, or in a lower precision."
        )
        control = f"each side in {dtype} against itself in float32"
        self.add(Check.NARROWING, control, measured, PASSED if is_alike else FAILED, says)

    def _float32(self) -> FloorTest | None:
        """The deciding rung: the pair in float32 against a floor in float32, or beside itself in 16 bits where there is
        none.

        A floor that cannot be one is noted with the reason and left aside: what then decides is what would have decided
        without it.
        """
        header, controls, before, name = self.header, self.controls, self.before, self.names[1]
        is_wide = header.format is FLOAT32_FORMAT
        given = controls.float32.get(name)
        pair, nonfinite = self.squares, self.broken
        if not is_wide:
            if given is None:
                self._without_float32()
                return None
            pair, first = given.mean_squares, given.first_mismatch
            nonfinite = None if first is None else not_finite(header, self.pair, given.mismatches, first)
        control = f"'{name}' against '{self.names[0]}' in float32"
        rows: list[Evidence] = []
        found, maps, whose, beside = None, 0, "the uploaded rounding floor", ""
        percentile = None  # of a floor in the dtype of the dump
        if controls.floor is not None:
            found, doubt = usable_floor(header, controls.floor, controls, before)
            beside = ways_in_words(controls.floor)
            if found is None:
                says = f"{doubt} It is left aside."
                rows.append(Evidence(Check.UPLOADED_FLOOR, f"{control}, beside {beside}", Unmeasured(), NOTED, says))
        if found is None and controls.model is not None:
            found, maps = controls.model.float32, controls.model.maps
            percentile = controls.model.floor_row_ulps if is_wide else None
            whose = "this model's own rounding floor"
            beside = f"{len(found)} reorderings of every linear map of {controls.model.name}"
        elif found is None and (earlier := earlier_model_floor(before)) is not None:
            found, maps = earlier
            whose, beside = "this model's own rounding floor", "the model's own floor, of an earlier verdict"
        if found is not None and found.mean() > 0:
            self.floor_of_float32 = found
            self.evidence += rows
            control = f"{control}, beside {beside}"
            return self.against_floor(
                FLOAT32,
                "float32",
                control,
                pair,
                found,
                not_finite=nonfinite,
                maps=maps,
                whose=whose,
                floor_row_ulps=percentile,
            )
        if nonfinite is not None:
            self.evidence += rows
            self.not_finite(nonfinite, FLOAT32, "float32", control)
            return None
        ways_out = self._ways_out()
        left_aside = " ".join([*(row.says for row in rows), ""])
        if is_wide:
            says = f"{left_aside}The pair is in float32, and nothing says how far rounding goes there. {ways_out}"
            self.add(Check.WIDE_PAIR, "a rounding floor in float32", Unmeasured(tried=self._tried), MISSING, says)
            return None
        row = self._shrink_row(pair, control, ways_out)
        if row.outcome == MISSING:
            self.evidence.append(replace(row, says=left_aside + row.says))
        else:
            self.evidence += [*rows, row]
        return None

    def _shrink_row(self, wide: NDArray[np.float64], control: str, ways_out: str) -> Evidence:
        header, dtype = self.header, self.header.compute_dtype
        test = shrink_test(self.squares, wide, header.format.mantissa_bits + 1)
        prompt, position = header.places()[test.worst_row]
        measured = ShrinkFigures(
            compute_dtype="float32",
            pair_rms_logits=float(np.sqrt(wide.mean())),
            own_dtype_rms_logits=float(np.sqrt(self.squares.mean())),
            times_smaller_in_float32=test.shrink if np.isfinite(test.shrink) else None,
            times_finer_float32_is=test.full,
            positions_that_move_in_own_dtype=test.moved,
            worst_position_ratio=test.worst,
            worst_position=(prompt, position),
            tried=self._tried if test.outcome == MISSING else None,
        )
        where = place_in_words(test.worst_row, self.lengths)
        smaller = f"In float32 the pair is {three_digits(test.shrink)} times smaller than in {dtype}"
        finer = f"{smaller}, which is {test.full:,.0f} times coarser"
        if not np.isfinite(test.shrink):
            says = (
                f"In float32 the two sides are equal: what parts them is in {dtype} alone, its rounding or its kernels."
            )
        elif test.outcome == PASSED:
            says = f"{finer}: it shrinks as rounding does."
        elif test.outcome == MISSING:
            why = "too little to be clear, too much to be a plain fault"
            if test.share > SHRINKS_TOO_MUCH:
                why = "more than precision explains"
            elif test.share >= SHRINKS_LIKE_ROUNDING:
                why = f"{where} stands far above the others there"
            says = f"{finer}: {why}. {ways_out}"
        elif test.stands_out:
            says = (
                f"{smaller} on the whole, but {where} does not shrink with it: it stands {three_digits(test.worst)}"
                " times above the median position in float32."
            )
        else:
            says = (
                f"{finer}: rounding shrinks with the precision, and this does not, so the two sides compute different"
                " functions."
            )
        return Evidence(
            Check.SHRINK, f"{control}, beside the same pair in {dtype}; no floor", measured, test.outcome, says
        )

    def _own_dtype(self, model: ModelControls) -> None:
        """Judge in 16 bits: is the dump of this model at all, and is the pair within its floor?"""
        header, names = self.header, self.names
        floor = np.maximum(model.own.mean(axis=0), 0.0 if model.own_rounding is None else model.own_rounding)
        far = {
            name: float(np.sqrt(model.from_model[name].mean() / max(floor.mean(), np.finfo(float).tiny)))
            for name in names
        }
        control = f"both sides against {model.name}'s own prefill in {header.compute_dtype}, in rounding floors"
        measured = FromModelFigures(reference_noise_ratio=far[names[0]], variant_noise_ratio=far[names[1]])
        lowered, beyond = self._lowered(model, far)
        are_both = min(far.values()) > FOREIGN
        if are_both and not (lowered and all(row.outcome == PASSED for row in lowered)):
            says = (
                f"Neither side is what {model.name} computes for these tokens: they are"
                f" {three_digits(min(far.values()))} and {three_digits(max(far.values()))} of its rounding floors away."
                " Another checkpoint, other weights (quantised?), or other token ids; its floor says nothing of this"
                " dump."
            )
            self.controls = replace(self.controls, model=None)  # its floor says nothing of this dump
            self.add(Check.FROM_MODEL, control, measured, MISSING, says)
            return
        near, other = sorted(names, key=far.__getitem__)
        if are_both:
            says = (
                f"Neither side is at {model.name} in {header.compute_dtype}: they are {three_digits(far[near])} and"
                f" {three_digits(far[other])} of its rounding floors away."
            )
            self.add(Check.FROM_MODEL, control, measured, NOTED, says)
        elif far[other] > FOREIGN:
            says = (
                f"'{near}' is what {model.name} computes, {far[near]:.2f} rounding floors away; '{other}' is not:"
                f" {three_digits(far[other])} floors away, where rounding stays below {FOREIGN:g}."
            )
            self.add(Check.FROM_MODEL, control, measured, FAILED, says)
        elif header.format is not FLOAT32_FORMAT:
            control = (
                f"'{names[1]}' against '{names[0]}', beside {len(model.own)} reorderings of every linear map of"
                f" {model.name} in {header.compute_dtype}"
            )
            self.against_floor(
                OWN_DTYPE,
                header.compute_dtype,
                control,
                self.squares,
                model.own,
                not_finite=self.broken,
                own_rounding=model.own_rounding,
                maps=model.maps,
                floor_row_ulps=model.floor_row_ulps,
            )
        self.drawn = [model.drawn[name] for name in names if name in model.drawn]
        if len(beyond) > 1 and not all(row.outcome == PASSED for row in lowered):
            self.drawn = [of_neither_side(row, model.name, header.compute_dtype) for row in self.drawn]
        self.evidence += [*self.drawn, *lowered]

    def _lowered(self, model: ModelControls, far: dict[str, float]) -> tuple[list[Evidence], list[str]]:
        """(rows on the lower precisions of this pair's sides, names of those that are no rounding of the model).

        Where one of these has no such row, what the other one is explains nothing.
        """
        failed = [name for name in self.names if name in model.drawn and model.drawn[name].outcome == FAILED]
        beyond = [name for name in self.names if far[name] > FOREIGN or name in failed]
        rows = [model.lowered[name] for name in self.names if name in model.lowered]
        if set(beyond) <= set(model.lowered):
            return rows, beyond
        return [replace(row, outcome=NOTED) if row.outcome == PASSED else row for row in rows], beyond

    def _of_16_bits_alone(self) -> None:
        """A precision that 16 bits show decides nothing of a pair in float32 that fails: a fault on top of it, which
        they hide, may show there.
        """
        wide = [row for row in self.evidence if row.rung == FLOAT32 and row.outcome == FAILED]
        found = [row for row in self.evidence if row.check is Check.DRAWN_PRECISION and row.outcome == PASSED]
        if self.header.format is FLOAT32_FORMAT or not wide or not found:
            return
        is_asked = {"model", "float32"} <= self.controls.given
        way_out = (
            f" In 16 bits it is a lower precision: {found[0].says} Whether that is all takes the model and the pair in"
            " float32 at once."
        )
        for place, row in enumerate(self.evidence):
            if row in found:
                self.evidence[place] = replace(row, outcome=NOTED)
            elif row in wide and not is_asked:
                self.evidence[place] = replace(row, outcome=MISSING, says=row.says + way_out)

    def _carry_over(
        self, before: PairVerdict, ratio: float | None, first: tuple[int, int] | None
    ) -> tuple[float | None, tuple[int, int] | None]:
        """Add what earlier controls came to on rungs that those of now leave open; returns noise ratio, first place."""
        for rung in (RERUN, NEIGHBOURS, OWN_DTYPE, PRECISION):
            if not any(row.rung == rung for row in self.evidence):
                self.evidence += [row for row in before.evidence if row.rung == rung]
        is_open = not any(row.rung == FLOAT32 and row.outcome in (PASSED, FAILED) for row in self.evidence)
        decided = [row for row in before.evidence if row.rung == FLOAT32 and row.outcome in (PASSED, FAILED)]
        if is_open and decided:
            self.evidence = [row for row in self.evidence if row.rung != FLOAT32 or row.outcome == NOTED] + decided
            ratio, first = before.noise_ratio, before.first_place or first
        known = {floor.compute_dtype for floor in self.floors} | ({"float32"} if not is_open else set())
        self.floors += [floor for floor in before.floors if floor.compute_dtype not in known]
        return ratio, first

    @property
    def _tried(self) -> tuple[str, ...] | None:
        return tuple(sorted(self.controls.given)) or None

    def _without_float32(self) -> None:
        says = (
            "The same two sides computed in float32, with the same weights and tokens, would decide whether rounding"
            " explains it."
        )
        if "float32" in self.controls.given:
            name = self.names[1]
            says = f"The dump in float32 that was given has no side '{name}', so nothing decides about that one."
        self.add(Check.WIDE_PAIR, "the same pair in float32", Unmeasured(tried=self._tried), MISSING, says)

    def _ways_out(self) -> str:
        """Controls that would decide instead of a missing floor in float32; none that was given, or that the dump has
        no tokens for.
        """
        ways = []
        if "floor" not in self.controls.given:
            ways.append("A noise floor in float32 would decide it.")
        if "model" not in self.controls.given and all(prompt.token_ids for prompt in self.header.prompts):
            ways.append(f"{'Or the' if ways else 'The'} model would decide it.")
        return " ".join(ways) or "No other control is left to ask for: it stays undecided."
