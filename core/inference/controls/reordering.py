"""Linear maps summed in another order: what pure rounding does to this model, the noise floor.

Permuting the contracted axis of a weight and of its input is the same mathematics. It is done where
torch dispatches its operations, below every module class. Attention, norms, embeddings and
convolutions stay as they are. Any other operation on a weight is refused, and so is a module whose
products were never seen: half a floor calls rounding a bug.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.pytorch_utils import Conv1D

from ...errors import CaptureError

# Product -> the argument numbers of its two factors. The last axis of the first meets the last but
# one of the second; `linear` alone has [out, in] as its second factor.
FACTORS = {
    **dict.fromkeys(("aten::addmm", "aten::baddbmm"), (1, 2)),
    **dict.fromkeys(
        (
            "aten::linear",
            "aten::matmul",
            "aten::mm",
            "aten::bmm",
            "aten::mv",
            "aten::_grouped_mm",
            "transformers::grouped_mm_fallback",
        ),
        (0, 1),
    ),
}
_NO_PRODUCTS = (
    "aten::embedding",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::convolution",
    "aten::_convolution",
)
# so many elements of 2 bytes or more are a multiple of the 64 bytes that kernels look at
_ALIGNED = 64
_NO_MAP = (nn.Embedding, nn.modules.conv._ConvNd)


def order_of(seed: int, name: str, length: int) -> Tensor:
    """Return the permutation of `length` terms for a seed and a weight's name, the same everywhere.
    [length], int64
    """
    digest = hashlib.sha256(f"{seed} {length} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randperm(length, generator=generator)


@contextmanager
def reorder(model: nn.Module, seed: int) -> Iterator[Collection[str]]:
    """Sum every linear map of the model that runs inside in an order drawn from (seed, name of its
    weight).

    Weights converted inside are followed. Only this thread is affected. -> names of the weights
    that were multiplied
    """
    if refusal := reordering_refusal(model):
        raise CaptureError(f"reordering: {refusal}.")
    weights = _Weights(model)
    ran = dict[nn.Module, str]()
    mode = _Reorder(weights, seed)
    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if not isinstance(module, _NO_MAP) and any(_matrices(module)):
                hook = module.register_forward_hook(
                    lambda module, *_, name=name: ran.update({module: name}),
                )
                hooks.enter_context(hook)
        with mode:
            yield mode.products
    for module, name in ran.items():
        products = mode.products
        if not isinstance(module, nn.Linear | Conv1D):
            products = products | mode.computed_with
        if not any(weights.parameter(matrix) in products for _, matrix in _matrices(module)):
            raise CaptureError(
                f"reordering: a fused kernel computes '{name}' ({type(module).__name__}); choose"
                " its eager implementation.",
            )


def reordering_refusal(model: nn.Module) -> str | None:
    """Return why the linear maps of this model cannot be reordered and what to do about it, or
    None.
    """
    for name, module in model.named_modules():
        called = f"'{name}'" if name else "the model"
        subject = f"{called} ({type(module).__name__})"
        is_compiled = getattr(module, "_compiled_call_impl", None) is not None
        if is_compiled or "_orig_mod" in module._modules:
            return f"{subject} is compiled; load the model without compiling it"
        tensors = dict(
            [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)],
        )
        kinds = ["no weight"] if hasattr(module, "in_features") and "weight" not in tensors else []
        for key, tensor in tensors.items():
            is_plain = type(tensor) in (nn.Parameter, Tensor)
            is_wide = tensor.is_floating_point() and tensor.dtype.itemsize >= 2
            if "weight" in key and not (is_plain and is_wide):
                dtype = str(tensor.dtype).removeprefix("torch.")
                kinds.append(f"{key}: {type(tensor).__name__} of {dtype}")
        if kinds:
            return f"{subject} is quantized ({kinds[0]}); load the model without quantization"
        if any(tensor.device.type == "meta" for tensor in tensors.values()):
            return f"{subject} is offloaded; load the whole model onto one device"
    return None


class _Weights:
    """The matrices among a model's parameters, by where in memory they begin: every view of one is
    one.

    copies: functions of one parameter alone, by its name: its rows gathered, or it in another
    dtype.
    """

    def __init__(self, model: nn.Module) -> None:
        self._ranges: dict[int, tuple[int, str]] = {}  # begin -> end and name
        for prefix, module in model.named_modules():
            for key, matrix in _matrices(module):
                # A tied head goes by the head's name, whichever comes first: the embedding is no
                # map.
                if matrix.data_ptr() not in self._ranges or not isinstance(module, _NO_MAP):
                    end = matrix.data_ptr() + matrix.nbytes
                    self._ranges[matrix.data_ptr()] = end, f"{prefix}.{key}".lstrip(".")
        self._begins = sorted(self._ranges)
        self.copies: Any = WeakTensorKeyDictionary()

    def parameter(self, tensor: Tensor) -> str | None:
        """Return the name of the parameter that the tensor is, or is a view of."""
        place = bisect_right(self._begins, tensor.data_ptr()) - 1
        end, name = self._ranges[self._begins[place]] if place >= 0 else (0, "")
        return name if tensor.data_ptr() < end else None

    def name(self, tensor: Tensor) -> str | None:
        """Return the name of the parameter that the tensor is, views or is a function of."""
        return self.parameter(tensor) or self.copies.get(tensor)


class _Reorder(TorchDispatchMode):
    """Permutes both factors of every product with a weight, at the moment it is computed."""

    def __init__(self, weights: _Weights, seed: int) -> None:
        super().__init__()
        self._weights, self._seed = weights, seed
        # named by weight, so experts in one parameter are one
        self.products: set[str] = set()
        self.computed_with: set[str] = set()
        self._orders: dict[Any, Tensor] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        operation = func._schema.name
        if operation in FACTORS:
            return self._product(func, operation, args, kwargs)
        floats = float_tensors((args, kwargs))
        names = [name for name in map(self._weights.name, floats) if name is not None]
        if not names:
            return func(*args, **kwargs)
        # a view, a gathered copy, another dtype
        if len(names) == len(floats) and operation not in _NO_PRODUCTS:
            result = func(*args, **kwargs)
            for tensor in float_tensors(result):
                if self._weights.parameter(tensor) is None:
                    self.computed_with.update(names)
                    self._weights.copies[tensor] = names[0]
            return result
        if operation in _NO_PRODUCTS or torch.Tag.pointwise in func.tags:
            self.computed_with.update(names)
            return func(*args, **kwargs)
        # einsum and its like are products underneath
        with self:
            result = func.decompose(*args, **kwargs)
        if result is NotImplemented:
            raise CaptureError(
                f"reordering: {func} takes '{names[0]}'; choose an implementation by matrix"
                " products.",
            )
        return result

    def _product(
        self,
        func: Any,
        operation: str,
        args: Any,
        kwargs: Any,
    ) -> Any:
        factors = FACTORS[operation]
        first, second = (args[number] for number in factors)
        name = self._weights.name(second) or self._weights.name(first)
        is_linear = operation == "aten::linear"
        if name is None:
            # products of two activations are attention's
            if not is_linear:
                return func(*args, **kwargs)
            name = f"a weight of {list(second.shape)}"
        self.products.add(name)
        arguments = list(args)
        axes = -1, -1 if is_linear or second.ndim == 1 else -2
        for number, axis in zip(factors, axes, strict=True):
            arguments[number] = self._permute(args[number], axis, name)
        return func(*arguments, **kwargs)

    def _permute(
        self,
        tensor: Tensor,
        axis: int,
        name: str,
    ) -> Tensor:
        """Put one axis of a tensor in another order, laid out in memory as it was. Same shape

        Some kernels round by strides and by alignment. An expanded tensor is one copy of its rows,
        expanded again.
        """
        shape = tensor.shape
        if tensor.stride(axis) == 0:  # all alike
            return tensor
        for dim, stride in enumerate(tensor.stride()):
            tensor = tensor.narrow(dim, 0, 1) if stride == 0 else tensor
        place = (name, tensor.shape[axis], tensor.device)
        if place not in self._orders:
            self._orders[place] = order_of(self._seed, name, tensor.shape[axis]).to(tensor.device)
        outermost_first = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
        dense = tensor.permute(outermost_first)
        selection = _select(dense, outermost_first.index(axis % tensor.ndim), self._orders[place])
        selection = selection.permute([outermost_first.index(dim) for dim in range(tensor.ndim)])
        return _laid_out_like(tensor, selection).expand(shape)


def _laid_out_like(tensor: Tensor, selection: Tensor) -> Tensor:
    """Give a copy the strides and the alignment of a view into a wider tensor."""
    if selection.stride() == tensor.stride():
        return selection
    start = tensor.storage_offset() % _ALIGNED
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    room = selection.new_empty(start + last + 1)
    return room.as_strided(tensor.shape, tensor.stride(), start).copy_(selection)


def _select(tensor: Tensor, axis: int, order: Tensor) -> Tensor:
    if tensor.device.type != "cpu" or axis != tensor.ndim - 1:
        return tensor.index_select(axis, order)
    # On a CPU index_select along the last axis takes up to 7 times as long ([4096, 384] in
    # bfloat16: 2.1 against 0.3 ms), and gather moves 2-byte integers faster than 2-byte floats.
    bits = tensor.view(torch.int16) if tensor.dtype.itemsize == 2 else tensor
    return bits.gather(axis, order.expand(tensor.shape)).view(tensor.dtype)


def float_tensors(values: Any) -> list[Tensor]:
    """Return the floating-point tensors among arguments or outputs."""
    tensors = (value for value in tree_leaves(values) if isinstance(value, Tensor))
    return [each for each in tensors if each.is_floating_point() and each.layout is torch.strided]


def _matrices(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the matrices that a module itself owns, by their names in it."""
    for key, parameter in module.named_parameters(recurse=False):
        if parameter.ndim >= 2 and parameter.is_floating_point() and parameter.numel():
            yield key, parameter
