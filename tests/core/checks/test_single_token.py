"""A token that differs in one direction, against tokens that differ by chance."""

from types import SimpleNamespace

import numpy as np
import pytest

from core.checks.single_token import single_token_row

ROWS, TOKENS = 100, 400
SUBJECT = SimpleNamespace(dtype="bfloat16")
LOGITS = 3 * np.random.default_rng(9).standard_normal((ROWS, TOKENS))


def by_chance():
    """Differences of standard normal size, each token's of mean 0. [rows, tokens]"""
    noise = np.random.default_rng(0).standard_normal((ROWS, TOKENS))
    return (noise - noise.mean(axis=0)) / noise.std(axis=0)


# the limit is 12 standard errors
@pytest.mark.parametrize(
    ("standard_errors", "is_found"),
    [
        (11, False),
        (13, True),
    ],
)
def test_a_token_stands_out_by_the_standard_errors_of_its_mean(standard_errors, is_found):
    differences = by_chance()
    differences[:, 7] += standard_errors / np.sqrt(ROWS)
    row = single_token_row(SUBJECT, differences, LOGITS)
    assert (row is not None) is is_found
    if row is not None:
        assert row.figures.token == 7
        assert row.figures.mean_logits == pytest.approx(1.3, abs=0.02)
        assert row.figures.ratio_to_chance == pytest.approx(13, rel=0.02)


@pytest.mark.parametrize("contexts", [1, 2, 4, 8])
def test_repeated_positions_and_constants_make_no_token_stand_out(contexts):
    """Copies of a prompt err alike, and log-probabilities have a constant at each position."""
    for seed in range(20):
        random = np.random.default_rng(seed)
        errors = random.standard_normal((contexts, TOKENS)).repeat(96 // contexts, axis=0)
        differences = errors + 5 * random.standard_normal((96, 1))
        assert single_token_row(SUBJECT, differences, LOGITS[:96]) is None


def test_a_value_that_does_not_vary_is_rounded_alike_in_every_row():
    """A mask of -1e4 is -9984 in bfloat16; a logit of -20.04 is -20."""
    for value, difference in ((-1e4, 16.0), (-20.04, 0.04)):
        differences = by_chance()
        logits = LOGITS.copy()
        differences[:, 7] = difference
        logits[:, 7] = value
        assert single_token_row(SUBJECT, differences, logits) is None


def test_equal_columns_are_no_measure():
    differences = by_chance()
    differences[:, : TOKENS // 4] = 0.0
    assert single_token_row(SUBJECT, differences, LOGITS) is None
    assert single_token_row(SUBJECT, np.zeros((ROWS, TOKENS)), LOGITS) is None
