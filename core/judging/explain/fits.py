"""Causes that are fitted: of all values (a temperature, a soft cap, a coarser grid), or of some (a
penalty, a bias).

Each is given half of the rows and yields fits, which `scoring.score` undoes on the other half.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from ...cause import Cause
from ...numerics.arrays import Values
from ...numerics.formats import FORMATS, round_to
from ...text import number, plural, scaling
from .rows import PairRows, RowPair, TooFewError
from .scoring import FEW, TRIMMED, Undo, center, fit_and_score

_LEAST_CONSTANT = 0.05  # a constant in logits that is more than a normalizer's
_OF_REST = 20.0  # a constant of log-probabilities is so many times what it leaves
_ONE_SIDED = 0.8  # nine of ten constants, or moves
_SLOPE_TOKENS = 64  # of a row
_CAPPED_ROWS, _CAPPED_TOKENS = 8, 512  # to which a cap is fitted
_SEEN = 3  # rows in which a biased token has to stand
_MOST_BIASED = 64  # tokens
_STEADY = 0.3  # of a bias, how far it may vary
_ABOVE_NOISE = 4.0  # times what three quarters of the tokens differ by at most


@fit_and_score()
def temperature(pair: PairRows, rows: Sequence[RowPair]) -> Iterator[Cause]:
    """variant = factor x reference + a number at each position, as a temperature of 1 / factor on
    the variant makes.
    """
    factor = float(np.median([_slope(row) for row in rows]))
    if factor > 0:
        amount = f"{scaling(1 / factor)} (values x {scaling(factor)})"
        says = (
            f"Up to a constant in each row, '{pair.names[1]}' is '{pair.names[0]}' at a temperature"
            f" of {amount}."
        )
        scale = _apply(1, partial(np.multiply, factor))
        undo = Undo(scale, share=TRIMMED, has_constant=True)
        yield Cause("temperature", says, {"factor": factor, "temperature": 1 / factor}, undo)


def _slope(row: RowPair) -> float:
    """Slope of y over x that a quarter of the tokens does not move: the median over pairs, weighted
    by distance.
    """
    step = 1 + len(row.x) // _SLOPE_TOKENS
    row = row.part(slice(None, None, step))
    first, second = np.triu_indices(len(row.x), 1)
    gaps = row.x[first] - row.x[second]
    rises = row.y[first] - row.y[second]
    slopes = np.divide(
        rises,
        gaps,
        out=np.zeros(len(gaps)),
        where=gaps != 0,
    )
    order = np.argsort(slopes, kind="stable")
    weights = np.cumsum(np.abs(gaps[order]))
    middle = np.searchsorted(weights, weights[-1] / 2)
    return float(slopes[order][middle])


@fit_and_score()
def constant_offset(pair: PairRows, rows: Sequence[RowPair]) -> Iterator[Cause]:
    """variant = reference + one number at each position, as log-probabilities are logits less their
    log-sum.
    """
    differences = [row.y - row.x for row in rows]
    constants = np.array([np.median(each) for each in differences])
    is_one_sided = abs(np.sign(constants).mean()) >= _ONE_SIDED  # the noise of a row has any sign
    least = _LEAST_CONSTANT
    if pair.has_constants:
        rest = [np.median(np.abs(center(each))) for each in differences]
        least = max(least, _OF_REST * np.median(rest))
    if is_one_sided and np.median(np.abs(constants)) >= least:
        middle = float(np.median(constants))
        amount = f"one number in each row (median {number(middle)})"
        says = (
            f"'{pair.names[1]}' is '{pair.names[0]}' plus {amount}, as log-probabilities are logits"
            " less a log-sum."
        )

        def add_constant(row: RowPair) -> RowPair:
            return row._replace(x=row.x + np.median(row.y - row.x))

        undo = Undo(add_constant, share=TRIMMED)
        yield Cause("constant", says, {"constant": middle}, undo)


@fit_and_score()
def soft_capping(pair: PairRows, rows: Sequence[RowPair]) -> Iterator[Cause]:
    """Logits of one side are soft-capped: cap x tanh(logit / cap)."""
    if pair.has_constants:
        raise TooFewError("logits")
    few = []
    for row in rows[:_CAPPED_ROWS]:
        step = 1 + len(row.x) // _CAPPED_TOKENS
        few.append(row.part(slice(None, None, step)))
    for side in (1, 0):
        own = np.concatenate([row.side(side) for row in few])
        other = np.concatenate([row.side(1 - side) for row in few])
        # from 2 to 392, then finer around the best
        cap = 28.0
        width = 14.0
        for _ in range(4):
            caps = cap * np.geomspace(1 / width, width, 55)[:, None]
            errors = np.abs(own - _cap_softly(caps, other)).mean(axis=1)
            cap = float(caps[errors.argmin(), 0])
            width **= 0.1
        says = (
            f"Logits of '{pair.names[side]}' are those of '{pair.names[1 - side]}', soft-capped at"
            f" {cap:.4g}."
        )
        undo = Undo(_apply(side, partial(_cap_softly, cap)), share=TRIMMED)
        yield Cause("soft-capping", says, {"cap": cap}, undo)


def _cap_softly(cap: float | Values, values: Values) -> Values:
    return cap * np.tanh(values / cap)


def _apply(side: int, change: Callable[[Values], Values]) -> Callable[[RowPair], RowPair]:
    """Give the other side's values what `side` did to them."""

    def undo(row: RowPair) -> RowPair:
        if side:
            return row._replace(x=change(row.x))
        return row._replace(y=change(row.y))

    return undo


