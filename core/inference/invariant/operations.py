"""Batch-invariant mode, where torch dispatches its operations, and its rule for each: replaced,
padded, run unchanged, or refused.

The list is of allowed operations: one that reduces, or is not correctly rounded, and is not known
to have one order is refused. So equal bits do not depend on the shapes that were tried.
"""

# ruff: noqa: ARG001, ARG005 - every operation is handled by one signature

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError
from . import products

_aten: Any = torch.ops.aten
Handler = Callable[[Any, Any, Any, Any], Any]
"""(mode, operation, args, kwargs) -> result"""


@contextmanager
def invariant_forwards(model: torch.nn.Module) -> Iterator[None]:
    """Give every sum of the model's forwards one order, not those of what is done with their logits
    meanwhile.
    """
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
    """Return why this model cannot run batch-invariantly, and the fix, or None."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for device in {tensor.device: None for _, tensor in tensors}:
        if device.type not in ("cpu", "meta"):  # a dry run has shapes only
            return (
                f"it runs on a CPU only, and the model is on {device}; choose --device cpu, or an"
                " engine with its own batch-invariant mode (vllm:...)"
            )
    no_kernel = "which has no batch-invariant kernel; leave invariant out"
    for name, tensor in tensors:
        is_plain = type(tensor) in (torch.nn.Parameter, torch.Tensor)
        if "weight" in name and not (
            is_plain and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
        ):
            dtype = str(tensor.dtype).removeprefix("torch.")
            return f"'{name}' is {dtype} in a {type(tensor).__name__}, {no_kernel}"
    for name, module in model.named_modules():
        label = f"'{name}' ({type(module).__name__})"
        if isinstance(module, torch.nn.modules.conv._ConvNd):
            return f"{label} sums over neighboring tokens, {no_kernel}"
        if hasattr(module, "in_features") and not isinstance(
            getattr(module, "weight", None),
            torch.Tensor,
        ):
            return f"{label} has no plain weight, like quantized layers; leave invariant out"
    return None


class Invariant(TorchDispatchMode):
    """Mode with one reduction order for any batch, row, chunk, cache and threads: replaces
    reductions, runs operations that round each element alone, and refuses the rest. Only this
    thread is affected.
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


