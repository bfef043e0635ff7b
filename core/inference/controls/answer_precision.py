"""Detect a side that computes in 16 bits although it is asked for float32, as a server with its own
weights does.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..models.dtypes import in_float32
from ..models.model import LoadedModel
from ..paths.engines import PLAIN, Prompts, RunnableSide, whole_side
from .rounding_floor import groups_of

_POSITIONS = 128  # to ask for, and one prompt at least
# share of logits on a 16-bit grid, or equal after rounding to one: in float32 two thirds at most
_MOST = 0.98
# In roundings of the model to 16 bits. bfloat16 hidden states under a float32 head reached 0.8 to
# 1.0 at nine of ten positions on six models; a correct side that computes in float32 stays at 1e-4
# (1e-3 of float16).
_LEAST_ROUNDING, _LARGEST_ROUNDING = 0.25, 10.0


class Narrow(NamedTuple):
    """A side that computes in 16 bits. says: a sentence with what shows it."""

    side: str
    dtype: str
    says: str


def narrow_answers(
    loaded: LoadedModel,
    prompts: Prompts,
    side: RunnableSide,
    plain: RunnableSide = PLAIN,
) -> Narrow | None:
    """Return the 16-bit dtype that the side computes in although it is asked for float32, or None.

    Its logits lie on that grid. Or (a float32 head over 16-bit states) they are as far from the
    float32 forward as 16 bits round at nine of ten positions, and equal to the first answer or not
    even repeatable. plain: the model.
    """
    if loaded.dtype == "float32":
        return None
    shortest = next(groups_of(sorted(prompts, key=len), _POSITIONS))
    dtype = loaded.dtype

    def answers(model: LoadedModel, of: RunnableSide = side) -> Tensor:
        return torch.cat([whole_side(of.run_on(model), ids) for ids in shortest])

    def narrow(dtype: str, reason: str) -> Narrow:
        says = f"'{side.name}' computes in {dtype} in a float32 run ({reason})"
        return Narrow(side.name, dtype, f"{says}; load its weights in model.dtype.")

    with in_float32(loaded) as model:
        wide = answers(model)
        if grid := grid_of(wide):
            return narrow(grid, f"its logits are {grid} values")
        if side.path is not None:
            return None
        again = answers(model)
        exact = answers(model, plain)
    own = _rms(answers(loaded, plain), exact).clamp_min(1e-300)
    error = _rms(wide, exact)
    is_far = error.norm() > _LARGEST_ROUNDING * own.norm()
    if is_far or (error / own).quantile(0.1) < _LEAST_ROUNDING:
        return None
    is_same = answers(loaded).to(loaded.torch_dtype) == wide.to(loaded.torch_dtype)
    if float(is_same[wide.isfinite()].double().mean()) >= _MOST:
        return narrow(dtype, "it returns the same logits in a float32 run")
    if (_rms(again, wide) / own).quantile(0.1) >= _LEAST_ROUNDING:
        return narrow(dtype, f"two answers in float32 differ by what {dtype} rounds")
    return None


def grid_of(logits: Tensor) -> str | None:
    """Return the coarsest 16-bit dtype that holds nearly all logits that are finite and not 0."""
    values = logits[logits.isfinite() & (logits != 0)]
    for dtype in (torch.bfloat16, torch.float16):
        is_on_grid = values.to(dtype).to(values.dtype) == values
        # NaN, the mean of none, is not
        if float(is_on_grid.double().mean()) >= _MOST:
            return str(dtype).removeprefix("torch.")
    return None


def _rms(first: Tensor, second: Tensor) -> Tensor:
    """Differences at each position over what is not infinite on both sides. [positions]"""
    return (first.double() - second.double()).square().nanmean(1).sqrt()
