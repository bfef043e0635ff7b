"""Each module alone: given what the other side's modules put out before it, does it put out what that side's did?

A forward in which every module's output is replaced by the other side's after it was compared: a fault shows where it
is and nowhere after it. The measure is the module's own rounding, float32 to float64 on the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from ...errors import CaptureError
from ...judging.module_evidence import alone_evidence
from ...judging.places import place_of
from ...runs.file.evidence import MISSING, AloneFigures, Check, Evidence, Unmeasured
from ..models.bits import row_sums
from ..models.dtypes import in_float32, in_float64
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import ignore
from ..paths.engines import PLAIN, RunnableSide
from ..paths.hooks import ModuleTrace
from ..watching.modules import traced_modules, watched_modules
from .precisions.engine_settings import at_widest

KEPT_BYTES = 256 << 20  # of the side's outputs at once
_ULP = 2.0**-23  # of float32, over the value: of one huge feature of a position a single rounding may be all there is
_INSIDE = ("projection", "mlp")  # kinds of the modules inside attention and MLP that are looked at beside these


def module_rows(
    prompts: Sequence[Sequence[int]],
    loaded: LoadedModel,
    sides: Sequence[RunnableSide],
    worst_row: int,
    bugs: Collection[str | None],
    say: Callable[[str], None],
    *,
    is_below_float32: bool,
) -> list[Evidence]:
    """Take each side of a failed pair apart that is not prefill, on the prompt with the worst row; not if compiled.

    bugs: names of sides that no lower precision explains; is_below_float32: a fault may be too small for any module.
    """
    if any(side.is_one_piece for side in sides):
        return []
    prompt, position = place_of(worst_row, [len(ids) for ids in prompts])
    rows = []
    for side in sides:
        if side.path is not None and side.path == PLAIN.path:
            continue
        say(f"each module of '{side.name}' alone")
        try:
            count = fits(loaded, len(prompts[prompt]))
            if count <= position:
                raise CaptureError(f"position {position} of prompt {prompt} is beyond what memory has room for.")
            with foreign_errors_stop("modules one at a time", "choose a smaller model"):
                row = _row(loaded, side, prompt, prompts[prompt][:count], is_bug=side.name in bugs)
        except CaptureError as error:
            says = f"The modules cannot be taken one at a time: {error}"
            control = f"every module of '{side.name}' alone"
            rows.append(Evidence(Check.ALONE, control, Unmeasured(), MISSING, says, side.name))
            continue
        if not is_below_float32 or _names_modules(row):
            rows.append(row)
    return rows


def _row(loaded: LoadedModel, side: RunnableSide, number: int, ids: Sequence[int], *, is_bug: bool) -> Evidence:
    """The row on one side; of an engine whose settings do not explain it, first with these at their widest."""
    for taken in dict.fromkeys([at_widest(side), side] if is_bug else [side]):
        found = modules_alone(loaded, ids, taken)
        control = f"every module of '{taken.name}' on prompt {number}, given what ran before it there, beside float64"
        row = alone_evidence(control, found.names, found.ratios, found.side_rms, found.own_rms, taken.name)
        if _names_modules(row):
            break
    return replace(row, side=side.name)


def _names_modules(row: Evidence) -> bool:
    return isinstance(row.figures, AloneFigures) and bool(row.figures.modules_beyond)


class KeptOutputs(ModuleTrace):
    """Module outputs [positions, width] of a prompt, in the order in which modules ran. seen: computed positions."""

    def __init__(self, prompt: Sequence[int]) -> None:
        super().__init__(prompt, range(len(prompt)))
        self.kept: dict[str, torch.Tensor] = {}
        self.seen: dict[str, NDArray[np.bool_]] = {}

    def take(self, name: str, first: int, found: torch.Tensor) -> None:
        places = slice(first, first + len(found))
        seen = self.seen.setdefault(name, np.zeros(len(self.positions), bool))
        self.is_ambiguous = self.is_ambiguous or (not self.is_told and bool(seen[places].any()))
        seen[places] = True
        if name not in self.kept:
            self.kept[name] = found.new_full((len(self.positions), found.shape[1]), float("nan"))
        self.kept[name][places] = found

    def _own_row(self, output: torch.Tensor) -> torch.Tensor | None:
        """Row of the prompt, of [rows, columns, width] alone: both sides compare the same modules."""
        assert self._computed is not None
        is_of_rows = output.ndim == 3 and output.shape[0] > self._computed[0]
        return super()._own_row(output) if is_of_rows else None

    def run(self, loaded: LoadedModel, side: RunnableSide, modules: Mapping[str, torch.nn.Module]) -> None:
        """Run a side on the prompt, its modules followed or handed in."""
        self.modules = modules.keys()
        with nullcontext() if side.hands_in else self.following(loaded.model, modules):
            side.run_on(loaded, self)(self.prompt, ignore)


def first_module_apart(
    loaded: LoadedModel, prompt: Sequence[int], sides: Sequence[RunnableSide], least: float
) -> str | None:
    """First module whose outputs differ by more than `least` of their size, rms over rms; None if none does."""
    modules = traced_modules(loaded.model)
    traces = [KeptOutputs(prompt) for _ in sides]
    for trace, side in zip(traces, sides, strict=True):
        trace.run(loaded, side, modules)
    ours, theirs = (trace.kept for trace in traces)
    for name, rows in theirs.items():
        if name in ours and float((rows - ours[name]).norm()) > least * float(ours[name].norm()):
            return name
    return None


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


def modules_alone(loaded: LoadedModel, prompt: Sequence[int], side: RunnableSide) -> ModulesAlone:
    """Take a side apart, module by module, on one prompt. CaptureError if its modules cannot be followed."""
    inside = {each.name: each.module for each in watched_modules(loaded.model) if each.kind in _INSIDE}
    modules = {**traced_modules(loaded.model), **inside}
    theirs = KeptOutputs(prompt)
    with in_float32(loaded) as widened:
        theirs.run(widened, side, modules)
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
    found: dict[str, tuple[float, float, float]] = {}

    def compare(name: str, exact: torch.Tensor, given: torch.Tensor) -> None:
        beside = exact - given.double()  # the other side's rounding, with its sign turned
        own = apart[name].double() - beside
        found[name] = _figures(*(row_sums(rows.square()) / rows.shape[1] for rows in (beside, own, given.double())))

    with in_float64(loaded) as widened, _grafted(modules, kept, compare):
        PLAIN.run_on(widened)(prompt, ignore)
    names = tuple(name for name in apart if name in found)
    if not names:
        raise CaptureError(f"'{side.name}' hands on no module's outputs at every position.")
    return ModulesAlone(names, *(np.array(column) for column in zip(*(found[name] for name in names), strict=True)))


def fits(loaded: LoadedModel, positions: int) -> int:
    """Number of positions, at most `positions`, that two copies of all outputs may have in memory."""
    width = sum(each.width for each in watched_modules(loaded.model))
    return min(positions, KEPT_BYTES // (8 * max(1, width)))


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

    def graft(name: str, _: Any, __: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) and output else output
        given = kept[name]
        if not isinstance(first, torch.Tensor) or first.numel() != given.numel() or first.shape[-1] != given.shape[-1]:
            return None
        if name not in done:
            done.add(name)
            see(name, first.detach().reshape(given.shape), given)
        other = given.to(first.dtype).reshape(first.shape)
        return (other, *output[1:]) if isinstance(output, tuple) else other

    handles = [module.register_forward_hook(partial(graft, name)) for name, module in modules.items() if name in kept]
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


def first_not_finite(loaded: LoadedModel, ids: Sequence[int], side: RunnableSide) -> str | None:
    """Run a prompt and return the first module that makes NaN or infinity of finite inputs, or None."""
    found: list[str] = []

    def is_finite(values: Any) -> bool:
        tensors = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor) and each.is_floating_point()]
        return all(bool(torch.isfinite(each.clamp_min(torch.finfo(each.dtype).min)).all()) for each in tensors)

    def look(name: str, _: Any, args: Any, named: Any, output: Any) -> None:
        if not found and is_finite((args, named)) and not is_finite(output):
            found.append(name)

    named = [(name, module) for name, module in loaded.model.named_modules() if name]
    handles = [module.register_forward_hook(partial(look, name), with_kwargs=True) for name, module in named]
    try:
        side.run_on(loaded)(ids, ignore)
    finally:
        for handle in handles:
            handle.remove()
    return next(iter(found), None)
