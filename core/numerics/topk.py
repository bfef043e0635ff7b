"""Figures of a pair of lists: the top tokens of a row that each side sent, over the values that both sent.

Log-softmax subtracts one number from a whole row, so gaps between log-probabilities are gaps between logits: margins,
flips and ties are exact from the top two tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .metrics import Summary


@dataclass(frozen=True, eq=False)
class ListedRow:
    """Some tokens of one row, largest first.

    token_ids: int64 [entries]; values: float64 [entries], decreasing, finite. best: how many of the first entries are
    the largest of the whole row. is_full: no token of the row is missing.
    """

    token_ids: NDArray[np.int64]
    values: NDArray[np.float64]
    best: int
    is_full: bool

    @property
    def top(self) -> NDArray[np.float64]:
        """Values that are the largest of the whole row."""
        return self.values if self.is_full else self.values[: self.best]

    @property
    def token(self) -> int | None:
        """Argmax of the row, None if it was not sent."""
        return int(self.token_ids[0]) if len(self.top) else None

    @property
    def margin(self) -> float | None:
        """Top-1 minus runner-up, in the values' unit; None if the runner-up was not sent."""
        return float(self.top[0] - self.top[1]) if len(self.top) > 1 else None


@dataclass(frozen=True, eq=False)
class ListFigures:
    """Figures of one position of a pair, None if what was sent does not say. changes: variant minus reference of the
    tokens that both sides sent, in the values' unit; kl: of complete rows alone.
    """

    reference: ListedRow
    variant: ListedRow
    changes: NDArray[np.float64]
    kl: float | None

    @property
    def common(self) -> int:
        return len(self.changes)

    @cached_property
    def neq(self) -> int:
        return int(np.count_nonzero(self.changes))

    @cached_property
    def max_abs(self) -> float | None:
        return float(np.abs(self.changes).max()) if len(self.changes) else None

    @property
    def rms(self) -> float | None:
        return float(np.sqrt(np.square(self.changes).mean())) if len(self.changes) else None

    @property
    def bit_identical(self) -> bool | None:
        """False if a value differs; what was not sent may differ too."""
        return False if self.neq else None

    @property
    def is_flip(self) -> bool | None:
        tokens = self.reference.token, self.variant.token
        return None if None in tokens else tokens[0] != tokens[1]

    @property
    def smaller_margin(self) -> float | None:
        return min(
            (margin for margin in (self.reference.margin, self.variant.margin) if margin is not None), default=None
        )

    @property
    def is_tie(self) -> bool | None:
        margins = self.reference.margin, self.variant.margin
        return True if 0.0 in margins else None if None in margins else False

    @property
    def could_flip(self) -> bool | None:
        """The smaller margin is at most twice the largest change that was sent."""
        if self.smaller_margin is None or self.max_abs is None:
            return None
        return self.smaller_margin <= 2 * self.max_abs


def compare_rows(reference: ListedRow, variant: ListedRow, values: str) -> ListFigures:
    """Compare two rows. values: 'logit', 'logprob' or 'prob', of both."""
    _, own, other = np.intersect1d(reference.token_ids, variant.token_ids, assume_unique=True, return_indices=True)
    kl = None
    if reference.is_full and variant.is_full and len(own):
        log_p, log_q = (_log_probabilities(row, values) for row in (reference, variant))
        p = np.exp(log_p)
        missing = p[~np.isin(reference.token_ids, variant.token_ids)].sum()
        terms = p[own] * (log_p[own] - log_q[other])
        kl = max(0.0, math.fsum(terms[p[own] > 0])) if not missing and np.isfinite(terms[p[own] > 0]).all() else None
    return ListFigures(reference, variant, variant.values[other] - reference.values[own], kl)


def _log_probabilities(row: ListedRow, values: str) -> NDArray[np.float64]:
    if values == "logprob":
        return row.values
    if values == "prob":
        with np.errstate(divide="ignore"):
            return np.log(row.values)
    top = row.values[0]
    return row.values - (top + math.log(math.fsum(np.exp(row.values - top))))


def summary_of(rows: Sequence[ListFigures]) -> Summary:
    """Summary of a pair; what a statement on whole rows would be is None."""
    changes = np.concatenate([row.changes for row in rows])
    flips, ties, could = ([getattr(row, name) for row in rows] for name in ("is_flip", "is_tie", "could_flip"))
    kl = [row.kl for row in rows if row.kl is not None]
    margins = [row.smaller_margin for row in rows if row.smaller_margin is not None]
    known_flips = len(rows) - flips.count(None)
    return summary_of_counts(
        int(np.count_nonzero(changes)),
        len(changes),
        float(np.abs(changes).max()) if len(changes) else None,
        float(np.sqrt(np.square(changes).mean())) if len(changes) else None,
        flips=flips.count(True),
        ties=ties.count(True),
        could_flip=could.count(True),
        mean_kl=math.fsum(kl) / len(kl) if kl else None,
        max_kl=max(kl, default=None),
        same_top1=1 - flips.count(True) / known_flips if known_flips else None,
        min_margin=min(margins, default=None),
        kl_positions=len(kl),
        margin_positions=len(margins),
    )


def summary_of_counts(
    neq: int, common: int, max_abs: float | None, rms: float | None, **figures: float | None
) -> Summary:
    """Summary of a pair with `neq` different values of `common`; of other figures, counts are 0 and the rest None."""
    counts = ("nonfinite_mismatch", "flips", "ties", "could_flip", "kl_positions", "kl_infinite", "margin_positions")
    values: dict[str, Any] = dict.fromkeys(Summary.__dataclass_fields__) | dict.fromkeys(counts, 0)
    values |= {"bit_identical": False if neq else None, "neq": neq, "neq_share": neq / common if common else None}
    return Summary(**values | {"max_abs": max_abs, "rms": rms, "finite": common} | figures)
