"""Settings of an engine that round coarser than float32, taken apart: with all of them at their widest is it the
model's own function, and how much does each contribute?
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ....errors import CaptureError, UsageError
from ....judging.divergence import mean_squares
from ....judging.judge import WIDE
from ....judging.places import place_in_words
from ....judging.statistic import floor_test
from ....judging.structure import structure_of
from ....runs.file.evidence import FAILED, PASSED, Check, Evidence, SettingsFigures
from ....text import three_digits
from ...models.model import LoadedModel
from ...paths.engines import PLAIN, RunnableSide, divergences_of, side_of
from ...paths.grammar import Step
from .catalogue import ACTIVATIONS, Precision, through
from .lowered_side import Lowered, Question, beside_reorderings, rms_ratio

_BITS = 8  # significand of bfloat16, whose forward is the measure
_COARSE = "prefill+dtype:bfloat16"
_FLOAT32_BITS = 24
_BITS_OF = {"float16": 11, "bfloat16": 8}


def narrow_settings(side: RunnableSide) -> dict[str, Any]:
    """Settings of an engine's side, by name, at which it rounds coarser than at their widest."""
    if side.engine_path is None or side.engine_path.engine is None:
        return {}
    given = {step.name: step.values[0] for step in side.engine_path.modifiers if step.values}
    values = {
        name: given.get(name, about.get("default"))
        for name, about in side.engine_path.engine.modifiers.items()
        if "widest" in about
    }
    widest = side.engine_path.engine.modifiers
    return {name: value for name, value in values.items() if value not in (None, widest[name]["widest"])}


def coarse_activation(loaded: LoadedModel, side: RunnableSide) -> tuple[str, str] | None:
    """(activation function of this model, dtype) that the side's engine computes it in whatever it is told."""
    if side.engine_path is None or side.engine_path.engine is None:
        return None
    config = loaded.model.config.get_text_config(decoder=True)
    own = str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", ""))
    found = side.engine_path.engine.activations.items()
    return next(((function, dtype) for function, dtype in found if own.startswith(function)), None)


def at_widest(side: RunnableSide) -> RunnableSide:
    """The side with every setting of its engine that rounds coarser than float32 at its widest; itself without any."""
    path, narrow = side.engine_path, narrow_settings(side)
    if path is None or path.engine is None or not narrow:
        return side
    return _with(side, {name: path.engine.modifiers[name]["widest"] for name in narrow})


def _with(side: RunnableSide, values: dict[str, Any]) -> RunnableSide:
    path = side.engine_path
    assert path is not None
    kept = tuple(step for step in path.modifiers if step.name not in values)
    return side_of(str(replace(path, modifiers=(*kept, *(Step(name, (one,)) for name, one in values.items())))))


def taken_apart(
    question: Question,
    widened: LoadedModel,
    side: RunnableSide,
    floor: NDArray[np.float64],
    keep: Callable[[RunnableSide], RunnableSide] = lambda side: side,
) -> Lowered | None:
    """Judge an engine's side by its settings; None if none rounds coarser than float32.

    With every setting at its widest the engine has to be within the floor. The settings may move the logits as far as a
    forward that rounds every product to as few bits: the model in bfloat16, scaled by 2^(8 - bits). An activation
    function that no setting widens is computed as coarsely in the model itself. floor: mean squares of the reorderings
    in float32; keep: gives sides whose logits are computed once.
    """
    narrow, fixed, path = narrow_settings(side), coarse_activation(widened, side), side.engine_path
    if path is None or path.engine is None or not (narrow or fixed):
        return None
    about, seeds = path.engine.modifiers, question.seeds
    model, beside, seen_in, computes = PLAIN, floor, "", ""
    if fixed is not None:
        function, dtype = fixed
        question.say(f"{len(seeds)} reorderings with {function} in {dtype}")
        model = Precision(ACTIVATIONS, dtype, through(getattr(torch, dtype))).side
        _, beside, _ = beside_reorderings(widened, question.prompts, model, None, seeds)
        seen_in, computes = f" beside the model with its {function} in {dtype}", f" but for its {function}"

    def distance(other: RunnableSide, own: RunnableSide = model) -> NDArray[np.float64]:
        return mean_squares(divergences_of(widened, question.prompts, (keep(own), keep(other))))

    def ratio(squares: NDArray[np.float64], measure: NDArray[np.float64] = floor) -> float:
        return rms_ratio(squares.mean(), float(measure.mean()))

    widest = {name: about[name]["widest"] for name in narrow}
    question.say(f"'{side.name}' with its settings one at a time")
    own, wide = distance(side, PLAIN), distance(_with(side, widest) if widest else side)
    bits = [int(about[name].get("bits", {}).get(str(value), _FLOAT32_BITS)) for name, value in narrow.items()]
    by_setting: dict[str, float] = {}
    for name, value in narrow.items():
        with suppress(CaptureError, UsageError):  # llama.cpp quantises V only under flash attention
            by_setting[name] = ratio(distance(_with(side, widest | {name: value})))
    if fixed is not None:
        narrow |= dict([fixed])
        by_setting[fixed[0]] = ratio(distance(model, PLAIN))
        bits.append(_BITS_OF[fixed[1]])
    coarse = distance(side_of(_COARSE), PLAIN) * 4.0 ** (_BITS - min(bits))
    share = rms_ratio(own.mean(), float(coarse.mean()))
    words = {name: three_digits(by_setting[name]) if name in by_setting else "cannot be set alone" for name in narrow}
    shown = ", ".join(f"{name}:{value} {words[name]}" for name, value in narrow.items())
    settings = "+".join(f"{name}:{value}" for name, value in widest.items())
    best = (f"With {settings}" if settings else "Held" * bool(fixed)) + seen_in
    figures = SettingsFigures(
        noise_ratio=ratio(own),
        settings=tuple(f"{name}:{narrow[name]}" for name in by_setting),
        setting_noise_ratios=tuple(by_setting.values()),
        widest_noise_ratio=ratio(wide, beside),
        bits=min(bits),
        share_of_rounding_in_bits=share,
    )
    control = f"'{side.name}' against the model's own forward, {best[0].lower()}{best[1:]}, and with each setting alone"
    test, outcome, place = floor_test(wide, beside, WIDE), PASSED, None
    says = (
        f"'{side.name}' is the model's own function in a lower precision, {three_digits(ratio(own))} rounding floors"
        f" from float32. Each setting alone: {shown}. {best}: {ratio(wide, beside):.2f}."
    )
    if not test.is_passed:
        lengths = question.lengths
        outcome, place = FAILED, structure_of(test.outliers, lengths).first
        where = f", {place_in_words(int(test.outliers[0]), lengths)} first" if len(test.outliers) else ""
        says = (
            f"{best}, where {path.engine.engine} computes in float32 throughout{computes}, '{side.name}' is still"
            f" {three_digits(max(test.ratio, test.worst or 0.0))} rounding floors from the model{where}: no setting"
            " explains that."
        )
    elif share > 1.0:
        outcome = FAILED
        says = (
            f"{best} '{side.name}' is the model's own function ({ratio(wide, beside):.2f} rounding floors), but its"
            f" settings ({shown}) move it {three_digits(share)} times as far as rounding everything to {min(bits)} bits"
            " would: a fault in what they switch on."
        )
    row = Evidence(Check.SETTINGS, control, figures, outcome, says, side.name)
    return Lowered(row, place, side if outcome == PASSED else None)
