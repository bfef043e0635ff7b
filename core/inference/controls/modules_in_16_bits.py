"""Each module of a side in 16 bits, given identical inputs, over randomized rounding of the same
module. At the logits a fault of one module adds to the rounding of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch

from ...checks.modules_in_16_bits import ModuleRounding
from ...errors import CaptureError
from ..models.dtypes import in_float32
from ..models.model import LoadedModel
from ..paths.batch import ignore
from ..paths.engines import PLAIN, RunnableSide
from ..paths.hooks import module_of_call
from .drawn_roundings import DRAWS, DrawnRounding
from .modules_alone import fits, followed_modules, graft_outputs, record_outputs

Outputs = Mapping[str, torch.Tensor]
# with so many positions a scale of the scores shows to 0.1 % in bfloat16
_POSITIONS = 256
# a step of the scores' scale that is small, and far above float32's rounding
_STEP = 2.0**-6


def module_rounding(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    side: RunnableSide,
) -> ModuleRounding:
    """Compare every module of a side with randomized rounding of the same module.

    CaptureError if its modules cannot be followed.
    """
    sums: list[_Errors] = []
    left = _POSITIONS
    for prompt in prompts:
        ids = prompt[: min(left, fits(loaded, len(prompt)))]
        left -= len(ids)
        if ids:
            sums.append(_errors_on(loaded, ids, side))
    # none if no position fits into memory
    names = list(sums[0].squares) if sums else []
    names = [name for name in names if all(name in each.squares for each in sums)]
    if not names:
        raise CaptureError(f"'{side.name}' hands on no module's outputs at every position.")
    squares = np.sum([[each.squares[name] for name in names] for each in sums], axis=0)
    tangent = sum(each.tangent for each in sums)
    scales = np.sum([each.along for each in sums], axis=0) / (tangent or np.nan)
    return ModuleRounding(
        tuple(names),
        side=squares[:, 0],
        draws=squares[:, 2:].T,
        score_scale=float(scales[0]),
        own_score_scale=float(scales[1]),
        drawn_score_scales=scales[2:],
    )


class _Errors:
    """Errors of forwards on one prompt: of the side, of the model's own, and of each draw.

    squares: sums by module [forwards]; along: their products with how the outputs move if the
    scores are larger [forwards]; tangent: sum of squares of that.
    """

    def __init__(self, exact: Outputs, moved: Outputs, forwards: int) -> None:
        self._exact = exact
        self._moves = {name: (moved[name] - exact[name]) / _STEP for name in exact}
        self.squares = {name: np.zeros(forwards) for name in exact}
        self.along = np.zeros(forwards)
        self.tangent = sum(float(each.double().square().sum()) for each in self._moves.values())

    def add(self, forward: int, name: str, output: torch.Tensor, _: Any = None) -> None:
        """Add what a module puts out in one of the forwards. [positions, width]"""
        if name not in self._exact:
            return
        error = output.double() - self._exact[name].double()
        self.squares[name][forward] = float(error.square().sum())
        self.along[forward] += float((error * self._moves[name]).sum())


def _errors_on(loaded: LoadedModel, ids: Sequence[int], side: RunnableSide) -> _Errors:
    modules = {
        name: module
        for name, module in followed_modules(loaded.model).items()
        # positions may begin elsewhere, which attention does not see
        if "rotary" not in type(module).__name__.lower()
    }
    outputs, recorded_calls = record_outputs(loaded, ids, side, modules)
    if not outputs:  # of an engine in another process: nothing to replay
        raise CaptureError(f"'{side.name}' hands on no module's outputs.")

    def replay(model: LoadedModel, mode: AbstractContextManager[Any], see: Any) -> Counter[str]:
        with mode, graft_outputs(modules, outputs, see) as calls:
            PLAIN.run_on(model)(ids, ignore)
        return calls

    exact: dict[str, torch.Tensor] = {}
    moved: dict[str, torch.Tensor] = {}
    with in_float32(loaded) as wide:
        calls = replay(wide, nullcontext(), partial(_keep, exact))
        replay(wide, _larger_scores(wide.model), partial(_keep, moved))
    # if a forward of the side calls a module less often, its calls are not those of the model
    for name in list(exact):
        module = module_of_call(name)
        if recorded_calls[module] != calls[module]:
            del exact[name]
    errors = _Errors(exact, moved, 2 + DRAWS)
    for name in exact:
        errors.add(0, name, outputs[name])
    replay(loaded, nullcontext(), partial(errors.add, 1))
    for seed in range(DRAWS):
        drawn = DrawnRounding(loaded.torch_dtype, seed)
        replay(loaded, drawn, partial(errors.add, 2 + seed))
    return errors


def _keep(outputs: dict[str, torch.Tensor], name: str, output: torch.Tensor, _: Any) -> None:
    outputs[name] = output.clone()


@contextmanager
def _larger_scores(model: Any) -> Iterator[None]:
    """Scale the attention scores by 1 + _STEP, in modules that have transformers' `scaling`."""
    scales = {
        module: module.scaling
        for module in model.modules()
        if isinstance(getattr(module, "scaling", None), float)
    }

    def enlarge(module: Any, _: Any) -> None:
        module.scaling = scales[module] * (1 + _STEP)

    with ExitStack() as stack:
        for module, scale in scales.items():
            stack.callback(setattr, module, "scaling", scale)
            # at each forward, for a run begins by setting the modules back
            stack.callback(module.register_forward_pre_hook(enlarge).remove)
        yield
