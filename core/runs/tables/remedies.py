"""Remedies of a pair: what could be changed about it, what is left of its divergence then, and what that costs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from ...errors import UsageError
from ..file.database import Database
from ..file.table import Table, columns_of

REMEDY = Table(
    "remedy",
    """
    -- the same pair with one thing changed at a time; no rows where none were tried
    pair INTEGER -- index of the pair
    ordinal INTEGER -- 0-based; row 0 is the pair as it is
    name VARCHAR -- name of the remedy
    what VARCHAR -- what it changes, in a sentence
    compute_dtype VARCHAR -- dtype the logits were compared in
    elements BIGINT NULL -- logits compared: positions of all prompts x vocab; null where it was not measured, as all
    -- figures
    neq BIGINT NULL -- elements whose values differ
    max_abs DOUBLE NULL -- largest absolute difference, logits; null, as rms, max_ulps and noise_ratio, where a NaN or
    -- infinity stands on one side only
    rms DOUBLE NULL -- root mean square of the difference, logits
    max_ulps BIGINT NULL -- largest distance, ULPs of compute_dtype
    flips INTEGER NULL -- positions whose argmax differs
    noise_ratio DOUBLE NULL -- rms over rms of the rounding floor of the reference as it is, in the run's dtype; null
    -- where there is no floor
    reference_tokens_per_second DOUBLE NULL -- tokens of the batch a second on the reference's path with the remedy,
    -- from the median of the turns
    variant_tokens_per_second DOUBLE NULL -- the same of the variant's path
    reference_share DOUBLE NULL -- reference_tokens_per_second over that of the pair's row 0
    variant_share DOUBLE NULL -- the same of the variant's path
    refusal VARCHAR -- why it was not measured, in a sentence; empty if it was
    reference_share_low DOUBLE NULL -- lower end of the 95 % interval (sign test) of the median of the turns' own
    -- ratios; null where fewer than six were run
    reference_share_high DOUBLE NULL -- its upper end
    variant_share_low DOUBLE NULL -- the same of the variant's path
    variant_share_high DOUBLE NULL -- its upper end
    turns INTEGER NULL -- turns of the clock in which all remedies of the pair ran one after another; null where it was
    -- not timed
    """,
)

PRICE = Table(
    "price",
    """
    -- throughput of the run's paths with every sum in one order, by batch size; no rows where it was not measured
    ordinal INTEGER -- 0-based
    path VARCHAR -- path, without the modifiers of its batch
    batch INTEGER -- sequences in the batch
    tokens INTEGER -- tokens of all rows together, in one turn
    plain_tokens_per_second DOUBLE -- tokens of the batch a second on the path as it is, from the median of the turns
    tokens_per_second DOUBLE -- the same with +invariant
    share DOUBLE -- the latter over the former
    share_low DOUBLE NULL -- lower end of the 95 % interval (sign test) of the median of the turns' own ratios; null
    -- where fewer than six were run
    share_high DOUBLE NULL -- its upper end
    turns INTEGER NULL -- turns of the clock in which both ran
    """,
)
NARROW = 0.1  # of a share: an interval no wider is worth no more turns of the clock
TOO_WIDE = 0.5  # of a share: an interval that is wider tells nothing that would be advice
# of the throughput: where the shares have no interval, what the pair as it is keeps of its own shows how far to trust
# them
CLOCK = 0.1
_NAME = re.compile(r"[\w +-]+")  # as ours are: a sentence sets it as markdown


@dataclass(frozen=True)
class Kept:
    """A share of a throughput, and between what it lies with 95 %; low and high are None where that is not known, of
    few turns of the clock.
    """

    share: float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        ends = (self.share if self.low is None else self.low, self.share if self.high is None else self.high)
        if not 0 <= ends[0] <= self.share <= ends[1] < math.inf or (self.low is None) != (self.high is None):
            raise UsageError(f"a share of {self.share} between {self.low} and {self.high} is none")

    @property
    def is_told(self) -> bool:
        """True where it is narrow enough to be told as a number."""
        return self.low is None or self.high is None or self.high - self.low <= TOO_WIDE * self.share

    def in_words(self) -> str:
        """`0.75 ± 0.02`; `about 0.8` where no spread is known; `1` of what is held against itself."""
        if self.low is None or self.high is None:
            return f"about {self.share:.1g}"
        if not self.is_told:
            return f"too noisy to say ({self.low:.2g} to {self.high:.2g})"
        spread = max(self.high - self.share, self.share - self.low)
        if spread == 0:
            return f"{self.share:.3g}"
        digits = max(0, 1 - math.floor(math.log10(max(self.share, 1e-300))))  # two of the share that matter
        step = 10.0**-digits
        return f"{self.share:.{digits}f} ± {max(step, math.ceil(spread / step - 1e-9) * step):.{digits}f}"


@dataclass(frozen=True)
class RemedyRow:
    """A pair under one remedy; the first row of a pair is the pair as it is.

    compute_dtype: what the logits were compared in, whose ULPs `max_ulps` counts. neq: differing logits of `elements`;
    rms in logits; max_abs, rms, max_ulps, noise_ratio: None where a NaN or infinity stands on one side only, for that
    difference has no size; noise_ratio: rms over that of the rounding floor of the model as it is, so that all rows are
    in one unit; None where there is no floor. tokens_per_second: of reference and variant, from the median of the turns
    in which all remedies ran one after another; shares: of the same path's in the first row; low, high: between these
    the median of the turns' own ratios lies with 95 %, None where fewer than six turns were run.
    refusal: why it could not be measured, one sentence; every figure is None then.
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
    reference_share_low: float | None = None
    reference_share_high: float | None = None
    variant_share_low: float | None = None
    variant_share_high: float | None = None
    turns: int | None = None

    def __post_init__(self) -> None:
        sizes = (
            self.max_abs,
            self.rms,
            self.max_ulps,
            self.noise_ratio,
            self.reference_tokens_per_second,
            self.variant_tokens_per_second,
            self.reference_share,
            self.variant_share,
            self.reference_share_low,
            self.reference_share_high,
            self.variant_share_low,
            self.variant_share_high,
        )
        counts = (self.elements, self.neq, self.flips)
        is_counted = None not in counts and 0 <= (self.neq or 0) <= (self.elements or 0) and (self.flips or 0) >= 0
        is_sized = all(size is None or 0 <= size < math.inf for size in sizes) and (
            self.turns is None or self.turns >= 1
        )
        if not _NAME.fullmatch(self.name) or not is_sized or (self.is_measured and not is_counted):
            raise UsageError(
                "a remedy has a name or figures that no measurement gives"
            )  # names it not: a page shows it as markdown
        _ = self.reference_kept, self.variant_kept  # which check themselves

    @property
    def is_sized(self) -> bool:
        """True where it was measured and its difference has a size."""
        return self.is_measured and self.rms is not None

    @property
    def is_measured(self) -> bool:
        return not self.refusal

    @property
    def reference_kept(self) -> Kept | None:
        return _kept(self.reference_share, self.reference_share_low, self.reference_share_high)

    @property
    def variant_kept(self) -> Kept | None:
        return _kept(self.variant_share, self.variant_share_low, self.variant_share_high)

    @property
    def kept(self) -> Kept | None:
        """Share of the throughput that is kept, on the side that loses more."""
        return min(
            (each for each in (self.reference_kept, self.variant_kept) if each is not None),
            key=lambda each: each.share,
            default=None,
        )


