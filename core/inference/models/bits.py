"""Float tensors as unsigned integers of the same bits, on the host."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_SIGNED = {2: torch.int16, 4: torch.int32}  # of the float's width: torch hands these to numpy, and not bfloat16


def bits_of(tensor: torch.Tensor) -> NDArray[np.unsignedinteger]:
    """Return the bits of a float tensor on any device. Same shape; on a CPU the same memory if contiguous."""
    itemsize = tensor.dtype.itemsize
    return tensor.contiguous().view(_SIGNED[itemsize]).cpu().numpy().view(f"<u{itemsize}")


def own_bits(tensor: torch.Tensor) -> NDArray[np.unsignedinteger]:
    """Return bits like `bits_of`, copied if the tensor is a small part of larger memory."""
    if tensor.device.type == "cpu" and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return bits_of(tensor)


def row_sums(values: torch.Tensor) -> NDArray[np.float64]:
    """Return sums of rows, [rows, n] float64 -> [rows]; on a CPU in numpy's order, the same on every processor."""
    return values.numpy().sum(axis=1) if values.device.type == "cpu" else values.sum(1).cpu().numpy()
