"""The position that a pair is opened at, on tables whose figures are written down here."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from core.runs.views.overview import telling_place

QUIET = {
    "is_flip": False,
    "could_flip": False,
    "max_abs": 0.0,
    "nonfinite_mismatch": 0,
    "reference_margin": 4.0,
    "variant_margin": 4.0,
}
FLIP = {"is_flip": True, "could_flip": True, "max_abs": 0.25, "reference_margin": 0.25, "variant_margin": 0.25}
NEAR = {"could_flip": True, "max_abs": 0.5, "reference_margin": 0.5, "variant_margin": 0.125}
NEARER = {"could_flip": True, "max_abs": 0.0625, "reference_margin": 0.0625, "variant_margin": 0.0625}
STILL_TIE = {"could_flip": True, "reference_margin": 0.0, "variant_margin": 0.0}
FAR = {"max_abs": 9.0}
FARTHER = {"max_abs": 10.0}
BROKEN = {"max_abs": np.nan, "nonfinite_mismatch": 1, "reference_margin": np.nan, "variant_margin": np.nan}


def table(*prompts: list[dict]) -> pd.DataFrame:
    """Figures by position of prompts, one dict a position."""
    return pd.DataFrame(
        [
            {"prompt": prompt, "position": position, **QUIET, **row}
            for prompt, rows in enumerate(prompts)
            for position, row in enumerate(rows)
        ]
    )


@pytest.mark.parametrize(
    ("prompts", "place"),
    [
        ([[{}, FARTHER, NEARER, FLIP, FLIP]], (0, 3)),  # the first flip, before all else
        ([[{}, FARTHER], [NEARER, FLIP]], (1, 1)),  # in whichever prompt it is
        ([[{}, FARTHER, NEAR, NEARER]], (0, 3)),  # the nearest of the near ties, by the smaller margin of either side
        ([[STILL_TIE, FAR, NEAR]], (0, 2)),  # a tie at which nothing moves tells nothing
        ([[STILL_TIE, FAR, FARTHER, FAR]], (0, 2)),
        ([[{}, FARTHER, BROKEN]], (0, 2)),
        ([[{}, {}], [{}]], (0, 0)),
    ],
)
def test_a_pair_opens_at_its_first_flip_else_its_nearest_near_tie_else_its_largest_difference(prompts, place):
    assert telling_place(table(*prompts)) == place


def test_within_a_prompt_only_that_prompt_counts():
    found = table([FLIP, {}], [{}, {}, FAR, FARTHER])
    assert telling_place(found) == (0, 0)
    assert telling_place(found, 1) == (1, 3)