@fit_and_score(least_tokens=1)
def rounded_logits(pair: PairRows, _: Sequence[RowPair]) -> Iterator[Cause]:
    """One side is the other rounded to a coarser format, or to so many decimals."""
    roundings = {}
    if not pair.has_constants:
        for name in ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"):
            if name != pair.dtype:
                roundings[name] = partial(round_to, FORMATS[name])
    for places in range(1, 7):
        roundings[plural(places, "decimal")] = partial(np.round, decimals=places)
    for side in (1, 0):
        for name, change in roundings.items():
            yield Cause(
                "rounded",
                f"'{pair.names[side]}' is '{pair.names[1 - side]}' rounded to {name}.",
                {"to": name},
                Undo(_apply(side, change)),
            )


@fit_and_score(in_parts=False)
def penalty(pair: PairRows, rows: Sequence[RowPair]) -> Iterator[Cause]:
    """Tokens that stand in the text already are moved, and the others are not.

    Amounts are before a temperature.
    """
    if not any(row.in_text.any() for row in pair.rows):
        raise TooFewError("the token ids of the text")
    of_rows = []
    for row in rows:
        in_text = row.in_text
        if 0 < in_text.mean() <= FEW:
            shifts = row.y - row.x
            shifts -= np.median(shifts[~in_text])
            of_rows.append((row.x[in_text], row.times[in_text], shifts[in_text]))
    if not of_rows:
        return
    says = f"'{pair.names[1]}' shifts the logits of tokens already in the text, as by a"
    x, times, shifts = (np.concatenate(each) for each in zip(*of_rows, strict=True))
    strengths = {"presence": -shifts, "frequency": -shifts / times}
    y = x + shifts
    has_same_sign = x * y > 0
    if not pair.has_constants and has_same_sign.any():
        own = x[has_same_sign]
        other = y[has_same_sign]
        strengths["repetition"] = np.where(
            own > 0,
            own / other,
            other / own,
        )
    for form, of_tokens in strengths.items():
        strength = float(np.median(of_tokens))
        amount = strength if form == "repetition" else strength / pair.factor
        undo = Undo(partial(_penalize, form, strength), moves=lambda row: row.in_text)
        yield Cause(
            "penalty",
            f"{says} {form} penalty of {amount:.4g}.",
            {"kind": form, "strength": amount},
            undo,
        )


def _penalize(form: str, strength: float, row: RowPair) -> RowPair:
    if form == "repetition":
        penalized = np.where(
            row.x > 0,
            row.x / strength,
            row.x * strength,
        )
        return row._replace(x=np.where(row.in_text, penalized, row.x))
    times = row.times if form == "frequency" else row.in_text
    return row._replace(x=row.x - strength * times)


@fit_and_score(in_parts=False)
def logit_bias(pair: PairRows, rows: Sequence[RowPair]) -> Iterator[Cause]:
    """Logit bias: the same few tokens are moved by the same amount wherever they stand."""
    differences = [center(row.y - row.x) for row in rows]
    quantiles = [np.quantile(np.abs(values), 0.75) for values in differences]
    noise = np.median(quantiles)
    # of rows that hardly differ, the noise is 0
    grid = np.median([pair.rounding_rms(row) for row in rows])
    least = _ABOVE_NOISE * max(noise, 2 * grid) + 1e-4
    ids = np.concatenate([row.token_ids for row in rows])
    values = np.concatenate(differences)
    candidates, counts = np.unique(ids[np.abs(values) > least], return_counts=True)
    moves = {}
    for token in candidates[counts >= _SEEN][: 4 * _MOST_BIASED].tolist():
        of_token = values[ids == token]
        middle = float(np.median(of_token))
        spread = np.median(np.abs(of_token - middle))
        if abs(middle) > least and spread <= _STEADY * abs(middle):
            moves[token] = middle
    if not 0 < len(moves) <= _MOST_BIASED:
        return
    tokens = sorted(moves, key=lambda token: -abs(moves[token]))
    largest = moves[tokens[0]] / pair.factor
    amount = f"{largest:.4g} for token {tokens[0]}, {len(tokens)} in all"

    def add_bias(row: RowPair) -> RowPair:
        biases = [moves.get(token, 0.0) for token in row.token_ids.tolist()]
        return row._replace(x=row.x + biases)

    undo = Undo(add_bias, moves=lambda row: np.isin(row.token_ids, tokens))
    yield Cause(
        "logit bias",
        f"'{pair.names[1]}' shifts the same tokens in each row, as by a logit bias: {amount}.",
        {"tokens": tokens, "largest": largest},
        undo,
    )
