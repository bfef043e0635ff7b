"""Evidence in, verdict out: is a pair's divergence rounding, or a bug? Pure: figures come from
core.inference.controls.judge_model or a run.

Nothing is judged against a constant number of logits or ULPs. A pair is held against this checkpoint's own rounding
floor: what mathematically identical reorderings of the same model, on the same prompts, in the same dtype do to its
logits (docs/verdict_calibration.md).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..numerics.elementary import exp, log
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
    RUNGS,
    SAMPLER,
    VALIDITY,
    Check,
    CheckFigures,
    Evidence,
    NotFiniteFigures,
    OtherPromptsFigures,
    PairFigures,
    RerunFigures,
    SamplerFigures,
    StructureFigures,
    SymmetryFigures,
)
from ..runs.file.records import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    ROUNDING,
    UNDECIDED,
    VERDICTS,
    FloorRows,
)

# Noise ratios up to which a pair may be rounding; docs/verdict_calibration.md has the trial they were chosen by. In 16
# bits another path may also round between operations where the reference does not (a fused kernel), which reordering
# sums does not show.
LARGEST_RATIO = 4.0
LARGEST_RATIO_16_BITS = 10.0
FALSE_ALARM = 1e-3  # chance that one position of a pair of pure rounding stands out, over all of its positions together
BLOCKS = (8, 16, 32, 64, 128, 256)  # block sizes that engines use
_LEAST_PLACES = 3  # that name a block: one place is a multiple of a larger block than its own every other time
_NO_BLOCK = 0.01  # chance that places anywhere are all multiples of a size, above which no block is named
_SMALLER_BLOCK = 0.05  # chance that places of a smaller block are, above which that one is named beside it
# How far a pair of pure rounding shrinks from 16 bits to float32, as a share of what the two precisions differ by;
# `python -m benchmarks.shrink` has the trial. Between the two it is undecided.
SHRINKS_LIKE_ROUNDING = 0.05
SHRINKS_TOO_LITTLE = 0.001
SHRINKS_TOO_MUCH = 10.0  # more than the precisions differ by: the two pairs are not of the same sides
STANDS_OUT_ALONE = 100.0  # times the median position in float32; of rounding without a floor beside it 17 were seen
ASKS_FOR_A_FLOOR = 50.0  # beyond which one position is too far from the median to be passed without a floor
_LOPSIDED = 3.0  # one side further from float64 than the other by more than this is worth a word
# The check of a rung that holds a pair against its floor, and that of a pair that needs none.
PAIR = {OWN_DTYPE: Check.OWN_PAIR, FLOAT32: Check.WIDE_PAIR}
_NOT_FINITE = {OWN_DTYPE: Check.OWN_NOT_FINITE, FLOAT32: Check.WIDE_NOT_FINITE}
_LEAST_SPREAD = (
    0.1  # of log ratios: a handful of positions can agree by luck, and a spread of 0 would make each an outlier
)


@dataclass(frozen=True)
class Verdict:
    """The conclusion of all evidence. `because`: one sentence; noise_ratio: of the float32 pair where it was measured,
    else of the pair.

    first_place: (prompt, position) where a fault shows first, None where none does.
    """

    name: str
    because: str
    evidence: tuple[Evidence, ...]
    noise_ratio: float | None = None
    first_place: tuple[int, int] | None = None

    @property
    def is_bug_suspected(self) -> bool:
        return self.name == BUG_SUSPECTED

    def table(self) -> str:
        """The evidence as plain text, a line a row: rung, outcome, what it says."""
        rungs = max((len(row.rung) for row in self.evidence), default=0)
        outcomes = max((len(row.outcome) for row in self.evidence), default=0)
        rows = [f"  {row.rung:<{rungs}}  {row.outcome:<{outcomes}}  {row.says}" for row in self.evidence]
        return "\n".join([f"{self.name}: {self.because}", *rows])

    def check(self, *, allowed: Sequence[str] = (IDENTICAL, ROUNDING)) -> Verdict:
        """Check a verdict in a test: AssertionError with the evidence unless it is of `allowed`; returns itself."""
        __tracebackhide__ = True
        unknown = [name for name in allowed if name not in VERDICTS]
        if unknown:
            raise UsageError(f"'{unknown[0]}' is no verdict; there are {', '.join(VERDICTS)}.")
        if self.name not in allowed:
            raise AssertionError(self.table())
        return self


@dataclass(frozen=True)
class NotFinite:
    """Logits that are NaN or infinite on one side and not, or not alike, on the other: such a difference has no size.

    by_row: how many at each position of all prompts, some at least; token: the lowest such token id at the first such
    position, text: of it, '' where that is unknown; sides: names of reference and variant; values: theirs at that
    token.
    """

    by_row: NDArray[np.int64]
    token: int
    text: str
    sides: tuple[str, str]
    values: tuple[float, float]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Positions of all prompts that hold one."""
        return np.flatnonzero(self.by_row)

    @property
    def logits(self) -> int:
        return int(self.by_row.sum())

    def says(self, lengths: Sequence[int]) -> str:
        """`'mine' is NaN at position 3, token 7 (' the'), where 'prefill' is 1.25`, and how many more there are; no
        full stop.
        """
        wrong = 0 if np.isfinite(self.values[1]) else 1
        text = f" ({self.text!r})" if self.text else ""
        where = f"{place_in_words(int(self.rows[0]), lengths)}, token {self.token}{text}"
        what, other = (_number_in_words(self.values[side]) for side in (wrong, 1 - wrong))
        places = "one position" if len(self.rows) == 1 else f"{len(self.rows):,} positions"
        more = f"; {self.logits:,} logits at {places} are not finite on one side only" if self.logits > 1 else ""
        return f"'{self.sides[wrong]}' is {what} at {where}, where '{self.sides[1 - wrong]}' is {other}{more}"

    def place(self, lengths: Sequence[int]) -> tuple[int, int]:
        """(prompt, position) of the first."""
        return place_of(int(self.rows[0]), lengths)


