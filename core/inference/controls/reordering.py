"""Linear maps summed in another order: what pure rounding does to this model (DESIGN section 6, the rounding floor).

Permuting the contracted axis of a weight and of its input is the same mathematics. It is done where torch dispatches
its operations, below every module class. Attention, norms, embeddings and convolutions stay as they are. Any other
operation on a weight is refused, and so is a module whose products were never seen: half a floor calls rounding a bug.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.pytorch_utils import Conv1D

from ...errors import CaptureError

# Product -> the argument numbers of its two factors. The last axis of the first meets the last but one of the second;
# `linear` alone has [out, in] as its second factor.
_PRODUCTS = {
    **dict.fromkeys(("aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::mv"), (0, 1)),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), (1, 2)),
    **dict.fromkeys(("aten::_grouped_mm", "transformers::grouped_mm_fallback"), (0, 1)),
}
_NO_PRODUCTS = {f"aten::{name}" for name in ("embedding", "conv1d", "conv2d", "conv3d", "convolution", "_convolution")}
_NO_MAP = (torch.nn.Embedding, torch.nn.modules.conv._ConvNd)


def order_of(seed: int, name: str, length: int) -> torch.Tensor:
    """Return the permutation of `length` terms for a seed and a weight's name, the same everywhere. [length], int64"""
    digest = hashlib.sha256(f"{seed} {length} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randperm(length, generator=generator)


@contextmanager
def reordered(model: torch.nn.Module, seed: int) -> Iterator[Counter[str]]:
    """Sum every linear map of the model that runs inside in an order drawn from (seed, name of its weight).

    Weights converted inside are followed. Only this thread is affected. -> products with each weight
    """
    if refusal := reordering_refusal(model):
        raise CaptureError(f"reordering: {refusal}.")
    weights, runs = _Weights(model), Counter[torch.nn.Module]()
    mode = _Reorder(weights, seed)

    def count(module: torch.nn.Module, *_: Any) -> None:
        # Under a dispatch mode dynamo quietly falls back to the plain model, and the floor would then compare two
        # kinds of kernels. Its frame evaluator is installed all the same.
        if get_eval_frame_callback() is not None:
            raise CaptureError("reordering: the model runs under torch.compile; leave compile out.")
        runs[module] += 1

    with ExitStack() as hooks:
        for module in model.modules():
            if weights.of(module):
                hooks.callback(module.register_forward_hook(count).remove)
        with mode:
            yield mode.products
    for name, module in model.named_modules():
        if not mode.has_seen(module, runs[module]):
            raise CaptureError(
                f"reordering: a fused kernel computes '{name}' ({type(module).__name__}); choose its eager"
                " implementation."
            )


def reordering_refusal(model: torch.nn.Module) -> str | None:
    """Return why the linear maps of this model cannot be reordered and what to do about it, or None."""
    for name, module in model.named_modules():
        where = f"'{name}' ({type(module).__name__})" if name else f"the model ({type(module).__name__})"
        if "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None:
            return f"{where} is compiled; load the model without compiling it"
        if hasattr(module, "in_features") and not isinstance(getattr(module, "weight", None), torch.Tensor):
            return f"{where} holds no weight, as quantized layers do; load the model without quantization"
        for key, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            is_narrow = not tensor.is_floating_point() or tensor.dtype.itemsize < 2
            if "weight" in key and (is_narrow or type(tensor) not in (torch.nn.Parameter, torch.Tensor)):
                kind = str(tensor.dtype).removeprefix("torch.") if is_narrow else type(tensor).__name__
                return f"{where} holds its {key} as {kind}; load the model without quantization"
            if tensor.device.type == "meta":
                return f"{where} has its {key} offloaded; load the whole model onto one device"
    return None


class _Weights:
    """The matrices among a model's parameters, by where in memory they begin: every view of one is one."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._ranges: dict[int, tuple[int, str]] = {}  # begin -> end and name
        self._held = []  # so that no other tensor can come to lie at these addresses
        for prefix, module in model.named_modules():
            for key, matrix in _matrices(module):
                begin = matrix.data_ptr()
                # A tied head goes by the head's name, whichever comes first: the embedding is no map.
                if begin not in self._ranges or not isinstance(module, _NO_MAP):
                    self._ranges[begin] = begin + matrix.nbytes, f"{prefix}.{key}".lstrip(".")
                self._held.append(matrix.untyped_storage())
        self._begins = sorted(self._ranges)
        self._copies: dict[int, tuple[StorageWeakRef, str]] = {}

    def of(self, module: torch.nn.Module) -> list[str]:
        """Names of the matrices that the module itself owns, unless it is one of the kinds that are no map."""
        matrices = [] if isinstance(module, _NO_MAP) else [matrix for _, matrix in _matrices(module)]
        return [self.parameter(matrix) or "" for matrix in matrices]

    def parameter(self, tensor: torch.Tensor) -> str | None:
        """The parameter that the tensor is, or is a view of."""
        pointer = tensor.data_ptr()
        place = bisect_right(self._begins, pointer) - 1
        end, name = self._ranges[self._begins[place]] if place >= 0 else (0, "")
        return name if pointer < end else None

    def name(self, tensor: torch.Tensor) -> str | None:
        """The parameter that the tensor is, views or is a function of."""
        name = self.parameter(tensor)
        if name is None and self._copies:
            _, name = self._copies.get(tensor.untyped_storage()._cdata, (None, None))
        return name

    def add_copy(self, tensor: torch.Tensor, name: str) -> None:
        """Note a function of the parameter `name` alone: its rows gathered, or it in another dtype."""
        # While its weak reference is held, no other storage gets the address that is the key.
        self._copies = {key: copy for key, copy in self._copies.items() if not copy[0].expired()}
        storage = tensor.untyped_storage()
        self._copies[storage._cdata] = (StorageWeakRef(storage), name)


class _Reorder(TorchDispatchMode):
    """Permutes both factors of every product with a weight, at the moment it is computed."""

    supports_higher_order_operators = True  # so that they are refused here, in our words

    def __init__(self, weights: _Weights, seed: int) -> None:
        super().__init__()
        self._weights, self._seed = weights, seed
        self.products: Counter[str] = Counter()  # by weight; experts in one parameter are one
        self._orders: dict[Any, torch.Tensor] = {}
        self._computed_with: set[str] = set()

    def has_seen(self, module: torch.nn.Module, runs: int) -> bool:
        """Return whether a linear layer's products were reordered each time it ran; else anything computed."""
        names = self._weights.of(module)
        if not runs or not names:
            return True
        if isinstance(module, torch.nn.Linear | Conv1D):
            return sum(self.products[name] for name in names) >= runs
        return any(name in self.products or name in self._computed_with for name in names)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # flex_attention, whose kernel only torch.compile makes
            raise CaptureError(f"reordering: {func} needs torch.compile; choose attn:sdpa or attn:eager.")
        operation = func._schema.name
        if operation in _PRODUCTS:
            return self._product(func, operation, args, kwargs)
        floats = list(_floats((*args, *kwargs.values())))
        names = [name for name in map(self._weights.name, floats) if name is not None]
        if not names:
            return func(*args, **kwargs)
        if len(names) == len(floats) and operation not in _NO_PRODUCTS:  # a view, a gathered copy, another dtype
            result = func(*args, **kwargs)
            for tensor in _floats([result]):
                if self._weights.parameter(tensor) is None:
                    self._computed_with.update(names)
                    self._weights.add_copy(tensor, names[0])
            return result
        if operation in _NO_PRODUCTS or torch.Tag.pointwise in func.tags:
            self._computed_with.update(names)
            return func(*args, **kwargs)
        with self:  # einsum and its like are products underneath
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise CaptureError(f"reordering: {func} takes '{names[0]}'; choose an implementation by matrix products.")
        return result

    def _product(self, func: Any, operation: str, args: Any, kwargs: Any) -> Any:
        factors = _PRODUCTS[operation]
        first, second = (args[number] for number in factors)
        name = self._weights.name(second) or self._weights.name(first)
        is_linear = operation == "aten::linear"
        if name is None:
            if not is_linear:  # two activations: attention
                return func(*args, **kwargs)
            name = f"a weight of {list(second.shape)}"
        if operation == "aten::_grouped_mm" and second.ndim == first.ndim == 2:
            raise CaptureError(f"reordering: {func} sums '{name}' group by group; choose the eager experts.")
        self.products[name] += 1
        changed = list(args)
        for number, axis in zip(factors, (-1, -1 if is_linear or second.ndim == 1 else -2), strict=True):
            changed[number] = self._permuted(args[number], axis, name)
        return func(*changed, **kwargs)

    def _permuted(self, tensor: torch.Tensor, axis: int, name: str) -> torch.Tensor:
        """The tensor with one axis in another order, laid out in memory as it was. Same shape"""
        place = (name, tensor.shape[axis], tensor.device)
        if place not in self._orders:
            self._orders[place] = order_of(self._seed, name, tensor.shape[axis]).to(tensor.device)
        outermost_first = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
        dense = tensor.permute(outermost_first)
        chosen = _selected(dense, outermost_first.index(axis % tensor.ndim), self._orders[place])
        return chosen.permute([outermost_first.index(dim) for dim in range(tensor.ndim)])


def _selected(tensor: torch.Tensor, axis: int, order: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or axis != tensor.ndim - 1:
        return tensor.index_select(axis, order)
    # On a CPU index_select along the last axis takes up to 7 times as long ([4096, 384] in bfloat16: 2.1 against 0.3
    # ms), and gather moves 2-byte integers faster than 2-byte floats.
    bits = tensor.view(torch.int16) if tensor.dtype.itemsize == 2 else tensor
    return bits.gather(axis, order.expand(tensor.shape)).view(tensor.dtype)


def _floats(values: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors among arguments, also in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and value.layout is torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _floats(value)


def _matrices(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The matrices that a module itself owns, by their names in it."""
    for key, parameter in module._parameters.items():
        if parameter is not None and parameter.ndim >= 2 and parameter.is_floating_point() and parameter.numel():
            yield key, parameter
