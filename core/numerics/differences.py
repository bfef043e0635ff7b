"""How far two tensors are apart, row by row: for keys, values and activations, where neither argmax nor KL means anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from core.numerics.formats import FloatFormat
from core.numerics.kernel import BLOCK, load_block

_COUNTS = 5  # neq, max_ulps, sum_ulps, finite, nonfinite_mismatch


@dataclass(frozen=True)
class Differences:
    """Figures of two tensors for some rows, each array [rows], by the rules of the metric contract.

    neq: elements whose values differ; max_ulps, sum_ulps: distances in ULPs of the format, max_abs and sum_squares in the tensors'
    own unit, all over the `finite` elements that are finite on both sides; nonfinite_mismatch: a NaN or infinity not met by the
    same; reference_squares: sum of squares of the reference over the same elements.
    """

    neq: NDArray[np.int64]
    max_ulps: NDArray[np.int64]
    sum_ulps: NDArray[np.int64]
    finite: NDArray[np.int64]
    nonfinite_mismatch: NDArray[np.int64]
    max_abs: NDArray[np.float64]
    sum_squares: NDArray[np.float64]
    reference_squares: NDArray[np.float64]


def differences(a: NDArray[np.unsignedinteger], b: NDArray[np.unsignedinteger], fmt: FloatFormat) -> Differences:
    """Compare bits `a` (reference) and `b`, both [rows, width] of `fmt`. One thread, without the GIL."""
    if a.shape != b.shape or a.ndim != 2 or a.dtype != fmt.carrier or b.dtype != fmt.carrier:
        raise ValueError(f"two [rows, width] arrays of {fmt.carrier} expected, not {a.shape} {a.dtype} and {b.shape} {b.dtype}")
    counts = np.zeros((len(a), _COUNTS), np.int64)
    figures = np.zeros((len(a), 3), np.float64)
    ulps = np.empty(BLOCK, np.uint32 if fmt.bits == 32 else np.uint16)
    _difference_rows(np.ascontiguousarray(a), np.ascontiguousarray(b), fmt.code, counts, figures, ulps)
    return Differences(*counts.T, *figures.T)


@njit(nogil=True, cache=True, error_model="numpy")
def _difference_rows(a, b, fmt, counts, figures, ulps):
    a_values, b_values = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    a_bits, b_bits = a_values.view(np.uint32), b_values.view(np.uint32)
    apart = np.empty(BLOCK, np.float64)
    apart_bits = apart.view(np.int64)
    width = a.shape[1]
    for row in range(a.shape[0]):
        for start in range(0, width, BLOCK):
            n = min(BLOCK, width - start)
            load_block(a[row, start : start + n], b[row, start : start + n], fmt, a_bits, b_bits, a_values, b_values, ulps)
            if _all_finite(a_bits, b_bits, n):
                _add_finite(a_values, b_values, ulps, apart, apart_bits, n, counts[row], figures[row])
            else:
                _add_block(a_values, b_values, ulps, n, counts[row], figures[row])


@njit(cache=True)
def _all_finite(a_bits, b_bits, n):
    nonfinite = 0
    for i in range(n):
        nonfinite += ((a_bits[i] & 0x7F800000) == 0x7F800000) | ((b_bits[i] & 0x7F800000) == 0x7F800000)
    return nonfinite == 0


@njit(cache=True, fastmath={"reassoc", "nnan", "ninf", "nsz"})
def _add_finite(a_values, b_values, ulps, apart, apart_bits, n, counts, figures):
    """The usual block: without branches, and with sums in any order, each loop becomes vector instructions (a third of the time)."""
    neq, total = np.int64(0), np.int64(0)
    most = ulps[0]
    for i in range(n):
        neq += ulps[i] != 0
    if neq:
        for i in range(n):
            if ulps[i] > most:
                most = ulps[i]
        for i in range(n):
            total += np.int64(ulps[i])
        squares, largest = 0.0, np.int64(0)
        for i in range(n):
            apart[i] = abs(np.float64(a_values[i]) - np.float64(b_values[i]))
        for i in range(n):
            squares += apart[i] * apart[i]
        for i in range(n):  # the bits of positive floats are in their order, and integers have a vector maximum
            if apart_bits[i] > largest:
                largest = apart_bits[i]
        apart_bits[0] = largest
        figures[0] = max(figures[0], apart[0])
        figures[1] += squares
        counts[1] = max(counts[1], np.int64(most))
        counts[0] += neq
        counts[2] += total
    reference = 0.0
    for i in range(n):
        reference += np.float64(a_values[i]) * np.float64(a_values[i])
    figures[2] += reference
    counts[3] += n


@njit(forceinline=True)
def _add_block(a_values, b_values, ulps, n, counts, figures):
    for i in range(n):
        x, y = np.float64(a_values[i]), np.float64(b_values[i])
        if np.isfinite(x) and np.isfinite(y):
            distance = np.int64(ulps[i])
            counts[0] += distance != 0
            counts[1] = max(counts[1], distance)
            counts[2] += distance
            counts[3] += 1
            figures[0] = max(figures[0], abs(x - y))
            figures[1] += (x - y) * (x - y)
            figures[2] += x * x
        elif not (x == y or (np.isnan(x) and np.isnan(y))):
            counts[0] += 1
            counts[4] += 1
