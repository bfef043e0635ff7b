"""The pair once more with every sum in one order: what is then still there is no matter of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from ...errors import CaptureError
from ...runs.file.evidence import NOTED, PASSED, Check, Evidence, OneOrderFigures
from ..models.model import LoadedModel
from ..models.torch_errors import foreign_errors_stop
from ..paths.batch import Emit, Run
from ..paths.engines import RunnableSide, side_of
from ..paths.grammar import Step
from ..paths.hooks import ModuleTrace
from .mode import invariant

_MODIFIER = "invariant"


def one_order_evidence(
    loaded: LoadedModel,
    sides: tuple[RunnableSide, RunnableSide],
    is_rounding: bool | None,
    digest_of: Callable[[LoadedModel, RunnableSide], str],
) -> Evidence | None:
    """A row of the rung that says where a divergence comes from, in the dtype that `loaded` is in; it never decides.

    is_rounding: what the deciding rung found; None where there was none. digest_of: of a side's bits over the prompts.
    None instead of a row: a side cannot be run in one order.

    Equal bits show that on these prompts nothing in the caches, indices, masks and batches of the sides moves a bit in
    that dtype, for a fault in one of them is no sum in another order and stays, unless it is so small that it rounds
    away. They say nothing of the kernels that this mode takes the place of, which only the floor does.
    """
    names = [side.name for side in sides]
    control = f"'{names[1]}' against '{names[0]}' in {loaded.dtype}, every sum of both in one order (invariant)"
    try:
        with foreign_errors_stop("invariant", "shorten the prompts"):
            reference, variant = (digest_of(loaded, _in_one_order(side, loaded)) for side in sides)
    except CaptureError:
        return None
    figures = OneOrderFigures(compute_dtype=loaded.dtype, bit_identical=reference == variant)
    with_it = f"With every sum in one order, in {loaded.dtype}, both sides"
    if reference != variant:
        or_fault = "" if is_rounding else ", or a fault"
        says = (
            f"{with_it} still differ: they do not compute the same steps, be it another formula or rounding"
            f" elsewhere{or_fault}."
        )
        return Evidence(Check.IN_ONE_ORDER, control, figures, NOTED, says)
    if is_rounding is False:
        says = (
            f"{with_it} are equal bit for bit, so what parts them beyond the floor is in the kernels that this mode"
            " takes the place of, or rounds away with them."
        )
        return Evidence(Check.IN_ONE_ORDER, control, figures, NOTED, says)
    nothing = f"nothing of a cache, index, mask or neighbour that {loaded.dtype} shows"
    says = (
        f"{with_it} are equal bit for bit: on these prompts it is the kernels' order of sums that parts them, and"
        f" {nothing}."
        if is_rounding
        # a floor would say whether those kernels only round
        else (
            f"{with_it} are equal bit for bit: on these prompts what parts them is in the kernels that this mode takes"
            f" the place of, and {nothing}."
        )
    )
    return Evidence(Check.IN_ONE_ORDER, control, figures, PASSED, says)


def _in_one_order(side: RunnableSide, loaded: LoadedModel) -> RunnableSide:
    if side.path is None:
        return replace(side, open=lambda model, trace: _around(side, model, trace))
    if any(step.name == _MODIFIER for step in side.path.modifiers):
        return side
    path = replace(side.path, modifiers=(*side.path.modifiers, Step(_MODIFIER)))
    refusal = path.refusal(loaded)
    if refusal:
        raise CaptureError(f"path '{path}': {refusal}.")
    return side_of(str(path))


@contextmanager
def _around(side: RunnableSide, loaded: LoadedModel, trace: ModuleTrace | None) -> Iterator[Run]:
    """A callable, all of whose own work is done in one order: nobody knows where in it the model is called."""
    with side.open(loaded, trace) as opened:

        def run(ids: Sequence[int], emit: Emit) -> None:
            found: list[tuple[int, torch.Tensor]] = []  # whoever takes them works outside
            with invariant(loaded.model):
                opened(ids, lambda start, logits: found.append((start, logits)))
            for piece in found:
                emit(*piece)

        yield run
