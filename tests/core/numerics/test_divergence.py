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
)  # around top-k, a group, a block
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
    a, b = (np.array([[0.0, low, low]], np.float32).view(np.uint32) for low in (-20.0, -30.0))
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
    for part in (np.s_[3::2], np.s_[:, 1::2], np.s_[::-1, 2:40]):
        assert (
            differences(
                compare(a[part], b[part], BFLOAT16),
                expected_figures(a[part], b[part], BFLOAT16),
            )
            == []
        )
    assert len(compare_rows.signatures) == compiled


def test_kl_survives_values_beside_which_it_vanishes():
    """a - b is 1.9e28 here and KL 85577: put together from large parts it came out as 0."""
    a = np.array([[1.91816990e28, 0.2, -2.3e13], [1e8, 0.0, -1.0]], np.float32)
    b = np.array([[2.9e-16, 1.3e-17, 85577.36], [1e8, 1e8 - 8, -1.0]], np.float32)
    kl = compare(a.view(np.uint32), b.view(np.uint32), FLOAT32).kl
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
    jobs = [
        (
            *rows_of_all_kinds(seed, 30, 700, fmt),
            fmt,
        )
        for seed, fmt in enumerate(ALL_FORMATS * 6)
    ]

    def compared(job):
        return dataclasses.asdict(compare(*job))

    alone = [compared(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(compared, jobs))
    np.testing.assert_equal(together, alone)
