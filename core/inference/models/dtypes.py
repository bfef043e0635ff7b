"""A loaded model in another dtype inside a `with`, and then restored bit for bit.

In float64 rounding is 2^-29 of that in float32, and a fault is as large as before. Modules cast to
float32 themselves (norms, softmax, routers, rotary angles), which in a float64 model would narrow.
There every cast to float32 becomes one to float64, so the noise floor is that of float64: 2e-15
logits on models whose float32 floor is 1e-6.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError
from ...text import size
from .model import LoadedModel, rounded_parameters


@contextmanager
def converted(loaded: LoadedModel, dtype: str) -> Iterator[LoadedModel]:
    """Convert the model to `dtype` inside, as if loaded in it; the original weights are restored.

    Only parameters are rounded: buffers such as rotary frequencies stay in float32.
    """
    target = getattr(torch, dtype)
    with data_replaced(
        rounded_parameters(loaded.model, loaded.torch_dtype, target),
        lambda tensor: tensor.data.to(target),
    ):
        yield replace(loaded, dtype=dtype)


@contextmanager
def data_replaced(
    tensors: Iterable[Tensor],
    change: Callable[[Tensor], Tensor],
) -> Iterator[None]:
    """Replace the data of tensors inside; the original bits are restored."""
    originals: list[tuple[Tensor, Tensor]] = []
    try:
        # a weight that is an inference tensor could not be restored
        with torch.inference_mode(False), torch.no_grad():
            for tensor in tensors:
                originals.append((tensor, tensor.data))
                tensor.data = change(tensor)
        yield
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for tensor, data in originals:
                tensor.data = data


def converted_bytes(loaded: LoadedModel, dtype: str) -> int:
    """Return the bytes of the converted weights, without the originals."""
    target = getattr(torch, dtype)
    parameters = rounded_parameters(loaded.model, loaded.torch_dtype, target)
    return sum(parameter.numel() * target.itemsize for parameter in parameters)


@contextmanager
def in_float32(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """Compute the same function in float32 inside: weights keep their values, and the original bits
    are restored. CaptureError if they do not fit.
    """
    _check_room(loaded, "float32", converted_bytes(loaded, "float32"))
    with converted(loaded, "float32") as model:
        yield model


def _check_room(loaded: LoadedModel, dtype: str, needed: int) -> None:
    free = loaded.free_bytes if needed else None
    if free is not None and needed > free:
        raise CaptureError(
            f"model '{loaded.name}': its weights in {dtype} take another {size(needed)};"
            f" {loaded.device} has {size(free)} free. Choose a smaller model or another device.",
        )


@contextmanager
def in_float64(loaded: LoadedModel) -> Iterator[LoadedModel]:
    """Compute in float64 inside. CaptureError if the weights do not fit. Only this thread is
    affected; an engine's own code around the model, with its own weights, keeps its dtypes.
    """
    every = [*loaded.model.parameters(), *loaded.model.buffers()]
    tensors = [each for each in every if each.is_floating_point() and each.itemsize < 8]
    _check_room(loaded, "float64", 8 * sum(tensor.numel() for tensor in tensors))
    with ExitStack() as stack:
        stack.enter_context(data_replaced(tensors, lambda tensor: tensor.data.double()))
        # their grouped product has no float64
        stack.enter_context(experts_by(loaded.model, "eager"))
        widening = _Widening()
        for module in loaded.model.modules():
            stack.enter_context(module.register_forward_pre_hook(widening.enter, prepend=True))
            stack.enter_context(module.register_forward_hook(widening.leave, always_call=True))
        stack.enter_context(widening)
        yield replace(loaded, dtype="float64")


@contextmanager
def experts_by(model: Any, name: str) -> Iterator[None]:
    """Use another implementation of experts inside, if the model has any."""
    experts = getattr(model.config, "_experts_implementation", None)
    if experts in (None, name):
        yield
        return
    try:
        model.set_experts_implementation(name)
        yield
    finally:
        model.set_experts_implementation(experts)


class _Widening(TorchDispatchMode):
    """Mode that turns float32 in arguments into float64 inside modules of the model. depth: of
    nested modules.
    """

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0

    def enter(self, *_: Any) -> None:
        self.depth += 1

    def leave(self, *_: Any) -> None:
        self.depth -= 1

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        if not self.depth:
            return func(*args, **(kwargs or {}))
        keywords = {key: _widen(value) for key, value in (kwargs or {}).items()}
        return func(*map(_widen, args), **keywords)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


WIDENING = {"float32": in_float32, "float64": in_float64}
