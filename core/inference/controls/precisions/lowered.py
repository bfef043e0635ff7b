"""Test of a side for lower precision: the model itself in each precision, by what that leaves of the side's distance.

The best few are held to their own noise floor in float32, and to roundings drawn anew in 16 bits
(docs/verdict_calibration.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray

from ....errors import CaptureError
from ....judging import judge
from ....judging.divergence import mean_squares
from ....judging.judge import DRAWN, WIDE
from ....judging.places import place_in_words
from ....judging.statistic import BLOCKS, FloorTest, floor_test
from ....judging.structure import structure_of
from ....runs.file import evidence
from ....runs.file.evidence import FAILED, MISSING, NOTED, PASSED, Check, Evidence
from ....text import three_digits
from ...models.dtypes import converted, in_float32, in_float64
from ...models.model import LoadedModel, has_experts
from ...models.torch_errors import foreign_errors_stop
from ...paths.engines import PLAIN, RunnableSide, answering, divergence, divergences_of, known, whole_side
from ..answer_precision import grid_of
from ..drawn_roundings import compared_with_draws
from ..rounding_floor import LOGIT_BYTES, as_many_as, rounding_floor
from .catalogue import CACHE, LAYERS, Precision, Stored, catalogue

Squares = NDArray[np.float64]
SCREENED = 48  # positions from the first that differs on, by which precisions are told apart
MOST_LEFT = 0.5  # of a side's distance, beyond which a precision explains nothing
# Of its distance to float32. Between two values of 8 bits, 16 bits often fall to the other one than float32 does: an
# fp8 cache of a tiny Gemma 2 leaves 0.96. Whether it is that precision is a question to roundings drawn anew.
MOST_LEFT_16_BITS = 1.0
_NEARBY = 3  # positions around the best one at which 16 bits may hide where a cache begins to be rounded
_ALIKE = 10.0  # floors within which a side is at the model's own
_LOOKED_INTO, _AS_GOOD, _LEAST_LEFT = 3, 1.2, 1e-3  # precisions; times what the best one leaves; not told apart below
_EXPLAINED, _SOME = 0.1, 0.2  # of a side's distance, up to which a precision is part of it; of the positions
_MOST_TIES = 0.01  # of the logits
_EXCESS_LEFT = 0.5  # of the squared error beyond rounding to 16 bits: less may go by chance
_FEWEST_EXPLAINED = 3  # positions before a fault, by which the precision under it is known
_LEAST_OF_WHOLE = 0.5  # of what rounding drawn anew is from float32: a model in 16 bits throughout is no nearer


@dataclass(frozen=True)
class Question:
    """Prompts that sides are asked on. seeds: of reorderings; blocks: sizes that a fault may begin at multiples of;
    given: precisions that were declared, tried first.
    """

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int] = ()
    blocks: Sequence[int] = BLOCKS
    say: Callable[[str], None] = lambda _: None
    given: Sequence[Precision] = ()

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.prompts]


@dataclass(frozen=True)
class Lowered(judge.Lowered):
    """side, precision: which is what, None of a whole model in 16 bits; beyond: positions that differ by more."""

    side: RunnableSide | None = None
    precision: Precision | None = None
    beyond: float = np.inf


def rms_ratio(squares: NDArray[np.float64], measure: NDArray[np.float64] | float) -> float:
    """Return the ratio of rms of two arrays of mean squares."""
    return float(np.sqrt(squares.mean() / max(float(np.mean(measure)), np.finfo(np.float64).tiny)))


def best_precisions(
    question: Question,
    loaded: LoadedModel,
    own: LoadedModel,
    side: RunnableSide,
    differs: NDArray[np.bool_],
    offered: Sequence[Precision],
    floor: float = 0.0,
) -> list[Precision]:
    """Rank precisions by the share of a side's distance that each leaves (geometric mean); return the best few.

    Of the shortest prompt that differs, over SCREENED positions from the first one on. own: the model that the side is
    run on; differs: from `loaded` by more than rounding [all positions]; floor: mean square of the noise floor in
    float32, 0 in 16 bits, which hide where a cache begins to be rounded.
    """
    question.say("other precisions")
    pairs = list(zip(question.prompts, np.split(differs, np.cumsum(question.lengths)[:-1]), strict=True))
    if not differs.any():
        return []
    prompt, at = min((pair for pair in pairs if pair[1].any()), key=lambda pair: len(pair[0]))
    first, wanted, is_noisy = int(np.argmax(at)), whole_side(side.run_on(own), prompt), not floor
    start = prompt[: first + SCREENED]

    def distance(side: RunnableSide, ids: Sequence[int] = start) -> NDArray[np.float64] | None:
        """Return mean squares; None if the model cannot be computed so, or a value is beyond the format's range."""
        with suppress(CaptureError), foreign_errors_stop(side.name, "leave it out"):
            one = divergence(wanted[: len(ids)], side.run_on(loaded), ids)
            return None if one.nonfinite_mismatch else one.mean_squares[: len(start)] + (floor or 1e-300)
        return None

    plain = distance(PLAIN)
    assert plain is not None

    @cache
    def left(precision: Precision) -> float:
        is_whole = precision in question.given and precision.stored is None  # its scales may be of the whole prompt
        squares = distance(precision.side, prompt if is_whole else start)
        return np.inf if squares is None else float(np.exp(np.log(squares / plain).sum() / (2 * (len(start) - first))))

    def stored_from(starts: Collection[int], caches: Sequence[Precision]) -> list[Precision]:
        """Later tokens come one at a time, as many again, all in one, or are rounded before they are read."""
        ways = [Stored(n, chunk) for n in starts if n > 0 for chunk in (1, n, 1 << 30)]
        ways += [Stored(n, 1 << 30, is_read_back=True) for n in starts if n > 0]
        return [replace(each, stored=way) for each in caches for way in ways]

    def explains_start(precision: Precision) -> bool:
        """Return whether it explains the first position that differs, at which all ways to store a cache are one."""
        squares = distance(replace(precision, stored=Stored(first, 1)).side, prompt[: first + 1])
        return squares is not None and bool(squares[first] < MOST_LEFT**2 * plain[first])

    # weights, products and what is rounded before it is read show at position 0 already
    tried = list(offered) if first == 0 or is_noisy else []
    caches = [each for each in offered if each.part == CACHE]
    caches = caches if is_noisy else [each for each in caches if first > 0 and explains_start(each)]
    tried += stored_from({first, _rise(plain)} if is_noisy else {first}, caches)
    nearest = min(tried, key=left, default=None)
    if is_noisy and nearest is not None and nearest.stored is not None:
        begin = nearest.stored.first
        tried += stored_from(range(begin - _NEARBY, begin + _NEARBY + 1), [nearest])
    best = sorted(dict.fromkeys(tried), key=left)[:_LOOKED_INTO]
    most = MOST_LEFT_16_BITS if is_noisy else MOST_LEFT
    return [each for each in best if left(each) < min(most, max(_AS_GOOD * left(best[0]), _LEAST_LEFT))]


