"""Products, attention, softmax and norms of tensors by the kernels of one fixed order. CPU; float32, bfloat16 and float16.

float16 goes through float32, which holds it exactly: the same sums, at the price of widening the weights at every product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import torch

from core.errors import CaptureError
from core.inference.invariant import kernels

_LEAST_WORK = (
    1 << 23
)  # multiplications, 40 to 80 µs: below that, handing half of them to another thread takes longer than doing them
_READ = 8  # multiplications that take as long as reading one weight from memory
_WIDTHS = 64  # columns: threads share a product in multiples of it, so that no tile is cut


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [..., k] times weight [n, k] transposed, plus bias [n] before the one rounding to x's dtype. -> [..., n]"""
    flat = x.reshape(-1, x.shape[-1])
    return _rounded(product(flat, weight.t()), x.dtype, bias).view(*x.shape[:-1], weight.shape[0])


def matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """torch.matmul: vectors, matrices, or batches of them that broadcast."""
    if x.ndim == 1:
        return matmul(x[None], w).squeeze(-2)
    if w.ndim == 1:
        return matmul(x, w[:, None]).squeeze(-1)
    if w.ndim == 2:
        return _rounded(product(x.reshape(-1, x.shape[-1]), w), x.dtype).view(*x.shape[:-1], w.shape[1])
    batch = torch.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    xs, ws = x.expand(*batch, *x.shape[-2:]), w.expand(*batch, *w.shape[-2:])
    xs, ws = xs.reshape(-1, *x.shape[-2:]), ws.reshape(-1, *w.shape[-2:])
    return _rounded(batched(xs, ws), x.dtype).view(*batch, x.shape[-2], w.shape[-1])


