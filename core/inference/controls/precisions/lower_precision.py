"""Test of a side for lower precision: is it the same function in one? Asked where a pair is beyond its floor.

docs/verdict_calibration.md has the method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ....errors import CaptureError
from ....judging.divergence import Divergence, mean_squares
from ....judging.ladder.noise_ratio import FloorTest, floor_test
from ....judging.ladder.places import place_in_words
from ....judging.ladder.structure import structure_of
from ....runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence, ExplainedFigures, PrecisionsFigures
from ....text import short_percent, three_digits
from ...models.float64 import in_float64
from ...models.model import LoadedModel, has_experts
from ...models.torch_errors import foreign_errors_stop
from ...paths.batch import Emit
from ...paths.engines import RunnableSide, seen_by
from ..drawn_roundings import PREFILL
from ..rounding_floor import divergence, groups_of, in_float32, whole_side
from .catalogue import Precision
from .in_16_bits import whole_model
from .lowered_side import Far, Lowered, add_reorderings
from .search import MOST_LEFT, PrecisionFit, PrecisionSearch, precisions_offered

_ALIKE = 10.0  # floors within which a side is at the model's own
_LEAST_LEFT = 1e-3  # below which precisions are not told apart by what they leave
_EXPLAINED = 0.1  # of a side's distance, up to which a precision is named though something is left
_LOOKED_INTO = 3
_AS_GOOD = 3.0  # times what the best one leaves
_ALL_BUT_A_FEW = 0.3  # of a side's distance, which values that fall to the other side do not make up
_MOST_TIES = 0.01  # of the logits


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
        return self.left <= MOST_LEFT and (self.test.is_passed or 0 < self.ties <= _MOST_TIES)


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
) -> list[Lowered]:
    """Each side that is further from the model than rounding, or the further one of two that are not.

    loaded: in float32, or in float64 where that decides; floor: mean squares of its reorderings [seeds, positions];
    given: precisions of the caller's own, tried before those that engines offer; is_fixed: sides cannot be computed in
    float64.
    """
    return [
        _lowered(loaded, prompts, far, seeds, blocks, say, given, is_fixed=is_fixed)
        for far in _further(loaded, prompts, sides, floor)
    ]


def wholly_lowered(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sides: tuple[RunnableSide, RunnableSide],
    floor: NDArray[np.float64],
    blocks: Sequence[int] = (),
    say: Callable[[str], None] = lambda _: None,
) -> list[Lowered]:
    """The question of `lowered` that needs a model in float32, where float64 answers the others: is a side the model
    computed in 16 bits throughout? Not those whose logits are of no such dtype.
    """
    found = [whole_model(loaded, prompts, far, blocks, say) for far in _further(loaded, prompts, sides, floor)]
    return [each for each in found if each is not None]


def _further(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sides: tuple[RunnableSide, RunnableSide],
    floor: NDArray[np.float64],
) -> list[Far]:
    scale = float(floor.mean())
    found = [Far(side, mean_squares(_apart(loaded, prompts, PREFILL, side)), scale) for side in sides]
    is_torn = has_experts(loaded.model) and loaded.dtype != "float64"  # by near ties, in sound sides too

    def is_own(far: Far) -> bool:
        is_near = float(far.distance.mean()) <= _ALIKE**2 * scale
        return is_near and (is_torn or floor_test(far.distance, floor).is_passed)

    beyond = [far for far in found if not is_own(far)]
    return beyond or [max(found, key=lambda far: float(far.distance.mean()))]


def _lowered(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    far: Far,
    seeds: Sequence[int],
    blocks: Sequence[int],
    say: Callable[[str], None],
    given: Sequence[Precision],
    *,
    is_fixed: bool,
) -> Lowered:
    search = _search(loaded, prompts, far, precisions_offered(loaded, given, is_fixed=is_fixed))
    say("other precisions")
    best = search.found() if search is not None else []
    trials: list[_Trial] = []
    for each in best[:_LOOKED_INTO]:  # those that leave about as little as the best, up to the first that passes
        if each.left > max(_AS_GOOD * best[0].left, _LEAST_LEFT) or (trials and trials[-1].is_passed):
            break
        say(f"{len(seeds)} reorderings with {each.precision.name}")
        trials.append(_tried(loaded, prompts, far, each.precision, seeds, is_fixed=is_fixed))
    trials = [trial for trial in trials if np.isfinite(trial.left)]
    lengths = [len(ids) for ids in prompts]
    if trials and trials[-1].is_passed:
        return _explained(trials[-1], far, loaded.dtype, lengths)
    if trials and best[0].left <= _EXPLAINED:
        return _explained(trials[0], far, loaded.dtype, lengths)
    if loaded.dtype != "float64":  # where every cast to float32 gives float64: no model of 16 bits
        whole = whole_model(loaded, prompts, far, blocks, say)
        if whole is not None:
            return whole
    return _unexplained(far, best[:1])


def _unexplained(far: Far, nearest: Sequence[PrecisionFit]) -> Lowered:
    figures = PrecisionsFigures(noise_ratio=far.ratio)
    says = (
        "None of the precisions that were tried (8-bit caches, weights of 4 and 8 bits, products in TF32, a head in 16"
        " bits) explains it."
    )
    if nearest:
        best = nearest[0]
        figures = replace(figures, precision=best.precision.name, share_left=best.left)
        says = (
            f"No precision explains it: {best.precision.name} comes nearest and leaves"
            f" {short_percent(best.left)} of the distance where it explains most."
        )
    return Lowered(Evidence(Check.PRECISIONS, far.control, figures, NOTED, says, far.side.name))


def _apart(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], one: RunnableSide, other: RunnableSide
) -> list[Divergence]:
    found = []
    for ids in prompts:
        plain = whole_side(one.run_on(loaded), ids)
        found.append(divergence(plain, other.run_on(loaded), ids))
    return found


def _search(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], far: Far, offered: Sequence[Precision]
) -> PrecisionSearch | None:
    """A search on the shortest prompt that differs by more than rounding; None where none does."""
    limit = _ALIKE**2 * far.scale
    begins = np.concatenate([[0], np.cumsum([len(ids) for ids in prompts])])
    for number in sorted(range(len(prompts)), key=lambda place: len(prompts[place])):
        differs = far.distance[begins[number] : begins[number + 1]] > limit
        if differs.any():
            wanted = whole_side(far.side.run_on(loaded), prompts[number])
            return PrecisionSearch(loaded, prompts[number], wanted, differs, limit, offered)
    return None


def _tried(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    far: Far,
    precision: Precision,
    seeds: Sequence[int],
    *,
    is_fixed: bool,
) -> _Trial:
    """Try a precision in float32, and where that fails in float64: a value in the middle of two of a coarse format
    falls to either by rounding alone.
    """
    trial = _residual(loaded, prompts, far, precision, seeds)
    if trial.is_passed or is_fixed or trial.left > _ALL_BUT_A_FEW:
        return trial
    try:
        with foreign_errors_stop("float64", "choose a smaller model"), in_float64(loaded) as widened:
            wider = _residual(widened, prompts, far, precision, seeds)
    except CaptureError:
        return trial
    return wider if wider.is_passed else trial


def _residual(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], far: Far, precision: Precision, seeds: Sequence[int]
) -> _Trial:
    """The side against the model in this precision, held against that one's own rounding floor."""
    pair: list[Divergence] = []
    floor: list[list[Divergence]] = [[] for _ in seeds]
    own, ties = precision.side, _Ties(precision.dtype)
    for group in groups_of(loaded, prompts):
        plain = [whole_side(own.run_on(loaded), ids) for ids in group]
        pair += [
            divergence(each, seen_by(far.side.run_on(loaded), ties.counting(each)), ids)
            for each, ids in zip(plain, group, strict=True)
        ]
        add_reorderings(floor, loaded, own, group, plain, seeds)
    squares = mean_squares(pair)
    test = floor_test(squares, np.stack([mean_squares(of_seed) for of_seed in floor]))
    is_finite = not any(one.nonfinite_mismatch for one in (*pair, *(one for of_seed in floor for one in of_seed)))
    left = float(np.sqrt(squares.mean() / far.distance.mean())) if is_finite else float("inf")
    return _Trial(precision, left, test, loaded.dtype, ties.share)


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


def _explained(trial: _Trial, far: Far, dtype: str, lengths: Sequence[int]) -> Lowered:
    """dtype: that the side's distance to the model was measured in."""
    test, side, control, ratio = trial.test, far.side, far.control, far.ratio
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
                f"of all logits {short_percent(trial.ties)} fall to the next value, as what lies between two does by"
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
        add_reorderings(floor, loaded, own, group, plain, seeds)
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


def ordinals(values: torch.Tensor) -> torch.Tensor:
    """Ordinals of values of a 16-bit dtype, both zeros at 0. int32, same shape"""
    bits = values.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)
