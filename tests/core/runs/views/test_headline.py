"""Percentiles of ULPs and sizes in noise floors, against counts by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.runs.file.evidence import Check, Unmeasured
from core.runs.views.headline import NoiseRatio, noise_ratios, ulp_percentile
from tests.core.runs.judged_runs import CASES, EXACT_FAILED, EXACT_PASSED, OWN, Evidence


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


def test_percentiles_are_those_of_numpy_over_every_element():
    distances = np.random.default_rng(0).geometric(0.01, 5000)
    values, counts = np.unique(distances, return_counts=True)
    histogram = dict(zip(values.tolist(), counts.tolist(), strict=True))
    for share in (0.1, 0.5, 0.99):
        assert ulp_percentile(histogram, share) == np.quantile(distances, share, method="inverted_cdf")


def test_the_ratio_that_decides_comes_first_with_its_limit():
    assert noise_ratios(CASES["rounding"][2]) == [
        NoiseRatio("float32", 0.9557, 4.0),
        NoiseRatio("bfloat16", 1.2504, 10.0),
    ]
    assert noise_ratios([OWN]) == [NoiseRatio("bfloat16", 1.2504, 10.0)]
    assert noise_ratios(CASES["undecided"][2])[0].compute_dtype == "bfloat16"
    assert noise_ratios([Evidence(Check.UPLOADED_FLOOR, "", Unmeasured(), "missing", "")]) == []


def test_a_ratio_is_said_with_its_bound():
    assert noise_ratios([EXACT_PASSED])[0].words == "0.96x the noise floor in float32 (limit 4x)"
    assert noise_ratios([EXACT_FAILED])[0].multiple == "24.3x"
    assert "nan" not in NoiseRatio("float32", math.inf, 4.0).words
