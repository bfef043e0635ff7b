"""Figures of arrays other than logits: what the tables of caches and of modules have in common."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...numerics.arrays import Array, Bits, Record
from ...numerics.differences import differences, max_row_ulps, rms_row_ulps
from ...numerics.formats import FloatFormat
from ..file.table import Table, null_if_nan

DECLARED = """
    neq BIGINT -- elements whose values differ; +0 equals -0, NaN equals NaN
    finite BIGINT -- elements finite on both sides, over which distances are taken
    max_abs DOUBLE -- largest absolute difference, unit of the {of}, over elements finite on both
    -- sides
    rms DOUBLE -- root mean square of the difference, unit of the {of}
    max_ulps BIGINT -- largest distance, ULPs of {dtype}
    mean_ulps DOUBLE -- mean distance, ULPs of {dtype}
    max_row_ulps DOUBLE NULL -- largest difference over the spacing of {dtype} at the largest finite
    -- magnitude of the reference's row ({row}); null if undefined
    rms_row_ulps DOUBLE NULL -- root mean square of the difference in those; null likewise
    nonfinite_mismatch BIGINT -- elements with a NaN or infinity on one side only
"""
# Figures of one row, as numerics.differences names them.
FIGURES = np.dtype(
    [(name, np.int64) for name in ("neq", "max_ulps", "sum_ulps", "finite", "nonfinite_mismatch")]
    + [(name, np.float64) for name in ("max_abs", "sum_squares", "max_row_ulps", "row_squares")],
)


def figures_of(
    reference: Bits,
    variant: Bits,
    fmt: FloatFormat,
) -> Array:
    """Figures of two arrays of bits [rows, width], by row."""
    by_row = differences(reference, variant, fmt)
    figures = np.empty(len(reference), FIGURES)
    for name in FIGURES.names or ():
        figures[name] = getattr(by_row, name)
    return figures


def columns_of(table: Table, figures: Array, axis: int) -> Record:
    """Columns of DECLARED over one axis of FIGURES, those that a table has."""
    columns = {
        name: figures[name].sum(axis)
        for name in ("neq", "finite", "nonfinite_mismatch", "sum_ulps", "sum_squares")
    }
    finite = np.maximum(columns["finite"], 1)
    columns |= {
        "max_abs": figures["max_abs"].max(axis, initial=0.0),
        "rms": np.sqrt(columns["sum_squares"] / finite),
        "max_ulps": figures["max_ulps"].max(axis, initial=0),
        "mean_ulps": columns["sum_ulps"] / finite,
        "max_row_ulps": null_if_nan(max_row_ulps(figures["max_row_ulps"], axis)),
        "rms_row_ulps": null_if_nan(rms_row_ulps(figures["row_squares"], figures["finite"], axis)),
    }
    return {name: column for name, column in columns.items() if name in table.types}


def first_position(figures: Array, positions: NDArray[np.integer]) -> pa.Array:
    """First of the positions at which an element differs, null if none does. figures: [groups,
    positions]
    """
    is_other = figures["neq"] > 0
    first = (
        positions[is_other.argmax(axis=1)] if len(positions) else np.zeros(len(figures), np.int32)
    )
    return pa.array(first.astype(np.int32), mask=~is_other.any(axis=1))
