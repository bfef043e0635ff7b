"""Products, attention, softmax and norms on a CPU: numba's kernels, given tensors, shared among threads. float32,
bfloat16 and float16.

float16 goes through float32, which holds it exactly: the same sums, at the price of widening the weights at every
product.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import torch

from . import kernels

_LEAST_WORK = (
    1 << 23
)  # multiplications, 40 to 80 µs: below that, handing half of them to another thread takes longer than doing them
_READ = 8  # multiplications that take as long as reading one weight from memory
_WIDTHS = 64  # columns: threads share a product in multiples of it, so that no tile is cut


def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x [m, k] times w [k, n] plus bias [n], rounded once. -> [m, n] in dtype"""
    sums = _sums(x, w)
    if bias is not None:
        sums += bias.float()
    return sums.to(dtype)


def batched(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x [b, m, k] times w [b, k, n], one term after another. -> [b, m, n] in dtype"""
    out = x.new_empty((x.shape[0], x.shape[1], w.shape[2]), dtype=torch.float32)
    for number in range(len(x)):
        _sums(x[number], w[number], out[number], is_weight=False)
    return out.to(dtype)


def _sums(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor | None = None, *, is_weight: bool = True) -> torch.Tensor:
    """x [m, k] times w [k, n]. -> [m, n], float32

    Which kernel takes it depends on how a weight lies in memory, never on a number of rows.

    Where k is 1 both kernels give the same bits, and of a w with one column it is the stride of k that tells.
    """
    dtype = x.dtype
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


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    """query [b, h, m, d], key [b, h / g, n, d], value [b, h / g, n, e], mask broadcastable to [b, h, m, n]. -> [b, h,
    m, e]
    """
    asked = dtype = query.dtype
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

    def run(first: int, last: int) -> None:
        kernel(
            query.data_ptr(),
            query.stride()[:3],
            key.data_ptr(),
            key.stride()[:3],
            value.data_ptr(),
            value.stride()[:3],
            mask_at,
            mask_strides,
            kind,
            is_causal,
            scale,
            shape,
            first,
            last,
            out.data_ptr(),
        )

    _shared(run, batch * heads, 1, 4 * batch * heads * queries * keys * width)
    return out.to(asked)


def softmax(x: torch.Tensor, dtype: torch.dtype, is_log: bool) -> torch.Tensor:
    """Softmax of the rows of x [m, n], or its logarithm, computed in float32. -> [m, n] in dtype"""
    rows = x.float().contiguous()
    out = torch.empty_like(rows)
    if not rows.numel():
        return out.to(dtype)
    count, length = rows.shape

    def run(first: int, last: int) -> None:
        kernels.softmax(rows.data_ptr(), length, first, last, length, out.data_ptr(), length, is_log)

    _shared(run, count, 1, 64 * rows.numel())
    return out.to(dtype)


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of the rows of x [m, n], as dot products with ones. -> [m], float32"""
    return _sums(x.float(), _ones(x.shape[1]))[:, 0]


@cache
def _ones(length: int) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.ones(1, length).t()


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer norm of the rows of x [m, n]. -> ([m, n] in dtype, mean [m], 1 / standard deviation [m])"""
    rows = x.float().contiguous()
    count, length = rows.shape
    out = torch.empty_like(rows)
    mean, rstd = torch.empty(count), torch.empty(count)

    def run(first: int, last: int) -> None:
        kernels.layer_norm(
            rows.data_ptr(),
            length,
            first,
            last,
            length,
            out.data_ptr(),
            length,
            mean.data_ptr(),
            rstd.data_ptr(),
            epsilon,
        )

    _shared(run, count, 1, 64 * rows.numel())
    if weight is not None:
        out *= weight.float()
    if bias is not None:
        out += bias.float()
    return out.to(dtype), mean, rstd


def aligned(func: Callable[..., torch.Tensor], x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
    """An elementwise function, every element of which takes the vectorised branch of torch's loop.

    torch computes the last elements of a loop, those that fill no pair of vectors, with other instructions (the C
    library's exp instead of a polynomial), and every thread has such an end; which elements those are depends on the
    number of rows. So the tensor is filled up until no thread's share has an end.
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
    """The least number of elements from `length` on of which every thread's share is a whole number of pairs of
    vectors.
    """
    threads = torch.get_num_threads()
    filled = -(-length // _VECTORS) * _VECTORS
    while True:
        sharing = {min(threads, max(1, -(-filled // _GRAIN))), threads if filled > _GELU_GRAIN else 1}
        if all(filled % (_VECTORS * count) == 0 for count in sharing):
            return filled
        filled += _VECTORS


_threads: list[int] = []  # of the modes that are open; without one, as many as torch has


def begin_sharing() -> None:
    """Share products from here on among as many threads as torch has; torch itself keeps to one.

    After each loop of its own torch's threads spin for milliseconds, waiting for the next, on the cores that products
    need: with two threads a prefill was no faster than with one.
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


def _shared(run: Callable[[int, int], None], count: int, step: int, work: int) -> None:
    """run(first, last) over 0..count-1, by as many threads as torch has; each takes whole steps. No sum depends on who
    computes it.
    """
    available = _threads[-1] if _threads else torch.get_num_threads()
    threads = min(available, -(-count // step), max(1, work // _LEAST_WORK))
    if threads < 2:
        run(0, count)
        return
    share = -(-count // (threads * step)) * step
    others = [
        _pool(available - 1).submit(partial(run, begin, min(begin + share, count)))
        for begin in range(share, count, share)
    ]
    run(0, share)
    for other in others:
        other.result()
