"""The rungs that name a module: where a pair leaves the floor from module to module, and each module alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ...errors import CaptureError
from ...judging.ladder.noise_ratio import FloorTest
from ...judging.ladder.places import place_of
from ...judging.module_evidence import alone_evidence, growth_evidence
from ...runs.file.evidence import MISSING, AloneFigures, Check, Evidence, Unmeasured
from ..models.float64 import in_float64
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import ignore
from ..paths.engines import RunnableSide
from .answer_precision import PLAIN
from .judging_session import JudgingSession
from .module_growth import growth_over_modules
from .modules_alone import fits, modules_alone
from .precisions.engine_settings import at_widest
from .rounding_floor import in_float32

_WANTED = 64  # positions that stand out and are looked at whatever the memory


def module_rows(
    session: JudgingSession,
    sides: tuple[RunnableSide, RunnableSide],
    seeds: Sequence[int],
    deciding: FloorTest,
    dtype: str,
    bugs: Collection[str | None],
    say: Callable[[str], None],
) -> list[Evidence]:
    """The module at which the pair leaves the floor, in the dtype that decided, and of a pair that failed each module
    alone. A compiled side has no modules to look at.

    seeds: of the reorderings beside each module; bugs: names of sides that no lower precision explains.
    """
    if any(side.is_one_piece for side in sides):
        return []
    say("module by module")
    try:
        with in_float64(session.loaded) if dtype == "float64" else in_float32(session.loaded) as widened:
            wanted = [*deciding.outliers[:_WANTED].tolist(), deciding.worst_row]
            found = growth_over_modules(
                widened, session.prompts, sides, seeds, wanted, session.module_floor, partial(session.traces, widened)
            )
    except CaptureError as error:
        control = "outputs of every block, both sides"
        says = f"The modules cannot be compared: {error}"
        return [Evidence(Check.GROWTH, control, Unmeasured(), MISSING, says)]
    control = (
        f"outputs of {len(found.names)} modules at {found.positions} positions, both sides in {dtype}, beside "
        f"{len(seeds)} reorderings of every linear map"
    )
    is_handed_in = any(side.hands_in for side in sides)
    growth = growth_evidence(
        control, found.names, found.pair_rms, found.floor_rms, dtype, deciding, is_handed_in=is_handed_in
    )
    if deciding.is_passed:
        return [growth]
    return [growth, *_rows_alone(session, sides, deciding.worst_row, bugs, say, is_below_float32=dtype == "float64")]


def first_not_finite(loaded: LoadedModel, ids: Sequence[int], side: RunnableSide) -> str | None:
    """Run a prompt and return the first module that puts out NaN or infinity though it was given none; None if there is
    no such module.
    """
    found: list[str] = []

    def is_finite(values: Any) -> bool:
        tensors = [each for each in tree_leaves(values) if isinstance(each, torch.Tensor) and each.is_floating_point()]
        return all(bool(torch.isfinite(each.clamp_min(torch.finfo(each.dtype).min)).all()) for each in tensors)

    handles = [
        module.register_forward_hook(
            lambda _, args, named, output, name=name: (
                found.append(name) if not found and is_finite((args, named)) and not is_finite(output) else None
            ),
            with_kwargs=True,
        )
        for name, module in loaded.model.named_modules()
        if name
    ]
    try:
        side.run_on(loaded)(ids, ignore)
    finally:
        for handle in handles:
            handle.remove()
    return next(iter(found), None)


def _rows_alone(
    session: JudgingSession,
    sides: Sequence[RunnableSide],
    worst_row: int,
    bugs: Collection[str | None],
    say: Callable[[str], None],
    *,
    is_below_float32: bool,
) -> list[Evidence]:
    """Take each side that is not the plain forward apart, module by module, on the prompt with the worst row.

    is_below_float32: what was decided in float64 may be too small for any module to stand out.
    """
    prompt, position = place_of(worst_row, [len(ids) for ids in session.prompts])
    count = fits(session.loaded, len(session.prompts[prompt]))
    found = []
    for side in sides:
        if side.path is not None and side.path == PLAIN.path:
            continue
        say(f"each module of '{side.name}' alone")
        try:
            if count <= position:
                raise CaptureError(f"position {position} of prompt {prompt} is beyond what memory has room for.")
            with foreign_errors_stop("modules one at a time", "choose a smaller model"):
                row = _row_alone(session, side, prompt, count, is_bug=side.name in bugs)
        except CaptureError as error:
            says = f"The modules cannot be taken one at a time: {error}"
            control = f"every module of '{side.name}' alone"
            found.append(Evidence(Check.ALONE, control, Unmeasured(), MISSING, says, side.name))
            continue
        if not is_below_float32 or _names_modules(row):
            found.append(row)
    return found


def _row_alone(session: JudgingSession, side: RunnableSide, prompt: int, count: int, *, is_bug: bool) -> Evidence:
    """The row on one side; of an engine whose settings do not explain it, first with these at their widest."""
    for taken in dict.fromkeys([at_widest(side), side] if is_bug else [side]):
        found = modules_alone(session.loaded, session.prompts[prompt][:count], taken)
        control = f"every module of '{taken.name}' on prompt {prompt}, given what ran before it there, beside float64"
        row = alone_evidence(control, found.names, found.ratios, found.side_rms, found.own_rms, taken.name)
        if _names_modules(row):
            break
    return replace(row, side=side.name)


def _names_modules(row: Evidence) -> bool:
    return isinstance(row.figures, AloneFigures) and bool(row.figures.modules_beyond)
