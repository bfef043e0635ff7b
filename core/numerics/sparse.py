"""Figures of a pair of sparse rows: exact where both sides hold what they need, else an interval that holds the figure
of the complete rows, else absent.

A sparse row lists some tokens of a row with their values, its `best` largest ones among them (top-k). Log-softmax
subtracts one number from a whole row, so gaps between log-probabilities are gaps between logits: margins, flips and
ties are exact from the best two. An unlisted token has at most the value of the least of the best.

The lower bound of KL is the log-sum inequality (Cover and Thomas, Elements of Information Theory, theorem 2.7.1) over
the tokens that both sides list and the rest as one; tokens that the reference alone lists are held to the variant's
least best value. Nothing bounds KL from above: an unlisted token's probability may be 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EPSILON = 2.0**-52


@dataclass(frozen=True)
class Interval:
    """Bounds of a figure. high: None where nothing bounds it from above."""

    low: float
    high: float | None

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def __contains__(self, value: float) -> bool:
        return self.low <= value and (self.high is None or value <= self.high)


@dataclass(frozen=True, eq=False)
class ListedRow:
    """Some tokens of one row, best first.

    token_ids: int64 [entries]; values: float64 [entries], decreasing, finite. best: how many of the first entries are
    the best of the row. is_full: no token of the row is missing. error: largest absolute error of a value, from the
    digits that were sent.
    """

    token_ids: NDArray[np.int64]
    values: NDArray[np.float64]
    best: int
    is_full: bool
    error: float = 0.0

    @property
    def least(self) -> float:
        """Largest value that an unlisted token may have; -inf in a full row, +inf where no best entry is listed."""
        if self.is_full:
            return -math.inf
        return float(self.values[self.best - 1]) if self.best else math.inf


@dataclass(frozen=True)
class TopOfRow:
    """Top of a row as one side lists it. token: of the best entry, None where none of the best is listed. margin: gap
    to the runner-up in the values' unit, exact, None where the runner-up is not listed. rest: probability of all
    unlisted tokens together, None where the values have no normaliser (logits).
    """

    token: int | None
    margin: float | None
    rest: Interval | None


@dataclass(frozen=True)
class SparseFigures:
    """Figures of one position of a pair. Changes are variant minus reference, in the values' unit.

    common: tokens with a value on both sides. neq: values that differ. max_abs: largest absolute change over tokens
    that are finite on both sides. max_probability_change: None for logits. kl: KL(reference || variant) in nats, None
    where no token is common. is_flip, could_flip: None where the lists do not say. variant_rank_of_reference and its
    converse: place, from 0, of one side's best token among the other's best; None where it is not among them.
    """

    common: int
    neq: Interval
    max_abs: Interval
    max_probability_change: Interval | None
    kl: Interval | None
    reference: TopOfRow
    variant: TopOfRow
    is_flip: bool | None
    could_flip: bool | None
    variant_rank_of_reference: int | None
    reference_rank_of_variant: int | None


def log_probabilities(row: ListedRow, values: str) -> NDArray[np.float64] | None:
    """Natural logarithms of the entries' probabilities, None for logits of which some are missing. [entries]"""
    if values == "logprob":
        return row.values
    if values == "prob":
        with np.errstate(divide="ignore"):
            return np.log(row.values)
    if not row.is_full:
        return None
    top = row.values[0]
    return row.values - (top + math.log(math.fsum(np.exp(row.values - top))))


def rest_mass(row: ListedRow, values: str) -> Interval | None:
    """Probability of the unlisted tokens together: 1 less the listed ones, as exact as the values were sent."""
    if row.is_full:
        return Interval(0.0, 0.0)
    if values == "logit":
        return None
    listed = np.exp(row.values) if values == "logprob" else row.values
    total = math.fsum(listed)
    relative = row.error if values == "logprob" else 0.0
    slack = total * (math.expm1(min(relative, 1.0)) + 8 * EPSILON) + (
        row.error * len(listed) if values == "prob" else 0.0
    )
    return Interval(min(1.0, max(0.0, 1.0 - total - slack)), min(1.0, max(0.0, 1.0 - total + slack)))


