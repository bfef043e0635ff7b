"""Controls of an uploaded dump: its own arrays, and the dumps that were uploaded with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import FLOAT32, values_of
from ..runs.figures import Figures
from ..runs.file.evidence import (
    FAILED,
    MISSING,
    NOTED,
    PASSED,
    Check,
    Evidence,
    NarrowingFigures,
    OnlyInFloat32Figures,
    OtherPromptsFigures,
    ShrinkFigures,
)
from ..runs.file.records import Generation
from ..runs.revision import PairVerdict
from ..text import three_digits
from .explain.causes import explain
from .explain.rows import rows_of_run
from .judge import OWN, Controls, NoiseFloor, NotAvailableError, OtherRows, Pair, Rerun, judge
from .places import place_in_words
from .screening import screen
from .shrink import shrink_test
from .uploaded_controls import NO_CONTROLS, UploadedControls
from .uploaded_floor import usable_floor, ways_in_words
from .validity import not_finite, not_finite_of, sampling, structure

WithModel = Callable[["DumpControls"], Controls]


def judge_upload(
    figures: Figures,
    validity: Sequence[Sequence[Evidence]],
    generations: Sequence[Generation],
    uploaded: UploadedControls = NO_CONTROLS,
    earlier: Sequence[PairVerdict] = (),
    with_model: WithModel = lambda dump: dump,
) -> list[PairVerdict]:
    """Judge every pair of a dump.

    validity: rows of every pair, measured while the dump was read; earlier: verdicts by controls that were given
    before; with_model: adds what the model itself can measure.
    """
    sampled = sampling(figures, generations)
    before = {verdict.pair: verdict for verdict in earlier}
    verdicts = []
    for pair in range(len(figures.header.sides) - 1):
        rows = [*validity[pair], *(sampled[side] for side in (0, pair + 1) if side in sampled)]
        judged = judge(with_model(DumpControls(figures, pair, uploaded, rows)), before.get(pair))
        verdict = judged.verdict
        verdicts.append(
            PairVerdict(
                pair,
                verdict.name,
                verdict.because,
                verdict.noise_ratio,
                verdict.evidence,
                judged.floors,
                verdict.first_place,
            )
        )
    return verdicts


class DumpControls(Controls):
    """One pair of a dump, with the controls that were uploaded. rows: evidence on its validity and its sampler."""

    def __init__(self, figures: Figures, pair: int, uploaded: UploadedControls, rows: Sequence[Evidence]) -> None:
        self.figures, self.index, self.uploaded, self.rows = figures, pair, uploaded, list(rows)
        self.header = figures.header
        self.names = self.header.sides[0].name, self.header.sides[pair + 1].name
        self.lengths = [prompt.positions for prompt in self.header.prompts]
        self.dtype, self.has_experts = self.header.compute_dtype, uploaded.has_experts
        self.positions = figures.positions(pair)
        self.squares: NDArray[np.float64] = self.positions["rms"].to_numpy(float) ** 2
        self.is_wide = self.header.format is FLOAT32
        self.tried = tuple(sorted(uploaded.given)) or None
        self.is_identical = bool(self.positions["bit_identical"].all())

    def validity(self) -> list[Evidence]:
        return [*self.rows, *self._narrowing()]

    def pair(self, dtype: str) -> Pair:
        if dtype == self.dtype:
            return Pair(self.squares, not_finite_of(self.figures, self.index), self.is_identical)
        wide = self.uploaded.float32.get(self.names[1]) if dtype == "float32" else None
        if wide is None and "float32" in self.uploaded.given:
            raise NotAvailableError(f"The dump in float32 has no side '{self.names[1]}', so nothing decides about it.")
        if wide is None:
            raise NotAvailableError("The same pair in float32, with the same weights and tokens, would decide.")
        first = wide.first_mismatch
        broken = None if first is None else not_finite(self.header, self.index, wide.mismatches, first)
        return Pair(wide.mean_squares, broken, wide.neq == 0)

    def floor(self, dtype: str) -> NoiseFloor:
        ways = self.uploaded.floor if dtype == "float32" else None
        if ways is None:
            raise NotAvailableError(f"No noise floor in float32. {self._ways_out()}" if self.is_wide else "")
        squares, doubt = usable_floor(self.header, ways, self.uploaded)
        if squares is None or not squares.any():
            raise NotAvailableError(doubt or "The uploaded noise floor is zero.")
        return NoiseFloor(squares, ways_in_words(ways))

    def rerun(self) -> Rerun:
        again = {name: self.uploaded.rerun[name] for name in self.names if name in self.uploaded.rerun}
        if not again:
            raise NotAvailableError("")
        moved = tuple(name for name, other in again.items() if not other.is_bit_identical)
        others = [again[name] for name in moved]
        figures = {
            "called_again": tuple(again),
            "pair_rms_logits": float(np.sqrt(self.squares.mean())),
            "rerun_rms_logits": max((other.rms_of_positions for other in others), default=0.0),
            "rerun_neq": {name: other.neq for name, other in again.items()},
            "rerun_row_ulps": max((other.largest_row_ulps or 0.0 for other in others), default=0.0) or None,
        }
        squares = np.max([other.mean_squares for other in others], axis=0) if others else None
        mismatches = max((other.nonfinite_mismatch for other in others), default=0)
        control = " and ".join(f"'{name}'" for name in again) + ", uploaded again from another call"
        return Rerun(control, tuple(again), moved, squares, mismatches, figures)

    def neighbours(self) -> list[OtherRows]:
        others = {name: self.uploaded.neighbours[name] for name in self.names if name in self.uploaded.neighbours}
        return [
            OtherRows(
                name,
                f"'{name}' computed with other requests in the batch, uploaded as a dump of its own",
                OtherPromptsFigures(
                    bit_identical=bool(other.is_bit_identical), neq=other.neq, rms_logits=other.rms_of_positions
                ),
            )
            for name, other in others.items()
        ]

    def without_floor(self, wide: Pair) -> list[Evidence]:
        """Compare how far the pair is apart in 16 bits and in float32: rounding shrinks with the precision."""
        if self.is_wide or wide.not_finite is not None:
            return []
        return [self._only_in_float32(wide) if self.is_identical else self._shrink(wide)]

    def differences(self, row: int, dtype: str) -> NDArray[np.float64] | None:
        if dtype != self.dtype:
            return None
        reference, variant = (
            values_of(self.figures.read_rows(side, row, row + 1)[0], self.header.format).astype(np.float64)
            for side in (0, self.index + 1)
        )
        return np.square(np.nan_to_num(variant - reference))

    def differing(self) -> list[Evidence]:
        return structure(self.figures, self.index)

    def arrays_alone(self) -> Evidence | None:
        return screen(self.header, self.positions, self.causes, has_experts=self.has_experts)

    @cached_property
    def causes(self) -> Sequence[str]:
        if self.is_identical or not self.figures.has_all_logits:
            return []
        return [cause.says for cause in explain(rows_of_run(self.figures, self.index)).causes if cause.is_fault]

    def _narrowing(self) -> list[Evidence]:
        """Is one side further from itself in float32 than the other is? A fault of 16-bit kernels alone is."""
        dtype, narrowing = self.dtype, self.uploaded.narrowing
        if self.is_identical or any(name not in narrowing for name in self.names):
            return []
        far = {name: float(np.sqrt(narrowing[name].mean())) for name in self.names}
        near, further = sorted(self.names, key=far.__getitem__)
        ratio = far[further] / max(far[near], float(np.finfo(np.float64).tiny))
        is_alike = ratio <= OWN.over_all
        says = f"Rounding to {dtype} moves both sides about equally far from float32."
        if not is_alike:
            times = three_digits(ratio) if far[near] else "infinitely many"
            says = f"'{further}' is {times} times as far from itself in float32 as '{near}': more than {dtype} rounds."
        figures = NarrowingFigures(
            reference_to_float32_logits=far[self.names[0]], variant_to_float32_logits=far[self.names[1]]
        )
        control = f"each side in {dtype} compared with itself in float32"
        return [Evidence(Check.NARROWING, control, figures, PASSED if is_alike else FAILED, says)]

    def _only_in_float32(self, wide: Pair) -> Evidence:
        rms = float(np.sqrt(wide.squares.mean()))
        neq = self.uploaded.float32[self.names[1]].neq
        figures = OnlyInFloat32Figures(neq=neq, pair_rms_logits=rms)
        says = "The two sides are equal in float32 too."
        if neq:
            says = f"In float32 the two sides differ by {rms:.3g} logits (rms); a noise floor would decide."
        control = f"the same pair in float32; in {self.dtype} it is equal bit for bit"
        return Evidence(Check.ONLY_IN_FLOAT32, control, figures, NOTED if neq else PASSED, says)

    def _shrink(self, wide: Pair) -> Evidence:
        test = shrink_test(self.squares, wide.squares, self.header.format.mantissa_bits + 1)
        figures = ShrinkFigures(
            compute_dtype="float32",
            pair_rms_logits=float(np.sqrt(wide.squares.mean())),
            own_dtype_rms_logits=float(np.sqrt(self.squares.mean())),
            times_smaller_in_float32=test.shrink if np.isfinite(test.shrink) else None,
            times_finer_float32_is=test.full,
            positions_that_move_in_own_dtype=test.moved,
            worst_position_ratio=test.worst,
            worst_position=self.header.places()[test.first_row],
            tried=self.tried if test.outcome == MISSING else None,
        )
        where = place_in_words(test.first_row, self.lengths)
        smaller = f"In float32 the difference is {three_digits(test.shrink)} times smaller"
        says = f"{smaller}; float32 is {test.full:,.0f} times finer, so it shrinks as rounding does."
        if not np.isfinite(test.shrink):
            says = f"In float32 the two sides are equal: only {self.dtype} makes them differ."
        elif test.outcome == MISSING:
            says = f"{smaller}, which neither rounding nor a fault explains. {self._ways_out()}"
        elif test.stands_out:
            says = (
                f"{smaller}, but {where} does not shrink: it is {three_digits(test.worst)} times the median position."
            )
        elif test.outcome == FAILED:
            says = f"{smaller}, though float32 is {test.full:,.0f} times finer: the sides compute different functions."
        control = f"'{self.names[1]}' compared with '{self.names[0]}' in float32 and in {self.dtype}, without a floor"
        return Evidence(Check.SHRINK, control, figures, test.outcome, says)

    def _ways_out(self) -> str:
        """Controls that would decide instead; none that was given, or that needs tokens which the dump has not."""
        can_run = "model" not in self.uploaded.given and all(prompt.token_ids for prompt in self.header.prompts)
        ways = [
            name
            for name, is_open in (("a floor", "floor" not in self.uploaded.given), ("the model", can_run))
            if is_open
        ]
        return f"Give {' or '.join(ways)} to decide." if ways else "No other control is left to give."
