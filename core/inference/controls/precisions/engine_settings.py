"""A pair beyond its noise floor: settings of engines that round coarser than float32 first, then other precisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ....errors import CaptureError, UsageError
from ....judging.divergence import mean_squares
from ....judging.judge import WIDE
from ....judging.statistic import floor_test
from ....judging.structure import structure_of
from ....runs.file.evidence import FAILED, NOTED, PASSED, Check, Evidence, SettingsFigures
from ....text import three_digits
from ...models.dtypes import in_float32
from ...models.model import LoadedModel
from ...models.torch_errors import foreign_errors_stop
from ...paths.engines import PLAIN, RunnableSide, divergences_of, side_of
from ...paths.grammar import Step
from ..judging_session import JudgingSession
from ..rounding_floor import rounding_floor
from .catalogue import ACTIVATIONS, Precision, through
from .lowered import Lowered, Question, Squares, lowered, rms_ratio

_COARSE, _BITS = "prefill+dtype:bfloat16", 8  # the measure of a setting's rounding, and bits of its significand
_BITS_OF = {"float32": 24, "float16": 11, "bfloat16": 8}


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
    widest = {name: others.get(name, _modifiers(side)[name]["widest"]) for name in narrow}
    kept = [step for step in path.modifiers if step.name not in narrow]
    return side_of(str(replace(path, modifiers=(*kept, *(Step(name, (value,)) for name, value in widest.items())))))


def lowered_of_pair(
    question: Question,
    session: JudgingSession,
    sides: Sequence[RunnableSide],
    floors: Mapping[str, Squares],
    dtype: str,
    *,
    fails_in_own_dtype: bool,
) -> list[Lowered]:
    """Judge the sides of a pair beyond its floor, engines by their settings first; as of `lowered`."""
    loaded = session.loaded
    if not any(narrow_settings(side) or coarse_activation(loaded, side) for side in sides):
        return lowered(question, loaded, sides, floors, dtype, fails_in_own_dtype=fails_in_own_dtype)
    with foreign_errors_stop("engine settings", "choose a smaller model"), in_float32(loaded) as widened:
        rows = [_by_settings(question, session, widened, side, floors["float32"]) for side in sides]
    others = [side for side, row in zip(sides, rows, strict=True) if row is None and side.path != PLAIN.path]
    # settings are measured in float32; what a forward in 16 bits adds is the run's own dtype, not the engine's
    beyond = lowered(replace(question, given=()), loaded, others, floors, "float32", fails_in_own_dtype=False)
    return [*(row for row in rows if row is not None), *(each for each in beyond if each.evidence.outcome != NOTED)]


def _by_settings(
    question: Question, session: JudgingSession, loaded: LoadedModel, side: RunnableSide, floor: Squares
) -> Lowered | None:
    """Judge an engine's side by its settings; None if none rounds coarser than float32.

    With every setting at its widest the engine has to be within the floor. The settings may move the logits as far as a
    forward that rounds every product to as few bits: the model in bfloat16, scaled by 2^(8 - bits). An activation
    function that no setting widens is a declared precision of the model.
    """
    narrow, fixed = narrow_settings(side), coarse_activation(loaded, side)
    if not (narrow or fixed):
        return None
    model, own_floor = PLAIN, floor
    if fixed is not None:
        model = Precision(ACTIVATIONS, fixed[1], partial(through, dtype=getattr(torch, fixed[1]))).side
        own_floor = rounding_floor(loaded, question.prompts, question.seeds, model).squares

    def far(one: RunnableSide, other: RunnableSide = PLAIN) -> Squares:
        return mean_squares(divergences_of(loaded, question.prompts, (session.kept(other), session.kept(one))))

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
    figures = SettingsFigures(
        ratio, tuple(ratios), tuple(ratios.values()), rms_ratio(wide, own_floor), min(bits), share
    )
    outcome = PASSED if test.is_passed and share <= 1.0 else FAILED
    control = f"'{side.name}' compared with the model, with its settings at their widest and each alone"
    return Lowered(Evidence(Check.SETTINGS, control, figures, outcome, says, side.name), place)
