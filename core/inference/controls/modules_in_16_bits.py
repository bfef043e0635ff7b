"""Each module of a side in 16 bits, given identical inputs, over randomized rounding of the same
module. At the logits a fault of one module adds to the rounding of all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checks.modules_in_16_bits import ModuleRounding
from ...closeness.coherence import (
    Direction,
    Sample,
    compare_directions,
    directions,
    limits_of,
    most_telling,
    sample_of,
)
from ...errors import CaptureError
from ...numerics.statistic import TINY
from ..models.dtypes import in_float32
from ..models.model import LoadedModel
from ..paths.engines import PLAIN, Prompts, RunnableSide
from .drawn_roundings import DRAWS, DrawnRounding
from .modules_alone import fits, followed_modules, own_outputs, record_outputs

Outputs = Mapping[str, Tensor]  # by module, [positions, width]
_POSITIONS = 256
# sound modules reach 0.8 of these (docs/explanation/calibration.md); in a column 0.37 of rounding
# if a bias is added to a rounded sum: the same happens in all rows
_LIMITS = limits_of(0.1, evidence=4.5, column=0.5)


def module_rounding(
    loaded: LoadedModel,
    prompts: Prompts,
    side: RunnableSide,
    plain: RunnableSide = PLAIN,
) -> ModuleRounding:
    """Compare every module of a side with randomized rounding of the same module. plain: the
    model's forward, with the choices that the side is forced to make if there are.

    CaptureError if its modules cannot be followed.
    """
    modules = {
        name: module
        for name, module in followed_modules(loaded.model).items()
        # positions may begin elsewhere, which attention does not see
        if "rotary" not in type(module).__name__.lower()
    }
    recorded = []
    left = fits(loaded, _POSITIONS)
    for prompt in prompts:
        ids = prompt[:left]
        left -= len(ids)
        if ids:
            recorded.append((ids, *record_outputs(loaded, ids, side, modules)))

    def replay(model: LoadedModel, mode: AbstractContextManager[Any]) -> Outputs:
        pieces = defaultdict(list)
        for ids, *of_side in recorded:
            with mode:
                own = own_outputs(model, ids, modules, *of_side, plain)
            for name, output in own.items():
                pieces[name].append(output)
        return {
            name: torch.cat(each) for name, each in pieces.items() if len(each) == len(recorded)
        }

    with in_float32(loaded) as wide:
        exact = replay(wide, nullcontext())
    # none of an engine in another process, or if no position fits into memory
    if not exact:
        raise CaptureError(f"'{side.name}' hands on no module's outputs at every position.")
    of_side = {name: torch.cat([outputs[name] for _, outputs, _ in recorded]) for name in exact}
    # mean squares [forwards] of the side, of the model's own forward, and of each draw
    squares: dict[str, list[float]] = {name: [] for name in exact}

    def errors_of(outputs: Outputs) -> Iterator[tuple[str, Tensor]]:
        for name, rows in exact.items():
            error = outputs[name].double() - rows.double()
            squares[name].append(float(error.square().mean()))
            yield name, error

    # of modules whose errors have a direction on the side
    samples: dict[str, Sample] = {}
    found: dict[str, list[list[Direction]]] = {}
    for name, error in errors_of(of_side):
        sample = sample_of(exact[name].cpu().numpy())
        actual = directions(error.cpu().numpy(), sample)
        if any(each.evidence > _LIMITS[each.kind].evidence for each in actual):
            samples[name] = sample
            found[name] = [actual]
    # the model's own too: constants and polynomials of its kernels have directions, draws have none
    modes: list[AbstractContextManager[Any]] = [nullcontext()]
    modes += [DrawnRounding(loaded.torch_dtype, seed) for seed in range(DRAWS)]
    for mode in modes:
        for name, error in errors_of(replay(loaded, mode)):
            if name in found:
                found[name].append(directions(error.cpu().numpy(), samples[name]))
    # directions that rounding has not
    faults = {}
    for name, (actual, *trusted) in found.items():
        side_rms, _, *draws_rms = np.sqrt(squares[name])
        rounding = max(float(np.mean(draws_rms)), TINY)
        larger = max(1.0, side_rms / rounding)
        compared = compare_directions(actual, trusted, rounding, larger, _LIMITS)
        if of_module := [each for each in compared if each.is_fault]:
            faults[name] = str(most_telling(of_module))
    every = np.array(list(squares.values()))
    return ModuleRounding(tuple(exact), every[:, 0], every[:, 2:].T, faults)
