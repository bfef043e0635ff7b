"""Top tokens of rows as each side sent them, and their figures over the values that
both sent.

Log-softmax subtracts one number from a whole row, so gaps between log-probabilities are gaps
between logits: margins, flips and ties are exact from the top two tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Flags, Floats, Ints
from .metrics import Summary


@dataclass(frozen=True, eq=False)
class TopTokenRows:
    """Lists, compressed: row r has the entries offsets[r] to offsets[r + 1].

    positions [rows] increase within a prompt; token_ids and values [entries]: largest first within
    a row, the lower token first if values are equal. best [rows]: how many of the first entries are
    the largest of the whole row. targets [rows]: token that was emitted or is given next, -1 if
    unknown; missing [rows]: placeholders for values. chosen [rows]: value sent with the target if
    its list has another one, as after sampling settings; else NaN.
    """

    positions: Ints
    offsets: Ints
    token_ids: Ints
    values: Floats
    best: Ints
    targets: Ints
    missing: Ints
    chosen: Floats

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def counts(self) -> Ints:
        """Entries of each row. [rows]"""
        return np.diff(self.offsets)

    @property
    def row_of(self) -> Ints:
        """Row of each entry. [entries]"""
        return np.repeat(np.arange(len(self)), self.counts)

    @property
    def largest(self) -> Floats:
        """Largest value of each row, NaN without one. [rows]"""
        return np.where(self.counts > 0, np.append(self.values, np.nan)[self.offsets[:-1]], np.nan)

    @property
    def target_values(self) -> Floats:
        """Value of each target in its list, NaN without one. [rows]"""
        row_of = self.row_of
        is_target = self.token_ids == self.targets[row_of]
        values = np.full(len(self), np.nan)
        values[row_of[is_target]] = self.values[is_target]
        return values

    @property
    def chosen_values(self) -> Floats:
        """Value sent with each target, next to its list or in it, NaN without one. [rows]"""
        return np.where(np.isfinite(self.chosen), self.chosen, self.target_values)

    @property
    def argmaxes(self) -> np.ma.MaskedArray:
        """Top token of each row, masked if it was not sent. [rows]"""
        first = np.append(self.token_ids, 0)[self.offsets[:-1]]
        return np.ma.array(first, mask=self.best < 1)

    @property
    def margins(self) -> np.ma.MaskedArray:
        """Top value of each row over the runner-up, masked if one was not sent. [rows]"""
        first = self.offsets[:-1]
        values = np.append(self.values, [0.0, 0.0])
        return np.ma.array(values[first] - values[first + 1], mask=self.best < 2)

    @property
    def has_repeats(self) -> Flags:
        """Whether a token stands twice in a row. [rows]"""
        # a token without an id is -1
        distinct = np.unique(self.row_of << 32 | self.token_ids & 0xFFFFFFFF)
        return np.bincount(distinct >> 32, minlength=len(self)) < self.counts

    def row(self, index: int) -> tuple[Ints, Floats]:
        """Return tokens and values of one row, largest first. [entries] each"""
        part = slice(*self.offsets[index : index + 2])
        return self.token_ids[part], self.values[part]

    def part(self, rows: Flags) -> TopTokenRows:
        """Return some rows. rows [rows]: which stay."""
        entries = rows[self.row_of]
        return TopTokenRows(
            self.positions[rows],
            np.append(0, np.cumsum(self.counts[rows])),
            self.token_ids[entries],
            self.values[entries],
            self.best[rows],
            self.targets[rows],
            self.missing[rows],
            self.chosen[rows],
        )

    def without_values(self, rows: Flags) -> TopTokenRows:
        """Return all rows, some of them emptied: their values count as missing. rows [rows]:
        these.
        """
        entries = ~rows[self.row_of]
        return TopTokenRows(
            self.positions,
            np.append(0, np.cumsum(np.where(rows, 0, self.counts))),
            self.token_ids[entries],
            self.values[entries],
            np.where(rows, 0, self.best),
            self.targets,
            self.missing + np.where(rows, self.counts, 0),
            np.where(rows, np.nan, self.chosen),
        )


def largest(values: NDArray[Any], count: int) -> Ints:
    """Return the places of the `count` largest values, largest first, the lower place first if
    values are equal.

    `argpartition` picks among equal values as the processor's instructions do. No NaN. values: [n]
    -> [count]
    """
    if count < len(values):
        least = np.partition(values, len(values) - count)[len(values) - count]
        places = np.flatnonzero(values >= least)
    else:
        places = np.arange(len(values))
    return places[np.argsort(-values[places], kind="stable")][:count]


def concatenate(parts: Sequence[TopTokenRows]) -> TopTokenRows:
    """Return the rows of all parts, one part after another."""
    names = [field.name for field in fields(TopTokenRows)]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    columns["offsets"] = np.cumsum([0, *np.concatenate([part.counts for part in parts])])
    return TopTokenRows(**columns)


@dataclass(frozen=True, eq=False)
class TopTokenFigures:
    """Figures of a pair by row, as metrics name them, masked if what was sent does not say. [rows]
    each

    common: values that both sides sent; squares: of their differences, summed; least_kl: what they
    add to the row's KL at least, nats; smaller_margin: of both sides.
    """

    common: Ints
    squares: Floats
    least_kl: Floats
    smaller_margin: np.ma.MaskedArray
    neq: Ints
    max_abs: np.ma.MaskedArray
    reference_token: np.ma.MaskedArray
    variant_token: np.ma.MaskedArray
    reference_margin: np.ma.MaskedArray
    variant_margin: np.ma.MaskedArray
    is_flip: np.ma.MaskedArray
    is_tie: np.ma.MaskedArray
    # the smaller margin is at most twice the largest difference that was sent
    could_flip: np.ma.MaskedArray

    @property
    def bit_identical(self) -> np.ma.MaskedArray:
        """False if a value differs; what was not sent may differ too."""
        return np.ma.array(np.zeros(len(self.neq), np.bool_), mask=self.neq == 0)

    @property
    def rms(self) -> np.ma.MaskedArray:
        mean = self.squares / np.maximum(self.common, 1)
        return np.ma.array(np.sqrt(mean), mask=self.common == 0)


def least_kl(x: Floats, y: Floats) -> Floats:
    """Return what tokens add at least to the KL of their rows, whatever the others have. x, y:
    log-probabilities; of one token each, nats

    KL is the sum of p log(p / q) - p + q over all tokens, and no term is below 0.
    """
    p = np.exp(x)
    return p * (x - y) - p + np.exp(y)


def compare_rows(reference: TopTokenRows, variant: TopTokenRows) -> TopTokenFigures:
    """Compare the rows of two sides, each with the one at the same place."""
    rows = len(reference)
    keys, other_keys = (side.row_of << 32 | side.token_ids for side in (reference, variant))
    both, own, other = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    # chosen values next to a list are compared with chosen values, lists with lists
    of_chosen = np.isfinite(reference.chosen) | np.isfinite(variant.chosen)
    chosen_changes = variant.chosen_values - reference.chosen_values
    of_chosen &= (reference.targets == variant.targets) & np.isfinite(chosen_changes)
    row_of = np.append(both >> 32, np.flatnonzero(of_chosen))
    values = reference.values[own], variant.values[other]
    changes = values[1] - values[0]
    changes = np.append(changes, chosen_changes[of_chosen])
    common = np.bincount(row_of, minlength=rows)
    largest_change = np.zeros(rows)
    np.maximum.at(largest_change, row_of, np.abs(changes))
    max_abs = np.ma.array(largest_change, mask=common == 0)
    tokens = reference.argmaxes, variant.argmaxes
    margins = reference.margins, variant.margins
    is_tie = np.logical_or(*(margin.filled(1.0) == 0 for margin in margins))
    is_any_open = np.logical_or(*map(np.ma.getmaskarray, margins))
    smaller_margin = np.ma.stack(margins).min(axis=0)
    return TopTokenFigures(
        common,
        np.bincount(row_of, np.square(changes), minlength=rows).astype(np.float64),
        np.bincount(both >> 32, least_kl(*values), minlength=rows).astype(np.float64),
        smaller_margin,
        np.bincount(row_of[changes != 0], minlength=rows),
        max_abs,
        *tokens,
        *margins,
        is_flip=tokens[0] != tokens[1],
        is_tie=np.ma.array(is_tie, mask=~is_tie & is_any_open),
        could_flip=smaller_margin <= 2 * max_abs,
    )


def summary_of(figures: TopTokenFigures) -> Summary:
    """Return the summary of a pair; what a statement on whole rows would be is None."""
    common = int(figures.common.sum())
    flips = figures.is_flip.compressed()
    margins = figures.smaller_margin.compressed()
    return summary_of_counts(
        int(figures.neq.sum()),
        common,
        float(figures.max_abs.max()) if common else None,
        float(np.sqrt(figures.squares.sum() / common)) if common else None,
        flips=int(flips.sum()),
        ties=int(figures.is_tie.filled(False).sum()),
        could_flip=int(figures.could_flip.filled(False).sum()),
        same_top1=float(1 - flips.sum() / len(flips)) if len(flips) else None,
        min_margin=float(margins.min()) if len(margins) else None,
        margin_positions=len(margins),
    )


def summary_of_counts(
    neq: int,
    common: int,
    max_abs: float | None,
    rms: float | None,
    **figures: float | None,
) -> Summary:
    """Return the summary of a pair with `neq` different values of `common`; of other figures,
    counts are 0 and the rest None.
    """
    counts = (
        "nonfinite_mismatch",
        "flips",
        "ties",
        "could_flip",
        "kl_positions",
        "kl_infinite",
        "margin_positions",
    )
    values: dict[str, Any] = dict.fromkeys(Summary.__dataclass_fields__) | dict.fromkeys(counts, 0)
    values |= {
        "bit_identical": False if neq else None,
        "neq": neq,
        "neq_share": neq / common if common else None,
    }
    return Summary(**values | {"max_abs": max_abs, "rms": rms, "finite": common} | figures)
