"""The registry of metrics: what is derived from it says what it says."""

import numpy as np

from core.numerics.divergence import compare
from core.numerics.formats import BFLOAT16
from core.numerics.metrics import METRICS


def test_every_metric_is_computed_in_the_type_that_it_is_stored_in():
    # 0x7FC0 is NaN and 0xFF80 -inf: the second row has no margin and no KL
    bits = np.array([[0x3F80, 0x4000, 0x4040], [0x3F80, 0x7FC0, 0xFF80]], np.uint16)
    figures = compare(bits, bits + np.array([[1], [0]], np.uint16), BFLOAT16)
    for metric in METRICS:
        values = getattr(figures, metric.name)
        assert values.shape == (2,)
        kind = np.dtype(metric.dtype).kind
        # a count that may be null is a float until it is stored: NaN if undefined
        if metric.is_nullable and metric.dtype == "int64":
            kind = "f"
        assert values.dtype.kind == kind, metric.name
