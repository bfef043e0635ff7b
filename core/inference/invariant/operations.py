"""Batch-invariant mode, where torch dispatches its operations, and its rule for each: replaced,
padded, run unchanged, or refused.

The list is of allowed operations: one that reduces, or is not correctly rounded, and is not known
to have one order is refused. So equal bits do not depend on the shapes that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import CaptureError
from . import products

_aten: Any = torch.ops.aten


@dataclass(frozen=True)
class _Call:
    """A call of an operation, as torch dispatches it."""

    func: Any
    args: Any
    kwargs: Any

    def run(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    @cached_property
    def _values(self) -> dict[str, Any]:
        names = (argument.name for argument in self.func._schema.arguments)
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name in torch's schema; the default if it is not given."""
        value = self._values.get(name)
        return default if value is None else value


Handler = Callable[[_Call], Any]


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
        # a dry run has shapes only
        if device.type not in ("cpu", "meta"):
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

    # higher-order operators come here too, so that they are refused with a reason
    supports_higher_order_operators = True

    def __enter__(self) -> Any:
        products.begin_sharing()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> Any:
        try:
            return super().__exit__(*raised)
        finally:
            products.end_sharing()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return handler_of(func)(_Call(func, args, kwargs or {}))


def _plain(call: _Call) -> Any:
    return call.run()


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

    return lambda call: handler(call) if _has_floats(call.args) else call.run()


def _has_floats(values: Any) -> bool:
    return any(
        (
            value.is_floating_point() or value.is_complex()
            if isinstance(value, torch.Tensor)
            else isinstance(value, list | tuple) and _has_floats(value)
        )
        for value in values
    )


def _refuse(call: _Call) -> Any:
    raise CaptureError(
        f"invariant: {call.func} is not known to give the same bits whatever the batch; leave"
        " invariant out, or choose attn:sdpa or attn:eager.",
    )


def _unknown(call: _Call) -> Any:
    # einsum and its like are products underneath
    with Invariant():
        result = call.func.decompose(*call.args, **call.kwargs)
    return _refuse(call) if result is NotImplemented else result


def _aligned(call: _Call) -> Any:
    x, *rest = call.args
    has_arrays = any(isinstance(value, torch.Tensor) and value.ndim for value in rest)
    if has_arrays or call.func._schema.is_mutable or "out" in call.kwargs:
        return _refuse(call)
    return products.elementwise(call.func, x, *rest, **call.kwargs)


def _power(call: _Call) -> Any:
    exponent = call.args[1]
    # a product, in both branches of torch's loop
    if isinstance(exponent, int | float) and exponent == 2:
        return call.run()
    return _aligned(call)


def _into_out(call: _Call, result: torch.Tensor) -> torch.Tensor:
    out = call.get("out")
    return result if out is None else out.copy_(result)


def _matmul(call: _Call) -> Any:
    return _into_out(call, products.matmul(call.args[0], call.args[1]))


def _bmm(call: _Call) -> Any:
    x, w = call.args[:2]
    return _into_out(call, products.batch_matmul(x, w, x.dtype))


def _added(call: _Call, sums: torch.Tensor) -> torch.Tensor:
    """Return beta * self + alpha * sums."""
    self, x, _ = call.args
    return products.add_scaled(self, sums, x.dtype, call.get("beta", 1), call.get("alpha", 1))


def _addmm(call: _Call) -> Any:
    return _added(call, products.product(call.args[1], call.args[2]))


def _baddbmm(call: _Call) -> Any:
    return _added(call, products.batch_matmul(call.args[1], call.args[2]))


def _addmv(call: _Call) -> Any:
    return _added(call, products.product(call.args[1], call.args[2][:, None])[:, 0])


def _grouped_mm(call: _Call) -> Any:
    x, w = call.args[:2]
    ends = call.get("offs")
    if x.ndim != 2 or w.ndim != 3 or ends is None or call.get("bias") is not None:
        return _refuse(call)
    return products.grouped_mm(x, w, ends)


def _sum(call: _Call) -> Any:
    x, axes = call.args[0], call.get("dim", [])
    axes = [axes] if isinstance(axes, int) else list(axes)
    total = products.sums_over(x, axes, keepdim=call.get("keepdim", False))
    if call.func.overloadpacket is _aten.mean:
        total /= x.numel() // max(1, total.numel())
    return total.to(call.get("dtype", x.dtype))


def _softmax(call: _Call) -> Any:
    x = call.args[0]
    # softmax has a dtype, _softmax has half_to_float
    dtype = torch.float32 if call.get("half_to_float") else call.get("dtype", x.dtype)
    return products.softmax(x, call.get("dim"), dtype, is_log="log" in call.func._opname)


