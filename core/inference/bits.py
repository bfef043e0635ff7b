"""Float tensors as the unsigned integers that hold their bits, on the host."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_SIGNED = {2: torch.int16, 4: torch.int32}  # of the float's width: torch hands these to numpy, and not bfloat16


def bits_of(tensor: torch.Tensor) -> NDArray[np.unsignedinteger]:
    """The bits of a float tensor on any device. Same shape; on a CPU the same memory where it is contiguous."""
    itemsize = tensor.dtype.itemsize
    return tensor.contiguous().view(_SIGNED[itemsize]).cpu().numpy().view(f"<u{itemsize}")
