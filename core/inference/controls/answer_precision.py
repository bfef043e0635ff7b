"""Does a side compute in float32 when it is asked to, or in 16 bits whatever it is asked?

A served engine holds its own weights: compared with a float32 floor a correct one would be 10,000 floors away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...judging.divergence import mean_squares
from ...runs.file.evidence import MISSING, Check, Evidence, Unmeasured
from ..models.dtypes import in_float32
from ..models.model import LoadedModel
from ..paths.engines import PLAIN, RunnableSide, divergence, known, whole_side
from .rounding_floor import as_many_as

_ASKED = 128  # positions to ask for, and one prompt at least
_PRACTICALLY_ALL = 0.98  # of logits on a 16-bit grid; of those computed in float32 1 in 65,000 is on that of bfloat16
_SAME = 0.98  # of logits that round to the bits of the first answer; computed in float32, a third to two thirds do
# Of what rounding to 16 bits does to the model itself. bfloat16 hidden states under a float32 head reached 0.8 to 1.0
# at nine of ten positions on six models; a correct side that computes in float32 stays at 1e-4 (1e-3 of float16).
_A_QUARTER = 0.25
_LARGEST = 10.0  # times that; what is further away is no rounding to 16 bits, whatever it was computed in


@dataclass(frozen=True)
class Narrow:
    """A side that computes in a 16-bit dtype whatever it is asked. seen: how that was found out, a clause."""

    side: str
    dtype: str
    seen: str


def narrow_answers(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], side: RunnableSide, plain: RunnableSide = PLAIN
) -> Narrow | None:
    """Evidence that the side computes in 16 bits though it is asked for float32; None if its answers become finer.

    Its answers lie on the grid of a 16-bit dtype. Or (a float32 head over 16-bit states) they are off it, as far from
    the model's float32 forward as 16 bits round at nine of ten positions, and the same as before or not even repeatable
    to a quarter of that. A fault in float32 does neither. plain: the model's own forward.
    """
    if loaded.dtype == "float32":
        return None
    chosen = as_many_as(sorted(prompts, key=len), _ASKED)

    def answers(model: LoadedModel, of: RunnableSide) -> torch.Tensor:
        """Logits [positions, vocab], in float32 or wider, which holds each of their values."""
        logits = torch.cat([whole_side(of.run_on(model), ids) for ids in chosen])
        return logits if logits.dtype == torch.float64 else logits.float()

    with in_float32(loaded) as widened:
        wide = answers(widened, side)
        grid = grid_of([wide])
        if grid is not None:
            return Narrow(side.name, *grid)
        if side.path is not None:
            return None
        again, exact = answers(widened, side), answers(widened, plain)
    own, error = _apart(answers(loaded, plain), exact), _apart(wide, exact)
    if _tenth(error, own) < _A_QUARTER or error.mean() > _LARGEST**2 * own.mean():
        return None
    if _share_of_same(answers(loaded, side), wide, loaded.torch_dtype) >= _SAME:
        return Narrow(side.name, loaded.dtype, "asked for float32 it returns the same logits as before")
    if _tenth(_apart(again, wide), own) >= _A_QUARTER:
        seen = f"asked for float32 twice it is as far from itself as rounding to {loaded.dtype} goes"
        return Narrow(side.name, loaded.dtype, seen)
    return None


def narrow_evidence(narrow: Sequence[Narrow], names: tuple[str, str]) -> Evidence:
    """The float32 comparison, missing with the reason. narrow: at least one of the two sides."""
    dtypes = " and ".join(dict.fromkeys(one.dtype for one in narrow))
    who = "; ".join(f"'{one.side}': {one.seen}" for one in narrow)
    says = (
        f"The pair cannot be had in float32: the engine computes in {dtypes} whatever it is asked ({who}). Let it load"
        " its weights in float32 when `model.dtype` is float32, and the float32 rung decides."
    )
    figures = Unmeasured(computes_in={one.side: one.dtype for one in narrow})
    return Evidence(Check.WIDE_PAIR, f"'{names[1]}' against '{names[0]}' in float32", figures, MISSING, says)


def grid_of(answers: Sequence[torch.Tensor]) -> tuple[str, str] | None:
    """(the coarsest 16-bit dtype that holds practically all finite values but zeros, a clause on it), or None."""
    for dtype in (torch.bfloat16, torch.float16):
        values = on_grid = 0
        for logits in answers:
            counts = logits.isfinite() & (logits != 0)
            values += int(counts.sum())
            on_grid += int((counts & (logits.to(dtype).to(logits.dtype) == logits)).sum())
        if values and on_grid >= _PRACTICALLY_ALL * values:
            name = str(dtype).removeprefix("torch.")
            share = "all" if on_grid == values else f"{on_grid / values:.1%}"
            return name, f"asked for float32, {share} of its logits are {name} values"
    return None


def _apart(answers: torch.Tensor, exact: torch.Tensor) -> NDArray[np.float64]:
    """Mean squares of the differences, over what is finite on both sides. [positions]"""
    return mean_squares([divergence(exact, known(answers), ())])


def _tenth(squares: NDArray[np.float64], beside: NDArray[np.float64]) -> float:
    """Ratio of rms that nine of ten positions reach."""
    return float(np.quantile(np.sqrt(squares / np.maximum(beside, np.finfo(np.float64).tiny)), 0.1))


def _share_of_same(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> float:
    """Share of the finite logits that are equal once both are rounded to `dtype`; 0 if there are none."""
    counts = first.isfinite() & second.isfinite()
    same = counts & (first.to(dtype) == second.to(dtype))
    return int(same.sum()) / max(1, int(counts.sum()))