def _rise(squares: NDArray[np.float64]) -> int:
    """Return the position from which on more is left, at which two levels of the logarithm differ most; 0 if none."""
    logs, count = np.log(squares), np.arange(1, len(squares))
    sums = np.cumsum(logs)
    rise = (sums[-1] - sums[:-1]) / (len(logs) - count) - sums[:-1] / count
    score = count * (len(logs) - count) * np.maximum(rise, 0.0) ** 2
    return int(count[np.argmax(score)]) if score.any() else 0


def _row(
    question: Question,
    side: RunnableSide,
    figures: evidence.PrecisionsFigures | evidence.ExplainedFigures | evidence.DrawnPrecisionFigures,
    outcome: str = NOTED,
    outliers: NDArray[np.int64] | None = None,
    precision: Precision | None = None,
) -> Lowered:
    """outliers: positions at which more than that precision's noise is left."""
    check = next(each for each in Check if each.record is type(figures))
    far, name = three_digits(figures.noise_ratio), figures.precision
    places = [] if outliers is None else outliers.tolist()
    where = f", from {place_in_words(places[0], question.lengths)}" if len(places) else ""
    says = {
        PASSED: f"'{side.name}' is the model with {name}: {far}x the noise floor, nothing but that precision's noise.",
        FAILED: f"A fault on top of a lower precision, {name}{where}.",
        NOTED: f"No lower precision explains '{side.name}'; {name} comes closest.",
    }[outcome]
    if figures.precision is None:
        says = f"No declared or usual lower precision explains '{side.name}'."
    place = structure_of(np.asarray(places, np.int64), question.lengths).first if outcome == FAILED else None
    control = f"'{side.name}' compared with the model in lower precisions"
    return Lowered(Evidence(check, control, figures, outcome, says, side.name), place, side, precision, len(places))


def _best_of(question: Question, side: RunnableSide, ratio: float, trials: Iterable[Lowered]) -> Lowered:
    """Return the first trial that passes, or else the one that leaves a fault at the fewest positions."""
    tried = [replace(_row(question, side, evidence.PrecisionsFigures(noise_ratio=ratio)), beyond=np.inf)]
    for one in trials:
        tried.append(one)
        if one.evidence.outcome == PASSED:
            break
    return min(tried, key=lambda one: ((PASSED, FAILED, NOTED).index(one.evidence.outcome), one.beyond))


