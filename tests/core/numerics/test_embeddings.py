"""Cosines, neighbors and order of rows are what scipy and a loop over all pairs say."""

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.distance import cdist, cosine

from core.numerics.embeddings import directions, neighbors, score_order
from core.numerics.formats import BFLOAT16, FLOAT32

RANDOM = np.random.default_rng(5)
ROWS = RANDOM.normal(size=(60, 12))
NEAR = ROWS + RANDOM.normal(scale=0.3, size=ROWS.shape)


def test_cosine_distances_and_norms_are_those_of_scipy_and_numpy():
    rows = directions(ROWS, NEAR)
    expected = [cosine(a, b) for a, b in zip(ROWS, NEAR, strict=True)]
    np.testing.assert_allclose(rows.cosine_distance, expected, rtol=1e-12)
    norms = [np.linalg.norm(side, axis=1) for side in (ROWS, NEAR)]
    np.testing.assert_allclose(rows.norm_change, norms[1] / norms[0] - 1, rtol=1e-12)


def test_a_cosine_distance_below_a_step_of_float64_is_not_lost():
    row = np.array([[1.0, 0.0]])
    angle = 1e-9
    turned = np.array([[np.cos(angle), np.sin(angle)]])
    # 1 - cos(1e-9) is 5e-19, and float64 below 1 has a step of 1.1e-16
    expected = angle**2 / 2
    distance = directions(row, turned).cosine_distance[0]
    assert distance == pytest.approx(expected, rel=1e-6)


def test_rows_without_a_direction_have_no_cosine():
    bad = ROWS.copy()
    bad[3] = 0.0
    bad[5, 0] = np.nan
    bad[7, 1] = np.inf
    unknown = np.isnan(directions(ROWS, bad).cosine_distance)
    assert np.flatnonzero(unknown).tolist() == [3, 5, 7]
    assert neighbors(ROWS, bad).neighbors_of == 57
    # two of these four rows have a direction, and a nearest one is chosen among at least two others
    assert neighbors(ROWS[:4], bad[2:6]) is None


def test_neighbors_that_change_are_those_of_scipy():
    nearest = []
    for side in (ROWS, NEAR):
        distances = cdist(side, side, "cosine")
        np.fill_diagonal(distances, np.inf)
        nearest.append(distances.argmin(axis=1))
    before, after = nearest
    changed = np.flatnonzero(before != after)
    cosines = 1 - cdist(ROWS, ROWS, "cosine")
    margins = cosines[changed, before[changed]] - cosines[changed, after[changed]]
    found = neighbors(ROWS, NEAR)
    assert found.neighbors_changed == len(changed) > 5
    assert found.neighbor_margin == pytest.approx(max(margins))
    assert neighbors(ROWS, ROWS) == (60, 0, 0.0)


def test_scores_change_order_within_a_prompt_alone():
    mine = ROWS[:, 0]
    theirs = NEAR[:, 0]
    lengths = [40, 1, 19]
    prompts = np.repeat(range(3), lengths)
    pairs = [(i, j) for i, j in combinations(range(60), 2) if prompts[i] == prompts[j]]
    gaps = []
    for i, j in pairs:
        is_swapped = (mine[i] < mine[j]) != (theirs[i] < theirs[j])
        if is_swapped:
            gaps.append(abs(mine[i] - mine[j]))
    order = score_order(mine, theirs, FLOAT32, lengths)
    assert order.pairs == len(pairs)
    assert order.pairs_changed == len(gaps)
    assert order.largest_gap == max(gaps)


@pytest.mark.parametrize(
    ("fmt", "step"),
    [
        (BFLOAT16, 2.0**-7),
        (FLOAT32, 2.0**-23),
    ],
)
def test_near_ties_are_within_two_spacings_of_the_dtype(fmt, step):
    scores = np.array([1.0, 1 + 2 * step, 1 + 5 * step, -1.0, -1.0, np.inf, np.nan])
    # of 21 pairs two are near ties: 1 and 1 + 2 steps, and the equal -1
    assert score_order(scores, scores, fmt, [7]) == (21, 0, 0.0, 2)
