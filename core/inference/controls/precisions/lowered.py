"""Explain a side by a lower precision: rank candidates by what each leaves, and test what the best
ones leave.

In float32 the rest is compared with reorderings, in 16 bits with randomized rounding
(docs/explanation/calibration.md).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from msgspec import structs

from ....checks.choices import choices_row
from ....checks.drawn import DRAWN_LIMITS
from ....checks.lower_precision import (
    DrawnPrecisionFigures,
    ExplainedFigures,
    PrecisionVerdict,
    fault_of_16_bits,
    fault_of_choices,
    no_precision,
    one_precision,
)
from ....checks.pair import WIDE, NoiseFloor
from ....checks.settings import settings_row
from ....errors import CaptureError
from ....evidence import FAILED, MISSING, NOTED, PASSED
from ....numerics.arrays import Flags, Floats
from ....numerics.statistic import BLOCKS, FloorTest, floor_test, rms_ratio
from ....progress import Progress, no_progress
from ...models.dtypes import WIDENING, converted, in_float32
from ...models.model import Ids, LoadedModel
from ...models.torch_errors import foreign_errors_stop
from ...paths.batch import ignore
from ...paths.engines import (
    PLAIN,
    Prompts,
    RunnableSide,
    answering,
    divergence,
    divergence_of,
    side_of,
    whole_side,
)
from ..answer_precision import grid_of
from ..choices import Choices, Replay
from ..drawn_roundings import RoundingDraws
from ..rounding_floor import as_many_as, rounding_floor, rows_at_once
from .catalogue import ACTIVATIONS, CACHE, LAYERS, Precision, Stored, cast, catalogue

_Candidate = tuple[Precision, PrecisionVerdict]
SCREENED = 48  # positions from the first that differs on, by which precisions are told apart
# a precision that leaves more of a side's distance explains nothing
MOST_LEFT = 0.5
# Of its distance to float32. Between two values of 8 bits, 16 bits often fall to the other one than
# float32 does: an fp8 cache of a tiny Gemma 2 leaves 0.96. What has nothing of the precision in it
# leaves more than there was.
MOST_LEFT_16_BITS = 0.98
_ALIKE = 10.0  # floors within which a side is at the model's own
# precisions; times what the best one leaves; not told apart below
_LOOKED_INTO, _AS_GOOD, _LEAST_LEFT = 3, 1.2, 1e-3
# of a side's distance, up to which a precision is part of it; of the positions
_EXPLAINED, _SOME = 0.1, 0.2
# of the squared error beyond rounding to 16 bits, less may go by chance
_EXCESS_LEFT = 0.5
# fewer positions before a fault do not show the precision under it
_FEWEST_EXPLAINED = 3
# the measure of a setting's rounding, and bits of its significand
_COARSE, _BITS = "prefill+dtype:bfloat16", 8
_BITS_OF = {"float32": 24, "float16": 11, "bfloat16": 8}
# of what randomized rounding is from float32: a model in 16 bits throughout is no nearer
_LEAST_OF_WHOLE = 0.5


@dataclass(frozen=True)
class Question:
    """Prompts that sides are asked on. blocks: sizes that a fault may begin at multiples of;
    precisions: declared ones, which are tried first; memoize: a side whose logits are computed
    once; draws: of the model in 16 bits, if there are; replay_in: choices that sides are forced to
    make in a model's dtype.
    """

    prompts: Prompts
    blocks: Sequence[int] = BLOCKS
    say: Progress = no_progress
    precisions: Sequence[Precision] = ()
    memoize: Callable[[RunnableSide], RunnableSide] = lambda side: side
    draws: RoundingDraws | None = None
    replay_in: Callable[[LoadedModel], Replay] = lambda _: Replay()

    def draws_of(self, loaded: LoadedModel, plain: RunnableSide = PLAIN) -> RoundingDraws:
        """Return draws of `plain` in the 16 bits of `loaded`."""
        # what rounding moves here is not what it moves in the model's own dtype
        replay = Replay(self.replay_in(loaded).choices)
        return RoundingDraws(loaded, self.prompts, plain, replay=replay)

    @property
    def lengths(self) -> list[int]:
        if self.draws is not None:
            return self.draws.loaded.lengths_of(self.prompts)
        return [len(ids) for ids in self.prompts]

    def squares(
        self,
        loaded: LoadedModel,
        side: RunnableSide,
        model: RunnableSide = PLAIN,
    ) -> Floats:
        """Mean squares of a side to the model. [positions]"""
        replay = self.replay_in(loaded)
        sides = replay.of(self.memoize(model)), replay.of(self.memoize(side))
        return divergence_of(loaded, self.prompts, sides).squares

    def is_rounding(self, loaded: LoadedModel, squares: Floats, floor: Floats) -> bool:
        """Return whether mean squares are within the noise floor; of experts that are not forced,
        near ties of a router may jump beyond it.
        """
        is_torn = loaded.has_experts and not self.replay_in(loaded).choices
        return floor_test(squares, floor, WIDE).is_passed or (
            is_torn and rms_ratio(squares, floor) <= _ALIKE
        )


def lowered_of_pair(
    question: Question,
    loaded: LoadedModel,
    sides: Sequence[RunnableSide],
    floors: Mapping[str, NoiseFloor],
    dtype: str,
    *,
    fails_in_own_dtype: bool,
) -> list[PrecisionVerdict]:
    """Judge sides of a pair beyond the noise floor in `dtype`: engines by their settings, each
    other one that is further from the model than rounding, or the further one, by precisions of the
    model.

    floors: of the model by dtype; fails_in_own_dtype: what explains a side in `dtype` is compared
    with roundings to the model's own 16 bits as well.
    """
    engines = [side for side in sides if narrow_settings(side) or coarse_activation(loaded, side)]
    rows: list[PrecisionVerdict] = []
    if engines:
        narrow_floor = floors["float32"].squares
        with (
            foreign_errors_stop("engine settings", "choose a smaller model"),
            in_float32(loaded) as model,
        ):
            for side in engines:
                # settings that change nothing excuse nothing
                if not question.is_rounding(model, question.squares(model, side), narrow_floor):
                    rows.append(_by_settings(question, model, side, narrow_floor))
        sides = [side for side in sides if side not in engines and not side.is_plain]
        # what a forward in 16 bits adds is the run's own dtype, not the engine's settings
        dtype, fails_in_own_dtype = "float32", False
    floor = floors[dtype].squares
    with (
        foreign_errors_stop("lower precisions", "choose a smaller model"),
        WIDENING[dtype](loaded) as model,
    ):
        far = {side: question.squares(model, side) for side in sides}
        beyond = [
            side for side, squares in far.items() if not question.is_rounding(model, squares, floor)
        ]
        if not beyond and far and not rows:
            beyond = [max(far, key=lambda side: float(far[side].mean()))]
        suspects = [_Suspect(question, side, rms_ratio(far[side], floor)) for side in beyond]
        best = [_best_of(each.in_wide(model, far[each.side], floor)) for each in suspects]
    for suspect, candidate in zip(suspects, best, strict=True):
        if candidate is None:
            unexplained = suspect.side.name, suspect.ratio, suspect.faulty_walks
            verdict = suspect.as_a_whole(loaded) or no_precision(*unexplained)
        else:
            verdict = candidate[1]
            if fails_in_own_dtype and verdict.evidence.outcome == PASSED:
                verdict = suspect.in_16_bits_too(loaded, *candidate)
        rows.append(verdict)
    return rows


def lowered_in_16_bits(
    question: Question,
    loaded: LoadedModel,
    side: RunnableSide,
    error_test: FloorTest,
) -> PrecisionVerdict:
    """Judge a side that has nothing but 16 bits. loaded: in its 16 bits; error_test: of its
    error.
    """
    ratio = error_test.ratio
    outliers = error_test.outliers
    suspect = _Suspect(question, side, ratio)
    differs = np.isin(np.arange(sum(question.lengths)), outliers) | (not len(outliers))
    usual = [each for each in catalogue(loaded) if each.part in (CACHE, LAYERS)]
    with in_float32(loaded) as model:
        best = best_precisions(
            question,
            model,
            loaded,
            side,
            differs,
            [*question.precisions, *usual],
        )

    def candidates() -> Iterator[_Candidate]:
        for precision in best:
            fault, draws = suspect.fault_of_walk(loaded, precision)
            moved = question.squares(loaded, precision.side, precision.walk)
            if fault is not None:
                suspect.faulty_walks.append(fault.ratio)
                continue
            if rms_ratio(moved, draws) <= _EXPLAINED:
                # far less than rounding to 16 bits explains nothing beyond it
                continue
            verdict, test = suspect.by_draws(loaded, precision.name, precision.side)
            verdict = suspect.with_choices(verdict, loaded, precision.side)
            outcome = verdict.evidence.outcome
            most = _EXCESS_LEFT * (ratio**2 - 1)
            is_less = ratio <= DRAWN_LIMITS.over_all or test.ratio**2 - 1 <= most
            # a fault on top begins behind positions that the precision explains
            explained = outliers[outliers < min(test.outliers, default=0)]
            is_fault = outcome == FAILED and len(explained) >= _FEWEST_EXPLAINED
            if is_fault or (outcome == PASSED and is_less):
                yield precision, verdict

    best_candidate = _best_of(candidates())
    if best_candidate is None:
        return no_precision(side.name, ratio, suspect.faulty_walks)
    return best_candidate[1]


def best_precisions(
    question: Question,
    loaded: LoadedModel,
    own: LoadedModel,
    side: RunnableSide,
    differs: Flags,
    candidates: Sequence[Precision],
    floor: float = 0.0,
) -> list[Precision]:
    """Rank precisions by the share of a side's distance that each leaves (geometric mean); return
    the best few.

    Of the shortest prompt that differs, over SCREENED positions from the first one on. own: the
    model that the side is run on; differs: from `loaded` by more than rounding [all positions];
    floor: mean square of the noise floor in float32, 0 in 16 bits.
    """
    question.say("other precisions")
    if not differs.any():
        return []
    ends = np.cumsum([loaded.rows_of(ids) for ids in question.prompts])
    pairs = zip(question.prompts, np.split(differs, ends[:-1]), strict=True)
    ids, at = min((pair for pair in pairs if pair[1].any()), key=lambda pair: len(pair[0]))
    first = int(np.argmax(at))
    is_noisy = not floor
    logits = whole_side(question.replay_in(own).of(side).run_on(own), ids)
    start = ids if loaded.encoder is not None else ids[: first + SCREENED]

    @cache
    def log_distance(side: RunnableSide, ids: Ids) -> float:
        """Return the sum of log mean squares; infinite if the side cannot be computed in the
        format's range.
        """
        with suppress(CaptureError), foreign_errors_stop(side.name, "leave it out"):
            run = question.replay_in(loaded).of(side).run_on(loaded)
            one = divergence(logits[: len(ids)], run, ids)
            squares = one.squares[: len(start)] + (floor or 1e-300)
            return np.inf if one.nonfinite_mismatch else float(np.log(squares).sum())
        return np.inf

    @cache
    def share_left(precision: Precision) -> float:
        # scales may be of the whole prompt
        is_whole = precision in question.precisions and precision.storage is None
        own_distance = log_distance(precision.side, ids if is_whole else start)
        log_ratio = own_distance - log_distance(PLAIN, start)
        return float(np.exp(log_ratio / (2 * (len(start) - first))))

    caches = [each for each in candidates if each.part == CACHE]
    # weights and products show at position 0 already; the first tokens, which all attend to, may
    # have tiny values
    every = list(candidates) if first == 0 or is_noisy else list(caches)
    # noise hides where a cache begins to be rounded: at a block, if not where a position stands out
    # first
    begins = {first}
    if is_noisy:
        begins.add(max((size for size in question.blocks if size <= first), default=first))
    for begin in begins - {0}:
        # later tokens come one at a time, as many again, or all in one
        every += [
            replace(each, storage=Stored(begin, chunk))
            for each in caches
            for chunk in (1, begin, 1 << 30)
        ]
    best = sorted(dict.fromkeys(every), key=share_left)[:_LOOKED_INTO]
    most = MOST_LEFT_16_BITS if is_noisy else MOST_LEFT
    best_share = share_left(best[0]) if best else 0.0
    most = min(most, max(_AS_GOOD * best_share, _LEAST_LEFT))
    return [each for each in best if share_left(each) < most]


def _best_of(candidates: Iterable[_Candidate]) -> _Candidate | None:
    """Return the first that passes, or else the one that leaves a fault at the fewest positions."""
    best = None
    fewest = np.inf
    for each in candidates:
        row = each[1].evidence
        if row.outcome == PASSED:
            return each
        if (count := row.figures.positions_beyond) < fewest:  # type: ignore[attr-defined]
            best, fewest = each, count
    return best


@dataclass(frozen=True)
class _Suspect:
    """A side that may be the model in a lower precision. ratio: its noise ratio to the model;
    faulty_walks: noise ratios of the model's own forwards without rounding, of precisions that
    cannot be tried for that.
    """

    question: Question
    side: RunnableSide
    ratio: float
    faulty_walks: list[float] = field(default_factory=list)

    def in_wide(self, loaded: LoadedModel, far: Floats, floor: Floats) -> Iterator[_Candidate]:
        """Compare what each precision leaves in float32 or float64 with reorderings. far: to the
        model [positions].
        """
        question = self.question
        side = self.side
        size = float(floor.mean())
        differs = far > _ALIKE**2 * size
        candidates = [*question.precisions, *catalogue(loaded)]
        for precision in best_precisions(
            question,
            loaded,
            loaded,
            side,
            differs,
            candidates,
            size,
        ):
            question.say(f"reorderings with {precision.name}")
            walk = question.squares(loaded, precision.walk)
            if not question.is_rounding(loaded, walk, floor):
                self.faulty_walks.append(rms_ratio(walk, floor))
                continue
            rounded = question.squares(loaded, precision.side)
            if rms_ratio(rounded[differs], floor[:, differs]) <= WIDE.over_all:
                # a precision may round nothing, as integers scaled to one token each
                continue
            replay = question.replay_in(loaded)
            lowered = replay.of(precision.side)
            sides = lowered, replay.of(question.memoize(side))
            rest = divergence_of(loaded, question.prompts, sides)
            if rest.nonfinite_mismatch:
                continue
            squares = rest.squares
            lowered_floor = rounding_floor(loaded, question.prompts, side=lowered).squares
            test = floor_test(squares, lowered_floor, WIDE)
            # a stored value near the middle of two of its format may round to the other one at any
            # position
            jump = WIDE.at_a_place**2 * lowered_floor.max()
            outliers = test.outliers[squares[test.outliers] > jump]
            figures = ExplainedFigures(
                noise_ratio=self.ratio,
                precision=precision.name,
                compute_dtype=loaded.dtype,
                share_left=rms_ratio(squares, far),
                left_noise_ratio=test.noise_ratio,
                worst_position_ratio=test.worst,
                position_ratio_allowed=test.position.limit,
                positions_beyond=len(outliers),
            )
            is_rounding = test.ratio <= WIDE.over_all and not len(outliers)
            is_explained = figures.share_left <= MOST_LEFT and is_rounding
            if is_explained or np.mean(squares[differs] <= _EXPLAINED**2 * far[differs]) >= _SOME:
                outcome = PASSED if is_explained else FAILED
                about = side.name, self.ratio, figures, outcome, outliers
                verdict = one_precision(*about, question.lengths)
                yield precision, self.with_choices(verdict, loaded, precision.side)

    def with_choices(
        self,
        verdict: PrecisionVerdict,
        loaded: LoadedModel,
        lowered: RunnableSide,
    ) -> PrecisionVerdict:
        """Return a verdict that explains the side, unless it takes other experts or keys than
        scores explain that are as far apart as the lowered model moves them.
        """
        question = self.question
        replay = Replay(question.replay_in(loaded).choices)
        if not replay.choices or verdict.evidence.outcome != PASSED:
            return verdict
        noted: dict[Ids, Choices] = {}
        for side in (replay.of_rounding(lowered), replay.of(self.side, noted.__setitem__)):
            for ids in question.prompts:
                side.run_on(loaded)(ids, ignore)
        about = question.lengths, self.side.name, loaded.dtype
        row = choices_row(replay.compare(question.prompts, noted), *about)
        if row.outcome == PASSED:
            return verdict
        return fault_of_choices(verdict.evidence, row)

    def by_draws(
        self,
        loaded: LoadedModel,
        name: str,
        model: RunnableSide,
    ) -> tuple[PrecisionVerdict, FloorTest]:
        """Compare it in 16 bits with the model in a precision over randomized rounding. name: of
        the precision; model: its forward in it.
        """
        question = self.question
        question.say(f"randomized rounding with {name}")
        draws = question.draws_of(loaded, model)
        row, test = draws.compare(self.side, question.blocks, question.say)
        own = structs.asdict(row.figures) | {
            "noise_ratio": self.ratio,
            "ratio_over_draws": test.noise_ratio,
        }
        figures = DrawnPrecisionFigures(**own, precision=name)
        about = self.side.name, self.ratio, figures, row.outcome, test.outliers
        return one_precision(*about, question.lengths), test

    def fault_of_walk(
        self,
        loaded: LoadedModel,
        precision: Precision,
    ) -> tuple[FloorTest | None, Floats]:
        """Compare a precision's forwards without rounding with randomized rounding in 16 bits.

        Returns the test if they differ by more, else None; and the draws.
        """
        question = self.question
        draws = question.draws or question.draws_of(loaded)
        row, test = draws.compare(
            precision.walk,
            question.blocks,
            question.say,
            always_check_draws=False,
        )
        # NOTED: another expert was chosen, by a near tie
        is_sound = test.is_passed or row.outcome == NOTED
        squares = np.stack([draw.squares for draw in draws.draws])
        return None if is_sound else test, squares

    def in_16_bits_too(
        self,
        loaded: LoadedModel,
        precision: Precision,
        wide: PrecisionVerdict,
    ) -> PrecisionVerdict:
        """Check what explains it in float32 in the model's own 16 bits: do its kernels have a fault
        of their own?
        """
        with suppress(CaptureError):
            fault, _ = self.fault_of_walk(loaded, precision)
            if fault is None:
                verdict, test = self.by_draws(loaded, precision.name, precision.side)
                fault = test if verdict.evidence.outcome == FAILED else None
            if fault is not None:
                return fault_of_16_bits(wide.evidence, precision.name, loaded.dtype, fault.ratio)
        return wide

    def as_a_whole(self, loaded: LoadedModel) -> PrecisionVerdict | None:
        """Judge 16-bit answers by the model in that dtype throughout; None if they are of no 16-bit
        dtype.
        """
        prompts = as_many_as(self.question.prompts, rows_at_once(loaded))
        with suppress(CaptureError), in_float32(loaded) as model:
            replay = self.question.replay_in(model)
            side = replay.of(self.side)
            answers = [whole_side(side.run_on(model), ids).float() for ids in prompts]
            path = self.side.path
            named = model.dtype if path is None else path.compute_dtype(model)
            # a head that computes in float32 leaves no grid
            grid = grid_of(torch.cat(answers)) if named == model.dtype else named
            if grid is None:
                return None
            recording = answering(self.side.name, prompts, answers)
            with converted(model, grid) as narrow:
                # the answers have the choices of float32
                question = replace(self.question, prompts=prompts, replay_in=lambda _: replay)
                suspect = _Suspect(question, recording, self.ratio)
                verdict, test = suspect.by_draws(narrow, f"all of it in {grid}", PLAIN)
            figures = verdict.evidence.figures
            assert isinstance(figures, DrawnPrecisionFigures)
            over_own = test.ratio / float(np.median(figures.model_ways_ratios))
            # draws may be no measure by position (near ties of a router); the model's own paths are
            # one over all
            if verdict.evidence.outcome == MISSING and over_own <= 1 / _LEAST_OF_WHOLE:
                about = recording.name, self.ratio, figures, PASSED, test.outliers
                verdict = one_precision(*about, question.lengths)
            verdict = self.with_choices(verdict, model, side_of(f"prefill+dtype:{grid}"))
            outcome = verdict.evidence.outcome
            is_whole = over_own >= _LEAST_OF_WHOLE and test.is_finite
            return verdict if outcome == FAILED or (outcome == PASSED and is_whole) else None
        return None


# Of engines, by their settings


def _modifiers(side: RunnableSide) -> Mapping[str, Any]:
    """Return what an engine's adapter declares of its modifiers; of another side nothing."""
    path = side.engine_path
    return {} if path is None or path.engine is None else path.engine.modifiers