# Held to their own noise floor


def lowered(question: Question, loaded: LoadedModel, sides: Sequence[RunnableSide], floor: Squares) -> list[Lowered]:
    """Judge each side that is further from the model than rounding, or the further one. loaded: in the dtype that
    decides; floor: mean squares of its reorderings [seeds, positions].
    """
    every = [(side, mean_squares(divergences_of(loaded, question.prompts, (PLAIN, side)))) for side in sides]
    is_torn = has_experts(loaded.model) and loaded.dtype != "float64"  # by near ties, in sound sides too

    def is_own(far: Squares) -> bool:
        return rms_ratio(far, floor) <= _ALIKE and (is_torn or floor_test(far, floor, WIDE).is_passed)

    beyond = [each for each in every if not is_own(each[1])] or sorted(every, key=lambda each: float(each[1].mean()))[
        -1:
    ]
    return [_lowered(question, loaded, side, far, float(floor.mean())) for side, far in beyond]


def _lowered(question: Question, loaded: LoadedModel, side: RunnableSide, far: Squares, floor: float) -> Lowered:
    def trials() -> Iterator[Lowered]:
        offered = [*question.given, *catalogue(loaded)]
        for precision in best_precisions(question, loaded, loaded, side, far > _ALIKE**2 * floor, offered, floor):
            yield _held_to_floor(question, loaded, side, precision, far, floor)
            wide = None  # the middle of two values is rounded to either, in float64 more seldom
            with suppress(CaptureError), foreign_errors_stop("float64", "leave it out"), in_float64(loaded) as widened:
                wide = _held_to_floor(question, widened, side, precision, far, floor)
            if wide is not None and wide.evidence.outcome == PASSED:
                yield wide

    best = _best_of(question, side, rms_ratio(far, floor), trials())
    # in float64 every cast to float32 gives float64: there is no model of 16 bits
    if loaded.dtype == "float64" or best.evidence.outcome != NOTED:
        return best
    return whole_model(question, loaded, side, rms_ratio(far, floor)) or best


def _held_to_floor(
    question: Question, loaded: LoadedModel, side: RunnableSide, precision: Precision, far: Squares, floor: float
) -> Lowered:
    """far: mean squares of the side to the model [positions]; floor: mean square of the model's noise floor."""
    question.say(f"{len(question.seeds)} reorderings with {precision.name}")
    squares, ties, dtype = [], [], precision.dtype
    for ids in question.prompts:
        plain, answer = whole_side(precision.side.run_on(loaded), ids), whole_side(side.run_on(loaded), ids)
        one = divergence(plain, known(answer), ids)
        squares.append(np.full(len(ids), np.inf) if one.nonfinite_mismatch else one.mean_squares)
        # logits that are the next value of the dtype, as the middle of two values is by rounding
        is_near = dtype is not None and torch.allclose(answer, plain, rtol=torch.finfo(dtype).eps, atol=0.0)
        ties.append(float((answer != plain).double().mean()) if is_near else np.inf)
    left, differs = np.concatenate(squares), far > _ALIKE**2 * floor
    test = floor_test(left, rounding_floor(loaded, question.prompts, question.seeds, precision.side).squares, WIDE)
    figures = evidence.ExplainedFigures(
        noise_ratio=rms_ratio(far, floor),
        precision=precision.name,
        compute_dtype=loaded.dtype,
        share_left=rms_ratio(left, far),
        left_noise_ratio=test.noise_ratio,
        worst_position_ratio=test.worst,
        position_ratio_allowed=test.position.allowed,
        positions_beyond=len(test.outliers),
    )
    if figures.share_left <= MOST_LEFT and (test.is_passed or 0 < np.mean(ties) <= _MOST_TIES):
        return _row(question, side, figures, PASSED, precision=precision)
    outcome = FAILED if np.mean(left[differs] <= _EXPLAINED**2 * far[differs]) >= _SOME else NOTED
    return _row(question, side, figures, outcome, test.outliers, precision)


# Held to roundings drawn anew in 16 bits


def _drawn_figures(row: Evidence, ratio: float, precision: str) -> evidence.DrawnPrecisionFigures:
    """row: of the side's error over that of roundings drawn anew in the precision; ratio: over the noise floor."""
    assert isinstance(row.figures, evidence.DrawnFigures)
    figures = structs.asdict(row.figures) | {"noise_ratio": ratio, "ratio_over_draws": row.figures.noise_ratio}
    return evidence.DrawnPrecisionFigures(**figures, precision=precision)


