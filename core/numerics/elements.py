"""Single elements of a pair: the distances themselves, for a view of a few positions; whole runs go through
`divergence`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .formats import FloatFormat, is_finite, ordinals


def distances(a: NDArray[np.unsignedinteger], b: NDArray[np.unsignedinteger], fmt: FloatFormat) -> NDArray[np.uint64]:
    """ULP distance of every element, of any shape; all ones of the format's width if a NaN or infinity is not met by
    the same.

    The same convention as the heatmap's cells (numerics.pyramid). Two NaNs, and two equal infinities, have distance 0.
    """
    a_ordinals, b_ordinals = ordinals(a, fmt), ordinals(b, fmt)
    steps = np.abs(a_ordinals - b_ordinals).astype(np.uint64)
    both_finite = is_finite(a, fmt) & is_finite(b, fmt)
    if both_finite.all():
        return steps
    both_nan = is_nan(a, fmt) & is_nan(b, fmt)
    same = both_nan | (a_ordinals == b_ordinals)
    return np.where(both_finite, steps, np.where(same, np.uint64(0), mismatch_mark(fmt)))


def is_nan(bits: NDArray[np.unsignedinteger], fmt: FloatFormat) -> NDArray[np.bool_]:
    """Return whether the bits are a NaN. Same shape. Beyond the infinities; float8_e4m3fn has no infinity, there every
    non-finite pattern is NaN.
    """
    magnitude = bits & fmt.carrier.type((1 << (fmt.bits - 1)) - 1)
    return magnitude >= fmt.first_nonfinite if fmt.name == "float8_e4m3fn" else magnitude > fmt.first_nonfinite


def mismatch_mark(fmt: FloatFormat) -> np.uint64:
    """Return the cell value that means a NaN or infinity mismatch; no finite distance reaches it."""
    return np.uint64((1 << fmt.bits) - 1)
