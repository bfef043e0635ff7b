"""Precision in which a side answers: does it compute in float32 when it is asked to, or in 16 bits whatever it is
asked?

A served engine holds its own weights. Handed the widened model it returns what it returned before, and held against a
float32 floor a correct one would stand ten thousand times above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...judging.divergence import mean_squares
from ...runs.file.evidence import MISSING, Check, Evidence, Unmeasured
from ..models.model import LoadedModel
from ..paths.engines import PLAIN, RunnableSide, divergence, known, whole_side
from .rounding_floor import in_float32

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
    """Evidence that the side computes in 16 bits though it is asked for float32. None where its answers become finer,
    and for a float32 model.

    Either its answers lie on the grid of a 16-bit dtype. Or (a float32 head over 16-bit hidden states) they are off it,
    and yet as far from the model's own float32 forward as rounding to 16 bits is at nine of ten positions, while being
    the first answer over again, or not even repeatable to a quarter of that: a sum in float32 is, in whatever order. A
    fault of an engine that does compute in float32 does neither, for its first answer was rounded otherwise. plain: the
    model's own forward.
    CaptureError where it cannot be asked.
    """
    if loaded.dtype == "float32":
        return None
    chosen = _a_few(prompts)
    with in_float32(loaded) as widened:
        wide = [_answer(widened, side, ids) for ids in chosen]
        grid = grid_of(wide)
        if grid is not None:
            return Narrow(side.name, *grid)
        if side.path is not None:
            return None
        again = [_answer(widened, side, ids) for ids in chosen]
        exact = [_answer(widened, plain, ids) for ids in chosen]
    own = _apart([_answer(loaded, plain, ids) for ids in chosen], exact)
    error = _apart(wide, exact)
    if np.quantile(_ratios(error, own), 0.1) < _A_QUARTER or error.mean() > _LARGEST**2 * own.mean():
        return None
    if _share_of_same([_answer(loaded, side, ids) for ids in chosen], wide, loaded.torch_dtype) >= _SAME:
        return Narrow(side.name, loaded.dtype, "asked for float32 it returns the same logits as before")
    if np.quantile(_ratios(_apart(again, wide), own), 0.1) >= _A_QUARTER:
        return Narrow(
            side.name,
            loaded.dtype,
            f"asked for float32 twice it is as far from itself as rounding to {loaded.dtype} goes",
        )
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


def _a_few(prompts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The shortest prompts, _ASKED positions together or one prompt."""
    chosen: list[Sequence[int]] = []
    for ids in sorted(prompts, key=len):
        if not chosen or sum(map(len, chosen)) + len(ids) <= _ASKED:
            chosen.append(ids)
    return chosen


def _answer(loaded: LoadedModel, side: RunnableSide, ids: Sequence[int]) -> torch.Tensor:
    """Logits of a prompt. [positions, vocab], float32 or wider, which holds each of their values"""
    logits = whole_side(side.run_on(loaded), ids)
    return logits if logits.dtype == torch.float64 else logits.float()


def grid_of(answers: Sequence[torch.Tensor]) -> tuple[str, str] | None:
    """(the coarsest 16-bit dtype that holds practically all of the values, a clause that says so), None where none
    does.

    Zeros, infinities and NaN are in every dtype and say nothing.
    """
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


def _apart(answers: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> NDArray[np.float64]:
    """Mean squares of the differences, over what is finite on both sides. [positions]"""
    return mean_squares([divergence(b, known(a), ()) for a, b in zip(answers, exact, strict=True)])


def _ratios(squares: NDArray[np.float64], beside: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ratios of rms. [positions]"""
    return np.sqrt(squares / np.maximum(beside, np.finfo(np.float64).tiny))


def _share_of_same(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor], dtype: torch.dtype) -> float:
    """Share of the logits that are numbers which are equal once both are rounded to `dtype`; 0 where there are none."""
    numbers = same = 0
    for a, b in zip(first, second, strict=True):
        counts = a.isfinite() & b.isfinite()
        numbers += int(counts.sum())
        same += int((counts & (a.to(dtype) == b.to(dtype))).sum())
    return same / numbers if numbers else 0.0
