"""The grid under log-probabilities: torch computes them, and says what format and how many ULPs
there are.
"""

import numpy as np
import pytest
import torch

from core.numerics.formats import LOGIT_FORMATS
from core.numerics.grid import find_grid, margin_ulps, sent_error
from tests.core.numerics.oracle import ordinal


def sent(dtype, scale, centre, k):
    """Top-k log-probabilities of rows of logits, as an engine computes them in float32, and each
    row's margin in ordinals of the logits' own format.
    """
    rng = np.random.default_rng([k, int(scale * 10), int(abs(centre))])
    values, margins = [], []
    for _ in range(16):
        logits = torch.tensor(rng.normal(centre, scale, 2048)).to(getattr(torch, dtype))
        best = torch.log_softmax(logits.float(), -1).topk(k).values
        values.append(best.double().numpy())
        first, second = ordinal(logits.topk(2).values.double().numpy(), LOGIT_FORMATS[dtype])
        margins.append(first - second)
    return values, margins


# (-30: logits that are all negative, as GPT-2's; 20: beyond 64.)
@pytest.mark.parametrize(
    ("scale", "centre"),
    [
        (3.0, 0.0),
        (5.0, 8.0),
        (1.0, 0.0),
        (3.0, -30.0),
        (20.0, 0.0),
    ],
)
@pytest.mark.parametrize("k", [2, 5, 20])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_grid_of_16_bits_is_seen_and_margins_counted_on_it(dtype, k, scale, centre):
    rows, margins = sent(dtype, scale, centre, k)
    found = find_grid(rows)
    assert dtype in found.formats
    # nearly every bfloat16 number is a float16 number: few rows leave the name open
    assert found.compute_dtype in (None, dtype)
    counted = [margin_ulps(row, found) for row in rows]
    inside = []
    for ulps, margin in zip(counted, margins, strict=True):
        inside.append(ulps is not None and ulps[0] <= margin <= ulps[1])
    # the prior of magnitudes is from few rows
    assert np.mean(inside) >= 0.9


@pytest.mark.parametrize("k", [2, 5, 20])
def test_float32_is_no_grid(k):
    for scale, centre in (
        (1.0, 0.0),
        (3.0, 0.0),
        (10.0, 0.0),
        (5.0, 8.0),
    ):
        assert find_grid(sent("float32", scale, centre, k)[0]) is None


def test_four_decimals_say_what_they_can():
    """A spacing of 0.125 is seen through two decimals, whose error is 0.005."""
    rows, _ = sent("bfloat16", 5.0, 8.0, 20)
    # half a unit in the last place
    for places, error in ((4, 0.5e-4), (2, 0.5e-2)):
        rounded = [np.round(row, places) for row in rows]
        assert sent_error(np.concatenate(rounded)) == error
        found = find_grid(rounded)
        assert "bfloat16" in found.formats


def test_bfloat16_is_named_where_float16_would_need_rare_logits():
    found = find_grid(sent("bfloat16", 5.0, 8.0, 20)[0])
    assert found.compute_dtype == "bfloat16"
    assert found.formats == ("bfloat16",)


def test_a_posted_payload_has_gaps_on_the_grid_of_an_eighth():
    """Gaps of 0, 2, 7 and 8 steps of 0.125: bfloat16 between 16 and 32, as a public thread
    showed.
    """
    rows = []
    for n in range(1, 8):
        # the first five are the thread's, the others fill up a list of 8
        steps = np.array([0, 0, 2, 7, 8, 8 + n, 21 + 2 * n, 33 + 3 * n])
        rows.append(-0.8 - 0.125 * steps)
    found = find_grid(rows)
    assert margin_ulps(rows[0], found) == (0, 0)


def test_a_row_off_the_grid_refuses_it():
    rows, _ = sent("bfloat16", 5.0, 8.0, 20)
    rows[11] = rows[11].copy()
    # no multiple of a spacing, and they cannot all be near 0, where any value fits
    rows[11][1:4] += 0.0013
    assert find_grid(rows) is None