def _number_in_words(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{value:.6g}" if np.isfinite(value) else f"{'-' * bool(value < 0)}infinity"


@dataclass(frozen=True)
class FloorTest:
    """A pair against the floor. Ratios are rms over rms of the floor; `by_position` [positions] of all prompts one
    after another.

    ratio: over all positions, at most `largest_ratio` to pass; worst: the largest at one position, at most `threshold`
    to pass; spread: standard deviation of log ratios that rounding has here; seed_ratios: each reordering against the
    others. not_finite: logits that are NaN or infinite on one side only, None where there are none; with any there is
    no ratio (infinity), and their positions are among the outliers.
    """

    ratio: float
    largest_ratio: float
    worst: float
    worst_row: int
    threshold: float
    spread: float
    seed_ratios: tuple[float, ...]
    by_position: NDArray[np.float64]
    outliers: NDArray[np.int64] = field(repr=False)
    not_finite: NotFinite | None = None

    @property
    def nonfinite(self) -> int:
        """Logits that are NaN or infinite on one side only."""
        return self.not_finite.logits if self.not_finite is not None else 0

    @property
    def is_passed(self) -> bool:
        return self.ratio <= self.largest_ratio and not len(self.outliers)

    @property
    def noise_ratio(self) -> float | None:
        """Noise ratio of all positions; None where it has no size."""
        return self.ratio if np.isfinite(self.ratio) else None

    @property
    def finite_worst(self) -> float | None:
        """Largest ratio at one position; None where it has no size."""
        return self.worst if np.isfinite(self.worst) else None


def floor_test(
    pair: NDArray[np.float64],
    floor: NDArray[np.float64],
    *,
    not_finite: NotFinite | None = None,
    is_16_bits: bool = False,
    own_rounding: NDArray[np.float64] | None = None,
    false_alarm: float = FALSE_ALARM,
) -> FloorTest:
    """Mean squares of a pair [positions] against those of reorderings [seeds, positions], in the same dtype.

    Two questions. Is the whole pair larger than rounding? And does any one position stand out, which a mean over
    thousands would hide? For the second, log ratios of rounding are taken as normal around the pair's own median: their
    spread is the larger of what the reorderings show against each other and of what the pair itself shows (median
    absolute deviation, which a fault at fewer than half of the positions hardly moves), and the threshold is where one
    of all positions would pass by chance with probability `false_alarm` (Bonferroni); at least the largest ratio times
    the median in any case. A pair that fails as a whole is no measure of rounding: there the reorderings alone say
    which positions stand out, so that the fault has a place.

    In 16 bits only the first question is asked. A product moves perhaps one element in a thousand there, and what the
    layers make of that one varies by orders of magnitude from position to position, in rounding too; positions are held
    against the floor of their own or of the average position, whichever is larger, and only shown. And sums are kept in
    float32, so in a narrow model another order of them may move nothing at all, where another kernel rounds elsewhere
    and moves all: the floor is the larger of the reorderings and of `own_rounding` [positions], mean squares of a
    forward in 16 bits to the same one in float32.
    """
    seeds, positions = floor.shape
    if pair.shape != (positions,) or seeds < 2:
        raise UsageError(
            f"a pair {pair.shape} against a floor {floor.shape}; expected [positions] and at least two seeds of it."
        )
    largest = LARGEST_RATIO_16_BITS if is_16_bits else LARGEST_RATIO
    mean = floor.mean(axis=0)
    total = float(floor.mean())
    if own_rounding is not None:
        mean, total = np.maximum(mean, own_rounding), max(total, float(own_rounding.mean()))
    least = (
        mean.mean() if is_16_bits else np.median(mean) * 1e-4
    )  # a position whose floor is next to 0 has no scale of its own
    mean = np.maximum(mean, max(float(least), np.finfo(np.float64).tiny))
    by_position = np.sqrt(pair / mean)
    ratio = float(np.sqrt(pair.mean() / total)) if total > 0 else (0.0 if not pair.any() else float("inf"))
    spread, median = _LEAST_SPREAD if is_16_bits else max(_LEAST_SPREAD, _spread_of_seeds(floor)), 1.0
    differs = by_position > 0
    if (
        not is_16_bits and ratio <= largest
    ):  # beyond that the pair's own figures are those of a fault, which has failed already
        median = max(1.0, float(np.median(by_position)))
        if 2 * differs.sum() > positions:  # of a pair equal at most positions, the others are no measure of themselves
            spread = max(spread, _robust_spread(log(by_position[differs])))
    z = NormalDist().inv_cdf(1 - false_alarm / positions)
    threshold = float("inf") if is_16_bits else median * max(largest, float(exp(z * spread)))
    if not_finite is not None:  # over the finite logits alone it would look small
        ratio = float("inf")
        by_position[not_finite.rows] = np.inf
    worst_row = int(np.argmax(by_position))
    return FloorTest(
        ratio=ratio,
        largest_ratio=largest,
        worst=float(by_position[worst_row]),
        worst_row=worst_row,
        threshold=threshold,
        spread=spread,
        seed_ratios=tuple(float(x) for x in _seed_ratios(floor)),
        by_position=by_position,
        outliers=np.flatnonzero((by_position > threshold) | np.isinf(by_position)),
        not_finite=not_finite,
    )


def three_digits(ratio: float) -> str:
    """`15,300`, `24.1`, `0.532`: three digits that matter, without an exponent below a billion."""
    return f"{float(f'{ratio:.3g}'):,.0f}" if 1000 <= ratio < 1e9 else f"{ratio:.3g}"


def place_of(row: int, lengths: Sequence[int]) -> tuple[int, int]:
    """(prompt, position) of a row of prompts of these lengths, one after another."""
    begins = np.cumsum([0, *lengths])
    prompt = int(np.searchsorted(begins, row, side="right")) - 1
    return prompt, int(row - begins[prompt])


def place_in_words(row: int, lengths: Sequence[int]) -> str:
    """`position 3 of prompt 1`: a row of prompts of these lengths, one after another; of a single prompt the position
    alone.
    """
    for prompt, length in enumerate(lengths):
        if row < length:
            return f"position {row}" + (f" of prompt {prompt}" if len(lengths) > 1 else "")
        row -= length
    return f"row {row}"


def floor_evidence(
    test: FloorTest,
    rung: str,
    dtype: str,
    control: str,
    pair: NDArray[np.float64],
    floor: NDArray[np.float64],
    lengths: Sequence[int],
    maps: int = 0,
    whose: str = "this model's own rounding floor",
    floor_row_ulps: float | None = None,
) -> Evidence:
    """The row of a pair [positions] that was held against a floor [positions], both mean squares; maps: linear maps
    reordered, 0 if none; whose: the floor in words; floor_row_ulps: its 99.9th percentile, None where not measured.
    """
    figures = PairFigures(
        compute_dtype=dtype,
        noise_ratio=test.noise_ratio,
        largest_ratio_allowed=test.largest_ratio,
        pair_rms_logits=float(np.sqrt(pair.mean())),
        floor_rms_logits=float(np.sqrt(floor.mean())),
        seed_ratios=test.seed_ratios,
        worst_position_ratio=test.finite_worst,
        position_ratio_allowed=test.threshold if np.isfinite(test.threshold) else None,
        positions=len(pair),
        positions_beyond=len(test.outliers),
        log_spread=test.spread,
        nonfinite_mismatch=test.nonfinite,
        linear_maps=maps or None,
        floor_row_ulps=floor_row_ulps,
        first_nonfinite=(*test.not_finite.place(lengths), test.not_finite.token) if test.not_finite else None,
    )
    outcome = PASSED if test.is_passed else FAILED
    return Evidence(PAIR[rung], control, figures, outcome, _says(test, dtype, lengths, whose))


def not_finite_evidence(broken: NotFinite, rung: str, dtype: str, control: str, lengths: Sequence[int]) -> Evidence:
    """The row of a pair of which no floor is needed: one side holds a NaN or an infinity that the other has not."""
    figures = NotFiniteFigures(
        compute_dtype=dtype,
        noise_ratio=None,
        nonfinite_mismatch=broken.logits,
        positions_beyond=len(broken.rows),
        first_nonfinite=(*broken.place(lengths), broken.token),
    )
    return Evidence(_NOT_FINITE[rung], control, figures, FAILED, _broken_says(broken, dtype, lengths))


def _broken_says(broken: NotFinite, dtype: str, lengths: Sequence[int]) -> str:
    return f"In {dtype}, {broken.says(lengths)}. Such a difference has no size, so no ratio is given."


def _says(test: FloorTest, dtype: str, lengths: Sequence[int], whose: str) -> str:
    if test.not_finite is not None:
        return _broken_says(test.not_finite, dtype, lengths)
    if test.ratio > test.largest_ratio:
        return (
            f"In {dtype} the pair is {three_digits(test.ratio)} times {whose}; rounding stays below"
            f" {test.largest_ratio:g}."
        )
    if len(test.outliers):
        where = place_in_words(int(test.outliers[0]), lengths)
        count = "one position stands" if len(test.outliers) == 1 else f"{len(test.outliers):,} positions stand"
        return (
            f"In {dtype} the pair as a whole is {test.ratio:.2f} times the rounding floor, but {count} out, {where}"
            f" first: up to {three_digits(test.worst)} times the floor there, where rounding stays below"
            f" {test.threshold:.3g}."
        )
    stands_out = ", and no position stands out" if np.isfinite(test.threshold) else ""
    return f"In {dtype} the pair is {test.ratio:.2f} times {whose}{stands_out}."


@dataclass(frozen=True)
class ShrinkTest:
    """A pair in 16 bits beside the same pair in float32, where no floor is to be had.

    shrink: how many times smaller the pair is in float32; full: how many times finer float32 is; share: shrink over
    full; moved: of the positions that differ in float32, the share that differs in 16 bits too; worst: the largest
    position in float32 over the median one; worst_row: where; stands_out: does a position fail by itself? outcome:
    passed, failed, or missing, which says that a floor is needed.
    """

    shrink: float
    full: float
    share: float
    moved: float
    worst: float
    worst_row: int
    stands_out: bool
    outcome: str


def shrink_test(narrow: NDArray[np.float64], wide: NDArray[np.float64], significand_bits: int) -> ShrinkTest:
    """Mean squares of a pair [positions] in a dtype of so many significand bits (bfloat16 8, float16 11), and in
    float32 (24).

    Rounding errors are proportional to the unit roundoff (Higham, Accuracy and Stability of Numerical Algorithms,
    section 2.2), so a pair of pure rounding shrinks with it, by a factor that is a fixed share of 2^(24 - bits) for a
    model; a fault is another function and does not shrink. Positions equal in float32 say nothing and are left out.
    Where hardly any position moves in 16 bits (another order of sums that rounds to the same bits), the pair's size
    there is no measure, and only a floor decides.
    """
    if narrow.shape != wide.shape or narrow.ndim != 1:
        raise UsageError(
            f"a pair {narrow.shape} against the same in float32 {wide.shape}; expected [positions] of both."
        )
    full = 2.0 ** (24 - significand_bits)
    differs = wide > 0
    if not differs.any():  # equal in float32, rounding apart in 16 bits
        return ShrinkTest(float("inf"), full, float("inf"), 1.0, 0.0, 0, False, PASSED)
    coarse, fine = np.sqrt(narrow), np.sqrt(wide)
    shrink = float(np.sqrt(narrow[differs].mean() / wide[differs].mean()))
    moved = float((narrow[differs] > 0).mean())
    relative = fine / np.median(fine[differs])
    stands_out = (relative > STANDS_OUT_ALONE) & (coarse > 0) & (coarse < SHRINKS_TOO_LITTLE * full * fine)
    worst_row = int(np.argmax(relative))
    outcome = MISSING
    if stands_out.any() or (shrink < SHRINKS_TOO_LITTLE * full and moved >= 0.5):
        outcome = FAILED
    elif SHRINKS_LIKE_ROUNDING * full <= shrink <= SHRINKS_TOO_MUCH * full and relative[worst_row] <= ASKS_FOR_A_FLOOR:
        outcome = PASSED
    worst = float(relative[worst_row])
    return ShrinkTest(shrink, full, shrink / full, moved, worst, worst_row, bool(stands_out.any()), outcome)


def is_larger_everywhere(test: FloorTest) -> bool:
    """True where the pair is beyond the floor at nine of ten positions: by a lowered precision, not by some jumps."""
    return float(np.quantile(test.by_position, 0.1)) > test.largest_ratio


def _others(floor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean square of the other seeds, for each seed. [seeds, positions]"""
    return (floor.sum(axis=0) - floor) / (len(floor) - 1)


def _seed_ratios(floor: NDArray[np.float64]) -> NDArray[np.float64]:
    """Noise ratio of each seed against the others, over all positions. [seeds]"""
    others = _others(floor).mean(axis=1)
    return np.sqrt(np.divide(floor.mean(axis=1), others, out=np.ones(len(floor)), where=others > 0))


def _spread_of_seeds(floor: NDArray[np.float64]) -> float:
    """Standard deviation of the log ratio of one seed to the others at a position."""
    others = _others(floor)
    known = (floor > 0) & (others > 0)
    logs = 0.5 * log(floor[known] / others[known])
    return _robust_spread(logs)


def _robust_spread(logs: NDArray[np.float64]) -> float:
    """Standard deviation of a normal with this median absolute deviation; 0 of nothing. Rousseeuw and Croux (1993)."""
    return float(1.4826 * np.median(np.abs(logs - np.median(logs)))) if len(logs) else 0.0


@dataclass(frozen=True)
class Structure:
    """Places of the positions that stand out. starts: of runs of neighbouring ones; block: the likeliest size of
    `blocks` for these starts, None where chance explains them or they are too few; smaller_block: one that they do not
    rule out, None where they do; tail: they are all from the first one on. places: different starts beside 0, which
    every block has.
    """

    rows: int
    first: tuple[int, int] | None
    starts: tuple[int, ...]
    block: int | None
    is_tail: bool
    smaller_block: int | None = None
    places: int = 0

    def figures(self, of: int | None = None) -> StructureFigures:
        """Its figures for evidence. of: positions looked at, where that is to be said."""
        return StructureFigures(
            positions=self.rows,
            of=of,
            first=self.first,
            starts=self.starts,
            block=self.block,
            smaller_block=self.smaller_block,
            is_tail=self.is_tail,
        )

    @property
    def block_in_words(self) -> str:
        """`a multiple of 16, a block's boundary`; '' where no block is named."""
        if self.block is None:
            return ""
        if self.smaller_block is None:
            return f"a multiple of {self.block}, a block's boundary"
        return (
            f"a multiple of {self.block}: a boundary of blocks of {self.block}, or of {self.smaller_block}, which"
            f" {self.places} places do not tell apart"
        )


def structure_of(outliers: NDArray[np.int64], lengths: Sequence[int], blocks: Sequence[int] = BLOCKS) -> Structure:
    """`outliers`: rows, prompts of `lengths` positions one after another."""
    if not len(outliers):
        return Structure(0, None, (), None, False)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    prompts = np.searchsorted(begins, outliers, side="right") - 1
    places = outliers - begins[prompts]
    is_start = np.ones(len(outliers), bool)
    is_start[1:] = (np.diff(outliers) > 1) | (np.diff(prompts) > 0)
    starts = places[is_start]
    inner = np.unique(starts[starts > 0])  # every prompt starts at a multiple of everything
    block, smaller = _likeliest_block(inner, blocks)
    first = (int(prompts[0]), int(places[0]))
    is_tail = all(
        set(places[prompts == p]) >= set(range(int(places[prompts == p].min()), lengths[p])) for p in np.unique(prompts)
    )
    return Structure(len(outliers), first, tuple(int(s) for s in starts[:64]), block, is_tail, smaller, len(inner))


def _likeliest_block(places: NDArray[np.int64], blocks: Sequence[int]) -> tuple[int | None, int | None]:
    """(the size whose boundaries these places are most likely drawn from, the smallest other that chance leaves
    possible).

    Of a block of b tokens a boundary is a multiple of B with probability b / B, so n places that are all multiples of B
    are (B / b)^n times likelier under B; under no block at all (b = 1), B^n times.
    """
    fitting = sorted(size for size in blocks if not (places % size).any())
    if len(places) < _LEAST_PLACES or not fitting or float(fitting[-1]) ** -len(places) > _NO_BLOCK:
        return None, None
    best = fitting[-1]
    return best, next((size for size in fitting[:-1] if (size / best) ** len(places) > _SMALLER_BLOCK), None)


def structure_evidence(shown: Structure, test: FloorTest, lengths: Sequence[int]) -> Evidence:
    """The row on where positions stand out from the deciding floor. Never decides."""
    control = "positions of the pair that stand out from the floor, in the dtype that decided"
    figures = shown.figures()
    if not shown.rows:
        says = "No position stands out from the floor" + (
            ", it is larger everywhere alike." if test.ratio > test.largest_ratio else "."
        )
        return Evidence(Check.OUTLIERS, control, figures, NOTED if test.ratio > test.largest_ratio else PASSED, says)
    first = place_in_words(int(test.outliers[0]), lengths)
    parts = [f"It begins at {first}{_of_position_0(shown, test)}"]
    if shown.rows == sum(lengths):
        parts.append("and is everywhere")
    elif shown.is_tail:
        parts.append("and goes on to the end")
    if shown.block:
        parts.append(f"; every place where it begins is {shown.block_in_words}")
    return Evidence(Check.OUTLIERS, control, figures, NOTED, " ".join(parts).replace(" ;", ";") + ".")


def _of_position_0(shown: Structure, test: FloorTest) -> str:
    """Reason why a fault that begins at position 1 may have been made at 0: one key has all the weight there, whatever
    the key and the scale are.
    """
    if shown.first is None or shown.first[1] != 1:
        return ""
    ratio = float(test.by_position[test.outliers[0] - 1])
    if ratio:
        return f" (at position 0 it is {ratio:.2f} times the floor)"
    return (
        " (position 0, where attention has one key only, is equal: a fault of keys, masks, scales or positions cannot"
        " show there)"
    )


def symmetry_evidence(control: str, names: tuple[str, str], errors: tuple[float, float]) -> Evidence:
    """The row on which of two sides, by name, is further from float64, by their rms in logits. Of two that only round,
    neither. Never decides.
    """
    figures = SymmetryFigures(reference_rms_logits=errors[0], variant_rms_logits=errors[1])
    low, high = sorted(errors)
    if high <= _LOPSIDED * max(low, np.finfo(np.float64).tiny):
        says = "Both sides are about equally far from float64: by this, neither is nearer to the exact result."
        return Evidence(Check.FROM_FLOAT64, control, figures, PASSED, says)
    further = names[int(errors[1] > errors[0])]
    times = (
        f"{three_digits(high / low)} times further from float64 than the other side"
        if low
        else "the only one that is not at float64"
    )
    return Evidence(Check.FROM_FLOAT64, control, figures, NOTED, f"'{further}' is {times}.")


def sampler_evidence(
    tokens: Sequence[int],
    argmaxes: Sequence[int | Collection[int]],
    side: str | None = None,
    places: Sequence[str] = (),
) -> Evidence:
    """Evidence on whether each emitted token is the argmax of the logits it was chosen from. Right logits and a wrong
    token are a fault of the sampler.

    tokens: what was emitted [positions]; argmaxes: of the same side's logits at the same positions, the lowest token
    id, or all ids that share the largest logit where the sampler may take any of them; side: its name; places: each
    token's position in words, if it is not its index.
    """
    if len(tokens) != len(argmaxes):
        raise UsageError(f"{len(tokens)} emitted tokens against {len(argmaxes)} argmaxes; expected one for each.")
    allowed = [{best} if isinstance(best, int | np.integer) else set(best) for best in argmaxes]
    wrong = [position for position, token in enumerate(tokens) if token not in allowed[position]]
    figures = SamplerFigures(tokens=len(tokens), not_the_argmax=len(wrong), first=wrong[0] if wrong else None)
    whose = "the side" if side is None else f"'{side}'"
    control = f"emitted tokens against the argmax of {whose}'s own logits"
    if not wrong:
        says = "Every emitted token is the argmax of its own logits."
        return Evidence(Check.EMITTED, control, figures, PASSED, says, side)
    where = places[wrong[0]] if places else f"position {wrong[0]}"
    says = (
        f"{len(wrong):,} of {len(tokens):,} emitted tokens are not the argmax of their own logits, {where} first: the "
        "sampler does not take the most likely token."
    )
    return Evidence(Check.EMITTED, control, figures, FAILED, says, side)


def conclude(
    evidence: Sequence[Evidence],
    *,
    is_bit_identical: bool,
    missing_command: str = "",
    noise_ratio: float | None = None,
    first_place: tuple[int, int] | None = None,
) -> Verdict:
    """The verdict that rows of evidence come to; what fails first on the ladder decides, and what is missing decides
    nothing.
    """
    rows = tuple(sorted(_without_leaks_of_unsteady_sides(evidence), key=lambda row: row.height))
    found = {rung: [row for row in rows if row.rung == rung] for rung in RUNGS}

    def failed(rung: str) -> Evidence | None:
        return next((row for row in found[rung] if row.outcome == FAILED), None)

    def passed(rung: str) -> bool:
        return any(row.outcome == PASSED for row in found[rung]) and failed(rung) is None

    def verdict(name: str, because: str) -> Verdict:
        return Verdict(name, because, rows, noise_ratio, first_place)

    invalid = failed(VALIDITY)
    if invalid is not None:
        return verdict(INVALID_DUMP, invalid.says)
    # both sides may be in one, and each has to be nothing else
    is_lower = bool(found[PRECISION]) and all(row.outcome == PASSED for row in found[PRECISION])
    lower = " ".join(row.says for row in found[PRECISION]) if is_lower else None
    deciding = (SAMPLER, NEIGHBOURS, FLOAT32, OWN_DTYPE) if lower is None else (SAMPLER, NEIGHBOURS)
    bug = next((row for rung in deciding if (row := failed(rung)) is not None), None)
    if bug is not None:
        on_top = failed(PRECISION)
        return verdict(BUG_SUSPECTED, bug.says if on_top is None else f"{bug.says} {on_top.says}")
    rerun = failed(RERUN)
    if lower is not None:
        if rerun is not None:
            return verdict(NONDETERMINISTIC, f"{rerun.says} Beyond that it is a lower precision: {lower}")
        return verdict(LOWER_PRECISION, lower)
    if is_bit_identical and rerun is None:
        return verdict(IDENTICAL, "Both sides are equal bit for bit.")
    if passed(FLOAT32):
        decided = next(row for row in found[FLOAT32] if row.outcome == PASSED)
        if rerun is not None:
            return verdict(NONDETERMINISTIC, f"{rerun.says} Beyond that it is rounding: {decided.says}")
        return verdict(ROUNDING, decided.says)
    missing = next((row for row in rows if row.outcome == MISSING and row.rung == FLOAT32), None)
    lacking = (
        missing.says
        if missing is not None
        else "The same pair in float32, against a float32 rounding floor, is missing."
    )
    supply = f" This would supply it: {missing_command}" if missing_command else ""
    if rerun is not None:
        return verdict(NONDETERMINISTIC, f"{rerun.says} Whether there is more to it is undecided: {lacking}{supply}")
    return verdict(UNDECIDED, f"{lacking}{supply}")


def _without_leaks_of_unsteady_sides(evidence: Sequence[Evidence]) -> list[Evidence]:
    """Rows in which a side that does not repeat its own bits is not accused of a leak because they moved again beside
    other prompts. Where it is known how far, by no more than LARGEST_RATIO times as far as from one call to the next.
    """
    far: dict[str, float | None] = {}
    for row in evidence:
        if isinstance(row.figures, RerunFigures):
            far |= dict.fromkeys(row.figures.not_repeatable, row.figures.rerun_rms_logits)
    found = []
    for row in evidence:
        if isinstance(row.figures, OtherPromptsFigures) and row.outcome == FAILED and row.side in far:
            here, again = row.figures.rms_logits, far[row.side]
            if here is None or again is None or here <= LARGEST_RATIO * again:
                says = (
                    f"'{row.side}' gives other bits beside other prompts, but it does not give the same bits twice"
                    " beside the same ones either: that shows no leak."
                )
                row = replace(row, outcome=NOTED, says=says)
        found.append(row)
    return found


class Ladder:
    """One pair on trial, over what its source can supply: a model everything, a dump what was brought beside it.

    names: of reference and variant; lengths: of the prompts, in positions. `evidence` and `floors` fill up from rung to
    rung; broken: what is NaN or infinite on one side only, in the first dtype where anything is.
    """

    def __init__(self, names: tuple[str, str], lengths: Sequence[int]) -> None:
        self.names, self.lengths = names, list(lengths)
        self.evidence: list[Evidence] = []
        self.floors: list[FloorRows] = []
        self.broken: NotFinite | None = None

    def add(
        self, check: Check, control: str, figures: CheckFigures, outcome: str, says: str, side: str | None = None
    ) -> None:
        """Add one row of evidence."""
        self.evidence.append(Evidence(check, control, figures, outcome, says, side))

    def rerun(self, control: str, called: Sequence[str], figures: RerunFigures, beside: str = "") -> None:
        """Add whether each side that was called again gives the same bits. beside: how far those are that do not, in a
        sentence.
        """
        moved = figures.not_repeatable
        who, rest = (" and ".join(f"'{name}'" for name in names) for names in (moved, set(self.names) - set(called)))
        says = "Each side gives the same bits when it is called again."
        if moved:
            does = "does" if len(moved) == 1 else "do"
            says = f"{who} {does} not give the same bits twice: something in it is nondeterministic.{beside}"
        elif rest:
            says = f"'{called[0]}' gives the same bits when it is called again; {rest} was not called again."
        self.add(Check.AGAIN, control, figures, FAILED if moved else PASSED, says)

    def neighbours(
        self, side: str, control: str, figures: OtherPromptsFigures, says: tuple[str, str, str], *, has_experts: bool
    ) -> None:
        """Add whether other requests in the other rows leave a side's bits alone. says: that they do; that they do not,
        in a mixture of experts, whose rows share products; that data leaks.
        """
        outcome = PASSED if figures.bit_identical else NOTED if has_experts else FAILED
        self.add(Check.OTHER_PROMPTS, control, figures, outcome, says[(PASSED, NOTED, FAILED).index(outcome)], side)

    def against_floor(
        self,
        rung: str,
        dtype: str,
        control: str,
        pair: NDArray[np.float64],
        floor: NDArray[np.float64],
        *,
        not_finite: NotFinite | None = None,
        own_rounding: NDArray[np.float64] | None = None,
        maps: int = 0,
        whose: str = "this model's own rounding floor",
        floor_row_ulps: float | None = None,
    ) -> FloorTest:
        """Hold a pair [positions] against its floor [seeds, positions], both mean squares; see `floor_test` and
        `floor_evidence`.
        """
        is_16_bits = dtype not in ("float32", "float64")
        test = floor_test(pair, floor, not_finite=not_finite, is_16_bits=is_16_bits, own_rounding=own_rounding)
        mean = floor.mean(axis=0) if own_rounding is None else np.maximum(floor.mean(axis=0), own_rounding)
        self.floors.append(FloorRows(dtype, np.sqrt(pair), np.sqrt(mean)))
        about = maps, whose, floor_row_ulps
        self.evidence.append(floor_evidence(test, rung, dtype, control, pair, mean, self.lengths, *about))
        return test

    def not_finite(self, broken: NotFinite, rung: str, dtype: str, control: str) -> None:
        """Add the evidence of a pair with a NaN or an infinity on one side only; no floor is needed."""
        self.evidence.append(not_finite_evidence(broken, rung, dtype, control, self.lengths))

    def stands_out(self, test: FloorTest, blocks: Sequence[int] = BLOCKS) -> tuple[int, int] | None:
        """Add where positions stand out from the floor that decided. -> (prompt, position) of the first"""
        shown = structure_of(test.outliers, self.lengths, blocks)
        self.evidence.append(structure_evidence(shown, test, self.lengths))
        return shown.first