def _layer_norm(call: _Call) -> Any:
    x, shape = call.args[:2]
    weight, bias, epsilon = call.get("weight"), call.get("bias"), call.get("eps", 1e-5)
    output = products.layer_norm(x, shape, weight, bias, epsilon)
    return output if call.func.overloadpacket is _aten.native_layer_norm else output[0]


def _rms_norm(call: _Call) -> Any:
    x, shape = call.args[:2]
    weight, epsilon = call.get("weight"), call.get("eps", torch.finfo(x.dtype).eps)
    wide = x.float()
    axes = list(range(x.ndim - len(shape), x.ndim))
    mean = products.sums_over(wide * wide, axes, keepdim=True) / torch.Size(shape).numel()
    rstd = torch.rsqrt(mean + epsilon)
    out = (wide * rstd if weight is None else wide * rstd * weight.float()).to(x.dtype)
    return (out, rstd) if call.func.overloadpacket is _aten._fused_rms_norm else out


def _attention(call: _Call) -> Any:
    query, key, value = call.args[:3]
    if call.get("dropout_p") or query.ndim != 4:
        return _refuse(call)
    out = products.attention(
        query,
        key,
        value,
        call.get("attn_mask", call.get("attn_bias")),
        is_causal=call.get("is_causal", False),
        scale=call.get("scale"),
    )
    if call.func.overloadpacket is _aten.scaled_dot_product_attention:
        return out
    # The log-sum-exp and a random state, which only training reads.
    rest = [result.type.kind() == "TensorType" for result in call.func._schema.returns[1:]]
    return out, *(query.new_empty(0) if is_tensor else 0 for is_tensor in rest)


def _plain_if(holds: Callable[[_Call], bool]) -> Handler:
    """Return a handler that runs an operation unchanged if its arguments make it
    order-independent.
    """
    return lambda call: call.run() if holds(call) else _refuse(call)


def _replaces(call: _Call) -> bool:
    """Return whether index_put_ replaces; accumulation depends on threads."""
    return not call.get("accumulate")


def _has_distinct_places(call: _Call) -> bool:
    """Return whether the indices are distinct: one addition per row."""
    places = call.get("index")
    return len(torch.unique(places)) == len(places) and call.get("alpha", 1) == 1


def _is_whole(call: _Call) -> bool:
    """Return whether a running sum is of whole numbers, such as tokens per expert: exact in any
    order.
    """
    x = call.args[0]
    return bool((x == x.round()).all()) and float(x.abs().sum()) <= 2.0**24


def _is_unscaled(call: _Call) -> bool:
    """Return whether a sum of two is unscaled: one rounding.

    Scaled ones differ between torch's branches.
    """
    return call.get("alpha", 1) == 1


def _operations(names: str) -> set[Any]:
    return {getattr(_aten, name) for name in names.split() if hasattr(_aten, name)}


_TAKEN_OVER: dict[Any, Handler] = {
    packet: handler
    for handler, names in (
        (lambda call: products.linear(*call.args, **call.kwargs), "linear"),
        (_matmul, "matmul mm mv dot"),
        (_bmm, "bmm"),
        (_addmm, "addmm"),
        (_baddbmm, "baddbmm"),
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
    exp exp2 expm1 log log2 log1p sin cos tanh sigmoid erf silu gelu softplus elu mish log_sigmoid
    logit rsqrt
    """,
)
"""Elementwise and not correctly rounded: torch's vectorized and scalar branches may differ in the
last bit.
"""
_EXACT_POINTWISE = _operations(
    """
    mul mul_ div div_ neg abs sqrt reciprocal relu clamp clamp_min clamp_max maximum minimum where
    masked_fill masked_fill_ clone sign round eq ne lt le gt ge isnan isinf isfinite logical_not
    logical_and logical_or __and__ bitwise_and bitwise_or bitwise_not floor ceil trunc fill fill_
    square square_
    """,
)
"""Elementwise and correctly rounded, or exact."""
_EXACT = _operations(
    """
    alias all any arange argmax argmin argsort sort topk max min amax amin cat stack chunk split
    split_with_sizes contiguous clone copy_ detach detach_ dropout embedding empty empty_like
    new_empty empty_strided full full_like new_full zeros zeros_like new_zeros ones ones_like
    new_ones scalar_tensor fill_ zero_ expand expand_as flatten gather index index_select
    index_copy_ index_copy is_nonzero item _local_scalar_dense lift_fresh masked_select movedim
    narrow nonzero permute repeat repeat_interleave reshape resolve_conj resolve_neg roll scatter
    scatter_ select slice slice_scatter squeeze swapaxes t to _to_copy transpose tril triu type_as
    unbind unflatten unsqueeze _unsafe_view view view_as where constant_pad_nd pad one_hot histc
    bincount equal _reshape_alias numpy_T diff floor_divide resize_ bucketize __and__ __or__
    _assert_async flip is_same_size set_ unfold real result_type __getitem__
    """,
)
"""Moves, selects, counts or creates numbers; adds none."""