def top_of(row: ListedRow, values: str) -> TopOfRow:
    """The best token, the margin and the rest of one side's row."""
    known = len(row.values) if row.is_full else row.best
    return TopOfRow(
        token=int(row.token_ids[0]) if known else None,
        margin=float(row.values[0] - row.values[1]) if known > 1 else None,
        rest=rest_mass(row, values),
    )


def compare_rows(reference: ListedRow, variant: ListedRow, values: str, vocab: int | None = None) -> SparseFigures:
    """Every figure of one position. `values`: 'logit', 'logprob' or 'prob', of both. `vocab`: tokens in the whole
    vocabulary, where known.
    """
    _, here, there = np.intersect1d(reference.token_ids, variant.token_ids, assume_unique=True, return_indices=True)
    changes = np.abs(variant.values[there] - reference.values[here])
    complete = reference.is_full and variant.is_full
    differing = int(np.count_nonzero(changes))
    if complete:
        neq = Interval(differing, differing)
    else:
        neq = Interval(differing, None if vocab is None else vocab - (len(changes) - differing))
    tops = top_of(reference, values), top_of(variant, values)
    max_abs = _largest_change(reference, variant, changes, values)
    tokens = tops[0].token, tops[1].token
    return SparseFigures(
        common=len(changes),
        neq=neq,
        max_abs=max_abs,
        max_probability_change=_largest_probability_change(reference, variant, values, here, there),
        kl=_kl(reference, variant, values, here, there),
        reference=tops[0],
        variant=tops[1],
        is_flip=None if None in tokens else tokens[0] != tokens[1],
        could_flip=_is_could_flip(tops[0].margin, tops[1].margin, max_abs),
        variant_rank_of_reference=_rank(tokens[0], variant),
        reference_rank_of_variant=_rank(tokens[1], reference),
    )


def _rank(token: int | None, row: ListedRow) -> int | None:
    if token is None:
        return None
    known = len(row.values) if row.is_full else row.best
    places = np.flatnonzero(row.token_ids[:known] == token)
    return int(places[0]) if len(places) else None


def _is_could_flip(first: float | None, second: float | None, max_abs: Interval) -> bool | None:
    """min(margins) <= 2 max_abs, as of full rows; one margin that is small enough decides alone."""
    margins = [margin for margin in (first, second) if margin is not None]
    if not margins:
        return None
    if min(margins) <= 2 * max_abs.low:
        return True
    if len(margins) == 2 and max_abs.high is not None and min(margins) > 2 * max_abs.high:
        return False
    return None


def _largest_change(reference: ListedRow, variant: ListedRow, changes: NDArray[np.float64], values: str) -> Interval:
    """Of tokens that only one side lists nothing bounds the change of a logit or a log-probability from above, and
    nothing from below: the other value may be -inf, which does not count.
    """
    low = float(changes.max(initial=0.0))
    if reference.is_full and variant.is_full:
        return Interval(low, low)
    if values != "prob":
        return Interval(low, None)
    return Interval(low, max(low, _unlisted_change(reference, variant, values)))


def _unlisted_change(reference: ListedRow, variant: ListedRow, values: str) -> float:
    """Largest change of probability that a token missing on one side, or on both, may have."""
    caps = [_cap(row, values) for row in (reference, variant)]
    most = 0.0 if reference.is_full or variant.is_full else max(caps)
    for row, other, cap in ((reference, variant, caps[1]), (variant, reference, caps[0])):
        listed = log_probabilities(row, values)
        alone = ~np.isin(row.token_ids, other.token_ids)
        if listed is None or not alone.any():
            continue
        share = np.exp(listed[alone])
        most = max(most, float(np.maximum(share, np.abs(share - cap)).max()))
    return min(1.0, most * (1 + 8 * EPSILON))


def _cap(row: ListedRow, values: str) -> float:
    """Largest probability that one unlisted token may have."""
    rest = rest_mass(row, values)
    least = math.exp(min(0.0, row.least)) if values == "logprob" else min(1.0, row.least)
    return min(least, 1.0 if rest is None or rest.high is None else rest.high) if not row.is_full else 0.0


