"""Tensors in, kernels launched, tensors out. CUDA; float32, bfloat16 and float16."""

from __future__ import annotations

from typing import Any

import torch

from ....errors import CaptureError
from . import kernels

_PLAIN = {"enable_fp_fusion": False}
_MOST_SCORES = 1 << 26  # float32 that attention keeps at once: a quarter of a GiB
_MOST_KEYS = 1 << 22  # whose weights' sum fits 64 bits (kernels.ONE)
_SOFTMAX_TILE = (4, 512)  # rows, elements
_LANES = 1024


def _tile_of(dtype: torch.dtype, columns: int) -> dict[str, int]:
    """The tile of a product with a weight: by dtype and width alone, never by rows.

    64 rows of 16 bits are what one of Hopper's instructions takes and still wait for memory where only one is used;
    narrow weights get narrow tiles, as programs share no sum and there would be too few of them.
    """
    if dtype is torch.float32:
        return {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_M": 64, "BLOCK_N": 32 if columns <= 8192 else 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4}


def _on(tensor: torch.Tensor) -> Any:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else _Nowhere()


class _Nowhere:
    """Context in place of a CUDA device, where triton's interpreter runs the kernels."""

    def __enter__(self) -> None: ...

    def __exit__(self, *raised: object) -> None: ...


def _tiles(count: int, size: int) -> int:
    return -(-count // size)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor without gaps and from a 16-byte boundary on, so that no batch gets other load instructions than
    another.
    """
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def product(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x [m, k] times w [k, n] plus bias [n], rounded once. -> [m, n] in dtype"""
    (rows, length), columns = x.shape, w.shape[1]
    out = x.new_empty((rows, columns), dtype=dtype)
    if not rows or not columns:
        return out
    x, tile = _aligned(x), _tile_of(x.dtype, columns)
    grid = (_tiles(rows, tile["BLOCK_M"]), _tiles(columns, tile["BLOCK_N"]))
    with _on(x):
        kernels.dots[grid](
            x,
            w,
            x if bias is None else bias,
            out,
            rows,
            columns,
            length,
            w.stride(0),
            w.stride(1),
            HAS_BIAS=bias is not None,
            **tile,
            **_PLAIN,
        )
    return out


def batched(x: torch.Tensor, w: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x [b, m, k] times w [b, k, n], one term after another. -> [b, m, n] in dtype"""
    out = x.new_empty((x.shape[0], x.shape[1], w.shape[2]), dtype=dtype)
    _chain(x[:, None], w[:, None], out)
    return out


def _chain(
    x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, queries: int = 1, first: int = 0, *, is_causal: bool = False
) -> None:
    """x [b, h, m, k] times w [b, h, k, n] into out, which has b * h * m * n places without gaps."""
    batch, inner, rows, length = x.shape
    columns = w.shape[3]
    if not out.numel():
        return
    grid = (batch * inner, _tiles(rows, 16), _tiles(columns, 64))
    with _on(x):
        kernels.chain[grid](
            x,
            w,
            out,
            rows,
            columns,
            length,
            inner,
            *x.stride(),
            *w.stride(),
            queries,
            first,
            IS_CAUSAL=is_causal,
            BLOCK_M=16,
            BLOCK_N=64,
            num_warps=4,
            **_PLAIN,
        )


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
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    out = query.new_empty((batch, heads, queries, value.shape[3]))
    if keys > _MOST_KEYS:
        raise CaptureError(f"invariant: attention over {keys} keys; its kernels take {_MOST_KEYS} at most.")
    if mask is not None:
        mask = (mask if mask.dtype is torch.bool else mask.float()).expand(batch, heads, queries, keys)
    is_aligned = width % 16 == 0
    query, key = _rows_aligned(query, is_aligned), _rows_aligned(key, is_aligned)
    step = max(1, min(queries, _MOST_SCORES // max(1, batch * heads * keys)))
    for first in range(0, queries, step):
        here = slice(first, min(first + step, queries))
        weights = _weights(
            query[:, :, here], key, None if mask is None else mask[:, :, here], first, scale, is_causal, is_aligned
        )
        found = out if step == queries else out[:, :, here].contiguous()
        _chain(weights, value, found, here.stop - first, first, is_causal=is_causal)
        if found is not out:
            out[:, :, here] = found
    return out


def _rows_aligned(tensor: torch.Tensor, is_aligned: bool) -> torch.Tensor:
    """A view where each row lies without gaps and, if it can, from a multiple of 16 numbers on; else a copy."""
    is_fit = (
        tensor.stride(3) == 1
        and tensor.data_ptr() % 16 == 0
        and all(stride % 16 == 0 for stride in tensor.stride()[:3])
    )
    if is_fit or (not is_aligned and tensor.stride(3) == 1):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _weights(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    first: int,
    scale: float,
    is_causal: bool,
    is_aligned: bool,
) -> torch.Tensor:
    """The softmax of the scores; zeros for a query that may see nothing. -> [b, heads of keys, group * queries, keys],
    float32
    """
    batch, heads, queries, width = query.shape
    key_heads, keys = key.shape[1], key.shape[2]
    group = heads // key_heads
    found = query.new_empty((batch, key_heads, group * queries, keys), dtype=torch.float32)
    if not found.numel():
        return found
    kind = kernels.NO_MASK if mask is None else kernels.BOOLEAN if mask.dtype is torch.bool else kernels.ADDED
    rows_of_tile = 32 if query.dtype is torch.float32 else 64
    depth = max(16, min(64, 1 << (width - 1).bit_length()))
    grid = (batch * key_heads, _tiles(group * queries, rows_of_tile), _tiles(keys, 64))
    with _on(query):
        kernels.scores[grid](
            query,
            key,
            query if mask is None else mask,
            found,
            key_heads,
            group,
            queries,
            keys,
            width,
            first,
            scale,
            *query.stride()[:3],
            *key.stride()[:3],
            *((0, 0, 0, 0) if mask is None else mask.stride()),
            MASK=kind,
            IS_CAUSAL=is_causal,
            IS_ALIGNED=is_aligned,
            BLOCK_M=rows_of_tile,
            BLOCK_N=64,
            BLOCK_D=depth,
            num_warps=4,
            num_stages=2,
            **_PLAIN,
        )
    _softmax(found.view(-1, keys), found, is_log=False, is_attention=True)
    return found


def _by_row(kernel: Any, x: torch.Tensor, *arguments: Any, **constants: Any) -> None:
    if x.numel():
        with _on(x):
            kernel[(x.shape[0],)](x, *arguments, BLOCK=_LANES, num_warps=4, **constants, **_PLAIN)


def softmax(x: torch.Tensor, dtype: torch.dtype, is_log: bool) -> torch.Tensor:
    """Softmax of the rows of x [m, n], or its logarithm, computed in float32. -> [m, n] in dtype"""
    if x.shape[1] > _MOST_KEYS:
        raise CaptureError(f"invariant: a softmax of {x.shape[1]} numbers; its kernel takes {_MOST_KEYS} at most.")
    x = _aligned(x)
    out = torch.empty_like(x, dtype=dtype)
    if x.numel():
        _softmax(x, out, is_log=is_log)
    return out


def _softmax(x: torch.Tensor, out: torch.Tensor, *, is_log: bool, is_attention: bool = False) -> None:
    (rows, length), (together, block) = x.shape, _SOFTMAX_TILE
    with _on(x):
        kernels.softmax[(_tiles(rows, together),)](
            x,
            out,
            rows,
            length,
            IS_LOG=is_log,
            IS_ATTENTION=is_attention,
            ROWS=together,
            BLOCK=block,
            num_warps=4,
            **_PLAIN,
        )


def row_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of the rows of x [m, n]. -> [m], float32"""
    x = _aligned(x)
    out = x.new_zeros(x.shape[0], dtype=torch.float32)
    _by_row(kernels.row_sums, x, out, x.shape[1])
    return out


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, epsilon: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Layer norm of the rows of x [m, n]. -> ([m, n] in dtype, mean [m], 1 / standard deviation [m])"""
    x = _aligned(x)
    out = torch.empty_like(x, dtype=dtype)
    mean, rstd = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    _by_row(
        kernels.layer_norm,
        x,
        x if weight is None else weight,
        x if bias is None else bias,
        out,
        mean,
        rstd,
        x.shape[1],
        epsilon,
        HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
    )
    return out, mean, rstd
