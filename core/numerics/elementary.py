"""Exponentials and logarithms of a few numbers, the same bits on every machine; compiled loops have
core.numerics.reproducible.

numpy's and the C library's own differ in their last bit between processors, as they use what vector and fused
instructions there are. Here every product and every sum is rounded by itself, as IEEE 754 says.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

_LOG2E = 1.4426950408889634
_LN2_HIGH = float.fromhex("0x1.62e42fefa38p-1")  # its last 11 bits are 0: times a binary exponent it is exact
_LN2_LOW = 5.497923018708371e-14
_EXP_TERMS = [1 / math.factorial(power) for power in range(13, -1, -1)]  # Taylor: |r| <= log(2) / 2 leaves 4e-18
_LOG_TERMS = [2 / power for power in range(23, 1, -2)]


def exp(x: ArrayLike) -> NDArray[np.float64]:
    """e**x, relative error below 3e-16 in the normal range. Same shape. Infinities, NaN and what over- or underflows as
    in IEEE 754.
    """
    given = np.asarray(x, np.float64)
    within = np.clip(np.where(np.isnan(given), 0.0, given), -746.0, 710.0)
    exponent = np.rint(within * _LOG2E)
    r = within - exponent * _LN2_HIGH - exponent * _LN2_LOW
    p = np.zeros_like(r)
    for term in _EXP_TERMS:
        p = p * r + term
    with np.errstate(over="ignore", under="ignore"):
        found = np.ldexp(p, exponent.astype(np.int32))
    return np.where(np.isnan(given), np.nan, found)


def log(x: ArrayLike) -> NDArray[np.float64]:
    """Natural logarithm, error of an ULP at most. Same shape. -inf at 0, NaN below it.

    With x = 2**e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), and s = f / (2 + f): log(1 + f) = 2 artanh(s) = f - s (f - R),
    where R = 2 (s^2 / 3 + s^4 / 5 + ...).
    """
    given = np.asarray(x, np.float64)
    is_plain = np.isfinite(given) & (given > 0)
    m, exponent = np.frexp(np.where(is_plain, given, 1.0))
    is_low = m < math.sqrt(0.5)
    f = np.where(is_low, 2 * m, m) - 1.0
    e = exponent - is_low.astype(np.float64)
    s = f / (2.0 + f)
    z = s * s
    p = np.zeros_like(z)
    for term in _LOG_TERMS:
        p = p * z + term
    found = e * _LN2_HIGH + (f - (s * (f - p * z) - e * _LN2_LOW))
    return np.where(is_plain, found, np.where(given == 0, -np.inf, np.where(given == np.inf, np.inf, np.nan)))
