"""What rows that are no logits are used for: cosines and nearest neighbors of embeddings, the order
of scores.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .arrays import Floats
from .formats import FloatFormat, spacings

# Rows that are compared with each other: 2,048 of 1,024 values take 1.5 s and 120 MB.
MOST_ROWS = 2048
MOST_ELEMENTS = 1 << 23
_NEAR_TIE_STEPS = 2  # spacings, as of logits


class Directions(NamedTuple):
    """Rows of two sides as vectors. cosine_distance: 1 - cosine; norm_change: variant's over
    reference's, less 1; both [rows], NaN of rows that are 0 or not finite.
    """

    cosine_distance: Floats
    norm_change: Floats


class Neighbors(NamedTuple):
    """Rows whose nearest other row, by cosine, is another one on the variant.

    neighbors_of: rows that were compared; neighbor_margin: by how much more the reference prefers
    its own neighbor to the variant's, the largest, 0 if none changes.
    """

    neighbors_of: int
    neighbors_changed: int
    neighbor_margin: float


class ScoreOrder(NamedTuple):
    """Pairs of scores of one prompt that change order. largest_gap: between them on the reference,
    0 if none does; near_ties: scores next to each other in the reference's order that are at most 2
    spacings of the dtype apart.
    """

    pairs: int
    pairs_changed: int
    largest_gap: float
    near_ties: int


def directions(reference: Floats, variant: Floats) -> Directions:
    """Compare rows as vectors. [rows, n] each, float64"""
    (units, norms), (others, other_norms) = _unit(reference), _unit(variant)
    with np.errstate(invalid="ignore"):
        # 1 - cosine itself would lose what is below 1e-16
        distance = np.square(units - others).sum(axis=1) / 2
        return Directions(distance, other_norms / norms - 1)


def neighbors(reference: Floats, variant: Floats) -> Neighbors | None:
    """Compare each row's nearest other row; None of fewer than three rows with a direction.

    [rows, n] each, float64. The lowest of equally near rows counts.
    """
    (units, _), (others, _) = _unit(reference), _unit(variant)
    has_direction = ~np.isnan(units + others).any(axis=1)
    count = int(has_direction.sum())
    if count < 3:
        return None
    cosines = _cosines(units[has_direction])
    own = cosines.argmax(axis=1)
    theirs = _cosines(others[has_direction]).argmax(axis=1)
    rows = np.arange(count)
    margins = (cosines[rows, own] - cosines[rows, theirs])[own != theirs]
    return Neighbors(count, len(margins), float(margins.max(initial=0.0)))


def score_order(
    reference: Floats,
    variant: Floats,
    fmt: FloatFormat,
    lengths: Sequence[int],
) -> ScoreOrder:
    """Compare the order of scores within each prompt. [rows] each; lengths: of the prompts."""
    pairs = changed = near_ties = 0
    gap = 0.0
    ends = np.cumsum(lengths)[:-1]
    for mine, theirs in zip(np.split(reference, ends), np.split(variant, ends), strict=True):
        ordered = np.sort(mine)
        sizes = np.abs(ordered)
        steps = spacings(np.maximum(sizes[1:], sizes[:-1]), fmt)
        # infinities have no gap, and change no order
        with np.errstate(invalid="ignore"):
            gaps = np.subtract.outer(mine, mine)
            is_swapped = np.triu(gaps * np.subtract.outer(theirs, theirs) < 0)
            near_ties += int((np.diff(ordered) <= _NEAR_TIE_STEPS * steps).sum())
        pairs += len(mine) * (len(mine) - 1) // 2
        changed += int(is_swapped.sum())
        gap = max(gap, float(np.abs(gaps[is_swapped]).max(initial=0.0)))
    return ScoreOrder(pairs, changed, gap, near_ties)


def _unit(rows: Floats) -> tuple[Floats, Floats]:
    """Return rows of norm 1, and the norms; NaN of rows that are 0 or not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        norms = np.linalg.norm(rows, axis=1)
        norms = np.where((norms > 0) & np.isfinite(norms), norms, np.nan)
        return rows / norms[:, None], norms


def _cosines(units: Floats) -> Floats:
    """Cosines of all pairs of rows, -1 beyond of a row with itself. [rows, rows]"""
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines
