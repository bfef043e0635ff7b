"""A pair's sums do not depend on how its rows were cut into chunks, and stay small for any
input.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.numerics.divergence import compare
from core.numerics.formats import BFLOAT16
from core.numerics.totals import PairTotal
from tests.core.numerics.oracle import expected_figures
from tests.core.numerics.rows import ALL_FORMATS, all_nan, rows_of_all_kinds


def total_of(a, b, fmt, cuts):
    """The sum of the chunks between `cuts`, which are row numbers."""
    total = PairTotal()
    edges = [0, *sorted(cuts), len(a)]
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            total.add(compare(a[start:stop], b[start:stop], fmt))
    return total


def unlike(one, other):
    """Names of what differs by more than the rounding of a sum."""
    facts = []
    for total in (one, other):
        of_histogram = {"histogram": total.histogram, "exact": total.is_histogram_exact}
        facts.append(dataclasses.asdict(total.summary()) | of_histogram)
    first, second = facts
    names = []
    for name, value in first.items():
        # a sum of floats is rounded once a chunk
        expected = pytest.approx(value, 1e-12, 0) if isinstance(value, float) else value
        if second[name] != expected:
            names.append(name)
    return names


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    cuts=st.lists(st.integers(0, 20), max_size=5),
    fmt=st.sampled_from(ALL_FORMATS),
)
def test_any_chunking_gives_the_same_total(seed, cuts, fmt):
    a, b = rows_of_all_kinds(seed, 20, 60, fmt)
    assert unlike(total_of(a, b, fmt, cuts), total_of(a, b, fmt, [])) == []


@pytest.mark.parametrize("fmt", ALL_FORMATS, ids=lambda f: f.name)
def test_the_summary_is_the_sum_of_the_oracles_rows(fmt):
    a, b = rows_of_all_kinds(2, 40, 100, fmt)
    got = total_of(a, b, fmt, [7, 30]).summary()
    want = expected_figures(a, b, fmt)
    rows = want.exact
    finite = want.exact["finite"].sum()
    kl = want.kl[~np.isnan(want.kl)]
    margins = np.concatenate([rows["reference_margin"], rows["variant_margin"]])
    assert got.neq == rows["neq"].sum()
    assert got.neq_share == rows["neq"].sum() / a.size
    assert got.max_abs == rows["max_abs"].max()
    assert got.max_row_ulps == np.nanmax(rows["max_row_ulps"])
    row_squares = np.nansum(want.close["row_squares"])
    assert got.rms_row_ulps == pytest.approx(math.sqrt(row_squares / finite), rel=1e-9)
    assert got.max_ulps == rows["max_ulps"].max()
    assert got.flips == rows["is_flip"].sum()
    assert got.ties == rows["is_tie"].sum()
    assert got.near_ties == rows["near_tie"].sum()
    assert got.could_flip == rows["could_flip"].sum()
    assert got.nonfinite_mismatch == rows["nonfinite_mismatch"].sum()
    assert got.bit_identical == rows["bit_identical"].all()
    assert got.same_top1 == 1 - rows["is_flip"].sum() / len(a)
    assert got.min_margin == np.nanmin(margins)
    assert got.mean_ulps == pytest.approx(int(rows["sum_ulps"].sum()) / finite, rel=1e-12)
    mean_square = want.close["sum_squares"].sum() / finite
    assert got.rms == pytest.approx(math.sqrt(mean_square), rel=1e-9)
    assert got.mean_kl == pytest.approx(kl.mean(), rel=1e-6, abs=1e-12)
    assert got.max_kl == pytest.approx(kl.max(), rel=1e-6, abs=1e-12)


def test_a_pair_of_nothing_but_nan_has_no_kl_and_no_margin():
    a, _ = rows_of_all_kinds(0, 1, 40, BFLOAT16, (all_nan,))
    summary = total_of(a, a, BFLOAT16, []).summary()
    assert summary.mean_kl is summary.max_kl is summary.min_margin is None
    assert summary.max_row_ulps is summary.rms_row_ulps is None
    assert summary.mean_ulps == summary.rms == summary.neq == summary.flips == 0
    assert summary.bit_identical
