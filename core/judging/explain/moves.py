"""Rows of a variant that the reference has at other places, looked for among all rows of a run."""

from typing import NamedTuple

import numpy as np

from ...numerics.arrays import Ints, Values
from ...runs.measured import Measured
from ..values import some_values

SAME_ROW = 0.01  # of a row's squared difference, that one at another place leaves
# A row's top tokens, each a random direction as long as its logit exceeds the last one, make a
# vector: rows that differ by rounding are near, others far. 2 x 5,000 x 32,000: 5 s, of 66 s that
# its import takes.
_DIRECTIONS, _SEED = 32, 0
MOST_ROWS = 1 << 16  # of a run, whose top tokens take 100 MB; longer ones are sampled
_MOST_PAIRS, _BLOCK = 1 << 28, 1 << 8  # of rows, and rows at a time
_CONFIRMED, _AGREES = 16, 0.9  # rows that are read whole, and how many have to be the same


class Moves(NamedTuple):
    """Rows of a variant. nearest: row of the reference that each is nearest to; own, least: mean
    squares of its difference from its own row and from that one.
    """

    nearest: Ints
    own: Values
    least: Values


def moves_of_run(run: Measured, pair: int) -> Moves:
    """Return the moved rows of a pair; only rows that some read whole confirm are."""
    rows = run.header.rows
    reference = _vectors(run, 0)
    variant = _vectors(run, pair + 1)
    nearest = np.arange(rows)
    own = np.nan_to_num(run.columns(pair)["rms"]) ** 2
    apart = ((variant - reference) ** 2).sum(axis=1)
    # rows of equal prompts are near without a move
    is_far = apart > SAME_ROW * (variant**2).sum(axis=1)
    asked = np.flatnonzero(is_far & (own > 0))
    step = 1 + len(asked) * rows // _MOST_PAIRS
    asked = asked[::step]
    lengths = (reference**2).sum(axis=1)
    for start in range(0, len(asked), _BLOCK):
        block = asked[start : start + _BLOCK]
        vectors = variant[block]
        best = (lengths - 2 * vectors @ reference.T).argmin(axis=1)
        left = ((vectors - reference[best]) ** 2).sum(axis=1)
        is_near = left <= SAME_ROW * apart[block]
        nearest[block[is_near]] = best[is_near]
    moved = np.flatnonzero(nearest != np.arange(rows))
    step = 1 + len(moved) // _CONFIRMED
    # what of a row's squared difference is left from its partner, each up to a constant
    shares = []
    for row in moved[::step].tolist():
        variances = []
        variant_row = some_values(run, pair + 1, (row, row + 1))
        for place in (int(nearest[row]), row):
            difference = variant_row - some_values(run, 0, (place, place + 1))
            difference = difference[np.isfinite(difference)]
            variances.append(difference.var() if len(difference) else 0.0)
        left, whole = variances
        shares.append(left / whole if whole else 1.0)
    same = [share for share in shares if share <= SAME_ROW]
    least = own.copy()
    if same and len(same) >= _AGREES * len(shares):
        least[moved] *= np.mean(same)
    return Moves(nearest, own, least)


def _vectors(run: Measured, side: int) -> Values:
    """Return the top tokens of each row as a vector. [rows, directions]"""
    tokens, logits = run.best_tokens(side)
    is_number = np.isfinite(logits)
    lowest = np.where(is_number, logits, np.inf).min(axis=1, keepdims=True)
    lowest = np.where(is_number, lowest, 0.0)
    excess = np.where(is_number, logits - lowest, 0.0)
    random = np.random.default_rng(_SEED)
    directions = random.normal(size=(run.header.vocab, _DIRECTIONS))
    vectors = np.zeros((run.header.rows, _DIRECTIONS))
    for rank in range(logits.shape[1]):
        vectors += excess[:, rank, None] * directions[tokens[:, rank]]
    return vectors
