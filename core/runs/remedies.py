"""What could be changed about a pair, what is left of its divergence then, and what that costs: rows of the table `remedy`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np
import pyarrow as pa

from core.errors import UsageError
from core.runs.database import Database

CLOCK = 0.1  # of the throughput: a pair as it is that keeps less or more of its own shows how far the other shares can be trusted
_NAME = re.compile(r"[\w +-]+")  # as ours are: a sentence sets it as markdown


@dataclass(frozen=True)
class RemedyRow:
    """A pair under one remedy; the first row of a pair is the pair as it is.

    compute_dtype: what the logits were compared in, whose ULPs `max_ulps` counts. neq: differing logits of `elements`; rms in logits;
    max_abs, rms, max_ulps, noise_ratio: None where a NaN or infinity stands on one side only, for that difference has no size;
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

    def __post_init__(self) -> None:
        sizes = (
            self.max_abs, self.rms, self.max_ulps, self.noise_ratio, self.reference_tokens_per_second, self.variant_tokens_per_second,
            self.reference_share, self.variant_share,
        )  # fmt: skip
        counts = (self.elements, self.neq, self.flips)
        is_counted = None not in counts and 0 <= (self.neq or 0) <= (self.elements or 0) and (self.flips or 0) >= 0
        is_sized = all(size is None or 0 <= size < math.inf for size in sizes)
        if not _NAME.fullmatch(self.name) or not is_sized or (self.is_measured and not is_counted):
            raise UsageError(
                "a remedy has a name or figures that no measurement gives"
            )  # names it not: a page shows it as markdown

    @property
    def is_sized(self) -> bool:
        """Was it measured, and does its difference have a size?"""
        return self.is_measured and self.rms is not None

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
    for pair, ordinal, *row in database.rows(f"SELECT pair, ordinal, {', '.join(_COLUMNS)} FROM remedy ORDER BY pair, ordinal"):
        rows = found.setdefault(pair, [])
        if ordinal != len(rows):  # without its row 0 a pair would seem to be as it is under a remedy
            raise UsageError(f"remedy {len(rows)} of pair {pair} is missing")
        rows.append(RemedyRow(*row))
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
    if not plain.is_sized:
        said.append("As it is, a NaN or infinity stands on one side only: that difference has no size.")
        said += [f"**{row.name}** leaves none of those{_cost(row)}." for row in others if row.neq and row.is_sized][:1]
    calmer = [row for row in others if row.neq and row.rms is not None and plain.rms and row.rms < plain.rms / 2]
    if calmer:
        best = min(calmer, key=lambda row: row.rms or math.inf)
        flips = f", flips {_count(best.flips)} of {_count(plain.flips)}" if plain.flips else ""
        said.append(
            f"**{best.name}** leaves {_ratio((best.rms or 0.0) / (plain.rms or 1.0))} of the difference (rms{flips}){_cost(best)}."
        )
    shares = (plain.reference_share, plain.variant_share)
    apart = max((share for share in shares if share is not None), key=lambda share: abs(share - 1), default=1.0)
    if said and abs(apart - 1) > CLOCK:
        said.append(f"The clock is coarse: it finds {apart:.0%} of the throughput where nothing was changed.")
    if not said:
        return (
            "None of the remedies that could be measured halves the difference."
            if others
            else "None of the remedies could be measured."
        )
    return " ".join(said)


def _kept(row: RemedyRow) -> float:
    return row.share if row.share is not None else 0.0


def _cost(row: RemedyRow) -> str:
    return "" if row.share is None else f", at {row.share:.0%} of the throughput"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value >= 0.01 else f"1/{1 / value:,.0f}" if value > 0 else "nothing"


def _count(value: int | None) -> str:
    return "0" if value is None else f"{value:,}"
