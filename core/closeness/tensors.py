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
    values = _as_numpy(tensor)
    dtype = _dtype_name(tensor, values)
    if dtype not in FORMATS and dtype != "float64":
        raise UsageError(f"'{name}' is {dtype}; expected a tensor of floating-point numbers.")
    wide = np.float64 if dtype == "float64" else np.float32
    return values.astype(wide, copy=False), dtype


def _as_numpy(tensor: Any) -> Any:
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        # NumPy has no bfloat16 and no float8
        return (tensor.float() if tensor.element_size() < 4 else tensor).numpy()
    if type(tensor).__module__.startswith("mlx."):
        mlx = sys.modules["mlx.core"]
        return np.asarray(tensor.astype(mlx.float32))
    return np.asarray(tensor)


def _dtype_name(tensor: Any, values: Any) -> str:
    """`bfloat16` of torch.bfloat16, mlx.core.bfloat16 and ml_dtypes alike."""
    return str(getattr(tensor, "dtype", values.dtype)).rsplit(".", 1)[-1]


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
