"""Inputs of a probe: made from integers, so that they are the same bits on every machine.

torch's own generators give other numbers on other processors and devices. Raw words of a Philox generator are whole
numbers whose stream numpy does not change, and turning a 32-bit integer into a float32 is exact but for one rounding
that IEEE 754 fixes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

_AT_ONCE = 1 << 22  # values, an even number: the words of a generator are whole at every step


class Draws:
    """Random tensors on the CPU, in the order in which they are asked for; the same for the same seed and words."""

    def __init__(self, seed: int, *words: str) -> None:
        key = hashlib.sha256("\0".join((str(seed), *words)).encode()).digest()[:16]
        self._bits = np.random.Philox(key=int.from_bytes(key, "little"))

    def values(self, *shape: int) -> torch.Tensor:
        """Uniform in [-2, 2), float32 of full precision: sums of them round. [*shape]"""
        made = np.empty(prod(shape), np.float32)
        for start in range(0, made.size, _AT_ONCE):
            part = made[start : start + _AT_ONCE]
            part[:] = self._whole(part.size).view(np.int32)
            part *= np.float32(2.0**-30)
        return torch.from_numpy(made).reshape(shape)

    def indices(self, below: int, *shape: int) -> torch.Tensor:
        """Uniform in [0, below), int64. [*shape]"""
        return torch.from_numpy((self._whole(prod(shape)) % np.uint32(below)).astype(np.int64)).reshape(shape)

    def _whole(self, count: int) -> NDArray[np.uint32]:
        """32-bit words; two of each word of the generator. [count]"""
        return self._bits.random_raw(-(-count // 2)).view(np.uint32)[:count]


class Outline(Draws):
    """Tensors of the same shapes without a number in them: what inputs will weigh."""

    def __init__(self) -> None:
        super().__init__(0)

    def values(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    def indices(self, below: int, *shape: int) -> torch.Tensor:  # noqa: ARG002
        return torch.empty(shape, dtype=torch.int64, device="meta")


@dataclass(frozen=True)
class Inputs:
    """Inputs of one call of an operation. rows: tensors whose first axis is the batch, [N, ...]; shared: what every row
    uses.
    """

    rows: tuple[torch.Tensor, ...]
    shared: tuple[torch.Tensor, ...] = ()

    @property
    def batch(self) -> int:
        return len(self.rows[0])

    def first(self, count: int) -> Inputs:
        """The first `count` rows: the same row 0 at every batch size."""
        return Inputs(tuple(tensor[:count] for tensor in self.rows), self.shared)

    def window(self, start: int, count: int) -> Inputs:
        """`count` rows from `start` on, in memory of their own: another row 0, aligned as the first."""
        return Inputs(tuple(tensor[start : start + count].clone() for tensor in self.rows), self.shared)

    def copies(self, count: int) -> Inputs:
        """Row 0, `count` times over."""
        return Inputs(tuple(tensor[:1].repeat(count, *[1] * (tensor.ndim - 1)) for tensor in self.rows), self.shared)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Inputs:
        """Floats in `dtype`, indices as they are."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

        return Inputs(tuple(map(moved, self.rows)), tuple(map(moved, self.shared)))
