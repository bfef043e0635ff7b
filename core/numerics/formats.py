"""Floating-point formats as bit patterns: which exist, their ordinals, their values, and lossless
moves between them.

Logits travel through ULPscope as the unsigned integers that hold their bits ("bits"), never as
rounded values, so that NaN payloads and the sign of zero survive. A `FloatFormat` says how to read
such bits.
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .arrays import Bits, Floats, Ints, Values


@dataclass(frozen=True)
class FloatFormat:
    """One binary floating-point format.

    name: as in `compute_dtype`; code: its number inside the kernels, which compare LOGIT_FORMATS;
    bits, mantissa_bits: widths; values: the numpy dtype that gives the bits meaning;
    first_nonfinite: bits of +inf (e4m3fn has none, and its NaN is 0x7F).
    """

    name: str
    code: int
    bits: int
    mantissa_bits: int
    values: np.dtype
    first_nonfinite: int

    @property
    def carrier(self) -> np.dtype:
        """Unsigned dtype that holds the bits."""
        return np.dtype(f"<u{self.itemsize}")

    @property
    def largest(self) -> float:
        """Largest finite value."""
        return float(ml_dtypes.finfo(self.values).max)

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return self.bits // 8

    @property
    def least_exponent(self) -> int:
        """Exponent of two of the smallest normal value: 1 less the bias."""
        return 2 - (1 << (self.bits - self.mantissa_bits - 2))


FLOAT32 = FloatFormat("float32", 0, 32, 23, np.dtype(np.float32), 0x7F800000)
FLOAT16 = FloatFormat("float16", 1, 16, 10, np.dtype(np.float16), 0x7C00)
BFLOAT16 = FloatFormat("bfloat16", 2, 16, 7, np.dtype(ml_dtypes.bfloat16), 0x7F80)
FLOAT8_E4M3FN = FloatFormat("float8_e4m3fn", 3, 8, 3, np.dtype(ml_dtypes.float8_e4m3fn), 0x7F)
FLOAT8_E5M2 = FloatFormat("float8_e5m2", 4, 8, 2, np.dtype(ml_dtypes.float8_e5m2), 0x7C)

FORMATS = {f.name: f for f in (FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)}
LOGIT_FORMATS = {f.name: f for f in (FLOAT32, FLOAT16, BFLOAT16)}
_ALIASES = {
    "fp32": "float32",
    "f32": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "float": "float32",
}


def format_named(name: str) -> FloatFormat:
    """Return the logit format called `name` (or a common alias such as bf16); UsageError lists what
    exists.
    """
    plain = name.removeprefix("torch.").lower()
    fmt = LOGIT_FORMATS.get(_ALIASES.get(plain, plain))
    if fmt is None:
        raise UsageError(
            f"dtype '{name}' is not known; expected one of {', '.join(LOGIT_FORMATS)}.",
        )
    return fmt


def ordinals(bits: Bits, fmt: FloatFormat) -> Ints:
    """Integers in the order of the values; +0 and -0 are both 0. Same shape, int64.

    Two's-complement trick of Dawson, "Comparing floating point numbers" (2012); NaNs lie beyond the
    infinities.
    """
    wide = bits.astype(np.int64)
    magnitude = wide & ((1 << (fmt.bits - 1)) - 1)
    return np.where(wide >> (fmt.bits - 1) == 1, -magnitude, magnitude)


def values_at(places: Ints, fmt: FloatFormat) -> NDArray[np.float32]:
    """Return the values that have these ordinals, as float32. Same shape."""
    values = values_of(np.abs(places).astype(fmt.carrier), fmt)
    return np.where(places < 0, -values, values)


def values_of(bits: Bits, fmt: FloatFormat) -> NDArray[np.float32]:
    """Return the values as float32, exact for every format here. Same shape."""
    return bits.view(fmt.values).astype(np.float32)


def bits_of(values: NDArray) -> Bits:
    """Return the bits of an array of one of the formats, as unsigned integers.

    Same shape, no copy if contiguous.
    """
    return np.ascontiguousarray(values).view(f"<u{values.dtype.itemsize}")


def narrow(bits32: NDArray[np.uint32], fmt: FloatFormat) -> Bits | None:
    """float32 bits as bits of a narrower format, or None unless every one of them survives the way
    back.

    "Survives" is meant of bits, NaN payloads included: `widen(narrow(x)) == x`.
    """
    if fmt is FLOAT32:
        return bits32
    if fmt is BFLOAT16:
        return None if np.any(bits32 & 0xFFFF) else (bits32 >> 16).astype(np.uint16)
    with np.errstate(over="ignore", invalid="ignore"):
        result = bits32.view(np.float32).astype(fmt.values).view(fmt.carrier)
    return result if np.array_equal(widen(result, fmt), bits32) else None


def widen(bits: Bits, fmt: FloatFormat) -> NDArray[np.uint32]:
    """Return the bits of the same values in float32; NaN payloads are kept in the upper mantissa
    bits.

    Same shape.
    """
    if fmt is FLOAT32:
        return bits
    if fmt is BFLOAT16:
        return bits.astype(np.uint32) << np.uint32(16)
    with np.errstate(invalid="ignore"):
        return values_of(bits, fmt).view(np.uint32)


def spacings(values: NDArray, fmt: FloatFormat) -> Floats:
    """Return the spacing of `fmt` at its values: distance to the next larger magnitude, in their
    unit. Same shape.

    At 0 that is the smallest subnormal, at the largest finite value the spacing below it; NaN at
    NaN.
    """
    magnitude = np.abs(np.asarray(values, np.float64))
    # the exponent of the power of two that is not above it
    exponent = np.where(magnitude == 0, fmt.least_exponent, np.frexp(magnitude)[1] - 1)
    exponent = np.maximum(exponent, fmt.least_exponent)
    return np.where(np.isnan(magnitude), np.nan, np.ldexp(1.0, exponent - fmt.mantissa_bits))


def round_to(fmt: FloatFormat, values: Values) -> Values:
    """Round finite values to a format, those beyond its largest to that. Same shape."""
    finite = np.clip(values, -fmt.largest, fmt.largest)
    return finite.astype(np.float32).astype(fmt.values).astype(np.float64)
