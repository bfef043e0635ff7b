"""How causes are scored: fitted to every other row, scored on those between
(docs/explanation/causes.md).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import NamedTuple

import numpy as np

from ...cause import EXPLAINED, Cause
from ...numerics.arrays import Flags, Values
from .rows import LEAST_TOKENS, PairRows, RowPair, TooFewError

SHRUNK = 1 / 3  # of what the others differ by, over those that a cause of some tokens moves
LEAST_ROWS = 4  # of either half
_PARTS, _LEAST_PART = 16, 16  # of too few rows; tokens of each
# A row's own noise may lie along a constant or a factor: of 131 rows of the trial's pairs, one at a
# time, at most 99 %.
_OF_FEW_ROWS = 0.0025  # of the squared difference, which is a twentieth of the rms
# of a row's tokens that a cause of all of them has to explain: others may be moved besides
TRIMMED = 0.75
FEW = 0.5  # of a row's tokens, that a cause of some of them moves at most
_AT_GRID = 3.0  # times what rounding to the dtype leaves
_AT_OTHERS = 4.0  # of a cause of some tokens, times that and what the others differ by
# Squared steps of what is left, in the order of the values, over those of the same numbers in any
# order: real pairs of the trial have 0.63 to 1.2, a smooth function of the values 0.
_NO_ORDER = 0.5

Fit = Callable[[PairRows, Sequence[RowPair]], Iterator[Cause]]
Find = Callable[[PairRows], Iterable[Cause]]


class Undo(NamedTuple):
    """What a fitted cause did. row(row): the row without it; share: of a row's tokens, nearest
    first, that it explains; moves(row): the few tokens that it moves, if not all; has_constant: it
    leaves a constant at each row.
    """

    row: Callable[[RowPair], RowPair]
    share: float = 1.0
    moves: Callable[[RowPair], Flags] | None = None
    has_constant: bool = False


def fit_and_score(
    *,
    least_tokens: int = LEAST_TOKENS,
    in_parts: bool = True,
) -> Callable[[Fit], Find]:
    """Fit a cause to half of the rows, score it on the others, return the fit that leaves least;
    decorates a `Fit`.

    in_parts: split a few rows of many tokens.
    """

    def decorate(fit: Fit) -> Find:
        @wraps(fit)
        def find(pair: PairRows) -> list[Cause]:
            half, rows = _halves(pair.rows, least_tokens, in_parts=in_parts)
            causes = [_score(pair, rows, cause) for cause in fit(pair, half)]
            return sorted(filter(None, causes), key=remaining_rms)[:1]

        return find

    return decorate


def remaining_rms(cause: Cause) -> float:
    return math.inf if cause.left_rms is None else cause.left_rms


def _halves(
    rows: Sequence[RowPair],
    least_tokens: int,
    *,
    in_parts: bool,
) -> tuple[list[RowPair], list[RowPair]]:
    """Return (rows to fit, rows to score), TooFewError if either are few."""
    usable = [row for row in rows if len(row.x) >= least_tokens]
    if in_parts and len(usable) < 2 * LEAST_ROWS:
        most = _PARTS // max(1, len(usable))
        parts = []
        for row in usable:
            count = min(most, len(row.x) // _LEAST_PART)
            parts += [row.part(slice(start, None, count)) for start in range(count)]
        usable = parts
    if len(usable) < 2 * LEAST_ROWS:
        one_row = f", or a row of {2 * LEAST_ROWS * _LEAST_PART}" if in_parts else ""
        raise TooFewError(f"{2 * LEAST_ROWS} rows of {least_tokens} shared values{one_row}")
    return usable[::2], usable[1::2]


def _score(pair: PairRows, rows: Sequence[RowPair], cause: Cause) -> Cause | None:
    """Return a fitted cause with what it explains and leaves, None if that is too much, or more
    than noise.

    What it leaves has to be small compared with the sides' own values too: a factor near 0 explains
    most of what unrelated sides differ by. If it moves few tokens, the others have to be three
    times closer.
    """
    undo = cause.undo
    if not undo:
        return cause
    # whose own noise may look like a cause
    are_few = len({(row.prompt, row.position) for row in rows}) < LEAST_ROWS
    bar = _OF_FEW_ROWS if are_few else 1 - EXPLAINED
    scores = []
    unexplained = 0
    disorders = []
    for row in rows:
        sides = undo.row(row)
        noise = pair.rounding_rms(row)
        gap: Values = row.y - row.x
        error: Values = sides.y - sides.x
        disorder: Callable[[], float] = float  # 0.0
        if not undo.moves:
            if undo.has_constant:
                gap = center(gap)
                error = center(error)
            kept = math.ceil(undo.share * len(error))
            nearest = np.argsort(np.abs(error), kind="stable")[:kept]
            gap = gap[nearest]
            error = error[nearest]
            least_variance = min(sides.x[nearest].var(), sides.y[nearest].var())
            is_close = rms(error) ** 2 <= bar * least_variance
            part = gap
            rest = error
            disorder = partial(_disorder, row.x[nearest], error)
        else:
            few = undo.moves(row)
            if not 0 < few.mean() <= FEW:
                continue
            middle = np.median(gap[~few])
            gap = gap - middle
            error = error - middle
            part = gap[few]
            rest = error[few]
            others = rms(gap[~few])
            noise = _AT_OTHERS / _AT_GRID * (noise + others)
            least_variance = min(row.x.var(), row.y.var())
            is_close = others <= min(SHRUNK * rms(part), math.sqrt(bar * least_variance))
        if gap.any():
            is_explained = is_close and rms(rest) ** 2 <= bar * rms(part) ** 2
            unexplained += not is_explained
            if 2 * unexplained >= len(rows):  # of sound sides soon; the sorting below takes longest
                return None
            disorders.append(disorder)
            scores.append((gap @ gap, error @ error, len(error), rms(rest) / noise))
    if len(scores) < (LEAST_ROWS if undo.moves else 1):
        return None
    total, remaining, tokens, over_noise = np.array(scores).T
    is_at_grid = np.quantile(over_noise, 0.75 if undo.moves else 0.5) <= _AT_GRID
    is_noise = is_at_grid or np.mean([disorder() for disorder in disorders]) >= _NO_ORDER
    if not is_noise or unexplained >= len(scores) / 2:
        return None
    return cause.score(total, remaining, tokens.sum())


def center(values: Values) -> Values:
    return values - np.median(values) if len(values) else values


def rms(values: Values) -> float:
    return float(np.sqrt((values**2).mean()))


def _disorder(values: Values, errors: Values) -> float:
    """Return von Neumann's ratio (1941) of `errors` in the order of `values`: 1 for noise, 0 for a
    smooth function.
    """
    steps = np.diff(errors[np.argsort(values, kind="stable")])
    if len(steps) < 2:
        return 0.0
    return float((steps**2).mean() / 2 / max(errors.var(ddof=1), 1e-300))
