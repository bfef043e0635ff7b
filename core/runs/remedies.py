"""What could be changed about a pair, what is left of its divergence then, and what that costs: rows of the table `remedy`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
import pyarrow as pa

from core.runs.store import Database


@dataclass(frozen=True)
class RemedyRow:
    """A pair under one remedy; the first row of a pair is the pair as it is.

    compute_dtype: what the logits were compared in, whose ULPs `max_ulps` counts. neq: differing logits of `elements`; rms in logits;
    noise_ratio: rms over that of the rounding floor of the model as it is, so that all rows are in one unit; None where there is no floor.
    tokens_per_second: of reference and variant, medians; shares: of the same path's throughput without the remedy, medians over rounds
    in which both took turns. refusal: why it could not be measured, one sentence; every figure is None then.
    """

    name: str
    what: str
    compute_dtype: str
    elements: int | None = None
    neq: int | None = None
    max_abs: float | None = None
    rms: float | None = None
    max_ulps: int | None = None
    flips: int | None = None
    noise_ratio: float | None = None
    reference_tokens_per_second: float | None = None
    variant_tokens_per_second: float | None = None
    reference_share: float | None = None
    variant_share: float | None = None
    refusal: str = ""

    @property
    def is_measured(self) -> bool:
        return not self.refusal

    @property
    def share(self) -> float | None:
        """Of the throughput that is kept, on the side that loses more."""
        shares = [share for share in (self.reference_share, self.variant_share) if share is not None]
        return min(shares, default=None)


@dataclass(frozen=True)
class PriceRow:
    """Throughput of a path with every sum in one order, at a batch size: tokens of the batch a second without and with, and their ratio."""

    path: str
    batch: int
    tokens: int
    plain_tokens_per_second: float
    tokens_per_second: float
    share: float


_COLUMNS = [field.name for field in fields(RemedyRow)]
_TYPES = {"int": pa.int64(), "float": pa.float64(), "str": pa.string()}


def insert_remedies(database: Database, pair: int, rows: Sequence[RemedyRow]) -> None:
    """Of one pair, in their order."""
    columns = {
        name: pa.array([astuple(row)[place] for row in rows], _TYPES[str(field.type).split(" ")[0]])
        for place, (name, field) in enumerate(zip(_COLUMNS, fields(RemedyRow), strict=True))
    }
    places = {"pair": np.full(len(rows), pair, np.int32), "ordinal": np.arange(len(rows), dtype=np.int32)}
    database.insert("remedy", pa.table({**places, **columns}))


def read_remedies(database: Database) -> dict[int, list[RemedyRow]]:
    """By pair; empty where none were tried."""
    found: dict[int, list[RemedyRow]] = {}
    for pair, *row in database.rows(f"SELECT pair, {', '.join(_COLUMNS)} FROM remedy ORDER BY pair, ordinal"):
        found.setdefault(pair, []).append(RemedyRow(*row))
    return found


def insert_prices(database: Database, rows: Sequence[PriceRow]) -> None:
    """Of the whole run, in their order."""
    for ordinal, row in enumerate(rows):
        database.execute("INSERT INTO price VALUES (?, ?, ?, ?, ?, ?, ?)", [ordinal, *astuple(row)])


def read_prices(database: Database) -> list[PriceRow]:
    """Empty where they were not measured."""
    columns = ", ".join(field.name for field in fields(PriceRow))
    return [PriceRow(*row) for row in database.rows(f"SELECT {columns} FROM price ORDER BY ordinal")]


def advice(rows: Sequence[RemedyRow]) -> str:
    """What to change and what it costs, in a sentence or two, from the rows alone."""
    if not rows or not rows[0].is_measured:
        return "The pair as it is was not measured, so there is nothing to compare a remedy with."
    plain, others = rows[0], [row for row in rows[1:] if row.is_measured]
    if not plain.neq:
        return "The two sides are equal in every logit as they are: there is nothing to remedy."
    exact = [row for row in others if not row.neq]
    said = []
    if exact:
        best = max(exact, key=_kept)
        said.append(f"**{best.name}** makes the sides equal in every logit{_cost(best)}.")
    calmer = [row for row in others if row.neq and row.rms is not None and plain.rms and row.rms < plain.rms / 2]
    if calmer:
        best = min(calmer, key=lambda row: row.rms or math.inf)
        flips = f", flips {_count(best.flips)} of {_count(plain.flips)}" if plain.flips else ""
        said.append(
            f"**{best.name}** leaves {_ratio((best.rms or 0.0) / (plain.rms or 1.0))} of the difference (rms{flips}){_cost(best)}."
        )
    if not said:
        return "None of the remedies that could be measured halves the difference."
    return " ".join(said)


def _kept(row: RemedyRow) -> float:
    return row.share if row.share is not None else 0.0


def _cost(row: RemedyRow) -> str:
    return "" if row.share is None else f", at {row.share:.0%} of the throughput"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value >= 0.01 else f"1/{1 / value:,.0f}" if value > 0 else "nothing"


def _count(value: int | None) -> str:
    return "0" if value is None else f"{value:,}"