def _kept(share: float | None, low: float | None, high: float | None) -> Kept | None:
    return None if share is None else Kept(share, low, high)


@dataclass(frozen=True)
class PriceRow:
    """Throughput of a path with every sum in one order, at a batch size: tokens of the batch a second without and with,
    from the medians of turns, and their ratio with its interval, as in RemedyRow.
    """

    path: str
    batch: int
    tokens: int
    plain_tokens_per_second: float
    tokens_per_second: float
    share: float
    share_low: float | None = None
    share_high: float | None = None
    turns: int | None = None

    def __post_init__(self) -> None:
        _ = self.kept  # which checks itself

    @property
    def kept(self) -> Kept:
        return Kept(self.share, self.share_low, self.share_high)


_REMEDY = [field.name for field in fields(RemedyRow)]
_PRICE = [field.name for field in fields(PriceRow)]


def insert_remedies(database: Database, pair: int, rows: Sequence[RemedyRow]) -> None:
    """Insert the remedies of one pair, in their order."""
    REMEDY.insert(database, pair=pair, ordinal=list(range(len(rows))), **columns_of(rows, _REMEDY))


def read_remedies(database: Database) -> dict[int, list[RemedyRow]]:
    """Read the remedies by pair; empty where none were tried."""
    found: dict[int, list[RemedyRow]] = {}
    stored = database.rows(f"SELECT pair, ordinal, {', '.join(_REMEDY)} FROM remedy ORDER BY pair, ordinal")
    with database.decoding("list of remedies"):
        for pair, ordinal, *row in stored:
            rows = found.setdefault(pair, [])
            if ordinal != len(rows):  # without its row 0 a pair would seem to be as it is under a remedy
                raise UsageError(f"remedy {len(rows)} of pair {pair} is missing")
            rows.append(RemedyRow(*row))
    return found