def narrow_settings(side: RunnableSide) -> dict[str, Any]:
    """Return settings of an engine's side, by name, at which it rounds coarser than at their
    widest.
    """
    settings = {} if side.engine_path is None else side.engine_path.settings
    narrow = {}
    for name, facts in _modifiers(side).items():
        (value,) = settings.get(name) or (facts.get("default"),)
        if value not in (None, facts.get("widest", value)):
            narrow[name] = value
    return narrow


def coarse_activation(loaded: LoadedModel, side: RunnableSide) -> tuple[str, str] | None:
    """Return (activation function of this model, dtype) that the side's engine computes it in
    whatever its settings.
    """
    config = loaded.text_config
    own = str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", ""))
    path = side.engine_path
    activations = {} if path is None or path.engine is None else path.engine.activations
    return next((each for each in activations.items() if own.startswith(each[0])), None)


def at_widest(side: RunnableSide) -> RunnableSide:
    """Return the side with its engine's settings that round coarser than float32 at their
    widest.
    """
    for name in narrow_settings(side):
        assert side.engine_path is not None
        widest = _modifiers(side)[name]["widest"]
        side = side_of(str(side.engine_path.with_modifier(name, widest)))
    return side


def _by_settings(
    question: Question,
    loaded: LoadedModel,
    side: RunnableSide,
    floor: Floats,
) -> PrecisionVerdict:
    """Judge an engine's side by its settings that round coarser than float32.

    With every setting at its widest the engine has to be within the floor. The settings may move
    the logits as far as a forward that rounds every product to as few bits: the model in bfloat16,
    scaled by 2^(8 - bits). An activation function that no setting widens is a declared precision of
    the model.
    """
    settings = {name: str(value) for name, value in narrow_settings(side).items()}
    model, own_floor = PLAIN, floor
    facts = _modifiers(side)
    bits = [int(facts[name].get("bits", {}).get(value, 24)) for name, value in settings.items()]
    if activation := coarse_activation(loaded, side):
        function, dtype = activation
        model = Precision(ACTIVATIONS, dtype, partial(cast, dtype=getattr(torch, dtype))).side
        own_floor = rounding_floor(loaded, question.prompts, side=model).squares
        settings[function] = dtype
        bits.append(_BITS_OF[dtype])
    question.say(f"'{side.name}' with its settings at their widest")
    own = question.squares(loaded, side)
    wide = question.squares(loaded, at_widest(side), model)
    allowed = question.squares(loaded, side_of(_COARSE)) * 4.0 ** (_BITS - min(bits))
    return settings_row(
        side.name,
        settings,
        rms_ratio(own, floor),
        test=floor_test(wide, own_floor, WIDE),
        widest_ratio=rms_ratio(wide, own_floor),
        bits=min(bits),
        share=rms_ratio(own, allowed),
        over_allowed=np.sqrt(own / np.maximum(allowed, allowed.mean())),
        lengths=question.lengths,
    )
