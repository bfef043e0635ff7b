"""The grid that values of lists lie on: compute dtype and margins in ULPs out of log-probabilities
alone.

A logit in a 16-bit format with p bits of precision is n * s with p-bit n and s a power of two.
Log-softmax subtracts one number from all logits of a row, so `value - best value` is an exact
difference of two such numbers, up to the rounding of what was sent. For every format, every spacing
s of the best logit and every p-bit n of it, all other logits of the row follow; each must lie on
the grid of its own binade. A hypothesis under which they do has the likelihood product of (spacing
at that logit): the chance that a value from anywhere falls so near a point of the grid is the
tolerance over the spacing, so coarser grids that still fit are likelier by what they forbid
(Bayes). Against it stands float32 or more: values from anywhere.

Claims are statistical: a grid is shown if values from anywhere would fit as well with a chance
below CHANCE, never with tolerances above an eighth of the spacing. Nearly every bfloat16 number is
a float16 number, so float16 is named only if bfloat16 fits nowhere, and bfloat16 only if it is
NAMED times likelier.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from .arrays import Floats, Ints

PRECISIONS = {"bfloat16": 8, "float16": 11}  # bits of the significand, the hidden one counted
# chance that values from anywhere would fit as well, over all rows read
CHANCE = 1e-9
NAMED = 1e4  # times likelier than the other format
SURE = 0.99  # posterior of a margin in ULPs that is stated as a number
# of the spacing at the best logit, which then is 2**(e + p - 1) to 2**(e + p)
_EXPONENTS = range(-12, 4)
# best logits beyond it are rare, in every row independently
_LARGEST_LOGIT = 128.0
_RARE = 1e-3  # their share
_MOST_ROWS = 256  # read for the format
_MOST_ENTRIES = 64  # of a row
_SMALLEST_BINADE, _BINS_A_BINADE = -6, 8  # bins of a best logit's magnitude, from 2**-6 on
_BINS = 16 * _BINS_A_BINADE
_PRIOR_ROWS = 2.0  # weight of the prior, in rows
_ROUNDS = 4
_SMALLEST_EXPONENT = 24
_NEGATIVE = 0.1  # prior of a negative best logit
_FLOAT32_BITS = 24


@dataclass(frozen=True, eq=False)
class Grid:
    """Evidence of 16-bit logits in a side's values.

    compute_dtype: 'bfloat16' or 'float16', None if that is open. formats: those that fit.
    magnitudes: share of the rows by sign and size of their best logit. error: largest error of a
    value as it was sent.
    """

    compute_dtype: str | None
    formats: tuple[str, ...]
    magnitudes: Floats
    error: float


def sent_error(values: Floats) -> float:
    """Largest absolute error of values as they were sent: half a unit in the last decimal place if
    all of them have at most eight, else a unit in the last place of float32 at the largest of them,
    and that of a float32 logarithm.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0
    for places in range(2, 9):
        if np.array_equal(np.round(finite, places), finite) and np.any(finite != np.round(finite)):
            return 0.5 * 10.0**-places
    largest = np.abs(finite).max()
    return math.ldexp(2.0, math.frexp(max(largest, 0.5))[1] - _FLOAT32_BITS)


class _Fits(NamedTuple):
    """Hypotheses of one row under one format that hold: log likelihood, place of the best logit
    among the bins of sign and magnitude, steps to the runner-up. [hypotheses] each
    """

    log_likelihood: Floats
    place: Ints
    steps: Ints


def _fits(values: Floats, error: float, precision: int) -> _Fits:
    """Hypotheses (a number of the format as best logit) under which all listed values lie on the
    grid.
    """
    # a tie says nothing twice
    gaps = np.unique(values[0] - values[:_MOST_ENTRIES])[1:]
    tolerance = 2 * error
    best = _bests(tolerance, precision)
    likelihood = np.full(len(best), -math.log((1 << (precision - 1)) / _BINS_A_BINADE))
    # few hypotheses survive the first gaps, which keeps this loop short
    for gap in gaps:
        others = best - gap
        spacing = np.ldexp(1.0, np.maximum(np.frexp(others)[1] - precision, -24))
        off = np.abs(others - np.round(others / spacing) * spacing)
        # a spacing too fine to say anything counts as values from anywhere
        is_free = spacing < 8 * tolerance
        holds = is_free | (off <= tolerance)
        gain = np.where(is_free, 0.0, np.log(spacing / (2 * tolerance)))
        likelihood = (likelihood + gain)[holds]
        best = best[holds]
        if not len(best):
            break
    runner = values[0] - values[1] if len(values) > 1 else 0.0
    return _Fits(
        likelihood,
        _places(best),
        _ordinals(best, precision) - _ordinals(best - runner, precision),
    )


