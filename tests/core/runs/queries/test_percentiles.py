"""Percentiles of ULPs, against counts by hand."""

import pytest

from core.runs.queries.verdicts import ulp_percentile


@pytest.mark.parametrize(
    ("histogram", "share", "expected"),
    [
        ({0: 50, 1: 49, 900: 1}, 0.5, 0),
        ({0: 49, 1: 50, 900: 1}, 0.5, 1),
        ({0: 50, 1: 49, 900: 1}, 0.99, 1),
        ({0: 50, 1: 48, 900: 2}, 0.99, 900),
        ({7: 1}, 0.99, 7),
        ({}, 0.5, None),
        ({3: 0}, 0.5, None),
    ],
)
def test_a_percentile_is_the_least_distance_that_covers_the_share(histogram, share, expected):
    assert ulp_percentile(histogram, share) == expected
