"""Batch-invariant products, attention, softmax and norms on a CPU: numba kernels with one fixed
reduction order.

float16 goes through float32, which holds it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

from ...errors import CaptureError
from . import kernels

# fewer multiplications are not worth another thread
_LEAST_WORK = 1 << 22
# so many multiplications take as long as reading one weight from memory
_READ = 8
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def _check(*tensors: torch.Tensor) -> None:
    if any(tensor.device.type != "cpu" for tensor in tensors):
        devices = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
        raise CaptureError(
            f"invariant: no batch-invariant kernel for tensors on {devices}; choose --device cpu.",
        )
    if len({tensor.dtype for tensor in tensors}) > 1 or tensors[0].dtype not in _FLOATS:
        dtypes = " by ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        raise CaptureError(
            f"invariant: no batch-invariant kernel for a product of {dtypes}; leave invariant out.",
        )


def _array(tensor: torch.Tensor) -> Any:
    """Return a C-contiguous array of the same numbers: float32, or bfloat16 as int16."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy()
    return tensor.float().numpy()


def product(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """x [m, k] times a weight w [k, n], plus bias [n] before the one rounding. -> [m, n] in dtype

    The kernel depends on the memory layout of the weight, never on the number of rows.
    """
    sums = _sums(x, w, is_dot=w.stride(0) == 1 and w.shape[0] > 1)
    if bias is not None:
        sums += bias.float()
    return sums.to(dtype)


def batch_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """x [b, m, k] times w [b, k, n], both activations. -> [b, m, n] in dtype. One term after
    another: k may be keys of attention, masked ones of which add zeros, and how w lies in memory is
    a matter of the batch.
    """
    out = torch.empty((x.shape[0], x.shape[1], w.shape[2]), dtype=torch.float32)
    for number in range(len(x)):
        out[number] = _sums(x[number], w[number], is_dot=False)
    return out.to(dtype)


def _sums(x: torch.Tensor, w: torch.Tensor, *, is_dot: bool) -> torch.Tensor:
    _check(x, w)
    (rows, length), width = x.shape, w.shape[1]
    sums = torch.zeros((rows, width), dtype=torch.float32)
    kernel = kernels.dots if is_dot else kernels.columns
    a, b, out = _array(x), _array(w.t() if is_dot else w), sums.numpy()
    _share(
        lambda first, last: kernel(a, b, first, last, out),
        width,
        max(rows, _READ) * length * width,
    )
    return sums


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., k] times weight [n, k] transposed, plus bias [n] before the one rounding to x's
    dtype. -> [..., n]
    """
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
    return batch_matmul(xs, ws, x.dtype).view(*batch, x.shape[-2], w.shape[-1])


def grouped_mm(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of x [m, k] up to ends[e] times w[e] of [experts, k, n]; rows beyond the last end are
    zero. -> [m, n]
    """
    out = x.new_zeros((x.shape[0], w.shape[2]))
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            out[begin:end] = product(x[begin:end], w[expert], None, x.dtype)
        begin = end
    return out


def add_scaled(
    self: torch.Tensor,
    sums: torch.Tensor,
    dtype: torch.dtype,
    beta: float,
    alpha: float,
) -> torch.Tensor:
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
    """query [b, h, m, d], key [b, h / g, n, d], value [b, h / g, n, e], mask broadcastable to [b,
    h, m, n]. -> [b, h, m, e]; scores, softmax and weighted sum in float32, one rounding at the end.
    """
    _check(query, key, value)
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    factor = torch.tensor(width**-0.5 if scale is None else scale, dtype=torch.float32).numpy()[()]
    if mask is None:
        mask = torch.zeros((1, 1, 1, keys))
    elif mask.dtype is torch.bool:
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    mask = mask.float()[(None,) * (4 - mask.ndim)].expand(-1, -1, -1, keys).contiguous()
    out = torch.zeros((batch, heads, queries, value.shape[3]), dtype=torch.float32)
    q, k, v, added_mask = (_array(tensor) for tensor in (query, key, value, mask))

    def run(first: int, last: int) -> None:
        kernels.attention(q, k, v, added_mask, is_causal, factor, first, last, out.numpy())

    _share(run, batch * heads, 4 * batch * heads * queries * keys * width)
    return out.to(query.dtype)


def softmax(x: torch.Tensor, axis: int, dtype: torch.dtype, *, is_log: bool) -> torch.Tensor:
    """Softmax along an axis, or its logarithm, computed in float32. Same shape, in dtype"""
    view = x.movedim(axis, -1)
    rows = view.reshape(-1, view.shape[-1] if view.ndim else 1).float().contiguous()
    out = torch.empty_like(rows)
    if rows.numel():
        a, b = rows.numpy(), out.numpy()
        _share(
            lambda first, last: kernels.softmax(a, first, last, is_log, b),
            len(rows),
            64 * rows.numel(),
        )
    return out.to(dtype).view(view.shape).movedim(-1, axis)


