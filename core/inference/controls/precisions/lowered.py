"""Explain a side by a lower precision: rank candidates by what each leaves, and test what the best ones leave.

In float32 the rest is compared with reorderings, in 16 bits with redrawn roundings (docs/explanation/calibration.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from msgspec import structs
from numpy.typing import NDArray

from ....errors import CaptureError, UsageError
from ....judging.divergence import mean_squares
from ....judging.judge import DRAWN, WIDE, Lowered
from ....judging.places import place_in_words
from ....judging.statistic import BLOCKS, FloorTest, floor_test
from ....judging.structure import structure_of
from ....runs.file import evidence
from ....runs.file.evidence import FAILED, MISSING, NOTED, PASSED, Check, Evidence
from ....text import three_digits
from ...models.dtypes import WIDENING, converted, in_float32, in_float64
from ...models.model import LoadedModel, has_experts
from ...models.torch_errors import foreign_errors_stop
from ...paths.engines import PLAIN, RunnableSide, answering, divergence, divergences_of, side_of, whole_side
from ..answer_precision import grid_of
from ..drawn_roundings import Drawn, compared_with_draws
from ..rounding_floor import LOGIT_BYTES, as_many_as, rounding_floor
from .catalogue import ACTIVATIONS, CACHE, LAYERS, Precision, Stored, catalogue, through

Squares = NDArray[np.float64]
SCREENED = 48  # positions from the first that differs on, by which precisions are told apart
MOST_LEFT = 0.5  # of a side's distance, beyond which a precision explains nothing
# Of its distance to float32. Between two values of 8 bits, 16 bits often fall to the other one than float32 does: an
# fp8 cache of a tiny Gemma 2 leaves 0.96. What has nothing of the precision in it leaves more than there was.
MOST_LEFT_16_BITS = 0.98
_ALIKE = 10.0  # floors within which a side is at the model's own
_LOOKED_INTO, _AS_GOOD, _LEAST_LEFT = 3, 1.2, 1e-3  # precisions; times what the best one leaves; not told apart below
_EXPLAINED, _SOME = 0.1, 0.2  # of a side's distance, up to which a precision is part of it; of the positions
_EXCESS_LEFT = 0.5  # of the squared error beyond rounding to 16 bits: less may go by chance
_FEWEST_EXPLAINED = 3  # positions before a fault, by which the precision under it is known
_COARSE, _BITS = "prefill+dtype:bfloat16", 8  # the measure of a setting's rounding, and bits of its significand
_BITS_OF = {"float32": 24, "float16": 11, "bfloat16": 8}
_LEAST_OF_WHOLE = 0.5  # of what rounding drawn anew is from float32: a model in 16 bits throughout is no nearer


@dataclass(frozen=True)
class Question:
    """Prompts that sides are asked on. blocks: sizes that a fault may begin at multiples of;
    declared: precisions that are tried first; kept: a side whose logits are computed once.
    """

    prompts: Sequence[Sequence[int]]
    blocks: Sequence[int] = BLOCKS
    say: Callable[[str], None] = lambda _: None
    declared: Sequence[Precision] = ()
    kept: Callable[[RunnableSide], RunnableSide] = lambda side: side

    @property
    def lengths(self) -> list[int]:
        return [len(ids) for ids in self.prompts]


@dataclass(frozen=True)
class Rest:
    """What a precision leaves of a side's distance. outcome: PASSED if nothing but its noise, FAILED if a fault is on
    top; outliers: positions beyond its noise; says: of a fault in 16 bits alone.
    """

    figures: evidence.ExplainedFigures | evidence.DrawnPrecisionFigures
    outcome: str
    outliers: NDArray[np.int64]
    precision: Precision | None = None
    says: str = ""


def lowered_of_pair(
    question: Question,
    loaded: LoadedModel,
    sides: Sequence[RunnableSide],
    floors: Mapping[str, Squares],
    dtype: str,
    *,
    fails_in_own_dtype: bool,
) -> list[Lowered]:
    """Judge sides of a pair beyond the noise floor in `dtype`: engines by their settings, each other one that is
    further from the model than rounding, or the further one, by precisions of the model.

    floors: mean squares of the model's reorderings by dtype [seeds, positions]; fails_in_own_dtype: what explains a
    side in `dtype` is compared with roundings to the model's own 16 bits as well.
    """
    engines = [side for side in sides if narrow_settings(side) or coarse_activation(loaded, side)]
    rows: list[Lowered] = []
    if engines:
        with foreign_errors_stop("engine settings", "choose a smaller model"), in_float32(loaded) as widened:
            rows = [_by_settings(question, widened, side, floors["float32"]) for side in engines]
        sides = [side for side in sides if side not in engines and side.path != PLAIN.path]
        # what a forward in 16 bits adds is the run's own dtype, not the engine's settings
        dtype, fails_in_own_dtype = "float32", False
    floor = floors[dtype]
    is_torn = dtype != "float64" and has_experts(loaded.model)  # by near ties of a router, in sound sides too
    with foreign_errors_stop("lower precisions", "choose a smaller model"), WIDENING[dtype](loaded) as widened:
        far = {side: mean_squares(divergences_of(widened, question.prompts, (PLAIN, side))) for side in sides}
        beyond = [
            side
            for side, squares in far.items()
            if not floor_test(squares, floor, WIDE).is_passed and not (is_torn and rms_ratio(squares, floor) <= _ALIKE)
        ]
        beyond = beyond or sorted(far, key=lambda side: float(far[side].mean()))[-1:]
        rests = {side: _best_of(_rests(question, widened, side, far[side], floor)) for side in beyond}
    for side, rest in rests.items():
        ratio = rms_ratio(far[side], floor)
        if rest is None:
            rest = _whole_model(question, loaded, side, ratio)
        elif rest.outcome == PASSED and fails_in_own_dtype:
            rest = _in_16_bits_too(question, loaded, side, rest)
        if rest is not None or not engines:
            rows.append(_row(question, side, ratio, rest))
    return rows


def lowered_in_16_bits(question: Question, loaded: LoadedModel, side: RunnableSide, failed: FloorTest) -> Lowered:
    """Judge a side that has nothing but 16 bits. loaded: in its 16 bits; failed: its error's test."""
    ratio, outliers = failed.ratio, failed.outliers
    differs = np.isin(np.arange(sum(question.lengths)), outliers) | (not len(outliers))
    usual = [each for each in catalogue(loaded) if each.part in (CACHE, LAYERS)]
    with in_float32(loaded) as widened:
        best = best_precisions(question, widened, loaded, side, differs, [*question.declared, *usual])

    def rest_of(precision: Precision) -> Rest | None:
        rest, test = _drawn(question, loaded, side, ratio, precision)
        is_less = ratio <= DRAWN.over_all or test.ratio**2 - 1 <= _EXCESS_LEFT * (ratio**2 - 1)
        # a fault on top begins behind positions that the precision explains
        before = outliers[outliers < min(test.outliers, default=0)]
        is_part = rest.outcome == FAILED and len(before) >= _FEWEST_EXPLAINED
        return rest if is_part or (rest.outcome == PASSED and is_less) else None

    return _row(question, side, ratio, _best_of(map(rest_of, best)))


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
    float32, 0 in 16 bits.
    """
    question.say("other precisions")
    if not differs.any():
        return []
    pairs = zip(question.prompts, np.split(differs, np.cumsum(question.lengths)[:-1]), strict=True)
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
        is_whole = precision in question.declared and precision.stored is None  # its scales may be of the whole prompt
        squares = distance(precision.side, prompt if is_whole else start)
        return np.inf if squares is None else float(np.exp(np.log(squares / plain).sum() / (2 * (len(start) - first))))

    def explains_start(precision: Precision) -> bool:
        """Return whether it explains the first position that differs, at which all ways to store a cache are one."""
        squares = distance(replace(precision, stored=Stored(first, 1)).side, prompt[: first + 1])
        return squares is not None and bool(squares[first] < MOST_LEFT**2 * plain[first])

    # weights, products and what is rounded before it is read show at position 0 already
    tried = list(offered) if first == 0 or is_noisy else []
    caches = [each for each in offered if each.part == CACHE]
    caches = caches if is_noisy else [each for each in caches if first > 0 and explains_start(each)]
    # noise hides where a cache begins to be rounded: at a block, if not where a position stands out first
    begins = {first, max((size for size in question.blocks if size <= first), default=first)} if is_noisy else {first}
    for begin in begins - {0}:
        # later tokens come one at a time, as many again, all in one, or are rounded before they are read
        ways = [Stored(begin, chunk) for chunk in (1, begin, 1 << 30)] + [Stored(begin, 1 << 30, is_read_back=True)]
        tried += [replace(each, stored=way) for each in caches for way in ways]
    best = sorted(dict.fromkeys(tried), key=left)[:_LOOKED_INTO]
    most = MOST_LEFT_16_BITS if is_noisy else MOST_LEFT
    return [each for each in best if left(each) < min(most, max(_AS_GOOD * left(best[0]), _LEAST_LEFT))]


def _best_of(rests: Iterable[Rest | None]) -> Rest | None:
    """Return the first that passes, or else the one that leaves a fault at the fewest positions."""
    best = None
    for rest in rests:
        if rest is not None and rest.outcome == PASSED:
            return rest
        if rest is not None and (best is None or len(rest.outliers) < len(best.outliers)):
            best = rest
    return best


def _row(question: Question, side: RunnableSide, ratio: float, rest: Rest | None) -> Lowered:
    """Say what explains a side, wholly or but for a fault on top. ratio: noise ratio of the side to the model."""
    control, place = f"'{side.name}' compared with the model in lower precisions", None
    if rest is None:
        says = f"No lower precision explains '{side.name}'."
        return Lowered(
            Evidence(Check.PRECISIONS, control, evidence.PrecisionsFigures(noise_ratio=ratio), NOTED, says, side.name)
        )
    name, far = rest.figures.precision, three_digits(rest.figures.noise_ratio)
    says = f"'{side.name}' is the model with {name}: {far}x the noise floor, nothing but that precision's noise."
    if rest.outcome == FAILED and not rest.says:
        place = structure_of(rest.outliers, question.lengths).first
        where = f", from {place_in_words(int(rest.outliers[0]), question.lengths)}" if len(rest.outliers) else ""
        says = f"A fault on top of a lower precision, {name}{where}."
    check = Check.EXPLAINED if isinstance(rest.figures, evidence.ExplainedFigures) else Check.DRAWN_PRECISION
    return Lowered(Evidence(check, control, rest.figures, rest.outcome, rest.says or says, side.name), place)


# In float32 and float64: the rest compared with reorderings


def _rests(
    question: Question, loaded: LoadedModel, side: RunnableSide, far: Squares, floor_squares: Squares
) -> Iterator[Rest | None]:
    """Judge a side by the precisions that leave least of it. far: mean squares of the side to the model [positions]."""
    floor = float(floor_squares.mean())
    differs = far > _ALIKE**2 * floor
    offered = [*question.declared, *catalogue(loaded)]

    def rest_of(precision: Precision, loaded: LoadedModel) -> Rest | None:
        question.say(f"reorderings with {precision.name}")
        apart = divergences_of(loaded, question.prompts, (precision.side, question.kept(side)))
        if any(one.nonfinite_mismatch for one in apart):
            return None
        left = mean_squares(apart)
        test = floor_test(left, rounding_floor(loaded, question.prompts, side=precision.side).squares, WIDE)
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
        is_explained = figures.share_left <= MOST_LEFT and test.is_passed
        is_part = np.mean(left[differs] <= _EXPLAINED**2 * far[differs]) >= _SOME
        outcome = PASSED if is_explained else FAILED
        return Rest(figures, outcome, test.outliers, precision) if is_explained or is_part else None

    for precision in best_precisions(question, loaded, loaded, side, differs, offered, floor):
        yield rest_of(precision, loaded)
        if loaded.dtype == "float64":
            continue
        # the middle of two values is rounded to either, in float64 more seldom
        with suppress(CaptureError), foreign_errors_stop("float64", "leave it out"), in_float64(loaded) as widened:
            rest = rest_of(precision, widened)
            yield rest if rest is not None and rest.outcome == PASSED else None


# In 16 bits: compared with roundings drawn anew


def _drawn(
    question: Question, loaded: LoadedModel, side: RunnableSide, ratio: float, precision: Precision | None = None
) -> tuple[Rest, FloorTest]:
    """Compare a side in 16 bits with the model in a precision, or as it is. ratio: noise ratio of the side."""
    name = f"all of it in {loaded.dtype}" if precision is None else precision.name
    question.say(f"roundings drawn anew with {name}")
    draws = Drawn(loaded, question.prompts, PLAIN if precision is None else precision.side)
    row, test = compared_with_draws(draws, side, question.blocks, question.say)
    assert isinstance(row.figures, evidence.DrawnFigures)
    named = structs.asdict(row.figures) | {"noise_ratio": ratio, "ratio_over_draws": row.figures.noise_ratio}
    return Rest(evidence.DrawnPrecisionFigures(**named, precision=name), row.outcome, test.outliers, precision), test


def _in_16_bits_too(question: Question, loaded: LoadedModel, side: RunnableSide, passed: Rest) -> Rest:
    """Check what explains a side in float32 in the model's own 16 bits: do its kernels have a fault of their own?"""
    name, dtype = passed.figures.precision, loaded.dtype
    with suppress(CaptureError):
        rest, test = _drawn(question, loaded, side, passed.figures.noise_ratio, passed.precision)
        if rest.outcome == FAILED:
            size = f"{three_digits(test.ratio)}x the error of rounding"
            says = f"{name} explains float32, not {dtype}: {size}, a fault of the {dtype} kernels."
            figures = structs.replace(passed.figures, **{f"left_noise_ratio_{dtype}": test.ratio})
            return replace(passed, figures=figures, outcome=FAILED, says=says)
    return passed


