"""Summaries of the pairs over all positions, numbers of elements by distance in ULPs, and verdicts
with the rows they rest on.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, fields

import msgspec

from ...checks import CHECKS
from ...errors import UsageError
from ...evidence import OUTCOMES, Check, CheckFigures, Evidence, Unmeasured, labels_of
from ...numerics.arrays import Places, Record
from ...numerics.metrics import NULLABLE, OPEN_IN_LISTS, Summary
from ...numerics.totals import PairTotal
from ...text import clean
from ...verdict import FloorRows, Verdict
from ..file.database import Database
from ..file.records import StoredPair
from ..file.table import Table, column

PAIR = Table(
    "pair",
    """
    -- summary of each variant vs the reference
    pair INTEGER -- 0-based index
    reference INTEGER -- index of the reference side
    variant INTEGER -- index of the variant side
    is_histogram_exact BOOLEAN -- false: distances of 65536 and more are rounded down to powers of
    -- two
    verdict VARCHAR NULL -- identical, rounding, nondeterministic, bug suspected, invalid dump or
    -- undecided, with rows in evidence; null: not judged
    because VARCHAR NULL -- the verdict in a sentence, null: not judged
    first_prompt INTEGER NULL -- prompt at which a fault shows first, null if none does
    first_position INTEGER NULL -- position of that prompt
    noise_ratio DOUBLE NULL -- rms of the pair over rms of the noise floor, both in float32 (float64
    -- for a mixture of experts) if they could be had; null if not measured
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


# stored as 0 if no position has the top tokens of both sides, and then read as unknown
_OF_TOP_TOKENS = ("flips", "ties", "could_flip")


def insert_pair(
    database: Database,
    pair: int,
    total: PairTotal | Summary,
    verdict: Verdict | None = None,
) -> None:
    """Insert summary and histogram, of lists the summary alone, and the verdict if it was
    judged.
    """
    figures = asdict(total if isinstance(total, Summary) else total.summary())
    for name in _OF_TOP_TOKENS:
        figures[name] = figures[name] or 0
    if verdict is not None:
        figures |= _columns(verdict)
    PAIR.insert_row(
        database,
        pair=pair,
        reference=0,
        variant=pair + 1,
        is_histogram_exact=isinstance(total, Summary) or total.is_histogram_exact,
        **figures,
    )
    if not isinstance(total, Summary):
        histogram = total.histogram
        elements = list(histogram.values())
        ULP_HISTOGRAM.insert(database, pair=pair, distance=list(histogram), elements=elements)


def _columns(verdict: Verdict) -> Record:
    prompt, position = verdict.first_place or (None, None)
    return {
        "verdict": verdict.name,
        "because": verdict.because,
        "noise_ratio": verdict.noise_ratio,
        "first_prompt": prompt,
        "first_position": position,
    }


def update_verdict(database: Database, verdict: Verdict) -> None:
    """Put a verdict on a stored pair."""
    columns = _columns(verdict)
    changes = ", ".join(f"{name} = ?" for name in columns)
    database.execute(f"UPDATE pair SET {changes} WHERE pair = ?", [*columns.values(), verdict.pair])


def read_pairs(database: Database, sides: Sequence[str]) -> list[StoredPair]:
    """Read the pairs in their order. sides: names of the run's sides."""
    pairs = []
    with database.decoding("list of pairs"):
        for row in database.records("SELECT * FROM pair ORDER BY pair"):
            if row["same_top1"] is None:
                row |= dict.fromkeys(_OF_TOP_TOKENS)
            summary = Summary(**{total.name: row[total.name] for total in fields(Summary)})
            place = row["first_prompt"], row["first_position"]
            names = sides[row["reference"]], sides[row["variant"]]
            verdict = row["verdict"], row["because"], row["noise_ratio"]
            first = None if None in place else place
            pairs.append(StoredPair(row["pair"], *names, summary, *verdict, first))
    return pairs


EVIDENCE = Table(
    "evidence",
    """
    -- what supports a verdict: one row per check
    pair INTEGER -- index of the pair
    rung VARCHAR -- group of the check
    checked VARCHAR -- what was checked, which says what the figures are
    side_name VARCHAR NULL -- side that the row is about; null: the pair
    control VARCHAR -- what was run for it
    figures VARCHAR -- JSON object of the check's figures, empty if it could not be made
    outcome VARCHAR -- passed, failed, not available or informative
    says VARCHAR -- what that says, in a line
    """,
)

FLOOR_POSITION = Table(
    "floor_position",
    """
    -- a judged pair and its noise floor, by position
    pair INTEGER -- index of the pair
    compute_dtype VARCHAR -- dtype in which both were computed for the judgment
    prompt INTEGER -- index of the prompt
    position INTEGER -- 0-based token index in its prompt
    pair_rms DOUBLE -- root mean square of variant minus reference, logits
    floor_rms DOUBLE -- the same of reorderings of the reference, over all seeds, logits
    """,
)


def insert_evidence(
    database: Database,
    pair: int,
    places: Places,
    evidence: Sequence[Evidence],
    floors: Sequence[FloorRows],
) -> None:
    """Insert evidence of a pair and its floors. places: prompt and position of every row of the
    run. [rows, 2]
    """
    if evidence:
        EVIDENCE.insert_records(
            database,
            evidence,
            pair=pair,
            rung=[row.group for row in evidence],
            checked=[str(row.check) for row in evidence],
            side_name=[row.side for row in evidence],
            figures=[json.dumps(row.figures.to_json(), allow_nan=False) for row in evidence],
        )
    for floor in floors:
        FLOOR_POSITION.insert(
            database,
            pair=pair,
            prompt=places[:, 0],
            position=places[:, 1],
            **vars(floor),
        )


def read_evidence(database: Database) -> dict[int, list[Evidence]]:
    """Evidence of every judged pair, by its number, in the order of the checks.

    Unknown checks and outcomes are left out.
    """
    sql = "SELECT pair, checked, control, figures, outcome, says, side_name FROM evidence"
    of_pairs: dict[int, list[Evidence]] = {}
    with database.decoding("evidence"):
        for pair, checked, control, figures, *rest in database.rows(sql):
            check = CHECKS.get(checked)
            if check is None or rest[0] not in OUTCOMES:
                continue
            row = Evidence(check, control, figures_of(check, figures), *rest)
            of_pairs.setdefault(pair, []).append(row)
        return {
            pair: sorted(rows, key=lambda row: row.check.order) for pair, rows in of_pairs.items()
        }


def unknown_evidence(database: Database) -> list[str]:
    """Return the checks and outcomes of the file that this build does not know."""
    known = {"checked": ("check", CHECKS), "outcome": ("outcome", OUTCOMES)}
    unknown = []
    for field, (noun, names) in known.items():
        sql = f"SELECT DISTINCT {field}::VARCHAR FROM evidence ORDER BY ALL"
        unknown += [f"{noun} '{name}'" for (name,) in database.rows(sql) if name not in names]
    return unknown


def figures_of(check: Check, text: str) -> CheckFigures:
    """Return the record of a check from its figures in JSON; a newer build's figures that it lacks
    are left out.

    Raises:
        UsageError: figures of another check.
    """
    try:
        values = msgspec.json.decode(text, type=Record)
        record = Unmeasured if values.keys() <= labels_of(Unmeasured).keys() else check.record
        return msgspec.convert(values, record)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"the figures of the check '{check}' cannot be read ({clean(error)})",
        ) from error