def _plain(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


@cache
def handler_of(func: Any) -> Handler:
    if not isinstance(func, torch._ops.OpOverload):
        return _refuse
    packet = func.overloadpacket
    if packet in _TAKEN_OVER:
        return _only_floats(_TAKEN_OVER[packet])
    if func.namespace == "transformers" and func._opname == "grouped_mm_fallback":
        return _grouped_mm
    if packet in _INEXACT:
        return _only_floats(_aligned)
    if packet in _EXACT or getattr(func, "is_view", False):
        return _plain
    if torch.Tag.pointwise in func.tags and packet in _EXACT_POINTWISE:
        return _plain
    return _only_floats(_unknown)


def _only_floats(handler: Handler) -> Handler:
    """Return a handler for floats only: sums of integers do not round."""

    def handle(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        return (handler if _has_floats(args) else _plain)(mode, func, args, kwargs)

    return handle


def _has_floats(values: Any) -> bool:
    return any(
        (
            value.is_floating_point() or value.is_complex()
            if isinstance(value, torch.Tensor)
            else isinstance(value, list | tuple) and _has_floats(value)
        )
        for value in values
    )


def _refuse(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    raise CaptureError(
        f"invariant: {func} is not known to give the same bits whatever the batch; leave invariant"
        " out, or choose attn:sdpa or attn:eager.",
    )


def _unknown(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    with mode:  # einsum and its like are products underneath
        result = func.decompose(*args, **kwargs)
    return _refuse(mode, func, args, kwargs) if result is NotImplemented else result


def _aligned(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, *rest = args
    if (
        any(isinstance(value, torch.Tensor) and value.ndim for value in rest)
        or func._schema.is_mutable
        or "out" in kwargs
    ):
        return _refuse(mode, func, args, kwargs)
    return products.elementwise(func, x, *rest, **kwargs)


def _power(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    # a product, in both branches of torch's loop
    if isinstance(args[1], int | float) and args[1] == 2:
        return func(*args, **kwargs)
    return _aligned(mode, func, args, kwargs)


# The arguments of torch's own schemas, by their names there.


def _matmul(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    result = products.matmul(args[0], args[1])
    return kwargs["out"].copy_(result) if "out" in kwargs else result


def _bmm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    result = products.batch_matmul(args[0], args[1], args[0].dtype)
    return kwargs["out"].copy_(result) if "out" in kwargs else result


def _addmm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    self, x, w = args
    sums = (
        products.product(x, w)
        if func.overloadpacket is _aten.addmm
        else products.batch_matmul(x, w)
    )
    return products.add_scaled(self, sums, x.dtype, kwargs.get("beta", 1), kwargs.get("alpha", 1))


def _addmv(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    self, x, w = args
    sums = products.product(x, w[:, None])[:, 0]
    return products.add_scaled(self, sums, x.dtype, kwargs.get("beta", 1), kwargs.get("alpha", 1))


def _grouped_mm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, w, *rest = args
    ends = rest[0] if rest else kwargs.get("offs")
    if x.ndim != 2 or w.ndim != 3 or ends is None or kwargs.get("bias") is not None:
        return _refuse(mode, func, args, kwargs)
    return products.grouped_mm(x, w, ends)


def _sum(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x = args[0]
    axes = args[1] if len(args) > 1 and args[1] is not None else []
    axes = [axes] if isinstance(axes, int) else list(axes)
    keepdim = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    total = products.sums_over(x, axes, keepdim=keepdim)
    if func.overloadpacket is _aten.mean:
        total /= x.numel() // max(1, total.numel())
    return total.to(kwargs.get("dtype") or x.dtype)


def _softmax(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, axis = args[0], args[1]
    is_log = "log" in func._opname
    if func._opname.startswith("_"):  # (x, axis, half_to_float)
        dtype = torch.float32 if args[2] else x.dtype
    else:  # (x, axis, dtype)
        dtype = (args[2] if len(args) > 2 else kwargs.get("dtype")) or x.dtype
    return products.softmax(x, axis, dtype, is_log=is_log)


def _layer_norm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, shape, *rest = args
    weight, bias, epsilon = [*rest, *[None, None, 1e-5][len(rest) :]][:3]
    output = products.layer_norm(x, shape, weight, bias, epsilon)
    return output if func.overloadpacket is _aten.native_layer_norm else output[0]


def _rms_norm(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    x, shape, *rest = args
    weight, epsilon = [*rest, *[None, None][len(rest) :]][:2]
    wide = x.float()
    axes = range(x.ndim - len(shape), x.ndim)
    mean = products.sums_over(wide * wide, list(axes), keepdim=True) / torch.Size(shape).numel()
    rstd = torch.rsqrt(mean + (torch.finfo(x.dtype).eps if epsilon is None else epsilon))
    out = (wide * rstd if weight is None else wide * rstd * weight.float()).to(x.dtype)
    return (out, rstd) if func.overloadpacket is _aten._fused_rms_norm else out


def _attention(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    names = [argument.name for argument in func._schema.arguments]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    mask, scale = arguments.get("attn_mask", arguments.get("attn_bias")), arguments.get("scale")
    if arguments.get("dropout_p") or query.ndim != 4:
        return _refuse(mode, func, args, kwargs)
    out = products.attention(
        query,
        key,
        value,
        mask,
        is_causal=bool(arguments.get("is_causal")),
        scale=scale,
    )
    if func.overloadpacket is _aten.scaled_dot_product_attention:
        return out
    # The log-sum-exp and a random state, which only training reads.
    rest = [result.type.kind() == "TensorType" for result in func._schema.returns[1:]]
    return out, *(query.new_empty(0) if is_tensor else 0 for is_tensor in rest)


def _plain_if(holds: Callable[[Any, Any], bool]) -> Handler:
    """Return a handler that runs an operation unchanged if its arguments make it
    order-independent.
    """
    return lambda mode, func, args, kwargs: (_plain if holds(args, kwargs) else _refuse)(
        mode,
        func,
        args,
        kwargs,
    )


def _replaces(args: Any, kwargs: Any) -> bool:
    """Return whether index_put_ replaces; accumulation depends on threads."""
    return not ((len(args) > 3 and args[3]) or kwargs.get("accumulate"))


def _has_distinct_places(args: Any, kwargs: Any) -> bool:
    """Return whether the indices are distinct: one addition per row."""
    return len(torch.unique(args[2])) == len(args[2]) and kwargs.get("alpha", 1) == 1


def _is_whole(args: Any, kwargs: Any) -> bool:
    """Return whether a running sum is of whole numbers, such as tokens per expert: exact in any
    order.
    """
    return bool((args[0] == args[0].round()).all()) and float(args[0].abs().sum()) <= 2.0**24


def _is_unscaled(args: Any, kwargs: Any) -> bool:
    """Return whether a sum of two is unscaled: one rounding.

    Scaled ones differ between torch's branches.
    """
    return kwargs.get("alpha", 1) == 1 and all(
        isinstance(value, torch.Tensor) for value in args[2:]
    )


def _operations(names: str) -> set[Any]:
    return {getattr(_aten, name) for name in names.split() if hasattr(_aten, name)}


_TAKEN_OVER: dict[Any, Handler] = {
    packet: handler
    for handler, names in (
        (lambda mode, func, args, kwargs: products.linear(*args, **kwargs), "linear"),
        (_matmul, "matmul mm mv dot"),
        (_bmm, "bmm"),
        (_addmm, "addmm baddbmm"),
        (_addmv, "addmv"),
        (_grouped_mm, "_grouped_mm"),
        (_sum, "mean sum"),
        (_softmax, "softmax log_softmax _softmax _log_softmax"),
        (_layer_norm, "layer_norm native_layer_norm"),
        (_rms_norm, "rms_norm _fused_rms_norm"),
        (_attention, "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu"),
        (_attention, "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"),
        (
            _attention,
            "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable",
        ),
        (_power, "pow"),
        (_plain_if(_is_whole), "cumsum"),
        (_plain_if(_replaces), "index_put_ _index_put_impl_"),
        (_plain_if(_has_distinct_places), "index_add_ index_add"),
        (_plain_if(_is_unscaled), "add add_ sub sub_ rsub"),
    )
    for packet in _operations(names)
}
_INEXACT = _operations(
    """
    exp exp2 expm1 log log2 log1p sin cos tanh sigmoid erf silu gelu softplus elu mish log_sigmoid logit rsqrt
    """,
)
"""Elementwise and not correctly rounded: torch's vectorized and scalar branches may differ in the last bit."""
_EXACT_POINTWISE = _operations(
    """
    mul mul_ div div_ neg abs sqrt reciprocal relu clamp clamp_min clamp_max maximum minimum where masked_fill
    masked_fill_ clone sign round eq ne lt le gt ge isnan isinf isfinite logical_not logical_and logical_or __and__
    bitwise_and bitwise_or bitwise_not floor ceil trunc fill fill_ square square_
    """,
)
"""Elementwise and correctly rounded, or exact."""
_EXACT = _operations(
    """
    alias all any arange argmax argmin argsort sort topk max min amax amin cat stack chunk split split_with_sizes
    contiguous clone copy_ detach detach_ dropout embedding empty empty_like new_empty empty_strided full full_like
    new_full zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor fill_ zero_ expand expand_as flatten
    gather index index_select index_copy_ index_copy is_nonzero item _local_scalar_dense lift_fresh masked_select
    movedim narrow nonzero permute repeat repeat_interleave reshape resolve_conj resolve_neg roll scatter scatter_
    select slice slice_scatter squeeze swapaxes t to _to_copy transpose tril triu type_as unbind unflatten unsqueeze
    _unsafe_view view view_as where constant_pad_nd pad one_hot histc bincount equal _reshape_alias numpy_T diff
    floor_divide resize_ bucketize __and__ __or__ _assert_async flip is_same_size set_ unfold real result_type
    __getitem__
    """,
)
"""Moves, selects, counts or creates numbers; adds none."""
