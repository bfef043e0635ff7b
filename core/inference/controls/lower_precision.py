"""Test of a side for lower precision: is it the same function in one? Asked where a pair is beyond its floor.

docs/verdict_calibration.md has the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError
from ...judging.divergence import Divergence, mean_squares
from ...judging.ladder import FloorTest, floor_test, place_in_words, structure_of, three_digits
from ...judging.sixteen_bits import SixteenTest
from ...runs.file.evidence import (
    FAILED,
    MISSING,
    NOTED,
    PASSED,
    Check,
    DrawnFigures,
    DrawnPrecisionFigures,
    Evidence,
    ExplainedFigures,
    PrecisionsFigures,
)
from ..models.dtype_conversion import converted
from ..models.float64 import in_float64
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import Emit, Run
from ..paths.engines import RunnableSide, seen_by
from ..paths.hooks import ModuleTrace
from .answer_precision import grid_of
from .drawn_roundings import PREFILL, sixteen_rows
from .precisions import CACHE, LAYERS, Precision, Stored, catalogue, ways_to_store
from .reordering import reordered
from .rounding_floor import EXACT_BYTES, as_many_as, divergence, groups_of, in_float32, whole_side

_SCREENED = 48  # positions from the first that differs on, by which precisions are told apart
_ALIKE = 10.0  # floors within which a side is at the model's own
_LEAST_LEFT = 1e-3  # below which precisions are not told apart by what they leave
_MOST_LEFT = 0.5  # of a side's distance, beyond which a precision explains nothing
# of its distance to float32: between two values of 8 bits, 16 bits often fall to the other one than float32 does
_MOST_LEFT_16_BITS = 0.9
_EXPLAINED = 0.1  # of a side's distance, up to which a precision is named though something is left
_LOOKED_INTO = 3
_AS_GOOD = 3.0  # times what the best one leaves
_ALL_BUT_A_FEW = 0.3  # of a side's distance, which values that fall to the other side do not make up
_SOME = 0.2  # of the positions that differ: a fault on top may be everywhere else
_MOST_TIES = 0.01  # of the logits
_LEAST_OF_WHOLE = 0.5  # of what rounding drawn anew is from float32: a model in 16 bits throughout is no nearer


@dataclass(frozen=True)
class Lowered:
    """The row of evidence, and what judging needs of it. place: (prompt, position) of a fault on top; side, precision:
    which is what, None of a whole model in 16 bits.
    """

    evidence: Evidence
    place: tuple[int, int] | None = None
    side: RunnableSide | None = None
    precision: Precision | None = None


@dataclass(frozen=True)
class _Trial:
    """One precision beside a side: what it leaves, held against its own floor.

    left: share of the side's distance; ties: of a precision of the logits, the share of them that are one value of that
    dtype further, 0 where any is further than that: what lies in the middle of two values falls to either by rounding
    alone, and a few reorderings need not show it.
    """

    precision: Precision
    left: float
    test: FloorTest
    dtype: str
    ties: float = 0.0

    @property
    def is_passed(self) -> bool:
        return self.left <= _MOST_LEFT and (self.test.is_passed or 0 < self.ties <= _MOST_TIES)


def lowered(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sides: tuple[RunnableSide, RunnableSide],
    floor: NDArray[np.float64],
    seeds: Sequence[int],
    blocks: Sequence[int] = (),
    say: Callable[[str], None] = lambda _: None,
    *,
    given: Sequence[Precision] = (),
    is_fixed: bool = False,
) -> Lowered | None:
    """loaded: in float32, or in float64 where that decides; floor: mean squares of its reorderings [seeds, positions];
    given: precisions of the caller's own, tried before those that engines offer; is_fixed: sides cannot be computed in
    float64.

    None where neither side is the model's own, so that nothing can be said of the other.
    """
    further = _further(loaded, prompts, sides, floor)
    if further is None:
        return None
    side, distance, scale, ratio, control = further
    best = _screened(loaded, prompts, side, distance, scale, given, say)
    trials = []
    for precision, left in best[:_LOOKED_INTO]:
        if left > max(_AS_GOOD * best[0][1], _LEAST_LEFT):
            break
        say(f"{len(seeds)} reorderings with {precision.name}")
        trials.append(_tried(loaded, prompts, side, precision, distance, seeds, is_fixed=is_fixed))
        if trials[-1].is_passed:
            break
    trials = [trial for trial in trials if np.isfinite(trial.left)]
    lengths = [len(ids) for ids in prompts]
    if trials and (trials[-1].is_passed or best[0][1] <= _EXPLAINED):
        return _explained(
            trials[-1] if trials[-1].is_passed else trials[0], side, control, ratio, loaded.dtype, lengths
        )
    if loaded.dtype != "float64":  # where every cast to float32 gives float64, which no model of 16 bits has
        whole = _whole_model(loaded, prompts, side, control, ratio, blocks, say)
        if whole is not None:
            return whole
    figures = PrecisionsFigures(noise_ratio=ratio)
    if best:
        figures = replace(figures, precision=best[0][0].name, share_left=best[0][1])
        says = (
            f"No precision explains it: {best[0][0].name} comes nearest and leaves {_percent(best[0][1])} of the"
            " distance where it explains most."
        )
    else:
        says = (
            "None of the precisions that were tried (caches and weights of 4, 8 and 16 bits, products in TF32, a head"
            " in 16 bits) explains it."
        )
    return Lowered(Evidence(Check.PRECISIONS, control, figures, NOTED, says, side.name))


def wholly_lowered(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sides: tuple[RunnableSide, RunnableSide],
    floor: NDArray[np.float64],
    blocks: Sequence[int] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Lowered | None:
    """The question of `lowered` that needs a model in float32, where float64 answers the others: is the side the model
    computed in 16 bits throughout? None too where its logits are of no such dtype.
    """
    further = _further(loaded, prompts, sides, floor)
    if further is None:
        return None
    side, _, _, ratio, control = further
    return _whole_model(loaded, prompts, side, control, ratio, blocks, say)


def _further(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sides: tuple[RunnableSide, RunnableSide],
    floor: NDArray[np.float64],
) -> tuple[RunnableSide, NDArray[np.float64], float, float, str] | None:
    """(the side further from the model's own forward, its mean squares to that [positions], the floor's mean square,
    root of their ratio, the control in words); None where the other side is not the model's own.
    """
    scale = float(floor.mean())
    apart = [mean_squares(_apart(loaded, prompts, PREFILL, side)) for side in sides]
    near, far = sorted((0, 1), key=lambda which: float(apart[which].mean()))
    if apart[near].mean() > _ALIKE**2 * scale:
        return None
    ratio = float(np.sqrt(apart[far].mean() / max(scale, np.finfo(np.float64).tiny)))
    control = f"'{sides[far].name}' against the model's own forward in precisions that engines offer"
    return sides[far], apart[far], scale, ratio, control


def _apart(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], one: RunnableSide, other: RunnableSide
) -> list[Divergence]:
    found = []
    for ids in prompts:
        plain = whole_side(one.run_on(loaded), ids)
        found.append(divergence(plain, other.run_on(loaded), ids))
    return found


def _screened(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: RunnableSide,
    distance: NDArray[np.float64],
    scale: float,
    given: Sequence[Precision],
    say: Callable[[str], None],
) -> list[tuple[Precision, float]]:
    """(precision, share of the side's distance that it leaves at the positions that it explains best), least first, of
    the shortest prompt that differs.
    """
    begins = np.concatenate([[0], np.cumsum([len(ids) for ids in prompts])])
    for number in sorted(range(len(prompts)), key=lambda place: len(prompts[place])):
        own = distance[begins[number] : begins[number + 1]]
        beyond = np.flatnonzero(own > _ALIKE**2 * scale)
        if len(beyond):
            break
    else:
        return []
    first = int(beyond[0])
    wanted = whole_side(side.run_on(loaded), prompts[number])
    say("other precisions")

    def left_by(precision: Precision, stop: int) -> float:
        """Infinity where the model cannot be computed so: attention that it has no eager form of, a cache of its own
        kind.
        """
        ids, differs = prompts[number][:stop], beyond[beyond < stop]
        try:
            with foreign_errors_stop(precision.name, "leave it out"):
                apart = divergence(wanted[:stop], precision.side.run_on(loaded), ids)
        except CaptureError:
            return float("inf")
        if apart.nonfinite_mismatch:  # beyond the format's range, which the finite logits alone would not show
            return float("inf")
        left = mean_squares([apart])
        return float(np.sqrt(np.quantile(left[differs] / own[differs], _SOME)))

    if first:  # weights, products and what is rounded before it is read show at position 0 already
        caches = [replace(each, stored=Stored(first, 1)) for each in (*given, *catalogue(loaded)) if each.part == CACHE]
        at_first = [(each, left_by(each, first + 1)) for each in caches]
        chosen = [
            replace(each, stored=way) for each, left in at_first if left < _MOST_LEFT for way in ways_to_store(first)
        ]
    else:
        chosen = [*given, *catalogue(loaded)]
    found = [(precision, left_by(precision, first + _SCREENED)) for precision in chosen]
    return sorted((each for each in found if each[1] < _MOST_LEFT), key=lambda each: each[1])


def _tried(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: RunnableSide,
    precision: Precision,
    distance: NDArray[np.float64],
    seeds: Sequence[int],
    *,
    is_fixed: bool,
) -> _Trial:
    """Try a precision in float32, and where that fails in float64: a value in the middle of two of a coarse format
    falls to either by rounding alone.
    """
    trial = _residual(loaded, prompts, side, precision, distance, seeds)
    if trial.is_passed or is_fixed or trial.left > _ALL_BUT_A_FEW:
        return trial
    try:
        with foreign_errors_stop("float64", "choose a smaller model"), in_float64(loaded) as widened:
            wider = _residual(widened, prompts, side, precision, distance, seeds)
    except CaptureError:
        return trial
    return wider if wider.is_passed else trial


def _residual(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: RunnableSide,
    precision: Precision,
    distance: NDArray[np.float64],
    seeds: Sequence[int],
) -> _Trial:
    """The side against the model in this precision, held against that one's own rounding floor."""
    pair: list[Divergence] = []
    floor: list[list[Divergence]] = [[] for _ in seeds]
    own, ties = precision.side, _Ties(precision.dtype)
    for group in groups_of(loaded, prompts):
        plain = [whole_side(own.run_on(loaded), ids) for ids in group]
        pair += [
            divergence(each, seen_by(side.run_on(loaded), ties.counting(each)), ids)
            for each, ids in zip(plain, group, strict=True)
        ]
        _add_reorderings(floor, loaded, own, group, plain, seeds)
    squares = mean_squares(pair)
    test = floor_test(squares, np.stack([mean_squares(of_seed) for of_seed in floor]))
    is_finite = not any(one.nonfinite_mismatch for one in (*pair, *(one for of_seed in floor for one in of_seed)))
    left = float(np.sqrt(squares.mean() / distance.mean())) if is_finite else float("inf")
    return _Trial(precision, left, test, loaded.dtype, ties.share)


def _add_reorderings(
    floor: list[list[Divergence]],
    loaded: LoadedModel,
    own: RunnableSide,
    group: Sequence[Sequence[int]],
    plain: Sequence[torch.Tensor],
    seeds: Sequence[int],
) -> None:
    """Adds to each seed's divergences those of `own` with its linear maps reordered, to itself as it is: `plain`
    [positions, vocab], a prompt each.
    """
    for of_seed, seed in zip(floor, seeds, strict=True):
        with own.open(loaded, None) as run, reordered(loaded.model, seed):
            of_seed += [divergence(each, run, ids) for each, ids in zip(plain, group, strict=True)]


class _Ties:
    """Counts logits that differ, as long as each is one value of the dtype further."""

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._logits = self._differ = 0
        self._is_more = dtype is None

    @property
    def share(self) -> float:
        return 0.0 if self._is_more or not self._logits else self._differ / self._logits

    def counting(self, plain: torch.Tensor) -> Emit:
        """Counts against a prompt's logits. [positions, vocab]"""

        def count(start: int, logits: torch.Tensor) -> None:
            if not self._is_more and self._dtype is not None:
                mine, other = logits.to(self._dtype), plain[start : start + len(logits)].to(self._dtype)
                places = (ordinals(mine) - ordinals(other)).abs()
                self._logits, self._differ = self._logits + places.numel(), self._differ + int(places.count_nonzero())
                self._is_more = bool((mine.to(logits.dtype) != logits).any()) or bool((places > 1).any())

        return count


def _explained(
    trial: _Trial, side: RunnableSide, control: str, ratio: float, dtype: str, lengths: Sequence[int]
) -> Lowered:
    """ratio: of the side, in `dtype`, to the model in that dtype."""
    test = trial.test
    figures = ExplainedFigures(
        noise_ratio=ratio,
        precision=trial.precision.name,
        compute_dtype=trial.dtype,
        share_left=trial.left,
        left_noise_ratio=test.noise_ratio,
        worst_position_ratio=test.finite_worst,
        position_ratio_allowed=test.threshold,
        positions_beyond=len(test.outliers),
    )
    what = f"'{side.name}' is the model's own function with its {trial.precision.name}"
    if trial.is_passed:
        left = f"what is left is {test.ratio:.2f} times that precision's own floor in {trial.dtype}"
        if not test.is_passed:
            left = (
                f"of all logits {_percent(trial.ties)} fall to the next value, as what lies between two does by"
                " rounding"
            )
        says = f"{what}, {three_digits(ratio)} rounding floors from {dtype}, and nothing else: {left}."
        row = Evidence(Check.EXPLAINED, control, figures, PASSED, says, side.name)
        return Lowered(row, None, side, trial.precision)
    shown = structure_of(test.outliers, lengths)
    where = f", {place_in_words(int(test.outliers[0]), lengths)} first" if len(test.outliers) else ""
    says = (
        f"A lower precision is part of it: its {trial.precision.name}. What that leaves is"
        f" {three_digits(max(test.ratio, test.worst))} times this precision's own rounding floor in"
        f" {trial.dtype}{where}: a fault on top of it."
    )
    return Lowered(Evidence(Check.EXPLAINED, control, figures, FAILED, says, side.name), shown.first)


def _whole_model(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: RunnableSide,
    control: str,
    ratio: float,
    blocks: Sequence[int],
    say: Callable[[str], None],
) -> Lowered | None:
    """A side that answers on the grid of a 16-bit dtype: beside the model computed in that dtype throughout, its
    rounding drawn anew.

    What it answered when it was asked for float32 is held there, not what it would make of a model in 16 bits.
    """
    chosen = as_many_as(prompts, EXACT_BYTES // (4 * loaded.vocab_size))
    answers = {tuple(ids): whole_side(side.run_on(loaded), ids).float() for ids in chosen}
    grid = grid_of(list(answers.values()))
    if grid is None:
        return None
    dtype = grid[0]
    try:
        with converted(loaded, dtype) as narrowed:
            rows, failed = sixteen_rows(narrowed, chosen, [answering(side.name, answers)], blocks, say)
    except CaptureError as error:
        says = (
            f"All logits of '{side.name}' are {dtype} values, and beside the model in {dtype} it cannot be held:"
            f" {error}"
        )
        nearest = PrecisionsFigures(noise_ratio=ratio, precision=dtype)
        return Lowered(Evidence(Check.PRECISIONS, control, nearest, NOTED, says, side.name))
    row = rows[0]
    figures = _beside_draws(row, ratio, f"all of it in {dtype}")
    far, own = figures.ratio_over_draws, float(np.median(figures.model_ways_ratios))

    def found(outcome: str, says: str, place: tuple[int, int] | None = None) -> Lowered:
        return Lowered(Evidence(Check.DRAWN_PRECISION, control, figures, outcome, says, side.name), place)

    what = f"'{side.name}' computes in {dtype}, {three_digits(ratio)} rounding floors from float32."
    if row.outcome != FAILED and far < _LEAST_OF_WHOLE * own:
        says = (
            f"All logits of '{side.name}' are {dtype} values, but it is nearer to float32 than a model in {dtype}"
            " throughout is."
        )
        return found(NOTED, says)
    if row.outcome == PASSED:
        return found(PASSED, f"{what} {row.says}")
    if row.outcome == MISSING and far <= own / _LEAST_OF_WHOLE and not figures.nonfinite_mismatch:
        says = (
            f"{what} Its error is {far / own:.2f} times that of the model's own ways in {dtype}, whose roundings are no"
            f" measure position by position (near ties of a router): faults below {1 / _LEAST_OF_WHOLE:g} times the"
            " rounding over all positions are not seen."
        )
        return found(PASSED, says)
    says = f"All logits of '{side.name}' are {dtype} values. {row.says}"
    place = structure_of(failed.outliers, [len(ids) for ids in chosen]).first if failed else None
    return found(FAILED if row.outcome == FAILED else NOTED, says, place)


def _beside_draws(row: Evidence, ratio: float, precision: str) -> DrawnPrecisionFigures:
    """Figures of a side in a lower precision. row: of its error beside roundings drawn anew; ratio: over the floor."""
    assert isinstance(row.figures, DrawnFigures)
    of_draws = vars(row.figures) | {"noise_ratio": ratio}
    return DrawnPrecisionFigures(**of_draws, precision=precision, ratio_over_draws=row.figures.noise_ratio)


def checked_in_16_bits(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    found: Lowered,
    seeds: Sequence[int],
    say: Callable[[str], None],
) -> Lowered:
    """`found` checked in the model's own 16 bits, where the pair fails too: does the precision explain it there, or
    have the 16-bit kernels a fault of their own?
    """
    if found.side is None or found.precision is None or found.evidence.outcome != PASSED:
        return found
    own = found.precision.side
    say(f"{len(seeds)} reorderings in {loaded.dtype} with {own.name}")
    pair: list[Divergence] = []
    rounding: list[Divergence] = []
    floor: list[list[Divergence]] = [[] for _ in seeds]
    for group in groups_of(loaded, prompts):
        plain = [whole_side(own.run_on(loaded), ids) for ids in group]
        pair += [divergence(each, found.side.run_on(loaded), ids) for each, ids in zip(plain, group, strict=True)]
        _add_reorderings(floor, loaded, own, group, plain, seeds)
        with in_float32(loaded) as widened:
            rounding += [divergence(each, own.run_on(widened), ids) for each, ids in zip(plain, group, strict=True)]
    test = floor_test(
        mean_squares(pair),
        np.stack([mean_squares(of_seed) for of_seed in floor]),
        is_16_bits=True,
        own_rounding=mean_squares(rounding),
    )
    row = found.evidence
    if any(one.nonfinite_mismatch for one in pair):
        says = f"{row.says} In {loaded.dtype} that precision cannot be computed: logits are NaN or infinite."
        return Lowered(replace(row, outcome=NOTED, says=says))
    if test.is_passed:
        return found
    says = (
        f"In float32 its {own.name} is all that parts '{found.side.name}' from the model, and in {loaded.dtype} it is"
        f" not: what that leaves there is {three_digits(test.ratio)} times its own rounding floor, so the kernels of"
        f" {loaded.dtype} have a fault of their own."
    )
    figures = replace(row.figures, **{f"left_noise_ratio_{loaded.dtype}": test.noise_ratio})
    return Lowered(replace(row, figures=figures, outcome=FAILED, says=says))


def lowered_in_16_bits(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: RunnableSide,
    failed: SixteenTest,
    blocks: Sequence[int],
    given: Sequence[Precision] = (),
    say: Callable[[str], None] = lambda _: None,
) -> Lowered | None:
    """`lowered` for an engine that has nothing but 16 bits, and is further from the model's float32 forward than
    rounding: is it rounding beside a forward with an 8-bit cache, or with weights of 4 bits? loaded: in its 16 bits;
    failed: that error's test.
    """
    ids = min(prompts, key=len)
    starts = structure_of(failed.outliers, [len(each) for each in prompts]).first
    tried = [each for each in (*given, *catalogue(loaded)) if each.part in (CACHE, LAYERS)]
    if starts is not None and starts[1]:
        ways = ways_to_store(starts[1])
        tried += [replace(each, stored=way) for each in tried if each.part == CACHE for way in ways]
    wanted = whole_side(side.run_on(loaded), ids)
    say("other precisions")
    with in_float32(loaded) as widened:

        def left_by(one: RunnableSide) -> float:
            try:
                with foreign_errors_stop(one.name, "leave it out"):
                    apart = divergence(wanted, one.run_on(widened), ids)
            except CaptureError:
                return float("inf")
            return float("inf") if apart.nonfinite_mismatch else float(mean_squares([apart]).mean())

        distance = left_by(PREFILL)
        left, best = min(((left_by(each.side), number) for number, each in enumerate(tried)), default=(distance, 0))
    if left > _MOST_LEFT_16_BITS**2 * distance:
        return None
    precision = tried[best]
    say(f"roundings drawn anew with {precision.name}")
    rows, still = sixteen_rows(loaded, prompts, [side], blocks, say, precision.side)
    control = (
        f"'{side.name}' in {loaded.dtype} against the model's own float32 forward in precisions that engines offer"
    )
    figures = _beside_draws(rows[0], failed.ratio, precision.name)
    if still is None and rows[0].outcome == PASSED:
        what = f"'{side.name}' is the model's own function in {loaded.dtype} with its {precision.name}"
        says = (
            f"{what}, {three_digits(failed.ratio)} times the rounding from float32. Beside that precision:"
            f" {rows[0].says}"
        )
        return Lowered(Evidence(Check.DRAWN_PRECISION, control, figures, PASSED, says, side.name))
    says = f"{precision.name} comes nearest and does not explain it. {rows[0].says}"
    says = says[0].upper() + says[1:]
    return Lowered(Evidence(Check.DRAWN_PRECISION, control, figures, NOTED, says, side.name))


def answering(name: str, answers: Mapping[tuple[int, ...], torch.Tensor]) -> RunnableSide:
    """A side that gives what was recorded, by the prompt's token ids."""

    @contextmanager
    def opened(_: LoadedModel, __: ModuleTrace | None) -> Iterator[Run]:
        yield lambda ids, emit: emit(0, answers[tuple(ids)])

    return RunnableSide(name, opened)


def ordinals(values: torch.Tensor) -> torch.Tensor:
    """Ordinals of values of a 16-bit dtype, both zeros at 0. int32, same shape"""
    bits = values.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
