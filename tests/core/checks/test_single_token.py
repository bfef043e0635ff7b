"""A token that differs in one direction, against tokens that differ by chance."""

from types import SimpleNamespace

import numpy as np
import pytest

from core.checks.single_token import single_token_row

ROWS, TOKENS = 100, 400
SUBJECT = SimpleNamespace(dtype="bfloat16")


def by_chance(seed=0):
    """Differences of standard normal size, each token's of mean 0. [rows, tokens]"""
    noise = np.random.default_rng(seed).standard_normal((ROWS, TOKENS))
    return (noise - noise.mean(axis=0)) / noise.std(axis=0)


@pytest.mark.parametrize(("standard_errors", "is_found"), [(11, False), (13, True)])
def test_a_token_stands_out_by_the_standard_errors_of_its_mean(standard_errors, is_found):
    differences = by_chance()
    differences[:, 7] += standard_errors / np.sqrt(ROWS)
    row = single_token_row(SUBJECT, differences)
    assert (row is not None) is is_found
    if row is not None:
        assert row.figures.token == 7
        assert row.figures.mean_logits == pytest.approx(1.3, abs=0.02)
        assert row.figures.ratio_to_chance == pytest.approx(13, rel=0.02)


def test_what_moves_all_tokens_of_a_position_makes_none_stand_out():
    """Log-probabilities have a constant at each position, and repeated positions err alike."""
    differences = np.random.default_rng(1).standard_normal((4, TOKENS)).repeat(25, axis=0)
    shifts = 5 * np.random.default_rng(2).standard_normal((ROWS, 1))
    assert single_token_row(SUBJECT, differences + shifts) is None


def test_equal_columns_are_no_measure():
    differences = by_chance()
    differences[:, : TOKENS // 4] = 0.0
    assert single_token_row(SUBJECT, differences) is None
    assert single_token_row(SUBJECT, np.zeros((ROWS, TOKENS))) is None
