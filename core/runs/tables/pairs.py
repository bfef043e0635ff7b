"""Summaries of the pairs over all positions, with their verdicts, and numbers of elements by distance in ULPs."""

from __future__ import annotations

from dataclasses import asdict, fields

from ...numerics.metrics import NULLABLE, OPEN_IN_LISTS, Summary
from ...numerics.totals import PairTotal
from ..file.database import Database
from ..file.evidence import Verdict
from ..file.table import Table, column

PAIR = Table(
    "pair",
    """
    -- summary of each variant vs the reference
    pair INTEGER -- 0-based index
    reference INTEGER -- index of the reference side
    variant INTEGER -- index of the variant side
    is_histogram_exact BOOLEAN -- false: distances of 65536 and more are rounded down to powers of two
    verdict VARCHAR NULL -- identical, rounding, nondeterministic, bug suspected, invalid dump or undecided, with rows
    -- in evidence; null: not judged
    because VARCHAR NULL -- the verdict in a sentence, null: not judged
    first_prompt INTEGER NULL -- prompt at which a fault shows first, null if none does
    first_position INTEGER NULL -- position of that prompt
    noise_ratio DOUBLE NULL -- rms of the pair over rms of the noise floor, both in float32 (float64 for a mixture
    -- of experts) if they could be had; null if not measured
    """,
    [
        column(
            total.name,
            str(total.type).split(" ")[0],
            total.metadata["unit"],
            total.metadata["help"],
            total.name in NULLABLE | OPEN_IN_LISTS,
        )
        for total in fields(Summary)
    ],
)

ULP_HISTOGRAM = Table(
    "ulp_histogram",
    """
    -- number of elements by distance in ULPs
    pair INTEGER -- index of the pair
    distance BIGINT -- ULPs of the compute dtype
    elements BIGINT -- number of elements finite on both sides
    """,
)

_SUMMARY = [field.name for field in fields(Summary)]


def insert_pair(database: Database, pair: int, total: PairTotal | Summary, verdict: Verdict | None = None) -> None:
    """Insert summary and histogram, of lists the summary alone, and the verdict if it was judged."""
    PAIR.insert_row(
        database,
        pair=pair,
        reference=0,
        variant=pair + 1,
        **asdict(total if isinstance(total, Summary) else total.summary()),
        is_histogram_exact=isinstance(total, Summary) or total.is_histogram_exact,
    )
    if verdict is not None:
        update_verdict(database, verdict)
    if isinstance(total, Summary):
        return
    histogram = total.histogram
    ULP_HISTOGRAM.insert(database, pair=pair, distance=list(histogram), elements=list(histogram.values()))


def update_verdict(database: Database, verdict: Verdict) -> None:
    """Put a verdict on a stored pair."""
    prompt, position = verdict.first_place or (None, None)
    columns = "verdict = ?, because = ?, noise_ratio = ?, first_prompt = ?, first_position = ?"
    values = [verdict.name, verdict.because, verdict.noise_ratio, prompt, position]
    database.execute(f"UPDATE pair SET {columns} WHERE pair = ?", [*values, verdict.pair])


def read_pairs(database: Database) -> list[tuple]:
    """Read of each pair: index, its sides' indices, summary, verdict, because, noise ratio, first place."""
    names = ", ".join(["pair", "reference", "variant", *_SUMMARY, "verdict", "because", "noise_ratio"])
    rows = database.rows(f"SELECT {names}, first_prompt, first_position FROM pair ORDER BY pair")
    with database.decoding("list of pairs"):
        return [
            (*row[:3], Summary(*row[3:-5]), *row[-5:-2], None if row[-2] is None else tuple(row[-2:])) for row in rows
        ]
