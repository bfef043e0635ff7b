"""Mode that puts the fixed order in place: below every module class, where torch dispatches its operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError
from . import products
from .operations import handler_of


@contextmanager
def invariant_forwards(model: torch.nn.Module) -> Iterator[None]:
    """Give every sum of the model's forwards one order, not those of what is done with their logits meanwhile."""
    if refusal := invariant_refusal(model):
        raise CaptureError(f"invariant: {refusal}.")
    mode = Invariant()

    def begin(*_: Any) -> None:
        mode.__enter__()

    def end(*_: Any) -> None:
        mode.__exit__(None, None, None)

    with model.register_forward_pre_hook(begin), model.register_forward_hook(end, always_call=True):
        yield


def invariant_refusal(model: torch.nn.Module) -> str | None:
    """Return why this model cannot run batch-invariantly, and the remedy, or None."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for device in {tensor.device: None for _, tensor in tensors}:
        if device.type not in ("cpu", "meta"):  # a dry run has shapes only
            return (
                f"it runs on a CPU only, and the model is on {device}; choose --device cpu, or an engine with its own"
                " batch-invariant mode (vllm:...)"
            )
    no_kernel = "which has no batch-invariant kernel; leave invariant out"
    for name, tensor in tensors:
        is_plain = type(tensor) in (torch.nn.Parameter, torch.Tensor)
        if "weight" in name and not (is_plain and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)):
            dtype = str(tensor.dtype).removeprefix("torch.")
            return f"'{name}' is {dtype} in a {type(tensor).__name__}, {no_kernel}"
    for name, module in model.named_modules():
        label = f"'{name}' ({type(module).__name__})"
        if isinstance(module, torch.nn.modules.conv._ConvNd):
            return f"{label} sums over neighboring tokens, {no_kernel}"
        if hasattr(module, "in_features") and not isinstance(getattr(module, "weight", None), torch.Tensor):
            return f"{label} has no plain weight, like quantized layers; leave invariant out"
    return None


class Invariant(TorchDispatchMode):
    """Mode with one reduction order for any batch, row, chunk, cache and threads: replaces reductions, runs operations
    that round each element alone, and refuses the rest. Only this thread is affected.
    """

    supports_higher_order_operators = True  # so that they are refused here

    def __enter__(self) -> Any:
        products.begin_sharing()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> Any:
        try:
            return super().__exit__(*raised)
        finally:
            products.end_sharing()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return handler_of(func)(self, func, args, kwargs or {})
