"""Linear maps summed in another order: what pure rounding does to this model (DESIGN section 6, the rounding floor).

Permuting the contracted axis of a weight and of its input alike is the same mathematics in another order of summation.
It is done where torch dispatches its operations, below every module class, on copies that live for one product.

Attention, norms, embeddings and convolutions stay as they are. Any other operation on a weight is refused, and so is a
module whose products were never seen: a floor of half a model would call rounding a bug.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

from ...errors import CaptureError

_aten: Any = torch.ops.aten
# Product -> the argument numbers of its two factors. The last axis of the first meets the last but one of the second.
_PRODUCTS: dict[Any, tuple[int, int]] = {
    _aten.linear: (0, 1),  # alone has [out, in] as its second factor
    _aten.matmul: (0, 1),
    _aten.mm: (0, 1),
    _aten.bmm: (0, 1),
    _aten.mv: (0, 1),
    _aten.dot: (0, 1),
    _aten.addmm: (1, 2),
    _aten.addmm_: (1, 2),
    _aten.addmv: (1, 2),
    _aten.addmv_: (1, 2),
    _aten.addbmm: (1, 2),
    _aten.addbmm_: (1, 2),
    _aten.baddbmm: (1, 2),
    _aten.baddbmm_: (1, 2),
    _aten._grouped_mm: (0, 1),
}
# What takes matrices and is meant to stay as it is.
_LEFT_ALONE = {
    getattr(_aten, name)
    for name in (
        *("embedding", "conv1d", "conv2d", "conv3d", "convolution", "_convolution"),
        *("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "native_group_norm"),
    )
}
_NO_MAP = (torch.nn.Embedding, torch.nn.modules.conv._ConvNd)


def order_of(seed: int, name: str, length: int) -> torch.Tensor:
    """The permutation of `length` terms for a seed and a weight's name, the same everywhere. [length], int64"""
    digest = hashlib.sha256(f"{seed} {length} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randperm(length, generator=generator)


class Reordering:
    """What has been reordered so far. calls: weight -> products with it; experts in one parameter are one map."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.calls)


@contextmanager
def reordered(model: torch.nn.Module, seed: int) -> Iterator[Reordering]:
    """Every linear map of the model that runs inside sums in an order drawn from (seed, name of its weight).

    Weights converted inside are followed. Only this thread is affected.
    """
    refusal = reordering_refusal(model)
    if refusal:
        raise CaptureError(f"reordering: {refusal}.")
    found = Reordering()
    weights = _Weights(model)
    mode = _Reorder(weights, found, seed)
    ran: Counter[torch.nn.Module] = Counter()

    def note(module: torch.nn.Module, *_: Any) -> None:
        # Under a dispatch mode dynamo quietly falls back to the plain model, and the floor would then compare two
        # kinds of kernels. Its frame evaluator is installed all the same.
        if get_eval_frame_callback() is not None:
            raise CaptureError(
                "reordering: the model is called through torch.compile, whose sums cannot be reached; leave compile"
                " out."
            )
        ran[module] += 1

    hooks = [module.register_forward_hook(note) for module in model.modules() if weights.of(module)]
    try:
        with mode:
            yield found
    finally:
        for hook in hooks:
            hook.remove()
    for name, module in model.named_modules():
        if not mode.has_seen(module, ran[module]):
            raise CaptureError(
                f"reordering: '{name}' ({type(module).__name__}) ran by a kernel whose sums cannot be reached from"
                " torch; leave compile out, or choose its eager implementation."
            )


def reordering_refusal(model: torch.nn.Module) -> str | None:
    """Reason why the linear maps of this model cannot be reordered and what to do about it, or None."""
    for name, module in model.named_modules():
        where = f"'{name}' ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        is_compiled = "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
        if is_compiled or isinstance(module, torch.jit.ScriptModule):
            return f"{where} is compiled, so its sums cannot be reached; load the model without compiling it"
        if hasattr(module, "in_features") and not isinstance(getattr(module, "weight", None), torch.Tensor):
            return f"{where} holds no weight in the open, as quantised layers do; load the model without quantisation"
        tensors = {**module._parameters, **module._buffers}
        for key, tensor in tensors.items():
            if tensor is None:
                continue
            if "weight" in key and (not tensor.is_floating_point() or tensor.dtype.itemsize < 2):
                dtype = str(tensor.dtype).removeprefix("torch.")
                return (
                    f"{where} holds its {key} as {dtype}, as quantised layers do; load the model without quantisation"
                )
            if key in module._parameters and type(tensor) not in (torch.nn.Parameter, torch.Tensor):
                kind = type(tensor).__name__
                return f"{where} holds its {key} as {kind}; load the model with plain tensors as weights"
            if key in module._parameters and tensor.device.type == "meta":
                return f"{where} has its {key} offloaded; load the whole model onto one device"
    return None


class _Weights:
    """The matrices among a model's parameters, by where in memory they begin: every view of one is one."""

    def __init__(self, model: torch.nn.Module) -> None:
        names: dict[int, str] = {}
        self._end: dict[int, int] = {}
        self._held = []  # so that no other tensor can come to lie at these addresses
        for prefix, module in model.named_modules():
            for key, parameter in module._parameters.items():
                if parameter is None or not _is_matrix(parameter):
                    continue
                begin = parameter.data_ptr()
                # A tied head goes by the head's name, whichever comes first: the embedding is no map.
                if begin not in names or not isinstance(module, _NO_MAP):
                    names[begin] = f"{prefix}.{key}" if prefix else key
                self._end[begin] = begin + _span_bytes(parameter)
                self._held.append(parameter.untyped_storage())
        self._begins = sorted(names)
        self._names = names
        self._copies: dict[int, tuple[StorageWeakRef, str]] = {}

    def of(self, module: torch.nn.Module) -> list[str]:
        """Names of the matrices that the module itself owns, unless it is one of the kinds that are no map."""
        if isinstance(module, _NO_MAP):
            return []
        return [
            self._names.get(p.data_ptr(), "") for p in module._parameters.values() if p is not None and _is_matrix(p)
        ]

    def parameter(self, tensor: torch.Tensor) -> str | None:
        """The parameter that the tensor is, or is a view of."""
        pointer = tensor.data_ptr()
        place = bisect_right(self._begins, pointer) - 1
        if place < 0 or pointer >= self._end[self._begins[place]]:
            return None
        return self._names[self._begins[place]]

    def name(self, tensor: torch.Tensor) -> str | None:
        """The parameter that the tensor is, views or is a function of."""
        name = self.parameter(tensor)
        if name is None and self._copies:
            _, name = self._copies.get(tensor.untyped_storage()._cdata, (None, None))
        return name

    def add_copy(self, tensor: torch.Tensor, name: str) -> None:
        """Note a function of the parameter `name` alone: its rows gathered, or it in another dtype."""
        # While its weak reference is held, no other storage gets the address that is the key.
        self._copies = {key: kept for key, kept in self._copies.items() if not kept[0].expired()}
        storage = tensor.untyped_storage()
        self._copies[storage._cdata] = (StorageWeakRef(storage), name)


class _Reorder(TorchDispatchMode):
    """Permutes both factors of every product with a weight, at the moment it is computed."""

    supports_higher_order_operators = True  # so that they are refused here, in our words

    def __init__(self, weights: _Weights, found: Reordering, seed: int) -> None:
        super().__init__()
        self._weights, self._found, self._seed = weights, found, seed
        self._orders: dict[Any, torch.Tensor] = {}
        self._computed_with: set[str] = set()

    def has_seen(self, module: torch.nn.Module, runs: int) -> bool:
        """Return whether a linear layer's products were reordered each time it ran; else anything computed."""
        names = self._weights.of(module)
        if not runs or not names:
            return True
        if isinstance(module, torch.nn.Linear | Conv1D):
            return sum(self._found.calls[name] for name in names) >= runs
        return any(name in self._found.calls or name in self._computed_with for name in names)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # flex_attention, whose kernel only torch.compile makes
            raise CaptureError(
                f"reordering: {func} cannot run while sums are reordered; choose attn:sdpa or attn:eager."
            )
        packet = func.overloadpacket
        factors = _PRODUCTS.get(packet)
        if factors is None and func.namespace == "transformers" and func._opname == "grouped_mm_fallback":
            factors = (0, 1)
        if factors is not None:
            return self._product(func, packet, factors, args, kwargs)
        floats = list(_floats(args)) + list(_floats(kwargs.values()))
        named = [name for name in map(self._weights.name, floats) if name is not None]
        if not named:
            return func(*args, **kwargs)
        if packet in _LEFT_ALONE:
            self._computed_with.update(named)
            return func(*args, **kwargs)
        if len(named) == len(floats):  # a function of weights alone: a view, a gathered copy, another dtype
            return self._noted(func(*args, **kwargs), named)
        if torch.Tag.pointwise in func.tags:  # no sum in it
            self._computed_with.update(named)
            return func(*args, **kwargs)
        with self:  # einsum and its like are products underneath
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise CaptureError(
                f"reordering: {func} takes '{named[0]}', and how to reorder its sums is not known; "
                "choose an implementation of the model that multiplies by matrix products."
            )
        return result

    def _noted(self, result: Any, named: list[str]) -> Any:
        for tensor in _floats([result]):
            if self._weights.parameter(tensor) is None:
                self._computed_with.update(named)
                self._weights.add_copy(tensor, named[0])
        return result

    def _product(self, func: Any, packet: Any, factors: tuple[int, int], args: Any, kwargs: Any) -> Any:
        first, second = (args[number] for number in factors)
        name = self._weights.name(second) or self._weights.name(first)
        if name is None:
            if packet is not _aten.linear:  # two activations: attention
                return func(*args, **kwargs)
            name = f"a weight of {list(second.shape)}"
        axes = (-1, -1 if packet is _aten.linear or second.ndim == 1 else -2)
        length = first.shape[axes[0]]
        if packet is _aten._grouped_mm and second.ndim == 2 and first.ndim == 2:
            raise CaptureError(
                f"reordering: {func} contracts '{name}' group by group; choose the eager experts implementation."
            )
        self._found.calls[name] += 1
        if length < 2:  # one term has one order
            return func(*args, **kwargs)
        changed = list(args)
        for number, tensor, axis in zip(factors, (first, second), axes, strict=True):
            changed[number] = self._permuted(tensor, axis, name, length)
        return func(*changed, **kwargs)

    def _permuted(self, tensor: torch.Tensor, axis: int, name: str, length: int) -> torch.Tensor:
        place = (name, length, tensor.device)
        if place not in self._orders:
            self._orders[place] = order_of(self._seed, name, length).to(tensor.device)
        return _permuted(tensor, axis, self._orders[place])


def _permuted(tensor: torch.Tensor, axis: int, order: torch.Tensor) -> torch.Tensor:
    """The tensor with one axis in another order, laid out in memory as it was. Same shape"""
    spread = [dim for dim in range(tensor.ndim) if tensor.stride(dim) == 0 and tensor.shape[dim] > 1]
    narrow = tensor
    for dim in spread:  # an expanded axis holds its values once
        narrow = narrow.narrow(dim, 0, 1)
    if axis % tensor.ndim in spread:
        return tensor  # equal values have one order
    outermost_first = sorted(range(tensor.ndim), key=narrow.stride, reverse=True)
    dense = narrow.permute(outermost_first)
    chosen = _selected(dense, outermost_first.index(axis % tensor.ndim), order)
    back = [outermost_first.index(dim) for dim in range(tensor.ndim)]
    return chosen.permute(back).expand(tensor.shape)


def _selected(tensor: torch.Tensor, axis: int, order: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or axis != tensor.ndim - 1:
        return tensor.index_select(axis, order)
    # On a CPU index_select along the last axis takes up to 7 times as long ([4096, 384] in bfloat16: 2.1 against 0.3
    # ms), and gather moves 2-byte integers faster than 2-byte floats.
    bits = tensor.view(torch.int16) if tensor.dtype.itemsize == 2 else tensor
    return bits.gather(axis, order.expand(tensor.shape)).view(tensor.dtype)


def _floats(values: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors among arguments, one level of lists deep."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _floats(value)


def _is_matrix(parameter: torch.Tensor) -> bool:
    return parameter.ndim >= 2 and parameter.is_floating_point() and parameter.numel() > 0


def _span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.dtype.itemsize