def insert_prices(database: Database, rows: Sequence[PriceRow]) -> None:
    """Insert the prices of the whole run, in their order."""
    PRICE.insert(database, ordinal=list(range(len(rows))), **columns_of(rows, _PRICE))


def read_prices(database: Database) -> list[PriceRow]:
    """Read the prices in their order; empty where they were not measured."""
    rows = database.rows(f"SELECT {', '.join(_PRICE)} FROM price ORDER BY ordinal")
    with database.decoding("prices"):
        return [PriceRow(*row) for row in rows]


def advice(rows: Sequence[RemedyRow]) -> str:
    """Advise what to change, and at what cost, in a sentence or two, from the rows alone."""
    if not rows or not rows[0].is_measured:
        return "The pair as it is was not measured, so there is nothing to compare a remedy with."
    plain, others = rows[0], [row for row in rows[1:] if row.is_measured]
    if not plain.neq:
        return "The two sides are equal in every logit as they are: there is nothing to remedy."
    exact = [row for row in others if not row.neq]
    said = []
    if exact:
        best = max(exact, key=_share)
        said.append(f"**{best.name}** makes the sides equal in every logit{_cost(best)}.")
    if not plain.is_sized:
        said.append("As it is, a NaN or infinity stands on one side only: that difference has no size.")
        said += [f"**{row.name}** leaves none of those{_cost(row)}." for row in others if row.neq and row.is_sized][:1]
    calmer = [row for row in others if row.neq and row.rms is not None and plain.rms and row.rms < plain.rms / 2]
    if calmer:
        best = min(calmer, key=lambda row: row.rms or math.inf)
        flips = f", flips {_count(best.flips)} of {_count(plain.flips)}" if plain.flips else ""
        said.append(
            f"**{best.name}** leaves {_ratio((best.rms or 0.0) / (plain.rms or 1.0))} of the difference"
            f" (rms{flips}){_cost(best)}."
        )
    shares = (plain.reference_share, plain.variant_share) if plain.reference_share_low is None else ()
    apart = max((share for share in shares if share is not None), key=lambda share: abs(share - 1), default=1.0)
    if said and abs(apart - 1) > CLOCK:
        said.append(f"The clock is coarse: it finds {apart:.0%} of the throughput where nothing was changed.")
    if not said:
        if len(others) == 1:
            return "The one remedy that could be measured does not halve the difference."
        return (
            f"None of the {len(others)} remedies that could be measured halves the difference."
            if others
            else "None of the remedies could be measured."
        )
    return " ".join(said)


def _share(row: RemedyRow) -> float:
    return row.kept.share if row.kept is not None else 0.0


def _cost(row: RemedyRow) -> str:
    if row.kept is None:
        return ""
    if not row.kept.is_told:
        return f"; what throughput that keeps is {row.kept.in_words()}"
    return f", at {row.kept.in_words()} of the throughput"


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value >= 0.01 else f"1/{1 / value:,.0f}" if value > 0 else "nothing"


def _count(value: int | None) -> str:
    return "0" if value is None else f"{value:,}"
