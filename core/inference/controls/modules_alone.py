"""Each module alone: given what the other side's modules put out before it, does it put out what the other side's did?

A forward of the model in which the output of every module is replaced by the other side's, after it was compared: so
each module is fed what the other side's was fed, and a fault shows where it is and nowhere after it. The measure is the
module's own rounding: how far its float32 is from float64 on the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import CaptureError
from ..models.bits import row_sums
from ..models.float64 import in_float64
from ..models.model import LoadedModel
from ..paths.batch import ignore
from ..paths.engines import RunnableSide
from ..watching.modules import traced_modules, watched_modules
from .module_growth import KEPT_BYTES, PLAIN, KeptOutputs, run_traced
from .rounding_floor import in_float32

_ULP = 2.0**-23  # of float32, over the value: of one huge feature of a position a single rounding may be all there is
_INSIDE = ("projection", "mlp")  # kinds of the modules inside attention and MLP that are looked at beside these


@dataclass(frozen=True)
class ModulesAlone:
    """Distances of each module alone from its float64, over all positions: of the other side's output, and of the
    model's own in float32. names: in the order in which they run; ratios: the largest of a position's over the module's
    own; side_rms, own_rms: [modules], in units of the module's output.
    """

    names: tuple[str, ...]
    ratios: NDArray[np.float64]
    side_rms: NDArray[np.float64]
    own_rms: NDArray[np.float64]
    positions: int


def modules_alone(loaded: LoadedModel, prompt: Sequence[int], side: RunnableSide) -> ModulesAlone:
    """Take a side apart, module by module, on one prompt. CaptureError where its modules cannot be followed, or hold
    more than memory has room for.
    """
    modules = _looked_at(loaded.model)
    theirs = KeptOutputs(prompt, range(len(prompt)))
    with in_float32(loaded) as widened:
        run_traced(widened, side, theirs, modules)
        if theirs.is_ambiguous:
            raise CaptureError(f"'{side.name}' computes positions twice, so its forwards could not be followed.")
        kept = {name: kept for name, kept in theirs.kept.items() if bool(theirs.seen[name].all())}
        broken = next((name for name, rows in kept.items() if not bool(torch.isfinite(rows).all())), None)
        if broken is not None:
            raise CaptureError(
                f"'{side.name}' puts out NaN or infinity, first at {broken}; of what is fed that, nothing can be told."
            )
        for name in [name for name in kept if _repeats_its_parent(name, kept)]:
            del kept[name]
        apart: dict[str, torch.Tensor] = {}
        with _grafted(modules, kept, lambda name, own, given: apart.update({name: own - given})):
            PLAIN.run_on(widened)(prompt, ignore)
    found: dict[str, tuple[NDArray[np.float64], ...]] = {}

    def compare(name: str, exact: torch.Tensor, given: torch.Tensor) -> None:
        beside = exact - given.double()  # the other side's rounding, with its sign turned
        own = apart[name].double() - beside
        found[name] = tuple(row_sums(rows.square()) / rows.shape[1] for rows in (beside, own, given.double()))

    with in_float64(loaded) as widened, _grafted(modules, kept, compare):
        PLAIN.run_on(widened)(prompt, ignore)
    names = tuple(name for name in apart if name in found)
    if not names:
        raise CaptureError(f"'{side.name}' hands on no module's outputs at every position.")
    figures = [_figures(*found[name]) for name in names]
    ratios, side_rms, own_rms = (np.array(column) for column in zip(*figures, strict=True))
    return ModulesAlone(names, ratios, side_rms, own_rms, len(prompt))


def fits(loaded: LoadedModel, positions: int) -> int:
    """Number of positions, at most `positions`, that two copies of all outputs may have in memory."""
    width = sum(each.width for each in watched_modules(loaded.model))
    return min(positions, KEPT_BYTES // (8 * max(1, width)))


def _looked_at(model: Any) -> dict[str, torch.nn.Module]:
    """Modules in the order in which they stand in the model: blocks, their direct parts and what these are made of."""
    direct = traced_modules(model)
    inside = {each.name: each.module for each in watched_modules(model) if each.kind in _INSIDE}
    return {**direct, **inside}


def _repeats_its_parent(name: str, kept: dict[str, torch.Tensor]) -> bool:
    """Return whether a module's output is that of the module it stands in, whose name says more."""
    parent = kept.get(name.rpartition(".")[0])
    return parent is not None and torch.equal(parent, kept[name])


@contextmanager
def _grafted(
    modules: dict[str, torch.nn.Module],
    kept: dict[str, torch.Tensor],
    see: Callable[[str, torch.Tensor, torch.Tensor], Any],
) -> Iterator[None]:
    """Show every module's first output inside, and what replaces it. kept: by module, [positions, width]"""
    done: set[str] = set()

    def replace(name: str, _: Any, __: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) and output else output
        given = kept[name]
        if not isinstance(first, torch.Tensor) or first.numel() != given.numel() or first.shape[-1] != given.shape[-1]:
            return None
        if name not in done:
            done.add(name)
            see(name, first.detach().reshape(given.shape), given)
        other = given.to(first.dtype).reshape(first.shape)
        return (other, *output[1:]) if isinstance(output, tuple) else other

    handles = [module.register_forward_hook(partial(replace, name)) for name, module in modules.items() if name in kept]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _figures(
    side: NDArray[np.float64], own: NDArray[np.float64], values: NDArray[np.float64]
) -> tuple[float, float, float]:
    """(largest ratio of a position, rms of the side, rms of the own rounding). All [positions], mean squares."""
    measure = np.maximum.reduce([own, np.full_like(own, own.mean()), values * _ULP**2])
    measure = np.maximum(measure, np.finfo(np.float64).tiny)
    return float(np.sqrt((side / measure).max())), float(np.sqrt(side.mean())), float(np.sqrt(own.mean()))
