"""Judge an uploaded dump by its own arrays, and by the dumps that were uploaded with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..numerics.formats import FLOAT32, values_of
from ..runs.figures import Figures
from ..runs.file import evidence
from ..runs.file.evidence import FAILED, MISSING, PASSED, Check, Evidence, Verdict
from ..runs.file.records import Generation
from ..text import three_digits
from .explain.causes import explain
from .explain.rows import rows_of_run
from .judge import OWN, Controls, NoiseFloor, NotAvailableError, OtherRows, Pair, Rerun, judge
from .places import place_in_words
from .shrink import shrink_test
from .uploaded_controls import UploadedControls
from .validity import differing, not_finite_of, sampling, screen

WithModel = Callable[["DumpControls"], Controls]


def judge_upload(
    figures: Figures,
    validity: Sequence[Sequence[Evidence]],
    generations: Sequence[Generation],
    uploads: UploadedControls | None = None,
    earlier: Sequence[Verdict] = (),
    with_model: WithModel = lambda dump: dump,
) -> list[Verdict]:
    """Judge every pair of a dump.

    validity: rows of every pair, measured while the dump was read; earlier: verdicts by controls that were given
    before; with_model: adds what the model itself can measure.
    """
    sampled = sampling(figures, generations)
    earlier_by_pair = {verdict.pair: verdict for verdict in earlier}
    verdicts = []
    for pair in range(len(figures.header.sides) - 1):
        rows = [*validity[pair], *(sampled[side] for side in (0, pair + 1) if side in sampled)]
        dump = DumpControls(figures, pair, uploads or UploadedControls(), rows)
        verdicts.append(replace(judge(with_model(dump), earlier_by_pair.get(pair)), pair=pair))
    return verdicts


class DumpControls(Controls):
    """One pair of a dump, with the controls that were uploaded. rows: evidence on its validity and its sampler."""

    def __init__(self, figures: Figures, pair: int, uploads: UploadedControls, rows: Sequence[Evidence]) -> None:
        self.figures, self.index, self.uploads, self.rows = figures, pair, uploads, list(rows)
        self.header = figures.header
        self.names = self.header.sides[0].name, self.header.sides[pair + 1].name
        self.lengths = self.header.lengths
        self.dtype, self.has_experts = self.header.compute_dtype, uploads.has_experts
        self.positions = figures.positions(pair)
        self.squares: NDArray[np.float64] = self.positions["rms"].to_numpy(float) ** 2
        self.available = tuple(sorted(uploads.controls)) or None
        self.is_identical = bool(self.positions["bit_identical"].all())

    def validity(self) -> list[Evidence]:
        return [*self.rows, *self._narrowing()]

    def pair(self, dtype: str) -> Pair:
        if dtype == self.dtype:
            return Pair(self.squares, not_finite_of(self.figures, self.index), self.is_identical)
        wide = self.uploads.divergences("float32", self.names).get(self.names[1]) if dtype == "float32" else None
        if wide is None:
            is_given = "float32" in self.uploads.controls
            missing = f"'{self.names[1]}' in {dtype}" if is_given else f"The same pair in {dtype}"
            raise NotAvailableError(f"{missing}, of the same weights and tokens, decides.")
        return Pair(wide.mean_squares, not_finite_of(self.figures, self.index, wide), wide.neq == 0)

    def floor(self, dtype: str) -> NoiseFloor:
        floor = self.uploads.floor if dtype == "float32" else ""
        if isinstance(floor, str):
            is_asked = dtype == self.dtype == "float32"
            raise NotAvailableError(floor or "A noise floor in float32 would decide." * is_asked)
        return floor

    def rerun(self) -> Rerun:
        again = self.uploads.divergences("rerun", self.names)
        if not again:
            raise NotAvailableError("")
        unstable = {name: other for name, other in again.items() if not other.is_bit_identical}
        figures = {
            "rerun_rms_logits": max((other.rms_of_positions for other in unstable.values()), default=0.0),
            "rerun_neq": {name: other.neq for name, other in again.items()},
            "rerun_row_ulps": max((other.largest_row_ulps or 0.0 for other in unstable.values()), default=0.0) or None,
        }
        squares = np.max([other.mean_squares for other in unstable.values()], axis=0) if unstable else None
        mismatches = max((other.nonfinite_mismatch for other in unstable.values()), default=0)
        control = " and ".join(f"'{name}'" for name in again) + ", uploaded again from another call"
        return Rerun(control, tuple(again), tuple(unstable), squares, mismatches, figures)

    def neighbours(self) -> list[OtherRows]:
        rows = []
        for name, other in self.uploads.divergences("neighbours", self.names).items():
            control = f"'{name}' uploaded again, with other requests in its batch"
            figures = evidence.OtherPromptsFigures(bit_identical=bool(other.is_bit_identical), neq=other.neq)
            figures.rms_logits = other.rms_of_positions
            rows.append(OtherRows(name, control, figures))
        return rows

    def without_floor(self, wide: Pair) -> list[Evidence]:
        """Compare how far the pair is apart in 16 bits and in float32: rounding shrinks with the precision."""
        if self.header.format is FLOAT32 or wide.not_finite is not None:
            return []
        test = shrink_test(self.squares, wide.squares, self.header.format.mantissa_bits + 1)
        rms = float(np.sqrt(wide.squares.mean()))
        figures = evidence.ShrinkFigures(
            compute_dtype="float32",
            pair_rms_logits=rms,
            own_dtype_rms_logits=float(np.sqrt(self.squares.mean())),
            times_smaller_in_float32=test.shrink if np.isfinite(test.shrink) else None,
            times_finer_float32_is=test.full,
            positions_that_move_in_own_dtype=test.moving_share,
            worst_position_ratio=test.worst,
            worst_position=self.header.places()[test.first_row],
            controls=self.available if test.outcome == MISSING else None,
        )
        smaller = f"In float32 the difference is {three_digits(test.shrink)} times smaller"
        finer = f"float32 is {test.full:,.0f} times finer"
        if self.is_identical:
            says = f"Only float32 shows a difference: {rms:.3g} logits (rms). A noise floor would decide."
        elif test.outcome == MISSING:
            says = f"{smaller}, which neither rounding nor a fault explains. A noise floor would decide."
        elif test.stands_out:
            place = place_in_words(test.first_row, self.lengths)
            says = f"{smaller}, but {place} does not shrink: it is {three_digits(test.worst)}x the median position."
        elif test.outcome == FAILED:
            says = f"{smaller}, though {finer}: the sides compute different functions."
        else:
            says = f"{smaller}; {finer}, so it shrinks as rounding does."
        if not np.isfinite(test.shrink):
            says = "In float32 the two sides are equal."
        control = f"'{self.names[1]}' compared with '{self.names[0]}' in float32 and in {self.dtype}, without a floor"
        return [Evidence(Check.SHRINK, control, figures, test.outcome, says)]

    def differences(self, row: int, dtype: str) -> NDArray[np.float64] | None:
        if dtype != self.dtype:
            return None
        reference, variant = (
            values_of(self.figures.read_rows(side, row, row + 1)[0], self.header.format).astype(np.float64)
            for side in (0, self.index + 1)
        )
        return np.square(np.nan_to_num(variant - reference))

    def differing(self) -> list[Evidence]:
        return differing(self.figures, self.index)

    def arrays_alone(self) -> Evidence | None:
        return screen(self.header, self.positions, self.causes, has_experts=self.has_experts)

    @cached_property
    def causes(self) -> Sequence[str]:
        if self.is_identical or not self.figures.has_all_logits:
            return []
        return [cause.says for cause in explain(rows_of_run(self.figures, self.index)).causes if cause.is_fault]

    def _narrowing(self) -> list[Evidence]:
        """Is one side further from itself in float32 than the other is? A fault of 16-bit kernels alone is."""
        far = {name: side.rms_of_positions for name, side in self.uploads.divergences("narrowing", self.names).items()}
        if self.is_identical or len(far) < len(self.names):
            return []
        near, further = sorted(self.names, key=far.__getitem__)
        ratio = far[further] / max(far[near], float(np.finfo(np.float64).tiny))
        outcome, says = PASSED, f"Rounding to {self.dtype} moves both sides about equally far from float32."
        if ratio > OWN.over_all:
            times = three_digits(ratio) if far[near] else "infinitely many"
            outcome = FAILED
            says = f"'{further}' is {times} times as far from itself in float32 as '{near}': more than rounding."
        figures = evidence.NarrowingFigures(
            reference_to_float32_logits=far[self.names[0]], variant_to_float32_logits=far[self.names[1]]
        )
        control = f"each side in {self.dtype} compared with itself in float32"
        return [Evidence(Check.NARROWING, control, figures, outcome, says)]
