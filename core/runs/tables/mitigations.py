"""Mitigations of a pair: the pair with one thing changed at a time, what is left of the difference,
and the throughput.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...text import number, percent
from ..file.database import Database
from ..file.table import Table


@dataclass(frozen=True)
class MitigationRow:
    """A pair under one mitigation, as the table has it; the first row of a pair is the pair as it
    is.
    Figures are None if it was not measured (`refusal` says why), sizes also if a NaN or infinity is
    on one side only.
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

    @property
    def share(self) -> float | None:
        """Throughput as a share of that of the pair as it is, on the side that loses more."""
        shares = self.reference_share, self.variant_share
        return min((share for share in shares if share is not None), default=None)


MITIGATION = Table(
    "remedy",  # as files since 1.0.0 have it
    """
    -- the same pair with one thing changed at a time; no rows if none were tried
    pair INTEGER -- index of the pair
    ordinal INTEGER -- 0-based; row 0 is the unchanged pair
    name VARCHAR -- name of the mitigation
    what VARCHAR -- what it changes, in a sentence
    compute_dtype VARCHAR -- dtype the logits were compared in
    elements BIGINT NULL -- logits compared; null, as all figures, if not measured
    neq BIGINT NULL -- elements whose values differ
    max_abs DOUBLE NULL -- largest absolute difference, logits; null if NaN or infinity differ
    rms DOUBLE NULL -- root mean square of the difference, logits; null likewise
    max_ulps BIGINT NULL -- largest distance, ULPs of compute_dtype; null likewise
    flips INTEGER NULL -- positions whose argmax differs
    noise_ratio DOUBLE NULL -- rms over rms of the noise floor of the unchanged reference
    reference_tokens_per_second DOUBLE NULL -- tokens of the batch a second, median of the turns
    variant_tokens_per_second DOUBLE NULL -- the same of the variant's path
    reference_share DOUBLE NULL -- reference_tokens_per_second over that of the pair's row 0
    variant_share DOUBLE NULL -- the same of the variant's path
    refusal VARCHAR -- why it was not measured, in a sentence; empty if it was
    reference_share_low DOUBLE NULL -- smallest ratio of one round
    reference_share_high DOUBLE NULL -- largest ratio of one round
    variant_share_low DOUBLE NULL -- the same of the variant's path
    variant_share_high DOUBLE NULL -- the same of the variant's path
    turns INTEGER NULL -- turns of the clock; null if it was not timed
    """,
)


def insert_mitigations(database: Database, pair: int, rows: Sequence[MitigationRow]) -> None:
    """Insert the mitigations of one pair, in their order."""
    MITIGATION.insert_records(database, rows, pair=pair, ordinal=np.arange(len(rows)))


def read_mitigations(database: Database) -> dict[int, list[MitigationRow]]:
    """Read the mitigations by pair; empty if none were tried."""
    mitigations: dict[int, list[MitigationRow]] = {}
    columns = ", ".join(MITIGATION.names[2:])
    for pair, *row in database.rows(f"SELECT pair, {columns} FROM remedy ORDER BY pair, ordinal"):
        mitigations.setdefault(pair, []).append(MitigationRow(*row))
    return mitigations


def advice(rows: Sequence[MitigationRow]) -> str:
    """Return what to change and what it costs, from the rows of a pair."""
    plain, others = rows[0], [row for row in rows[1:] if not row.refusal]
    if plain.neq == 0:
        return "The sides are equal in every logit; there is nothing to change."
    equal = [row for row in others if row.neq == 0]
    sizes = {row: row.rms for row in others if row.neq and row.rms}
    parts = []
    if equal:
        parts.append(_effect(max(equal, key=lambda row: row.share or 0.0), "all logits equal"))
    best = min(sizes, key=sizes.__getitem__, default=None)
    if best and (plain.rms is None or sizes[best] < plain.rms / 2):
        size = "no NaN on one side"
        if plain.rms:
            size = f"RMS difference {number(plain.rms / sizes[best])}x smaller"
        parts.append(_effect(best, f"{size}, flips {plain.flips or 0:,} -> {best.flips or 0:,}"))
    return " ".join(parts) or f"None of {len(others)} changes halves the difference."


def _effect(row: MitigationRow, effect: str) -> str:
    if row.reference_share is not None and row.variant_share is not None:
        effect += (
            f", throughput {percent(row.reference_share)} (reference), {percent(row.variant_share)}"
            " (variant)"
        )
    return f"{row.name}: {effect}."