def sums_over(x: torch.Tensor, axes: Sequence[int], *, keepdim: bool) -> torch.Tensor:
    """Return the sums over axes. -> float32"""
    axes = sorted(axis % x.ndim for axis in axes) or list(range(x.ndim))
    others = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in others]
    length = torch.Size([x.shape[axis] for axis in axes]).numel()
    rows = x.permute(*others, *axes).reshape(torch.Size(shape).numel(), length).float().contiguous()
    out = torch.empty(len(rows))
    a, b = rows.numpy(), out.numpy()
    _share(lambda first, last: kernels.row_sums(a, first, last, b), len(rows), 4 * rows.numel())
    if keepdim:
        shape = [1 if axis in axes else x.shape[axis] for axis in range(x.ndim)]
    return out.view(shape)


def layer_norm(
    x: torch.Tensor,
    shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer norm over the last axes `shape`. -> (x's shape and dtype, mean, 1 / standard
    deviation)
    """
    rows = x.reshape(-1, torch.Size(shape).numel()).float().contiguous()
    out, mean, rstd = torch.empty_like(rows), torch.empty(len(rows)), torch.empty(len(rows))
    a, results = rows.numpy(), [one.numpy() for one in (out, mean, rstd)]
    _share(
        lambda first, last: kernels.layer_norm(a, epsilon, first, last, *results),
        len(rows),
        8 * rows.numel(),
    )
    if weight is not None:
        out *= weight.reshape(-1).float()
    if bias is not None:
        out += bias.reshape(-1).float()
    outer = (*x.shape[: x.ndim - len(shape)], *[1] * len(shape))
    return out.to(x.dtype).view(x.shape), mean.view(outer), rstd.view(outer)


def elementwise(
    func: Callable[..., torch.Tensor],
    x: torch.Tensor,
    *rest: Any,
    **options: Any,
) -> torch.Tensor:
    """Compute an elementwise function so that every element takes the vectorized branch of torch's
    loop.

    torch computes the last elements of a loop, those that fill no pair of vectors, with other
    instructions (the C library's exp instead of a polynomial), and every thread has such an end;
    which elements those are depends on the number of rows. So the tensor is filled up until no
    thread's share has an end.
    """
    length = x.numel()
    filled = _aligned_length(length)
    if filled == length and x.is_contiguous():
        return func(x, *rest, **options)
    flat = x.new_zeros(filled)
    flat[:length].view(x.shape).copy_(x)
    return func(flat, *rest, **options)[:length].view(x.shape)


# at::internal::GRAIN_SIZE: for fewer elements one thread does most functions
_GRAIN = 32768
# GELU_MIN_ELEMENTS_FOR_MULTI_THREADING, beyond which all threads share a gelu
_GELU_GRAIN = 16384
# two vectors of 512 bits of bfloat16: a multiple of every narrower kind
_VECTORS = 64


def _aligned_length(length: int) -> int:
    """Return the least number of elements, from `length` on, that gives every thread whole pairs of
    vectors.
    """
    threads = torch.get_num_threads()
    filled = -(-length // _VECTORS) * _VECTORS
    while True:
        sharing = {
            min(threads, max(1, -(-filled // _GRAIN))),
            threads if filled > _GELU_GRAIN else 1,
        }
        if all(filled % (_VECTORS * count) == 0 for count in sharing):
            return filled
        filled += _VECTORS


# threads of the modes that are open; without one, as many as torch has
_threads: list[int] = []


def begin_sharing() -> None:
    """Share products from here on among as many threads as torch has; torch itself uses one.

    After each loop of its own torch's threads spin for milliseconds, on the cores that products
    need.
    """
    _threads.append(_threads[-1] if _threads else torch.get_num_threads())
    torch.set_num_threads(1)


def end_sharing() -> None:
    """Give torch its threads again."""
    count = _threads.pop()
    torch.set_num_threads(1 if _threads else count)


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="invariant")


def _share(run: Callable[[int, int], None], count: int, work: int) -> None:
    """run(first, last) over 0..count-1, by as many threads as torch has.

    No sum depends on who computes it.
    """
    available = _threads[-1] if _threads else torch.get_num_threads()
    threads = min(available, count, max(1, work // _LEAST_WORK))
    if threads < 2:
        run(0, count)
        return
    share = -(-count // threads)
    others = [
        _pool(available - 1).submit(run, begin, min(begin + share, count))
        for begin in range(share, count, share)
    ]
    run(0, share)
    for other in others:
        other.result()
