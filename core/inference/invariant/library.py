"""The kernels of fixed order as operations of torch: `torch.ops.ulpscope.product` and its like, for CPU, CUDA, and
shapes alone.

On CUDA the kernels are Triton's, imported when a tensor there first needs one. Sums are float32; every result is
rounded once.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import cpu

# ruff: noqa: ARG001, UP045 - fake kernels have the signature of the real ones, and torch reads schemas from the older
# spelling


def _cuda() -> Any:
    from .cuda import launch  # imports triton

    return launch


@torch.library.custom_op("ulpscope::product", mutates_args=(), device_types="cpu")
def product(x: Tensor, w: Tensor, bias: Optional[Tensor], dtype: torch.dtype) -> Tensor:
    """x [m, k] times a weight w [k, n], plus bias [n] before the one rounding. -> [m, n] in dtype"""
    return cpu.product(x, w, bias, dtype)


@product.register_kernel("cuda")
def _(x: Tensor, w: Tensor, bias: Optional[Tensor], dtype: torch.dtype) -> Tensor:
    return _cuda().product(x, w, bias, dtype)


@product.register_fake
def _(x: Tensor, w: Tensor, bias: Optional[Tensor], dtype: torch.dtype) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[1]), dtype=dtype)


@torch.library.custom_op("ulpscope::batched", mutates_args=(), device_types="cpu")
def batched(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """x [b, m, k] times w [b, k, n], one term after another. -> [b, m, n] in dtype"""
    return cpu.batched(x, w, dtype)


@batched.register_kernel("cuda")
def _(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    return _cuda().batched(x, w, dtype)


@batched.register_fake
def _(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], w.shape[2]), dtype=dtype)


@torch.library.custom_op("ulpscope::attention", mutates_args=(), device_types="cpu")
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], is_causal: bool, scale: float
) -> Tensor:
    """query [b, h, m, d], key [b, h / g, n, d], value [b, h / g, n, e], mask broadcastable to [b, h, m, n]. -> [b, h,
    m, e]
    """
    return cpu.attention(query, key, value, mask, is_causal, scale)


@attention.register_kernel("cuda")
def _(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], is_causal: bool, scale: float) -> Tensor:
    return _cuda().attention(query, key, value, mask, is_causal, scale)


@attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, mask: Optional[Tensor], is_causal: bool, scale: float) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


@torch.library.custom_op("ulpscope::softmax", mutates_args=(), device_types="cpu")
def softmax(x: Tensor, dtype: torch.dtype, is_log: bool) -> Tensor:
    """Softmax of the rows of x [m, n], or its logarithm. -> [m, n] in dtype"""
    return cpu.softmax(x, dtype, is_log)


@softmax.register_kernel("cuda")
def _(x: Tensor, dtype: torch.dtype, is_log: bool) -> Tensor:
    return _cuda().softmax(x, dtype, is_log)


@softmax.register_fake
def _(x: Tensor, dtype: torch.dtype, is_log: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("ulpscope::row_sums", mutates_args=(), device_types="cpu")
def row_sums(x: Tensor) -> Tensor:
    """Sums of the rows of x [m, n]. -> [m], float32"""
    return cpu.row_sums(x)


@row_sums.register_kernel("cuda")
def _(x: Tensor) -> Tensor:
    return _cuda().row_sums(x)


@row_sums.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], dtype=torch.float32)


@torch.library.custom_op("ulpscope::layer_norm", mutates_args=(), device_types="cpu")
def layer_norm(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm of the rows of x [m, n]. -> ([m, n] in dtype, mean [m], 1 / standard deviation [m])"""
    return cpu.layer_norm(x, weight, bias, epsilon, dtype)


@layer_norm.register_kernel("cuda")
def _(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _cuda().layer_norm(x, weight, bias, epsilon, dtype)


@layer_norm.register_fake
def _(
    x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    row = x.new_empty(x.shape[0], dtype=torch.float32)
    return x.new_empty(x.shape, dtype=dtype), row, torch.empty_like(row)
