"""Distance between two tensors, row by row: for keys, values and activations, of which neither
argmax nor KL means anything.
"""

from dataclasses import dataclass

import numpy as np

from .arrays import Bits, Floats, Ints
from .formats import FloatFormat


@dataclass(frozen=True)
class Differences:
    """Figures of two tensors for some rows, each array [rows], by the rules of the metric contract.

    neq: elements whose values differ; max_ulps, sum_ulps: distances in ULPs of the format, max_abs
    and sum_squares in the tensors' own unit, all over the `finite` elements that are finite on both
    sides; nonfinite_mismatch: a NaN or infinity not met by the same; spacing: of the format at the
    reference row's largest finite magnitude, NaN if it has none.
    """

    neq: Ints
    max_ulps: Ints
    sum_ulps: Ints
    finite: Ints
    nonfinite_mismatch: Ints
    max_abs: Floats
    sum_squares: Floats
    spacing: Floats

    @property
    def max_row_ulps(self) -> Floats:
        """Largest difference in row ULPs: over `spacing`, a power of two, so exact.

        NaN if undefined.
        """
        return self.max_abs / self.spacing

    @property
    def row_squares(self) -> Floats:
        """Sum of squared differences in row ULPs; NaN if undefined."""
        return self.sum_squares / self.spacing**2


def rms_row_ulps(
    row_squares: Floats,
    finite: Ints,
    axis: int | None,
) -> Floats:
    """Root mean square in row ULPs of many rows together, along an axis or of all; NaN if no row
    has any.

    A row without a spacing has no element that is finite on both sides.
    """
    mean = np.nansum(row_squares, axis) / np.maximum(finite.sum(axis), 1)
    return np.where(np.isnan(row_squares).all(axis), np.nan, np.sqrt(mean))


def max_row_ulps(by_row: Floats, axis: int | None) -> Floats:
    """Return the largest of many rows, along an axis or of all; NaN if no row has any."""
    return np.fmax.reduce(by_row, axis, initial=np.nan)


def as_compiled(bits: Bits) -> Bits:
    """Return the rows contiguous and read-only, as files and databases return them: numba compiles
    again, for seconds, for writable or strided rows.
    """
    view = np.ascontiguousarray(bits).view()
    view.flags.writeable = False
    return view


def differences(
    a: Bits,
    b: Bits,
    fmt: FloatFormat,
) -> Differences:
    """Compare bits `a` (reference) and `b`, both [rows, width] of `fmt`.

    One thread, without the GIL.
    """
    # compiled loops check no bounds
    assert a.shape == b.shape
    assert a.dtype == b.dtype == fmt.carrier
    # numba takes a third of a second to load, and viewers never compare
    from .difference_loops import difference_rows

    counts, figures = difference_rows(as_compiled(a), as_compiled(b), fmt.code)
    return Differences(*counts.T, *figures.T)