@cache
def _bests(tolerance: float, precision: int) -> Floats:
    """Every number of the format that a best logit may be, with a spacing of at least 8 tolerances.
    [hypotheses]
    """
    significands = np.arange(1 << (precision - 1), 1 << precision, dtype=np.float64)
    spacings = [2.0**exponent for exponent in _EXPONENTS if 8 * tolerance <= 2.0**exponent]
    positive = np.multiply.outer(np.array(spacings), significands).ravel()
    return np.concatenate([positive, -positive])


def _places(best: Floats) -> Ints:
    """Return the bin of each best logit, an eighth of a binade each; negative ones follow the
    positive. [hypotheses]
    """
    bins = np.clip(
        (np.log2(np.abs(best)) - _SMALLEST_BINADE) * _BINS_A_BINADE,
        0,
        _BINS - 1,
    ).astype(np.int64)
    return np.where(best < 0, bins + _BINS, bins)


def _ordinals(values: Floats, precision: int) -> Ints:
    """Place among the numbers of the format, 0 for 0; subnormals are counted at float16's or
    bfloat16's least.
    """
    fraction, exponent = np.frexp(np.abs(values))
    offset = np.round((fraction - 0.5) * (1 << precision)).astype(np.int64)
    ordinal = (exponent.astype(np.int64) + _SMALLEST_EXPONENT) * (1 << (precision - 1)) + offset
    return np.sign(values).astype(np.int64) * np.maximum(ordinal, 0)


def find_grid(rows: Sequence[Floats]) -> Grid | None:
    """Return the 16-bit grid that rows of log-probabilities or logits lie on, None if none is
    shown.

    rows: values of one side's positions, best first. A row that fits nowhere is enough to refuse a
    format, for all logits of a side have one dtype.
    """
    sample = [row for row in rows if len(row) > 1][:_MOST_ROWS]
    if not sample:
        return None
    error = sent_error(np.concatenate(sample))
    evidences = {}
    magnitudes = {}
    refused = 0.0
    for name, precision in PRECISIONS.items():
        fits = [_fits(row, error, precision) for row in sample]
        fits = [fit for fit in fits if len(fit.log_likelihood)]
        evidence, shares = _evidence(fits)
        if len(fits) < len(sample):
            refused = max(refused, evidence)
        else:
            evidences[name] = evidence
            magnitudes[name] = shares
    if not evidences:
        return None
    likeliest = max(evidences, key=evidences.__getitem__)
    # by chance; or most rows are on the other's grid, and some on none: no one dtype
    if evidences[likeliest] <= max(-math.log(CHANCE), refused):
        return None
    others = [name for name in evidences if name != likeliest]
    is_named = likeliest == "bfloat16" and all(
        evidences[likeliest] - evidences[name] >= math.log(NAMED) for name in others
    )
    if is_named:
        others = []
    dtype = None if others else likeliest
    return Grid(dtype, (likeliest, *others), magnitudes[likeliest], error)


def _evidence(fits: Sequence[_Fits]) -> tuple[float, Floats]:
    """Log evidence of all rows together, and the share of rows by magnitude of their best logit:
    expectation and maximisation, from the prior on.
    """
    # even over usual magnitudes, mostly positive
    is_usual = np.arange(_BINS) < (math.log2(_LARGEST_LOGIT) - _SMALLEST_BINADE) * _BINS_A_BINADE
    prior = np.where(is_usual, (1 - _RARE) / is_usual.sum(), _RARE / (~is_usual).sum())
    prior = np.append(prior * (1 - _NEGATIVE), prior * _NEGATIVE)
    is_usual = np.tile(is_usual, 2)
    shares = prior
    for _ in range(_ROUNDS):
        evidence = 0.0
        counts = _PRIOR_ROWS * prior
        for fit in fits:
            weights = fit.log_likelihood + np.log(shares[fit.place])
            together = np.logaddexp.reduce(weights)
            evidence += together
            np.add.at(counts, fit.place, np.exp(weights - together))
        usual = counts * is_usual
        rare = counts * ~is_usual
        shares = (1 - _RARE) * usual / usual.sum() + _RARE * rare / rare.sum()
    return evidence, shares


def margin_ulps(values: Floats, grid: Grid) -> tuple[int, int] | None:
    """Return the margin of one row in ULPs of the side's grid: the counts that hold SURE of the
    posterior, under every format that fits; None if the row fits none or lists one token.

    A gap of 0 is 0 ULPs without further ado. The magnitudes of the side's other rows are the prior.
    """
    if len(values) < 2:
        return None
    if values[0] == values[1]:
        return 0, 0
    counts = []
    for name in grid.formats:
        fits = _fits(values, grid.error, PRECISIONS[name])
        weights = fits.log_likelihood + np.log(grid.magnitudes[fits.place])
        shares = np.exp(weights - np.logaddexp.reduce(weights))
        steps, places = np.unique(fits.steps, return_inverse=True)
        by_steps = np.bincount(places, shares)
        # the likeliest ones first
        order = np.argsort(-by_steps, kind="stable")
        end = np.searchsorted(np.cumsum(by_steps[order]), SURE) + 1
        counts += steps[order[:end]].tolist()
    return (min(counts), max(counts)) if counts else None
