# mypy: ignore-errors
"""Kernels that do not keep their order, for test_cuda.py: what is read of them must tell."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def split(x, w, out, BLOCK: tl.constexpr):
    """Programs share a sum, and whoever comes first adds first."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at) * tl.load(w + at), axis=0))


@triton.jit
def quick(x, w, out, BLOCK: tl.constexpr):
    """The processor's own e to x."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.exp(tl.load(x + at)))


@triton.jit
def rounded(x, w, out, BLOCK: tl.constexpr):
    """float32 rounded to 10 bits before it is multiplied."""
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(w + at), input_precision="tf32"))


@triton.jit
def joined(x, w, out, BLOCK: tl.constexpr):
    """A product and a sum that the assembler may join, here and not there."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * tl.load(w + at) + 1.0)
