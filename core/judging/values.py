"""Values that are no logits, of a dump: their size, cosines, neighbors and order."""

from collections.abc import Sequence

import numpy as np

from ..checks.arrays_alone import LEAST_VALUES
from ..checks.embeddings import embedding_row, score_row
from ..evidence import Evidence
from ..numerics.arrays import Floats, Span
from ..numerics.embeddings import (
    MOST_ELEMENTS,
    MOST_ROWS,
    Directions,
    directions,
    neighbors,
    score_order,
)
from ..numerics.formats import FloatFormat, spacings, values_of
from ..runs.measured import Measured

_VALUES = 1 << 22  # of a side that are read at once


def scale_of_values(figures: Measured, pair: int) -> tuple[Floats, float]:
    """Return the RMS of a pair of values that are no logits by row, in row ULPs, and the largest
    value of a row of the reference over its median, NaN of too few values. [rows], number

    Rows of a few values, such as scores, have no size of their own: one near 0 is as uncertain as
    the others. Their unit is the spacing at the largest value of all.
    """
    header = figures.header
    columns = figures.columns(pair)
    rms = np.nan_to_num(columns["rms_row_ulps"])
    is_short = header.vocab < LEAST_VALUES
    step = header.rows if is_short else max(1, _VALUES // header.vocab)
    largest = []
    typical = []
    for start in range(0, header.rows, step):
        values = some_values(
            figures,
            0,
            (start, min(start + step, header.rows)),
        )
        sizes = np.abs(np.where(np.isfinite(values), values, 0.0))
        if is_short:
            sizes = sizes.reshape(1, -1)
        largest.append(sizes.max(axis=1))
        typical.append(np.median(sizes, axis=1))
    if is_short:
        rms = columns["rms"] / spacings(largest[0], header.format)
    if sizes.shape[1] < LEAST_VALUES:
        return rms, np.nan
    with np.errstate(invalid="ignore", divide="ignore"):
        peaks = np.concatenate(largest) / np.concatenate(typical)
    # rows of nothing but 0 have none
    return rms, float(np.nan_to_num(peaks, nan=0.0, posinf=np.inf).max())


def order_row(figures: Measured, pair: int) -> Evidence | None:
    """Return the row on cosines and neighbors, or on the order of scores, of values that are no
    logits; None if there are too many scores.
    """
    header = figures.header
    is_small = header.rows <= MOST_ROWS and header.rows * header.vocab <= MOST_ELEMENTS
    if header.vocab == 1:
        is_small = max(header.lengths) <= MOST_ROWS
    if is_small:
        span = 0, header.rows
        reference, variant = (some_values(figures, side, span) for side in (0, pair + 1))
        return order_of_rows(
            reference,
            variant,
            header.format,
            header.lengths,
        )
    # too many scores
    if header.vocab == 1:
        return None
    parts = []
    step = max(1, _VALUES // header.vocab)
    for start in range(0, header.rows, step):
        span = start, min(start + step, header.rows)
        parts.append(directions(*(some_values(figures, side, span) for side in (0, pair + 1))))
    rows = Directions(*map(np.concatenate, zip(*parts, strict=True)))
    return embedding_row(rows, None, header.lengths)


def order_of_rows(
    reference: Floats,
    variant: Floats,
    fmt: FloatFormat,
    lengths: Sequence[int],
) -> Evidence:
    """Return the row on cosines and neighbors, or on the order of scores, of at most MOST_ROWS
    rows. [rows, n] each
    """
    if reference.shape[1] == 1:
        return score_row(score_order(reference[:, 0], variant[:, 0], fmt, lengths))
    return embedding_row(
        directions(reference, variant),
        neighbors(reference, variant),
        lengths,
    )


def some_values(figures: Measured, side: int, rows: Span) -> Floats:
    """Return the values of some rows of a side. [rows, n]"""
    values = values_of(figures.read_rows(side, *rows), figures.header.format)
    return values.astype(np.float64)