def _whole_model(question: Question, loaded: LoadedModel, side: RunnableSide, ratio: float) -> Rest | None:
    """Judge a side of 16-bit answers by the model in that dtype throughout; None if they are of no 16-bit dtype."""
    chosen = as_many_as(question.prompts, LOGIT_BYTES // (4 * loaded.vocab_size))
    with suppress(CaptureError), in_float32(loaded) as widened:
        answers = [whole_side(side.run_on(widened), ids).float() for ids in chosen]
        grid = grid_of(torch.cat(answers))
        if grid is None:
            return None
        with converted(widened, grid) as narrowed:
            recorded = answering(side.name, chosen, answers)
            rest, _ = _drawn(replace(question, prompts=chosen), narrowed, recorded, ratio)
        figures = rest.figures
        assert isinstance(figures, evidence.DrawnPrecisionFigures)
        over_own = figures.ratio_over_draws / float(np.median(figures.model_ways_ratios))
        # draws may be no measure by position (near ties of a router); the model's own paths are one over all
        if rest.outcome == MISSING and over_own <= 1 / _LEAST_OF_WHOLE:
            rest = replace(rest, outcome=PASSED)
        is_whole = over_own >= _LEAST_OF_WHOLE and not figures.nonfinite_mismatch
        return rest if rest.outcome == FAILED or (rest.outcome == PASSED and is_whole) else None
    return None


# Of engines, by their settings


def _modifiers(side: RunnableSide) -> Mapping[str, Any]:
    """What an engine's adapter declares of its modifiers; of another side nothing."""
    path = side.engine_path
    return {} if path is None or path.engine is None else path.engine.modifiers


def narrow_settings(side: RunnableSide) -> dict[str, Any]:
    """Return settings of an engine's side, by name, at which it rounds coarser than at their widest."""
    abouts = {name: about for name, about in _modifiers(side).items() if "widest" in about}
    steps = () if side.engine_path is None else side.engine_path.modifiers
    chosen = {step.name: step.values[0] for step in steps if step.values}
    values = {name: chosen.get(name, about.get("default")) for name, about in abouts.items()}
    return {name: value for name, value in values.items() if value not in (None, abouts[name]["widest"])}


def coarse_activation(loaded: LoadedModel, side: RunnableSide) -> tuple[str, str] | None:
    """Return (activation function of this model, dtype) that the side's engine computes it in whatever its settings."""
    config = loaded.model.config.get_text_config(decoder=True)
    own = str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", ""))
    engine = None if side.engine_path is None else side.engine_path.engine
    declared = {} if engine is None else engine.activations
    return next((each for each in declared.items() if own.startswith(each[0])), None)


def at_widest(side: RunnableSide, **others: Any) -> RunnableSide:
    """Return the side with its engine's settings that round coarser than float32 at their widest, or at `others`."""
    path, narrow = side.engine_path, narrow_settings(side)
    if path is None or not narrow:
        return side
    for name in narrow:
        path = path.with_modifier(name, others.get(name, _modifiers(side)[name]["widest"]))
    return side_of(str(path))


def _by_settings(question: Question, loaded: LoadedModel, side: RunnableSide, floor: Squares) -> Lowered:
    """Judge an engine's side by its settings that round coarser than float32.

    With every setting at its widest the engine has to be within the floor. The settings may move the logits as far as a
    forward that rounds every product to as few bits: the model in bfloat16, scaled by 2^(8 - bits). An activation
    function that no setting widens is a declared precision of the model.
    """
    narrow, fixed = narrow_settings(side), coarse_activation(loaded, side)
    model, own_floor = PLAIN, floor
    if fixed is not None:
        model = Precision(ACTIVATIONS, fixed[1], partial(through, dtype=getattr(torch, fixed[1]))).side
        own_floor = rounding_floor(loaded, question.prompts, side=model).squares

    def far(one: RunnableSide, other: RunnableSide = PLAIN) -> Squares:
        return mean_squares(divergences_of(loaded, question.prompts, (question.kept(other), question.kept(one))))

    question.say(f"'{side.name}' with its settings one at a time")
    own, wide = far(side), far(at_widest(side), model)
    bits = [int(_modifiers(side)[name].get("bits", {}).get(str(value), 24)) for name, value in narrow.items()]
    ratios: dict[str, float] = {}
    for name, value in narrow.items():
        with suppress(CaptureError, UsageError):  # llama.cpp quantises V only under flash attention
            ratios[f"{name}:{value}"] = rms_ratio(far(at_widest(side, **{name: value})), floor)
    if fixed is not None:
        ratios[":".join(fixed)] = rms_ratio(far(model), floor)
        bits.append(_BITS_OF[fixed[1]])
    share = rms_ratio(own, far(side_of(_COARSE)) * 4.0 ** (_BITS - min(bits)))
    test, ratio, words = floor_test(wide, own_floor, WIDE), rms_ratio(own, floor), ", ".join(ratios)
    place = None if test.is_passed else structure_of(test.outliers, question.lengths).first
    says = (
        f"'{side.name}' is {three_digits(ratio)} noise floors from float32 by {words}; {test.ratio:.2f} at its widest."
    )
    if not test.is_passed:
        worst = three_digits(max(test.ratio, test.worst or 0.0))
        says = f"With every setting at its widest '{side.name}' is still {worst} noise floors from the model."
    elif share > 1.0:
        says = f"{words} move '{side.name}' {three_digits(share)}x as far as {min(bits)} bits round: a fault in these."
    figures = evidence.SettingsFigures(
        ratio, tuple(ratios), tuple(ratios.values()), rms_ratio(wide, own_floor), min(bits), share
    )
    outcome = PASSED if test.is_passed and share <= 1.0 else FAILED
    control = f"'{side.name}' compared with the model, with its settings at their widest and each alone"
    return Lowered(Evidence(Check.SETTINGS, control, figures, outcome, says, side.name), place)