def batched(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x [b, m, k] times w [b, k, n], both activations. -> [b, m, n], float32

    Always one term after another: k may be the keys of attention, of which masked ones add zeros; and how w lies in memory, by which a
    product with a weight chooses its kernel, is here a matter of whether torch had to copy it, and so of the batch.
    """
    out = x.new_empty((x.shape[0], x.shape[1], w.shape[2]), dtype=torch.float32)
    for number in range(len(x)):
        product(x[number], w[number], out[number], is_weight=False)
    return out


def grouped(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of x [m, k] up to ends[e] times w[e] of [experts, k, n]; rows beyond the last end are zero. -> [m, n]"""
    out = x.new_zeros((x.shape[0], w.shape[2]), dtype=torch.float32)
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        if end > begin:
            product(x[begin:end], w[expert], out[begin:end])
        begin = end
    return out.to(x.dtype)


def added(self: torch.Tensor, sums: torch.Tensor, dtype: torch.dtype, beta: float, alpha: float) -> torch.Tensor:
    """beta * self + alpha * sums in float32, then rounded to dtype."""
    scaled = sums if alpha == 1 else sums * alpha
    if beta == 0:
        return scaled.to(dtype)
    other = self.float() if beta == 1 else self.float() * beta
    return (scaled + other).to(dtype)


def _rounded(sums: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None = None) -> torch.Tensor:
    if bias is not None:
        sums += bias.float()
    return sums.to(dtype)


def product(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None, *, is_weight: bool = True) -> torch.Tensor:
    """x [m, k] times w [k, n]. -> [m, n], float32

    Which kernel takes it depends on how a weight lies in memory, never on a number of rows.

    Where k is 1 both kernels give the same bits, and of a w with one column it is the stride of k that tells.
    """
    dtype = _check(x, w)
    if dtype is torch.float16:
        x, w, dtype = x.float(), w.float(), torch.float32
    (rows, length), columns = x.shape, w.shape[1]
    if out is None:
        out = torch.empty((rows, columns), dtype=torch.float32)
    if not length:
        return out.zero_()
    if not rows or not columns:
        return out
    x = x if x.stride(1) == 1 or length == 1 else x.contiguous()
    if is_weight and w.stride(0) == 1 and length > 1:
        kernel = kernels.dots_float32 if dtype is torch.float32 else kernels.dots_pairs
        w_row = w.stride(1)
    else:
        kernel = kernels.columns_float32 if dtype is torch.float32 else kernels.columns_bfloat16
        w = w if w.stride(1) == 1 else w.contiguous()
        w_row = w.stride(0)

    def run(first: int, last: int) -> None:
        kernel(x.data_ptr(), x.stride(0), w.data_ptr(), w_row, rows, first, last, length, out.data_ptr(), out.stride(0))

    _shared(run, columns, _WIDTHS, max(rows, _READ) * length * columns)
    return out


def _check(*tensors: torch.Tensor) -> torch.dtype:
    dtype = tensors[0].dtype
    if any(tensor.device.type != "cpu" for tensor in tensors):
        raise CaptureError("invariant: a tensor left the CPU, and the kernels of fixed order run there; keep the model on it.")
    if any(tensor.dtype is not dtype for tensor in tensors) or dtype not in (torch.float32, torch.bfloat16, torch.float16):
        found = " by ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        raise CaptureError(f"invariant: a product of {found} has no kernel of fixed order; leave invariant out.")
    return dtype


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """query [b, h, m, d], key [b, h / g, n, d], value [b, h / g, n, e], mask broadcastable to [b, h, m, n]. -> [b, h, m, e]

    The scores, their softmax and the weighted sum stay in float32; one rounding at the end.
    """
    asked = dtype = _check(query, key, value)
    if dtype is torch.float16:
        query, key, value, dtype = query.float(), key.float(), value.float(), torch.float32
    query, key, value = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (query, key, value))
    batch, heads, queries, width = query.shape
    keys, value_width = key.shape[2], value.shape[3]
    out = torch.empty((batch, heads, queries, value_width), dtype=torch.float32)
    kind, mask_at = kernels.NO_MASK, 0
    mask_strides: tuple[int, ...] = (0, 0, 0, 0)
    if mask is not None:
        kind = kernels.BOOLEAN if mask.dtype is torch.bool else kernels.ADDED
        mask = (mask if mask.dtype is torch.bool else mask.float()).expand(batch, heads, queries, keys)
        mask_at, mask_strides = mask.data_ptr(), mask.stride()
    kernel = kernels.attention_float32 if dtype is torch.float32 else kernels.attention_bfloat16
    shape = (heads, heads // key.shape[1], queries, keys, width, value_width)
    factor = float(width**-0.5 if scale is None else scale)

    def run(first: int, last: int) -> None:
        kernel(
            query.data_ptr(), query.stride()[:3], key.data_ptr(), key.stride()[:3], value.data_ptr(), value.stride()[:3],
            mask_at, mask_strides, kind, is_causal, factor, shape, first, last, out.data_ptr(),
        )  # fmt: skip

    _shared(run, batch * heads, 1, 4 * batch * heads * queries * keys * width)
    return out.to(asked)


def softmax(x: torch.Tensor, axis: int, dtype: torch.dtype, *, is_log: bool) -> torch.Tensor:
    """Softmax along an axis, or its logarithm, computed in float32. Same shape, in dtype"""
    rows = x.float().movedim(axis, -1).contiguous()
    out = torch.empty_like(rows)
    if not rows.numel():
        return out.movedim(-1, axis).to(dtype)
    length = rows.shape[-1]

    def run(first: int, last: int) -> None:
        kernels.softmax(rows.data_ptr(), length, first, last, length, out.data_ptr(), length, is_log)

    _shared(run, rows.numel() // length, 1, 64 * rows.numel())
    return out.movedim(-1, axis).to(dtype)


def sums_over(x: torch.Tensor, axes: Sequence[int], *, keepdim: bool) -> torch.Tensor:
    """Sums over axes, as dot products with ones. -> float32"""
    axes = sorted(axis % x.ndim for axis in axes) or list(range(x.ndim))
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rows = x.float().permute(*kept, *axes).reshape(*(x.shape[axis] for axis in kept), -1)
    length = rows.shape[-1]
    found = product(rows.reshape(-1, length), _ones(length)).view(rows.shape[:-1])
    if keepdim:
        for axis in axes:
            found = found.unsqueeze(axis)
    return found


@cache
def _ones(length: int) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.ones(1, length).t()


def layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer norm over the last axes `shape`. -> (x's shape and dtype, mean, 1 / standard deviation)"""
    length = torch.Size(shape).numel()
    rows = x.float().reshape(-1, length)
    out, count = torch.empty_like(rows), len(rows)
    mean, rstd = torch.empty(count), torch.empty(count)

    def run(first: int, last: int) -> None:
        kernels.layer_norm(
            rows.data_ptr(), length, first, last, length, out.data_ptr(), length, mean.data_ptr(), rstd.data_ptr(), epsilon
        )

    _shared(run, count, 1, 64 * rows.numel())
    out = out.view(x.shape)
    if weight is not None:
        out *= weight.float()
    if bias is not None:
        out += bias.float()
    outer = (*x.shape[: x.ndim - len(shape)], *[1] * len(shape))
    return out.to(x.dtype), mean.view(outer), rstd.view(outer)


def aligned(func: Callable[..., torch.Tensor], x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """An elementwise function, every element of which takes the vectorised branch of torch's loop.

    torch computes the last elements of a loop, those that fill no pair of vectors, with other instructions (the C library's exp
    instead of a polynomial), and every thread has such an end; which elements those are depends on the number of rows. So the tensor
    is filled up until no thread's share has an end.
    """
    length = x.numel()
    filled = _filled(length)
    if filled == length and x.is_contiguous():
        return func(x, *rest, **options)
    flat = x.new_zeros(filled)
    flat[:length].view(x.shape).copy_(x)
    return func(flat, *rest, **options)[:length].view(x.shape)


_GRAIN = 32768  # elements: at::internal::GRAIN_SIZE, below which one thread does most functions
_GELU_GRAIN = 16384  # GELU_MIN_ELEMENTS_FOR_MULTI_THREADING, beyond which all threads share a gelu
_VECTORS = 64  # elements of two vectors: 512 bits of bfloat16; a multiple of every narrower kind


def _filled(length: int) -> int:
    """The least number of elements from `length` on of which every thread's share is a whole number of pairs of vectors."""
    threads = torch.get_num_threads()
    filled = -(-length // _VECTORS) * _VECTORS
    while True:
        sharing = {min(threads, max(1, -(-filled // _GRAIN))), threads if filled > _GELU_GRAIN else 1}
        if all(filled % (_VECTORS * count) == 0 for count in sharing):
            return filled
        filled += _VECTORS


_threads: list[int] = []  # of the modes that are open; without one, as many as torch has


def begin_sharing() -> None:
    """From here on products are shared among as many threads as torch has, and torch itself keeps to one.

    After each loop of its own torch's threads spin for milliseconds, waiting for the next, on the cores that products need: with two threads a
    prefill was no faster than with one.
    """
    _threads.append(_threads[-1] if _threads else torch.get_num_threads())
    torch.set_num_threads(1)


def end_sharing() -> None:
    """Torch has its threads again."""
    count = _threads.pop()
    torch.set_num_threads(1 if _threads else count)


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="invariant")


def _shared(run: Callable[[int, int], None], count: int, step: int, work: int) -> None:
    """run(first, last) over 0..count-1, by as many threads as torch has; each takes whole steps. No sum depends on who computes it."""
    available = _threads[-1] if _threads else torch.get_num_threads()
    threads = min(available, -(-count // step), max(1, work // _LEAST_WORK))
    if threads < 2:
        run(0, count)
        return
    share = -(-count // (threads * step)) * step
    others = [_pool(available - 1).submit(partial(run, begin, min(begin + share, count))) for begin in range(share, count, share)]
    run(0, share)
    for other in others:
        other.result()
