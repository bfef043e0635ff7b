"""Cards of runs of cells: the figures of a sweep's tables, read from each run file once."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from ..errors import StoreError
from ..runs.file.database import Database
from ..runs.file.records import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LIKELY_ROUNDING,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    NOT_JUDGED,
    ROUNDING,
    UNDECIDED,
)
from ..runs.queries.verdicts import shown_verdict
from ..runs.store.store import cell_of
from ..runs.tables.run import read_run

_WORST_FIRST = (
    BUG_SUSPECTED,
    INVALID_DUMP,
    NONDETERMINISTIC,
    UNDECIDED,
    NOT_JUDGED,
    LOWER_PRECISION,
    LIKELY_ROUNDING,
    ROUNDING,
    IDENTICAL,
)
SEVERITY = {name: place for place, name in enumerate(_WORST_FIRST)}
_MOST_BLOCKS = 1 << 16  # of all prompts
_MOST_SIDES = 64  # of a cell: a reference and a variant, each as often as it is repeated


class CellCard(msgspec.Struct, frozen=True):
    """Figures of one run of a cell, of its worst pair. bits: sha256 of each side; versions: with the model's revision,
    the device and the build among them; growth: rms in row ULPs after each block, if modules were compared.
    """

    run_id: str
    created: str
    verdict: str
    noise_ratio: float | None
    bit_identical: bool
    flips: int
    neq_share: float
    max_row_ulps: float | None
    max_abs: float | None
    bits: tuple[str, ...]
    versions: dict[str, str]
    growth: tuple[float | None, ...]

    @property
    def asked(self) -> str:
        return cell_of(self.run_id) or ""

    @property
    def build(self) -> str:
        return self.versions.get("build", "")


def read_card(database: Database) -> CellCard:
    """Read the card of a run file; StoreError if it is none of a cell."""
    about = read_run(database, "created", "kind", "revision", "device", "device_name", "versions", "request")
    of_pair = "bit_identical, verdict, neq_share"
    pairs = database.rows(f"SELECT {of_pair} FROM run_file.pair ORDER BY pair", most=_MOST_SIDES)
    bits = database.rows("SELECT left(sha256, 64) FROM run_file.side ORDER BY side", most=_MOST_SIDES + 1)
    if not pairs or len(pairs) == _MOST_SIDES:
        raise StoreError(f"{database.file}: a cell has from 1 to {_MOST_SIDES - 1} pairs.")
    with database.decoding("provenance"):
        versions = {str(name): str(value) for name, value in json.loads(about["versions"]).items()}
        build = json.loads(about["request"] or "{}").get("build")
        versions |= {name: about[name] for name in ("revision", "device", "device_name")}
        versions |= {"build": str(build)} if build else {}
    named = [shown_verdict(about["kind"], bool(is_identical), verdict) for is_identical, verdict, _ in pairs]
    worst = min(range(len(pairs)), key=lambda n: (SEVERITY.get(named[n], len(SEVERITY)), -pairs[n][2]))
    names = ("noise_ratio", "flips", "neq_share", "max_abs", "max_row_ulps")
    (largest,) = database.rows(f"SELECT {', '.join(f'max({name})' for name in names)} FROM run_file.pair")
    growth = database.rows(
        "SELECT sqrt(sum(rms_row_ulps ** 2 * finite) / nullif(sum(finite) FILTER (rms_row_ulps IS NOT NULL), 0))"
        " FROM run_file.layer WHERE pair = ? AND kind = 'residual' GROUP BY ordinal ORDER BY ordinal",
        [worst],
        most=_MOST_BLOCKS,
    )
    figures: dict[str, Any] = {n: v if math.isfinite(v or 0) else None for n, v in zip(names, largest, strict=True)}
    return CellCard(
        run_id=database.path.stem,
        created=about["created"].isoformat(),
        verdict=named[worst],
        bit_identical=all(pair[0] for pair in pairs),
        bits=tuple(row[0] for row in bits),
        versions=versions,
        growth=tuple(row[0] for row in growth),
        **figures,
    )
