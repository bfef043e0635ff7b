"""Mode that puts the fixed order in place: below every module class, where torch dispatches its operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError
from . import products
from .operations import Handler, handler_of

_HANDLERS: dict[Any, Handler] = {}


@contextmanager
def invariant(model: torch.nn.Module) -> Iterator[None]:
    """Every sum that is computed inside has one order, whatever the batch, the row, the chunk, the cache and the
    threads.

    Nothing of the model is changed, so there is nothing to put back. Only this thread is affected.
    """
    _check(model)
    with _Invariant():
        yield


@contextmanager
def invariant_forwards(model: torch.nn.Module) -> Iterator[None]:
    """Apply `invariant` to the forwards of the model alone, not to what is done with their logits meanwhile."""
    _check(model)
    mode = _Invariant()

    def begin(*_: Any) -> None:
        mode.__enter__()

    def end(*_: Any) -> None:
        mode.__exit__(None, None, None)

    hooks = [model.register_forward_pre_hook(begin), model.register_forward_hook(end, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check(model: torch.nn.Module) -> None:
    refusal = invariant_refusal(model)
    if refusal:
        raise CaptureError(f"invariant: {refusal}.")


def invariant_refusal(model: torch.nn.Module) -> str | None:
    """Reason why the sums of this model cannot be given one order and what to do about it, or None."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for device in {tensor.device: None for _, tensor in tensors}:
        if device.type not in ("cpu", "meta"):  # a dry run has shapes only
            return (
                f"it runs on a CPU, and the model is on {device}; choose --device cpu, or compare an engine that has a"
                " batch-invariant mode of its own (vllm:...)"
            )
    for name, tensor in tensors:
        if "weight" not in name:
            continue
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.dtype not in (torch.float32, torch.bfloat16, torch.float16) or type(tensor) not in (
            torch.nn.Parameter,
            torch.Tensor,
        ):
            return (
                f"'{name}' is held as {dtype} in a {type(tensor).__name__}, for which there is no kernel of fixed"
                " order; leave invariant out"
            )
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.conv._ConvNd):
            return (
                f"'{name}' ({type(module).__name__}) adds up over neighbouring tokens, for which there is no kernel of"
                " fixed order; leave invariant out"
            )
        if hasattr(module, "in_features") and not isinstance(getattr(module, "weight", None), torch.Tensor):
            return (
                f"'{name}' ({type(module).__name__}) holds no weight in the open, as quantised layers do; leave"
                " invariant out"
            )
    return None


class _Invariant(TorchDispatchMode):
    """Takes over what adds up, lets through what rounds each element by itself, and refuses the rest."""

    supports_higher_order_operators = True  # so that they are refused here, in our words

    def __enter__(self) -> Any:
        products.begin_sharing()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> Any:
        try:
            return super().__exit__(*raised)
        finally:
            products.end_sharing()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        handler = _HANDLERS.get(func)
        if handler is None:
            handler = _HANDLERS[func] = handler_of(func)
        return handler(self, func, args, kwargs)