def _compared_with_draws(
    question: Question, loaded: LoadedModel, side: RunnableSide, precision: Precision
) -> tuple[Evidence, FloorTest]:
    question.say(f"roundings drawn anew with {precision.name}")
    options = {"say": question.say, "plain": precision.side, "without": [PLAIN]}
    return compared_with_draws(loaded, question.prompts, side, question.blocks, **options)


def checked_in_16_bits(question: Question, loaded: LoadedModel, found: Lowered) -> Lowered:
    """Check what explains a side in float32 in the model's own 16 bits: do its kernels have a fault of their own?"""
    if found.side is None or found.precision is None or found.evidence.outcome != PASSED:
        return found
    name, dtype = found.precision.name, loaded.dtype
    with suppress(CaptureError):
        row, test = _compared_with_draws(question, loaded, found.side, found.precision)
        if row.outcome == FAILED:
            size, figures = three_digits(test.ratio), {f"left_noise_ratio_{dtype}": test.ratio}
            says = (
                f"{name} explains float32, not {dtype}: {size}x the error of rounding, a fault of the {dtype} kernels."
            )
            changed = structs.replace(found.evidence.figures, **figures)
            return Lowered(replace(found.evidence, figures=changed, outcome=FAILED, says=says))
    return found


def whole_model(question: Question, loaded: LoadedModel, side: RunnableSide, ratio: float) -> Lowered | None:
    """Judge a side of 16-bit answers by the model in that dtype throughout; None if they are of no 16-bit dtype."""
    chosen = as_many_as(question.prompts, LOGIT_BYTES // (4 * loaded.vocab_size))
    answers = [whole_side(side.run_on(loaded), ids).float() for ids in chosen]
    grid = grid_of(torch.cat(answers))
    if grid is None:
        return None
    recorded = answering(side.name, chosen, answers)
    with suppress(CaptureError), converted(loaded, grid) as narrowed:
        row, test = compared_with_draws(narrowed, chosen, recorded, question.blocks, say=question.say)
        figures = _drawn_figures(row, ratio, f"all of it in {grid}")
        over_own = figures.ratio_over_draws / float(np.median(figures.model_ways_ratios))
        outcome = FAILED if row.outcome == FAILED else NOTED
        if over_own >= _LEAST_OF_WHOLE and not figures.nonfinite_mismatch:
            # draws may be no measure by position (near ties of a router); the model's own paths are one over all
            is_near = row.outcome == MISSING and over_own <= 1 / _LEAST_OF_WHOLE
            outcome = PASSED if row.outcome == PASSED or is_near else outcome
        return _row(replace(question, prompts=chosen), side, figures, outcome, test.outliers)
    return None


def lowered_in_16_bits(question: Question, loaded: LoadedModel, side: RunnableSide, failed: FloorTest) -> Lowered:
    """Judge a side that has nothing but 16 bits. loaded: in its 16 bits; failed: its error's test."""
    differs, ratio = np.zeros(sum(question.lengths), bool), failed.ratio
    differs[failed.outliers if len(failed.outliers) else slice(None)] = True
    usual = [each for each in catalogue(loaded) if each.part in (CACHE, LAYERS)]
    offered = [each for each in (*question.given, *usual) if _is_coarser(each, loaded.torch_dtype)]
    with in_float32(loaded) as widened:
        best = best_precisions(question, widened, loaded, side, differs, offered)

    def held_to_draws(precision: Precision) -> Lowered:
        row, test = _compared_with_draws(question, loaded, side, precision)
        is_less = ratio <= DRAWN.over_all or test.ratio**2 - 1 <= _EXCESS_LEFT * (ratio**2 - 1)
        # a fault on top begins behind positions that the precision explains
        before = failed.outliers[failed.outliers < min(test.outliers, default=0)]
        is_part = row.outcome == FAILED and len(before) >= _FEWEST_EXPLAINED
        outcome = PASSED if row.outcome == PASSED and is_less else FAILED if is_part else NOTED
        outcome = outcome if test.holds_its_precisions else NOTED
        figures = _drawn_figures(row, ratio, precision.name)
        return _row(question, side, figures, outcome, test.outliers, precision)

    return _best_of(question, side, ratio, map(held_to_draws, best))


def _is_coarser(precision: Precision, dtype: torch.dtype) -> bool:
    """Return whether it rounds what is of a 16-bit dtype already."""
    values = (
        torch.linspace(-2, 2, 512).to(dtype).float().reshape((1, 1, 4, 128) if precision.part == CACHE else (4, 128))
    )
    return not torch.equal(precision.rounding(values), values)
