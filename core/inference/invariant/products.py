"""Products, attention, softmax and norms in one fixed order, by the kernels of the device the tensors are on (cpu.py,
cuda/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...errors import CaptureError
from . import cpu, library

_COMPUTED_BY: dict[str, Any] = {"cpu": cpu, "cuda": library}
"""Device type -> product, batched, attention, softmax, row_sums, layer_norm. A CPU's are called as they are: torch's
dispatcher takes 5 µs a call.
"""


def _kernels_for(*tensors: torch.Tensor) -> Any:
    kinds = {tensor.device.type for tensor in tensors}
    found = _COMPUTED_BY.get(kinds.pop()) if len(kinds) == 1 else None
    if found is None:
        where = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
        raise CaptureError(
            f"invariant: tensors on {where} have no kernel of fixed order; keep the model on one CPU or CUDA device."
        )
    return found


def _check(*tensors: torch.Tensor) -> Any:
    """The kernels for a product of these."""
    dtype = tensors[0].dtype
    if any(tensor.dtype is not dtype for tensor in tensors) or dtype not in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
    ):
        found = " by ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        raise CaptureError(f"invariant: a product of {found} has no kernel of fixed order; leave invariant out.")
    return _kernels_for(*tensors)


def product(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """x [m, k] times a weight w [k, n], plus bias [n] before the one rounding. -> [m, n] in dtype"""
    return _check(x, w).product(x, w, bias, dtype)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., k] times weight [n, k] transposed, plus bias [n] before the one rounding to x's dtype. -> [..., n]"""
    flat = x.reshape(-1, x.shape[-1])
    return product(flat, weight.t(), bias, x.dtype).view(*x.shape[:-1], weight.shape[0])


def matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """torch.matmul: vectors, matrices, or batches of them that broadcast."""
    if x.ndim == 1:
        return matmul(x[None], w).squeeze(-2)
    if w.ndim == 1:
        return matmul(x, w[:, None]).squeeze(-1)
    if w.ndim == 2:
        return product(x.reshape(-1, x.shape[-1]), w, None, x.dtype).view(*x.shape[:-1], w.shape[1])
    batch = torch.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    xs, ws = x.expand(*batch, *x.shape[-2:]), w.expand(*batch, *w.shape[-2:])
    xs, ws = xs.reshape(-1, *x.shape[-2:]), ws.reshape(-1, *w.shape[-2:])
    return batched(xs, ws, x.dtype).view(*batch, x.shape[-2], w.shape[-1])


def batched(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """x [b, m, k] times w [b, k, n], both activations. -> [b, m, n] in dtype

    Always one term after another: k may be the keys of attention, of which masked ones add zeros; and how w lies in
    memory, by which a product with a weight may choose its kernel, is here a matter of whether torch had to copy it,
    and so of the batch.
    """
    return _check(x, w).batched(x, w, dtype)


def grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of x [m, k] up to ends[e] times w[e] of [experts, k, n]; rows beyond the last end are zero. -> [m, n]"""
    out = x.new_zeros((x.shape[0], w.shape[2]))
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            out[begin:end] = product(x[begin:end], w[expert], None, x.dtype)
        begin = end
    return out


def added(self: torch.Tensor, sums: torch.Tensor, dtype: torch.dtype, beta: float, alpha: float) -> torch.Tensor:
    """beta * self + alpha * sums in float32, then rounded to dtype."""
    scaled = sums if alpha == 1 else sums * alpha
    if beta == 0:
        return scaled.to(dtype)
    other = self.float() if beta == 1 else self.float() * beta
    return (scaled + other).to(dtype)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """query [b, h, m, d], key [b, h / g, n, d], value [b, h / g, n, e], mask broadcastable to [b, h, m, n]. -> [b, h,
    m, e]

    The scores, their softmax and the weighted sum stay in float32; one rounding at the end.
    """
    factor = float(query.shape[-1] ** -0.5 if scale is None else scale)
    return _check(query, key, value).attention(query, key, value, mask, is_causal, factor)


def softmax(x: torch.Tensor, axis: int, dtype: torch.dtype, *, is_log: bool) -> torch.Tensor:
    """Softmax along an axis, or its logarithm, computed in float32. Same shape, in dtype"""
    moved = x.movedim(axis, -1)
    rows = moved.reshape(-1, moved.shape[-1] if moved.ndim else 1)
    return _kernels_for(x).softmax(rows, dtype, is_log).view(moved.shape).movedim(-1, axis)


def sums_over(x: torch.Tensor, axes: Sequence[int], *, keepdim: bool) -> torch.Tensor:
    """Sums over axes. -> float32"""
    axes = sorted(axis % x.ndim for axis in axes) or list(range(x.ndim))
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    outer = [x.shape[axis] for axis in kept]
    length = torch.Size([x.shape[axis] for axis in axes]).numel()
    found = _kernels_for(x).row_sums(x.permute(*kept, *axes).reshape(torch.Size(outer).numel(), length)).view(outer)
    if keepdim:
        for axis in axes:
            found = found.unsqueeze(axis)
    return found


def layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer norm over the last axes `shape`. -> (x's shape and dtype, mean, 1 / standard deviation)"""
    weight, bias = (None if one is None else one.reshape(-1) for one in (weight, bias))
    rows = x.reshape(-1, torch.Size(shape).numel())
    out, mean, rstd = _kernels_for(x).layer_norm(rows, weight, bias, epsilon, x.dtype)
    outer = (*x.shape[: x.ndim - len(shape)], *[1] * len(shape))
    return out.view(x.shape), mean.view(outer), rstd.view(outer)


def aligned(func: Callable[..., torch.Tensor], x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """An elementwise function of which an element's place changes nothing.

    On CUDA torch's loops call one scalar function in both of their branches, that with vectors and that for the rest.
    """
    return func(x, *rest, **options) if x.is_cuda else cpu.aligned(func, x, *rest, **options)
