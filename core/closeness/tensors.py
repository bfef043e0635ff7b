"""Read tensors of NumPy, PyTorch, MLX and JAX as arrays of float32 or float64."""

import sys
from typing import Any

import numpy as np

from ..errors import UsageError
from ..numerics.arrays import Values
from ..numerics.formats import BFLOAT16, FLOAT16, FORMATS, bits_of, narrow


def read_tensor(name: str, tensor: Any) -> tuple[Values, str]:
    """Return a tensor's values, without loss, and the name of its dtype; same shape.

    bfloat16, float16 and float8 become float32. UsageError if it holds no floating-point numbers.
    """
    if hasattr(tensor, "detach"):
        plain = tensor.detach().cpu()
        # NumPy has no bfloat16 and no float8
        values = (plain.float() if plain.element_size() < 4 else plain).numpy()
    elif type(tensor).__module__.startswith("mlx."):
        values = np.asarray(tensor.astype(sys.modules["mlx.core"].float32))
    else:
        values = np.asarray(tensor)
    # bfloat16 of torch.bfloat16, mlx.core.bfloat16 and ml_dtypes alike
    dtype = str(getattr(tensor, "dtype", values.dtype)).rsplit(".", 1)[-1]
    if dtype not in FORMATS and dtype != "float64":
        raise UsageError(f"'{name}' is {dtype}; expected a tensor of floating-point numbers.")
    wide = np.float64 if dtype == "float64" else np.float32
    return values.astype(wide, copy=False), dtype


def dtype_of_values(values: Values, dtype: str) -> str:
    """Return the narrower format that all values of a float32 array have, or `dtype`: dumps are
    often upcast.
    """
    if dtype != "float32":
        return dtype
    bits = bits_of(values)
    for fmt in (BFLOAT16, FLOAT16):
        # a look at some values refuses nearly every array
        if narrow(bits.ravel()[:64], fmt) is not None and narrow(bits, fmt) is not None:
            return fmt.name
    return dtype
