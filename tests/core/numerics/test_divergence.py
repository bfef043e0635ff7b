"""The kernel against the slow oracle, on rows of every kind, in every format."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.numerics.divergence import ROWS_A_TASK, compare
from core.numerics.formats import BFLOAT16, FLOAT32
from core.numerics.kernel import compare_rows
from tests.core.numerics.oracle import differences, expected_figures
from tests.core.numerics.rows import ALL_FORMATS, FINITE_KINDS, KINDS, rows_of_all_kinds

FMT = pytest.mark.parametrize("fmt", ALL_FORMATS, ids=lambda f: f.name)
# around top-k, a group, a block
VOCABS = (
    2,
    3,
    19,
    20,
    21,
    31,
    32,
    33,
    2047,
    2048,
    2049,
    5000,
)
# around what a thread takes at a time
ROWS = (1, ROWS_A_TASK - 1, ROWS_A_TASK, ROWS_A_TASK + 1, 5 * ROWS_A_TASK)


SHAPES = [(2 * len(KINDS) if vocab < 100 else len(KINDS), vocab) for vocab in VOCABS] + [
    (rows, 77) for rows in ROWS
]


@FMT
@pytest.mark.parametrize(("rows", "vocab"), SHAPES)
def test_every_figure_is_the_oracles(fmt, rows, vocab):
    a, b = rows_of_all_kinds(
        seed=vocab + rows,
        rows=rows,
        vocab=vocab,
        fmt=fmt,
    )
    assert differences(compare(a, b, fmt), expected_figures(a, b, fmt)) == []


def test_a_log_sum_next_to_zero_has_the_precision_of_its_sum():
    # log-sums of 4.1e-9 and 1.9e-13: the logarithm of a sum next to 1
    rows = [np.array([[0.0, low, low]], np.float32) for low in (-20.0, -30.0)]
    a, b = (row.view(np.uint32) for row in rows)
    assert differences(compare(a, b, FLOAT32), expected_figures(a, b, FLOAT32)) == []


def test_rows_that_are_views_into_a_larger_array_are_compared_by_what_is_compiled_already():
    a, b = rows_of_all_kinds(
        seed=5,
        rows=24,
        vocab=64,
        fmt=BFLOAT16,
    )
    compare(a, b, BFLOAT16)
    compiled = len(compare_rows.signatures)
    # numba compiles again for strides, and that takes seconds
    every_second_row = np.s_[3::2]
    every_second_token = np.s_[:, 1::2]
    backwards = np.s_[::-1, 2:40]
    for part in (every_second_row, every_second_token, backwards):
        figures = compare(a[part], b[part], BFLOAT16)
        expected = expected_figures(a[part], b[part], BFLOAT16)
        assert differences(figures, expected) == []
    assert len(compare_rows.signatures) == compiled


def test_kl_survives_values_beside_which_it_vanishes():
    """a - b is 1.9e28 here and KL 85577: put together from large parts it came out as 0."""
    a = np.array([[1.91816990e28, 0.2, -2.3e13], [1e8, 0.0, -1.0]], np.float32)
    b = np.array([[2.9e-16, 1.3e-17, 85577.36], [1e8, 1e8 - 8, -1.0]], np.float32)
    kl = compare(a.view(np.uint32), b.view(np.uint32), FLOAT32).kl
    # all mass of `a` is on token 0: KL is the variant's log-sum over its logit there
    np.testing.assert_allclose(kl, [85577.3671875, np.log1p(np.exp(-8))], rtol=1e-6)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), fmt=st.sampled_from(ALL_FORMATS))
def test_a_flip_beyond_twice_the_largest_difference_is_impossible(seed, fmt):
    """If both margins exceeded 2 max_abs, each side's winner would still win on the other: the
    bound is a theorem.
    """
    a, b = rows_of_all_kinds(seed, 16, 50, fmt, FINITE_KINDS)
    figures = compare(a, b, fmt)
    assert not (figures.is_flip & ~figures.could_flip).any()


def test_four_threads_at_once_get_what_each_gets_alone():
    jobs = []
    # 18 jobs for four threads, the formats mixed
    for seed, fmt in enumerate(ALL_FORMATS * 6):
        a, b = rows_of_all_kinds(seed, 30, 700, fmt)
        jobs.append((a, b, fmt))

    def compared(job):
        return dataclasses.asdict(compare(*job))

    alone = [compared(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(compared, jobs))
    np.testing.assert_equal(together, alone)
