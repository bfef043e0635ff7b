"""The position that a pair is opened at, on tables whose figures are written down here."""

import numpy as np
import pandas as pd
import pytest

from core.runs.queries.flips import telling_place

QUIET = {
    "is_flip": False,
    "could_flip": False,
    "max_abs": 0.0,
    "max_row_ulps": 0.0,
    "rms_row_ulps": 0.0,
    "nonfinite_mismatch": 0,
    "reference_margin": 4.0,
    "variant_margin": 4.0,
}


def moved(max_abs, margin, **more):
    """A position at which logits differ. Row ULPs are logits here."""
    size = {"max_abs": max_abs, "max_row_ulps": max_abs, "rms_row_ulps": max_abs / 4}
    return {
        "could_flip": margin <= 2 * max_abs,
        "reference_margin": margin,
        "variant_margin": margin,
        **size,
        **more,
    }


FLIP = moved(2.0, 1.0, is_flip=True)
# beyond 2 row ULPs, and twice the usual difference of 2
FLIP_BEYOND = moved(4.0, 8.0, is_flip=True)
NEAR = moved(2.0, 1.0, variant_margin=0.5)
NEARER = moved(2.0, 0.25)
STILL_TIE = {"could_flip": True, "reference_margin": 0.0, "variant_margin": 0.0}
FAR, FARTHER = moved(2.5, 9.0), moved(3.0, 9.0)
ALONE = moved(200.0, 900.0)
BROKEN = {
    "max_abs": np.nan,
    "nonfinite_mismatch": 1,
    "reference_margin": np.nan,
    "variant_margin": np.nan,
}


def table(*prompts):
    """Figures by position of prompts, one dict a position."""
    return pd.DataFrame(
        [
            {"prompt": prompt, "position": position, **QUIET, **row}
            for prompt, rows in enumerate(prompts)
            for position, row in enumerate(rows)
        ],
    )


@pytest.mark.parametrize(
    ("prompts", "place"),
    [
        # the one that holds most of the difference, before all else
        ([[FAR, FLIP_BEYOND, FLIP, ALONE, FAR]], (0, 3)),
        ([[FAR, FLIP, FAR, FLIP_BEYOND]], (0, 3)),  # the first flip beyond the noise
        ([[FAR, FARTHER, NEARER, FLIP, FLIP]], (0, 3)),  # the first flip
        ([[FAR, FARTHER], [NEARER, FLIP]], (1, 1)),  # in any prompt
        ([[FAR, FARTHER, NEAR, NEARER]], (0, 3)),  # the smallest margin of either side
        ([[STILL_TIE, FAR, NEAR]], (0, 2)),  # a tie at which nothing moves tells nothing
        ([[STILL_TIE, FAR, FARTHER, FAR]], (0, 2)),
        ([[FAR, FARTHER, BROKEN]], (0, 2)),
        ([[{}, {}], [{}]], (0, 0)),
    ],
)
def test_a_pair_opens_at_what_dominates_else_its_first_flip_else_its_smallest_margin(
    prompts,
    place,
):
    assert telling_place(table(*prompts)) == place


def test_within_a_prompt_only_that_prompt_counts():
    found = table([FLIP, {}], [FAR, FAR, FAR, FARTHER])
    assert telling_place(found) == (0, 0)
    assert telling_place(found, 1) == (1, 3)
