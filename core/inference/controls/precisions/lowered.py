"""Test of a side for lower precision: is it the same function in one? Asked of a pair that is beyond its floor.

docs/verdict_calibration.md has the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray

from ....errors import CaptureError
from ....judging.divergence import mean_squares
from ....judging.judge import OWN, WIDE
from ....judging.places import place_in_words
from ....judging.statistic import FloorTest, floor_test
from ....judging.structure import structure_of
from ....runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence, ExplainedFigures, PrecisionsFigures
from ....text import short_percent, three_digits
from ...models.dtypes import WIDENING, in_float32, in_float64
from ...models.model import LoadedModel, has_experts
from ...models.torch_errors import foreign_errors_stop
from ...paths.batch import Emit
from ...paths.engines import PLAIN, RunnableSide, divergences_of, whole_side
from ..judging_session import JudgingSession
from ..rounding_floor import own_rounding_of
from .catalogue import Precision
from .engine_settings import coarse_activation, narrow_settings, taken_apart
from .in_16_bits import whole_model
from .lowered_side import Far, Lowered, Question, beside_reorderings
from .search import MOST_LEFT, PrecisionFit, fits, precisions_offered

SEEDS_OF_OWN = 2  # reorderings in 16 bits beside a precision
_ALIKE = 10.0  # floors within which a side is at the model's own
_LEAST_LEFT = 1e-3  # below which precisions are not told apart by what they leave
_EXPLAINED = 0.1  # of a side's distance, up to which a precision is named though something is left
_LOOKED_INTO = 3
_AS_GOOD = 3.0  # times what the best one leaves
_ALL_BUT_A_FEW = 0.3  # of a side's distance, which values that fall to the other side do not make up
_MOST_TIES = 0.01  # of the logits


@dataclass(frozen=True)
class _Trial:
    """One precision beside a side, compared with its own floor. left: share of the side's distance; ties: share of the
    logits that are one value of the precision's dtype further, as the middle of two values is by rounding; 0 if any is
    further.
    """

    precision: Precision
    left: float
    test: FloorTest
    dtype: str
    ties: float = 0.0

    @property
    def is_passed(self) -> bool:
        return self.left <= MOST_LEFT and (self.test.is_passed or 0 < self.ties <= _MOST_TIES)


def lowered_of_pair(
    question: Question,
    session: JudgingSession,
    sides: tuple[RunnableSide, RunnableSide],
    measured: Mapping[str, NDArray[np.float64]],
    *,
    fails_in_own_dtype: bool,
) -> list[Lowered]:
    """A pair beyond its floor: settings of engines first, then what engines offer. measured: mean squares of the
    reorderings by dtype; fails_in_own_dtype: what explains it in float32 is then checked in 16 bits as well.
    """
    found = _by_settings(question, session, sides, measured["float32"]) or _by_precisions(
        question, session.loaded, sides, measured
    )
    # settings are measured in float32; what a forward in 16 bits adds is the run's own dtype, not the engine's
    if not fails_in_own_dtype or any(each.evidence.check == Check.SETTINGS for each in found):
        return found
    return [checked_in_16_bits(question, session.loaded, each) for each in found]


def _by_settings(
    question: Question, session: JudgingSession, sides: tuple[RunnableSide, RunnableSide], floor: NDArray[np.float64]
) -> list[Lowered]:
    """Sides of engines by their settings, and the other side by precisions; empty if no engine rounds coarser."""
    if not any(narrow_settings(side) or coarse_activation(session.loaded, side) for side in sides):
        return []
    with foreign_errors_stop("engine settings", "choose a smaller model"), in_float32(session.loaded) as widened:
        found = [taken_apart(question, widened, side, floor, session.kept) for side in sides]
        others = [side for side, one in zip(sides, found, strict=True) if one is None and side.path != PLAIN.path]
        without = replace(question, given=())
        beyond = lowered(without, widened, (PLAIN, others[0]), floor) if others else []
    is_far = [each for each in beyond if each.evidence.side != PLAIN.name and each.evidence.outcome != NOTED]
    return [*(one for one in found if one is not None), *is_far]


def _by_precisions(
    question: Question,
    loaded: LoadedModel,
    sides: tuple[RunnableSide, RunnableSide],
    measured: Mapping[str, NDArray[np.float64]],
) -> list[Lowered]:
    dtype = "float64" if "float64" in measured else "float32"
    with foreign_errors_stop("lower precisions", "choose a smaller model"), WIDENING[dtype](loaded) as widened:
        found = lowered(question, widened, sides, measured[dtype])
    if dtype == "float32" or all(each.evidence.outcome == PASSED for each in found):
        return found
    # near ties of a router tear the floor of float32, so only models computed in 16 bits throughout are asked there
    with foreign_errors_stop("16 bits", "choose a smaller model"), in_float32(loaded) as widened:
        further = _further(question, widened, sides, measured["float32"])
        whole = [one for far in further if (one := whole_model(question, widened, far)) is not None]
    by_side = {each.evidence.side: each for each in whole}

    def better(each: Lowered) -> Lowered:
        other = by_side.pop(each.evidence.side, each)
        return each if each.evidence.outcome != NOTED and other.evidence.outcome != PASSED else other

    return [*map(better, found), *by_side.values()]


def lowered(
    question: Question,
    loaded: LoadedModel,
    sides: tuple[RunnableSide, RunnableSide],
    floor: NDArray[np.float64],
    *,
    is_fixed: bool = False,
) -> list[Lowered]:
    """Each side that is further from the model than rounding, or the further one. loaded: in the dtype that decides;
    floor: mean squares of its reorderings [seeds, positions]; is_fixed: sides cannot be computed in float64.
    """
    return [_lowered(question, loaded, far, is_fixed=is_fixed) for far in _further(question, loaded, sides, floor)]


def _further(
    question: Question, loaded: LoadedModel, sides: tuple[RunnableSide, RunnableSide], floor: NDArray[np.float64]
) -> list[Far]:
    scale = float(floor.mean())
    found = [Far(side, mean_squares(divergences_of(loaded, question.prompts, (PLAIN, side))), scale) for side in sides]
    is_torn = has_experts(loaded.model) and loaded.dtype != "float64"  # by near ties, in sound sides too

    def is_own(far: Far) -> bool:
        is_near = float(far.distance.mean()) <= _ALIKE**2 * scale
        return is_near and (is_torn or floor_test(far.distance, floor, WIDE).is_passed)

    beyond = [far for far in found if not is_own(far)]
    return beyond or [max(found, key=lambda far: float(far.distance.mean()))]


def _lowered(question: Question, loaded: LoadedModel, far: Far, *, is_fixed: bool) -> Lowered:
    best: list[PrecisionFit] = []
    if shortest := question.shortest(far.distance > _ALIKE**2 * far.scale):
        offered = precisions_offered(loaded, question.given, is_fixed=is_fixed)
        best = fits(loaded, shortest[0], whole_side(far.side.run_on(loaded), shortest[0]), shortest[1], offered)
    question.say("other precisions")
    trials: list[_Trial] = []
    for each in best[:_LOOKED_INTO]:  # those that leave about as little as the best, up to the first that passes
        if each.left > max(_AS_GOOD * best[0].left, _LEAST_LEFT) or (trials and trials[-1].is_passed):
            break
        question.say(f"{len(question.seeds)} reorderings with {each.precision.name}")
        trials.append(_tried(question, loaded, far, each.precision, is_fixed=is_fixed))
    trials = [trial for trial in trials if np.isfinite(trial.left)]
    if trials and (trials[-1].is_passed or best[0].left <= _EXPLAINED):
        trial = trials[-1] if trials[-1].is_passed else trials[0]
        return _explained(trial, far, loaded.dtype, question.lengths)
    if loaded.dtype != "float64":  # where every cast to float32 gives float64: no model of 16 bits
        whole = whole_model(question, loaded, far)
        if whole is not None:
            return whole
    figures = PrecisionsFigures(noise_ratio=far.ratio)
    says = (
        "None of the precisions that were tried (8-bit caches, weights of 4 and 8 bits, products in TF32, a head in 16"
        " bits) explains it."
    )
    if best:
        nearest = best[0].precision.name
        figures = structs.replace(figures, precision=nearest, share_left=best[0].left)
        says = (
            f"No precision explains it: {nearest} comes nearest and leaves {short_percent(best[0].left)} of the"
            " distance where it explains most."
        )
    return Lowered(Evidence(Check.PRECISIONS, far.control, figures, NOTED, says, far.side.name))


def _tried(question: Question, loaded: LoadedModel, far: Far, precision: Precision, *, is_fixed: bool) -> _Trial:
    """Try in float32, else in float64: a value in the middle of two falls to either by rounding alone."""
    trial = _residual(question, loaded, far, precision)
    if trial.is_passed or is_fixed or trial.left > _ALL_BUT_A_FEW:
        return trial
    try:
        with foreign_errors_stop("float64", "choose a smaller model"), in_float64(loaded) as widened:
            wider = _residual(question, widened, far, precision)
    except CaptureError:
        return trial
    return wider if wider.is_passed else trial


def _residual(question: Question, loaded: LoadedModel, far: Far, precision: Precision) -> _Trial:
    """The side against the model in this precision, compared with that one's own rounding floor."""
    ties = _Ties(precision.dtype)
    pair, floor, is_finite = beside_reorderings(
        loaded, question.prompts, precision.side, far.side, question.seeds, ties.counting
    )
    squares = mean_squares(pair)
    left = float(np.sqrt(squares.mean() / far.distance.mean())) if is_finite else float("inf")
    return _Trial(precision, left, floor_test(squares, floor, WIDE), loaded.dtype, ties.share)


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
    test, side, name = trial.test, far.side, trial.precision.name
    figures = ExplainedFigures(
        noise_ratio=far.ratio,
        precision=name,
        compute_dtype=trial.dtype,
        share_left=trial.left,
        left_noise_ratio=test.noise_ratio,
        worst_position_ratio=test.worst,
        position_ratio_allowed=test.position.allowed,
        positions_beyond=len(test.outliers),
    )
    if trial.is_passed:
        left = f"what is left is {test.ratio:.2f} times that precision's own floor in {trial.dtype}"
        if not test.is_passed:
            share = short_percent(trial.ties)
            left = f"of all logits {share} fall to the next value, as what lies between two does by rounding"
        says = (
            f"'{side.name}' is the model's own function with its {name}, {three_digits(far.ratio)} rounding floors from"
            f" {dtype}, and nothing else: {left}."
        )
        row = Evidence(Check.EXPLAINED, far.control, figures, PASSED, says, side.name)
        return Lowered(row, None, side, trial.precision)
    where = f", {place_in_words(int(test.outliers[0]), lengths)} first" if len(test.outliers) else ""
    says = (
        f"A lower precision is part of it: its {name}. What that leaves is"
        f" {three_digits(max(test.ratio, test.worst or 0.0))} times this precision's own rounding floor in"
        f" {trial.dtype}{where}: a fault on top of it."
    )
    row = Evidence(Check.EXPLAINED, far.control, figures, FAILED, says, side.name)
    return Lowered(row, structure_of(test.outliers, lengths).first)


def checked_in_16_bits(question: Question, loaded: LoadedModel, found: Lowered) -> Lowered:
    """Check `found` in the model's own 16 bits, where the pair fails too: do its kernels have their own fault?"""
    row = found.evidence
    if found.side is None or found.precision is None or row.outcome != PASSED:
        return found
    own, seeds = found.precision.side, question.seeds[:SEEDS_OF_OWN]
    question.say(f"{len(seeds)} reorderings in {loaded.dtype} with {own.name}")
    pair, floor, _ = beside_reorderings(loaded, question.prompts, own, found.side, seeds)
    own_rounding = own_rounding_of(loaded, question.prompts, own.run_on)
    test = floor_test(mean_squares(pair), floor if own_rounding is None else np.maximum(floor, own_rounding), OWN)
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
    figures = structs.replace(row.figures, **{f"left_noise_ratio_{loaded.dtype}": test.noise_ratio})
    return Lowered(replace(row, figures=figures, outcome=FAILED, says=says))


def ordinals(values: torch.Tensor) -> torch.Tensor:
    """Ordinals of values of a 16-bit dtype, both zeros at 0. int32, same shape"""
    bits = values.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)
