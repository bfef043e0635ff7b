"""Judge an uploaded dump by its own arrays, and by the dumps that were uploaded with it. Judging a
stored run makes a new run of the same bits; the old one stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from ..cause import Cause
from ..checks.arrays_alone import FLOAT32_STEPS, ROW_ULPS
from ..checks.narrowing import narrowing_row
from ..checks.other_rows import OtherPromptsFigures, OtherRows
from ..checks.outliers import differing_row
from ..checks.pair import NoiseFloor, Pair
from ..checks.rerun import Rerun
from ..checks.shrink import shrink_row
from ..checks.single_logit import LARGEST_PEAK
from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from ..evidence import VALIDITY, Evidence
from ..numerics.arrays import Floats
from ..numerics.formats import FLOAT32, values_of
from ..numerics.side_divergence import FEW, peaks_of
from ..runs.figures import Figures
from ..runs.file.records import Generation
from ..runs.reader import RunReader, StoredPair
from ..runs.revision import revise
from ..runs.store.store import Store
from ..verdict import FloorRows, Verdict
from .controls import Controls, NotAvailableError
from .explain.causes import explain
from .explain.rows import rows_of_run
from .judge import judge
from .uploaded_controls import UploadedControls
from .validity import may_be_16_bits, not_finite_of, sampling, screen

_LOGITS = 1 << 22  # of a side that are read at once
MakeControls = Callable[..., "DumpControls"]  # with the arguments of DumpControls


def judge_upload(
    figures: Figures,
    validity: Sequence[Sequence[Evidence]],
    generations: Sequence[Generation],
    uploads: UploadedControls | None = None,
    earlier: Sequence[Verdict] = (),
    make_controls: MakeControls | None = None,
) -> list[Verdict]:
    """Judge every pair of a dump.

    validity: rows of every pair, measured while the dump was read; earlier: verdicts by controls
    that were given before; make_controls: with a model, else those
    of the dump alone.
    """
    samplers = sampling(figures, generations)
    earlier_by_pair = {verdict.pair: verdict for verdict in earlier}
    verdicts = []
    for pair in range(len(figures.header.sides) - 1):
        rows = [*validity[pair], *(samplers[side] for side in (0, pair + 1) if side in samplers)]
        make = make_controls or DumpControls
        controls = make(figures, pair, uploads or UploadedControls(), rows)
        verdicts.append(replace(judge(controls, earlier_by_pair.get(pair)), pair=pair))
    return verdicts


def check_upload(run: RunReader) -> None:
    """Raise UsageError for a capture, which is judged with its model."""
    if run.header.provenance.kind != "upload":
        raise UsageError(
            f"run '{run.run_id}' is a capture; judge its paths with `{COMMAND} judge`.",
        )
    if [pair.index for pair in run.pairs] != list(range(len(run.sides) - 1)):
        raise StoreError(
            f"run '{run.run_id}': its list of pairs is not that of its sides; the file is damaged.",
        )


def judge_stored(
    store: Store,
    run: RunReader,
    controls: UploadedControls,
    *,
    make_controls: MakeControls | None = None,
    name: str | None = None,
    note: str = "",
) -> str:
    """Store `run` once more with the verdict by its controls, listed in its place; return the new
    run's id.
    """
    check_upload(run)
    generations = [run.generations[index] for index in sorted(run.generations)]
    with run.decoding("figures"):
        earlier = [stored_verdict(run, pair) for pair in run.pairs]
        checks = [[row for row in verdict.evidence if row.group == VALIDITY] for verdict in earlier]
        verdicts = judge_upload(run, checks, generations, controls, earlier, make_controls)
    note = f"Judged from run {run.run_id}. {note}".rstrip()
    return revise(store, run, name or f"{run.header.name}, judged", verdicts, note)


def stored_verdict(run: RunReader, pair: StoredPair) -> Verdict:
    by_dtype = run.rows("floor_position", pair=pair.index).groupby("compute_dtype", sort=False)
    floors = [
        FloorRows(str(dtype), rows["pair_rms"].to_numpy(float), rows["floor_rms"].to_numpy(float))
        for dtype, rows in by_dtype
        if len(rows) == run.header.rows
    ]
    return Verdict(
        pair.verdict or "",
        pair.because or "",
        tuple(run.evidence(pair.index)),
        pair.noise_ratio,
        pair.first_place,
        tuple(floors),
        pair.index,
    )


class DumpControls(Controls):
    """One pair of a dump, with the controls that were uploaded. rows: evidence on its validity and
    its sampler.
    """

    def __init__(
        self,
        figures: Figures,
        pair: int,
        uploads: UploadedControls,
        rows: Sequence[Evidence],
    ) -> None:
        self.figures, self.index, self.uploads, self.rows = figures, pair, uploads, list(rows)
        self.header = figures.header
        self.names = self.header.sides[0].name, self.header.sides[pair + 1].name
        self.lengths = self.header.lengths
        self.dtype, self.has_experts = self.header.compute_dtype, uploads.has_experts
        self.positions = figures.positions(pair)
        self.squares: Floats = self.positions["rms"].to_numpy(float) ** 2
        self.available = tuple(sorted(uploads.controls)) or None
        self.is_identical = bool(self.positions["bit_identical"].all())

    def validity(self) -> list[Evidence]:
        return [*self.rows, *self._narrowing()]

    def pair(self, dtype: str) -> Pair:
        if dtype == self.dtype:
            return Pair(
                self.squares,
                not_finite_of(self.figures, self.index),
                self.is_identical,
                self._peaks(),
            )
        # of other dtypes nothing is uploaded
        wide = self.uploads.divergences(dtype, self.names).get(self.names[1])
        if wide is None:
            is_given = "float32" in self.uploads.controls
            missing = f"'{self.names[1]}' in {dtype}" if is_given else f"The same pair in {dtype}"
            raise NotAvailableError(f"{missing}, of the same weights and tokens, decides.")
        return Pair(wide.squares, not_finite_of(self.figures, self.index, wide), wide.neq == 0)

    def floor(self, dtype: str) -> NoiseFloor:
        floor = self.uploads.floor if dtype == "float32" else ""
        if isinstance(floor, str):
            is_asked = dtype == self.dtype == "float32"
            raise NotAvailableError(floor or "A noise floor in float32 decides." * is_asked)
        return floor

    def rerun(self) -> Rerun:
        again = self.uploads.divergences("rerun", self.names)
        if not again:
            raise NotAvailableError("")
        unstable = {name: other for name, other in again.items() if not other.is_bit_identical}
        others = list(unstable.values())
        figures = {
            "rerun_rms_logits": max((other.rms for other in others), default=0.0),
            "rerun_neq": {name: other.neq for name, other in again.items()},
            "rerun_row_ulps": (
                max((other.largest_row_ulps or 0.0 for other in others), default=0.0) or None
            ),
        }
        squares = np.max([other.squares for other in others], axis=0) if others else None
        mismatches = max((other.nonfinite_mismatch for other in others), default=0)
        control = " and ".join(f"'{name}'" for name in again) + ", uploaded again from another call"
        return Rerun(control, tuple(again), tuple(unstable), squares, mismatches, figures)

    def neighbours(self) -> list[OtherRows]:
        rows = []
        for name, other in self.uploads.divergences("neighbours", self.names).items():
            control = f"'{name}' uploaded again, with other requests in its batch"
            is_same = bool(other.is_bit_identical)
            figures = OtherPromptsFigures(
                bit_identical=is_same,
                neq=other.neq,
                rms_logits=other.rms,
            )
            rows.append(OtherRows(name, control, figures))
        return rows

    def without_floor(self, wide: Pair) -> list[Evidence]:
        """Compare how far the pair is apart in 16 bits and in float32: rounding shrinks with the
        precision.
        """
        if self.header.format is FLOAT32 or wide.not_finite is not None:
            return []
        return [shrink_row(self, self.squares, wide.squares, self.available)]

    def differences(self, row: int, dtype: str) -> Floats | None:
        if dtype != self.dtype:
            return None
        return np.square(self._differences(row, row + 1)[0])

    def _differences(self, start: int, stop: int) -> Floats:
        """Return differences of some rows, 0 if one is not finite. [rows, vocab]"""
        reference, variant = (
            values_of(self.figures.read_rows(side, start, stop), self.header.format).astype(
                np.float64,
            )
            for side in (0, self.index + 1)
        )
        with np.errstate(invalid="ignore"):
            differences = variant - reference
        return np.where(np.isfinite(differences), differences, 0.0)

    def differing(self) -> list[Evidence]:
        rows = np.flatnonzero(~self.positions["bit_identical"].to_numpy(bool))
        return [differing_row(rows, self.lengths)] if len(rows) else []

    def arrays_alone(self) -> Evidence | None:
        causes = [cause.says for cause in self.causes]
        return screen(self.header, self.positions, causes, has_experts=self.has_experts)

    @cached_property
    def causes(self) -> Sequence[Cause]:
        if self.is_identical or not self.figures.has_all_logits:
            return []
        causes = explain(rows_of_run(self.figures, self.index)).causes
        return [cause for cause in causes if cause.is_fault]

    def _peaks(self) -> Floats | None:
        """Return `peaks_of` of positions that may have one beyond LARGEST_PEAK, 0 of others.
        [positions]
        """
        if self.is_identical or not self.figures.has_all_logits:
            return None
        dtype = "bfloat16" if may_be_16_bits(self.header) else self.dtype
        step = ROW_ULPS[dtype][2] * (FLOAT32_STEPS if dtype != self.dtype else 1)
        largest, rms = (
            self.positions[name].fillna(0).to_numpy(float)
            for name in ("max_row_ulps", "rms_row_ulps")
        )
        count = np.maximum(self.positions["neq"].to_numpy(float), 1.0)
        others = np.sqrt(np.maximum(rms**2 - FEW * largest**2 / count, 0.0))  # at least
        is_high = largest > LARGEST_PEAK * np.maximum(others, step)
        peaks, size = np.zeros(len(largest)), max(1, _LOGITS // self.header.vocab)
        for start in range(0, len(peaks), size):
            stop = min(start + size, len(peaks))
            if is_high[start:stop].any():
                differences = self._differences(start, stop)
                peaks[start:stop] = peaks_of(
                    differences,
                    step * self.figures.spacing(self.index, (start, stop)),
                )
        return peaks

    def _narrowing(self) -> list[Evidence]:
        errors = self.uploads.divergences("narrowing", self.names)
        if not self.squares.any() or len(errors) < len(self.names):
            return []
        # what is left of a side that computes in float32
        spacing = self.figures.spacing(self.index, (0, self.header.rows))[self.squares > 0]
        one_rounding = float(np.sqrt(np.square(spacing).mean() / 12))
        return [narrowing_row(self, errors, one_rounding)]
