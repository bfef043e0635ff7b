"""Exponential, logarithm and lane sums for compiled loops, written so that LLVM vectorizes them."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_LOG2E = 1.4426950408889634
_LN2 = 0.6931471805599453
_LN2_HIGH = float.fromhex("0x1.62e42fefa38p-1")  # its last 11 bits are 0: times a binary exponent it is exact
_LN2_LOW = 5.497923018708371e-14
_SQRT2 = 1.4142135623730951
_ROUNDER = 1.5 * 2.0**52  # adding it rounds to a whole number, which then stands in the lowest bits


@intrinsic
def bits_of_float(typingctx, value):
    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), build


@intrinsic
def float_of_bits(typingctx, value):
    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), build


@intrinsic
def bits_of_float32(typingctx, value):
    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), build


@intrinsic
def float32_of_bits(typingctx, value):
    def build(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), build


@intrinsic
def fma(typingctx, a, b, c):
    """Return a * b + c, rounded once. One instruction if the processor has it, else a library call."""

    def build(context, builder, signature, arguments):
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), build


@njit(forceinline=True)
def exp(x):
    """e**x for -700 <= x <= 0 (smaller x is taken as -700), relative error 1e-15 (3e-14 at -700), exactly 1 at 0;
    vectorises.

    The polynomial meets e**r in the Chebyshev nodes of |r| <= log(2) / 2.
    """
    x = x if x > -700.0 else -700.0
    scaled = fma(x, _LOG2E, _ROUNDER)
    r = fma(_ROUNDER - scaled, _LN2, x)
    p = 2.7626371065696354e-07
    p = fma(p, r, 2.764019739169484e-06)
    p = fma(p, r, 2.480150431378554e-05)
    p = fma(p, r, 0.00019841170230570286)
    p = fma(p, r, 0.001388888893251478)
    p = fma(p, r, 0.008333333385699212)
    p = fma(p, r, 0.041666666666573066)
    p = fma(p, r, 0.16666666666554314)
    p = fma(p, r, 0.5000000000000006)
    p = fma(p, r, 1.0000000000000067)
    p = fma(p, r, 1.0)
    return float_of_bits(bits_of_float(p) + (bits_of_float(scaled) << 52))


@njit(forceinline=True)
def log(x):
    """Natural logarithm of a normal, finite x > 0, error below one ULP.

    x = 2**e (1 + f) with sqrt(1/2) < 1 + f <= sqrt(2), s = f / (2 + f): log(1 + f) = 2 artanh(s) = f - s (f - R), where
    R = 2 (s^2 / 3 + s^4 / 5 + ...); eleven terms leave 1e-18.
    """
    bits = bits_of_float(x)
    exponent = (bits >> 52) - 1023
    m = float_of_bits((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000)
    if m > _SQRT2:
        m *= 0.5
        exponent += 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    p = 2.0 / 23.0
    p = fma(p, z, 2.0 / 21.0)
    p = fma(p, z, 2.0 / 19.0)
    p = fma(p, z, 2.0 / 17.0)
    p = fma(p, z, 2.0 / 15.0)
    p = fma(p, z, 2.0 / 13.0)
    p = fma(p, z, 2.0 / 11.0)
    p = fma(p, z, 2.0 / 9.0)
    p = fma(p, z, 2.0 / 7.0)
    p = fma(p, z, 2.0 / 5.0)
    p = fma(p, z, 2.0 / 3.0)
    e = np.float64(exponent)
    low = fma(-s, fma(-p, z, f), e * _LN2_LOW)
    return e * _LN2_HIGH + (f + low)


@njit(forceinline=True)
def fold(lanes, first, count):
    """Return the sum of lanes[first : first + count], folded in half; overwrites them. count: a power of two."""
    while count > 1:
        count //= 2
        for j in range(count):
            lanes[first + j] += lanes[first + count + j]
    return lanes[first]
