"""Distance between two tensors, row by row: for keys, values and activations, where neither argmax nor KL means
anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .formats import FloatFormat
from .sizes import BLOCK

_COUNTS = 5  # neq, max_ulps, sum_ulps, finite, nonfinite_mismatch


@dataclass(frozen=True)
class Differences:
    """Figures of two tensors for some rows, each array [rows], by the rules of the metric contract.

    neq: elements whose values differ; max_ulps, sum_ulps: distances in ULPs of the format, max_abs and sum_squares in
    the tensors' own unit, all over the `finite` elements that are finite on both sides; nonfinite_mismatch: a NaN or
    infinity not met by the same; reference_squares: sum of squares of the reference over the same elements.
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
        raise ValueError(
            f"two [rows, width] arrays of {fmt.carrier} expected, not {a.shape} {a.dtype} and {b.shape} {b.dtype}"
        )
    counts = np.zeros((len(a), _COUNTS), np.int64)
    figures = np.zeros((len(a), 3), np.float64)
    ulps = np.empty(BLOCK, np.uint32 if fmt.bits == 32 else np.uint16)
    from .difference_loops import difference_rows  # numba takes a third of a second to load, and viewers never compare

    difference_rows(np.ascontiguousarray(a), np.ascontiguousarray(b), fmt.code, counts, figures, ulps)
    return Differences(*counts.T, *figures.T)