def _largest_probability_change(
    reference: ListedRow, variant: ListedRow, values: str, here: NDArray[np.int64], there: NDArray[np.int64]
) -> Interval | None:
    one, other = log_probabilities(reference, values), log_probabilities(variant, values)
    if one is None or other is None:
        return None
    low = min(1.0, float(np.abs(np.exp(other[there]) - np.exp(one[here])).max(initial=0.0)))
    if reference.is_full and variant.is_full:
        return Interval(low, low)
    if values == "logit":
        return Interval(low, 1.0)
    return Interval(low, max(low, _unlisted_change(reference, variant, values)))


def _kl(
    reference: ListedRow, variant: ListedRow, values: str, here: NDArray[np.int64], there: NDArray[np.int64]
) -> Interval | None:
    log_p, log_q = log_probabilities(reference, values), log_probabilities(variant, values)
    if log_p is None or log_q is None:
        return Interval(0.0, None)
    if not len(here):
        return None
    p, q = np.exp(log_p), np.exp(log_q)
    if np.any((p[here] > 0) & (q[there] == 0)):
        return None  # infinite, as in full rows
    has_mass = p[here] > 0
    terms = p[here][has_mass] * (log_p[here][has_mass] - log_q[there][has_mass])
    if reference.is_full and variant.is_full:
        exact = max(0.0, math.fsum(terms))
        return Interval(exact, exact)
    rests = rest_mass(reference, values), rest_mass(variant, values)
    if rests[0] is None or rests[1] is None:
        return Interval(0.0, None)
    alone = ~np.isin(reference.token_ids, variant.token_ids)
    p_alone = np.sort(p[alone])[::-1]
    q_only = math.fsum(q[~np.isin(variant.token_ids, reference.token_ids)])
    # Every probability of the variant that is not at a common token, at its largest: it is shared out below.
    q_left = min(1.0, (rests[1].high or 0.0) + q_only)
    ends = [_shared_out(p_alone, end, q_left, _cap(variant, values)) for end in (rests[0].low, rests[0].high or 0.0)]
    width = (rests[0].high or 0.0) - rests[0].low
    slack = width * (1 + abs(math.log(max(rests[0].low, width, 1e-300) / max(q_left, 1e-300))))
    rounding = 16 * EPSILON * (math.fsum(np.abs(terms)) + 1) + _sent_error(reference, variant, p[here], terms, values)
    return Interval(max(0.0, math.fsum(terms) + min(ends) - slack - rounding), None)


def _sent_error(
    reference: ListedRow, variant: ListedRow, p: NDArray[np.float64], terms: NDArray[np.float64], values: str
) -> float:
    """Largest change of the sum of p log(p / q) over common tokens that the digits not sent could make."""
    errors = reference.error + variant.error
    if not errors or values == "prob":
        return 0.0
    return errors * (math.fsum(p) + math.fsum(np.abs(terms)))


def _shared_out(p_alone: NDArray[np.float64], p_rest: float, q_left: float, cap: float) -> float:
    """Least value of the sum of p log(p / q) over the reference's own tokens and its rest, where the q are unknown, sum
    to `q_left`, and are at most `cap` at the reference's own tokens.

    Without caps the best q are proportional to p (log-sum inequality); a token whose share exceeds its cap gets the
    cap, and the others share what is left (the condition of Karush, Kuhn and Tucker, as in water-filling).
    """
    total, fixed = 0.0, 0
    p_left = math.fsum(p_alone) + p_rest
    for p in p_alone:  # largest first: caps bind there first
        if p_left <= 0 or p * q_left <= cap * p_left:
            break
        total += p * math.log(p / max(cap, 1e-300))
        p_left, q_left, fixed = p_left - p, max(0.0, q_left - cap), fixed + 1
    p_left = max(0.0, math.fsum(p_alone[fixed:]) + p_rest)
    if p_left <= 0:
        return total
    return total + p_left * math.log(p_left / max(q_left, 1e-300))
