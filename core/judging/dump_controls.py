"""Judge an uploaded dump by its own arrays, and by the dumps that were uploaded with it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..cause import Cause
from ..checks.arrays_alone import (
    FLOAT32_STEPS,
    LARGEST_LOGIT,
    LEAST_VALUES,
    MOST_PEAK,
    ROW_ULPS,
    screening_row,
)
from ..checks.drawn import Exact
from ..checks.narrowing import AGAINST_EXACT, NARROWING, narrowing_row
from ..checks.other_rows import OtherPromptsFigures, OtherRows
from ..checks.outliers import differing_row
from ..checks.pair import NoiseFloor, Pair
from ..checks.rerun import Rerun
from ..checks.shrink import shrink_row
from ..checks.single_logit import LARGEST_PEAK
from ..checks.single_token import FEWEST_ROWS, single_token_row
from ..evidence import Evidence
from ..numerics.arrays import Floats
from ..numerics.formats import FLOAT32, spacings
from ..numerics.side_divergence import ALIKE, FEW, Divergence, peaks_of, systematic_error
from ..numerics.totals import beyond_noise
from ..runs.dumps.source_dtype import PROBABILITIES, looks_normalised
from ..runs.file.records import Generation
from ..runs.measured import Measured
from ..verdict import Verdict
from .controls import Controls, NotAvailableError
from .explain.causes import explain
from .explain.rows import rows_of_run
from .judge import judge
from .validity import FIRST_ROWS, may_be_16_bits, not_finite_of, sampling
from .values import order_row, scale_of_values, some_values

_LOGITS = 1 << 22  # of a side that are read at once
MakeControls = Callable[..., "DumpControls"]  # with the arguments of DumpControls


@dataclass
class UploadedControls:
    """Figures of a run's controls. measured: by kind and side: `rerun` and `neighbours` of a side
    from its rerun, `float32` of a variant from the reference in float32, `narrowing` of one from
    itself in float32, or from the exact result; floor: or the reason why its paths are none;
    controls: their names, `model` among them; exact: errors of all sides, if there are trusted
    results to compare them with.
    """

    measured: dict[tuple[str, str], Divergence] = field(default_factory=dict)
    floor: NoiseFloor | str = ""
    has_experts: bool = False
    controls: frozenset[str] = frozenset()
    exact: Exact | None = None


def judge_upload(
    figures: Measured,
    validity: Sequence[Sequence[Evidence]],
    generations: Sequence[Generation],
    uploads: UploadedControls,
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
        controls = make(
            figures,
            pair,
            uploads,
            rows,
        )
        verdict = replace(judge(controls, earlier_by_pair.get(pair)), pair=pair)
        verdicts.append(verdict.worded(figures.header.worded))
    return verdicts


class DumpControls(Controls):
    """One pair of a dump, with the controls that were uploaded. rows: evidence on its validity and
    its sampler.
    """

    def __init__(
        self,
        figures: Measured,
        pair: int,
        uploads: UploadedControls,
        rows: Sequence[Evidence],
    ) -> None:
        self.figures = figures
        self.index = pair
        self.uploads = uploads
        self.rows = list(rows)
        self.header = figures.header
        self.names = self.header.sides[0].name, self.header.sides[pair + 1].name
        self.lengths = self.header.lengths
        self.dtype = self.header.compute_dtype
        self.has_experts = uploads.has_experts
        self.columns = figures.columns(pair)
        self.squares = self.columns["rms"] ** 2
        self.available = tuple(sorted(uploads.controls)) or None
        self.is_identical = bool(self.columns["bit_identical"].all())

    def validity(self) -> list[Evidence]:
        rows = list(self.rows)
        errors = self._uploaded("narrowing")
        # with trusted results, `exact` compares the errors of the sides
        has_errors = len(errors) == len(self.names) and not self.uploads.exact
        if has_errors and self.squares.any():
            # what is left of a side that computes in float32
            spacing = self.figures.spacing(self.index, (0, self.header.rows))[self.squares > 0]
            one_rounding = float(np.sqrt(np.square(spacing).mean() / 12))
            rows.append(
                narrowing_row(
                    self,
                    errors,
                    one_rounding,
                    NARROWING if "float32" in self.uploads.controls else AGAINST_EXACT,
                )
            )
        if not self.header.has_tokens and self.figures.has_all_logits:
            rows += filter(None, [order_row(self.figures, self.index)])
        return [*rows, *self.single_token()]

    def single_token(self) -> list[Evidence]:
        """Return the row on a token that differs in one direction, none if there is no such one."""
        if self.is_identical or len(self._sampled_rows) < FEWEST_ROWS:
            return []
        row = single_token_row(self, self._sampled_differences, self._sampled_logits)
        return [row] if row else []

    def _uploaded(self, kind: str) -> dict[str, Divergence]:
        """Return the divergences of the pair's sides."""
        every = self.uploads.measured
        return {name: every[kind, name] for name in self.names if (kind, name) in every}

    def pair(self, dtype: str) -> Pair:
        if dtype == self.dtype:
            return Pair(
                self.squares,
                not_finite_of(self.figures, self.index),
                self.is_identical,
                self._peaks(),
            )
        # of other dtypes nothing is uploaded
        wide = self._uploaded(dtype).get(self.names[1])
        if not wide:
            is_given = "float32" in self.uploads.controls
            missing = f"'{self.names[1]}' in {dtype}" if is_given else f"the same pair in {dtype}"
            raise NotAvailableError(
                f"To decide, bring {missing}, with the same weights and tokens."
            )
        return Pair(
            wide.squares,
            not_finite_of(self.figures, self.index, wide),
            wide.neq == 0,
        )

    def floor(self, dtype: str) -> NoiseFloor:
        floor = self.uploads.floor if dtype == "float32" else ""
        if isinstance(floor, NoiseFloor):
            return floor
        is_asked = dtype == self.dtype == "float32"
        raise NotAvailableError(floor or "To decide, bring a noise floor in float32." * is_asked)

    def exact(self) -> Exact:
        exact = self.uploads.exact
        if not exact:
            raise NotAvailableError("")
        return replace(exact, errors={name: exact.errors[name] for name in self.names})

    def rerun(self) -> Rerun:
        again = self._uploaded("rerun")
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
        return Rerun(
            " and ".join(f"'{name}'" for name in again) + ", uploaded again from another call",
            tuple(again),
            tuple(unstable),
            squares,
            mismatches,
            figures,
        )

    def neighbours(self) -> list[OtherRows]:
        return [
            OtherRows(
                name,
                f"'{name}' uploaded again, with other requests in its batch",
                OtherPromptsFigures(
                    bit_identical=bool(other.is_bit_identical),
                    neq=other.neq,
                    rms_logits=other.rms,
                ),
            )
            for name, other in self._uploaded("neighbours").items()
        ]

    def without_floor(self, wide: Pair) -> list[Evidence]:
        """Compare how far the pair is apart in 16 bits and in float32: rounding shrinks with the
        precision.
        """
        if self.header.format is FLOAT32 or wide.not_finite:
            return []
        return [shrink_row(self, self.squares, wide.squares, self.available)]

    def differences(self, row: int, dtype: str) -> Floats | None:
        if dtype != self.dtype:
            return None
        return np.square(self._differences(row, row + 1)[0])

    def _differences(self, start: int, stop: int) -> Floats:
        """Return differences of some rows, 0 if one is not finite. [rows, vocab]"""
        reference, variant = (
            some_values(self.figures, side, (start, stop)) for side in (0, self.index + 1)
        )
        with np.errstate(invalid="ignore"):
            differences = variant - reference
        return np.where(np.isfinite(differences), differences, 0.0)

    def differing(self) -> list[Evidence]:
        rows = np.flatnonzero(~self.columns["bit_identical"])
        return [differing_row(rows, self.lengths)] if len(rows) else []

    def arrays_alone(self) -> Evidence | None:
        columns = self.columns
        rms = np.nan_to_num(columns["rms_row_ulps"])
        peak: float | None = None
        flips: int | None = None
        kl = 0.0
        is_masked = False
        if self._scale:
            rms, peak = self._scale
        else:
            kl = float(np.nan_to_num(columns["kl"]).mean())
            flips = int(beyond_noise(columns).sum())
            (largest_step,) = spacings(np.array([LARGEST_LOGIT]), self.header.format)
            with np.errstate(invalid="ignore", divide="ignore"):
                steps = columns["rms"] / columns["rms_row_ulps"]
            is_masked = bool((steps >= largest_step).any()) or self._has_far_values(steps)
        return screening_row(
            self,
            rms,
            kl=kl,
            flips=flips,
            causes=[cause.says for cause in self.causes],
            may_be_16_bits=may_be_16_bits(self.header),
            peak=peak,
            systematic=self._systematic_share(),
            is_masked=is_masked,
        )

    def _systematic_share(self) -> float:
        """Return the share of the difference that goes with the logits, of some rows of all
        prompts; 0.0 of few rows, which are alike by chance, and of values that are no logits.
        """
        if len(self._sampled_rows) < FEWEST_ROWS:
            return 0.0
        system = systematic_error(self._sampled_differences, self._sampled_logits)
        return min(system.share, 1.0)

    @property
    def _sampled_rows(self) -> list[int]:
        """Rows of all prompts that are compared with one another; none of values that are no
        logits.
        """
        if not (self.figures.has_all_logits and self.header.has_tokens):
            return []
        most = max(_LOGITS // self.header.vocab, FEWEST_ROWS)
        count = min(self.header.rows, ALIKE, most)
        return np.linspace(0, self.header.rows - 1, count).astype(int).tolist()

    @cached_property
    def _sampled_differences(self) -> Floats:
        """Differences of the sampled rows. [rows, vocab]"""
        return np.concatenate([self._differences(row, row + 1) for row in self._sampled_rows])

    @cached_property
    def _sampled_logits(self) -> Floats:
        """The reference's logits of the sampled rows, 0 if not finite. [rows, vocab]"""
        rows = [some_values(self.figures, 0, (row, row + 1)) for row in self._sampled_rows]
        logits = np.concatenate(rows)
        return np.where(np.isfinite(logits), logits, 0.0)

    def _has_far_values(self, steps: Floats) -> bool:
        """Return whether a row has a value far beyond its best and its median one. steps: spacing
        at the largest value of each row.
        """
        if not self.figures.has_all_logits:
            return False
        best = np.nan_to_num(self.figures.best_tokens(0)[1][:, 0])
        # of the largest numbers of a dtype infinite
        with np.errstate(over="ignore"):
            far = MOST_PEAK * np.abs(best)
        rows = np.flatnonzero(steps > spacings(far, self.header.format))
        for row in rows[:: 1 + len(rows) // ALIKE].tolist():
            sizes = np.abs(some_values(self.figures, 0, (row, row + 1)))
            sizes = sizes[np.isfinite(sizes)]
            if sizes.max() > MOST_PEAK * np.median(sizes):
                return True
        return False

    @cached_property
    def _scale(self) -> tuple[Floats, float] | None:
        """None of logits. Probabilities are as uneven as other values."""
        if self.header.has_tokens:
            if not self.figures.has_all_logits:
                return None
            rows = some_values(self.figures, 0, (0, min(FIRST_ROWS, self.header.rows)))
            if looks_normalised(rows) != PROBABILITIES:
                return None
        return scale_of_values(self.figures, self.index)

    @cached_property
    def causes(self) -> Sequence[Cause]:
        # common causes are of logits
        if self.is_identical or not self.figures.has_all_logits or not self.header.has_tokens:
            return []
        causes = explain(rows_of_run(self.figures, self.index)).causes
        return [cause for cause in causes if cause.is_fault]

    def _peaks(self) -> Floats | None:
        """Return `peaks_of` of positions that may have one beyond LARGEST_PEAK, 0 of others.
        [positions]
        """
        if self.is_identical or not self.figures.has_all_logits:
            return None
        # the largest values of uneven rows differ most, and of short ones there are no others
        if self._scale and (self._scale[1] > MOST_PEAK or self.header.vocab < LEAST_VALUES):
            return None
        dtype = "bfloat16" if may_be_16_bits(self.header) else self.dtype
        step = ROW_ULPS[dtype][2] * (FLOAT32_STEPS if dtype != self.dtype else 1)
        largest = np.nan_to_num(self.columns["max_row_ulps"])
        rms = np.nan_to_num(self.columns["rms_row_ulps"])
        count = np.maximum(self.columns["neq"], 1.0)
        others = np.sqrt(np.maximum(rms**2 - FEW * largest**2 / count, 0.0))  # at least
        is_high = largest > LARGEST_PEAK * np.maximum(others, step)
        peaks = np.zeros(len(largest))
        size = max(1, _LOGITS // self.header.vocab)
        for start in range(0, len(peaks), size):
            stop = min(start + size, len(peaks))
            if is_high[start:stop].any():
                differences = self._differences(start, stop)
                peaks[start:stop] = peaks_of(
                    differences,
                    step * self.figures.spacing(self.index, (start, stop)),
                )
        return peaks
