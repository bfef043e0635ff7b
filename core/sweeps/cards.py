"""Cards of runs of cells: the figures of a sweep's tables, read from each run file once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

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
_OF_PAIR = ("bit_identical", "flips", "neq_share", "max_abs", "verdict", "noise_ratio", "max_row_ulps")


class CellCard(msgspec.Struct, frozen=True):
    """Figures of one run of a cell, of its worst pair. noise_ratio: None where it has no size or was not judged; bits:
    sha256 of each side, in order; versions: with the model's revision, the device and the build among them; growth: rms
    of the difference in row ULPs after each block of the model, where its modules were compared.
    """

    run_id: str
    created: str
    verdict: str
    noise_ratio: float | None
    bit_identical: bool
    flips: int
    neq_share: float
    max_row_ulps: float | None
    max_abs: float
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
    """Card of a run file; StoreError where it is none of a cell."""
    about = read_run(database, "created", "kind", "revision", "device", "device_name", "versions", "request")
    pairs = database.rows(f"SELECT {', '.join(_OF_PAIR)} FROM run_file.pair ORDER BY pair", most=_MOST_SIDES)
    bits = database.rows("SELECT left(sha256, 64) FROM run_file.side ORDER BY side", most=_MOST_SIDES + 1)
    if not pairs or len(pairs) == _MOST_SIDES:
        raise StoreError(f"{database.file}: a cell has from 1 to {_MOST_SIDES - 1} pairs.")
    with database.decoding("provenance"):
        versions = {str(name): str(value) for name, value in json.loads(about["versions"]).items()}
        request = json.loads(about["request"] or "{}")
        versions |= {"revision": about["revision"], "device": about["device"], "device_name": about["device_name"]}
        if request.get("build"):
            versions["build"] = str(request["build"])
    named = [shown_verdict(about["kind"], bool(pair[0]), pair[4]) for pair in pairs]
    worst = min(range(len(pairs)), key=lambda n: (SEVERITY.get(named[n], len(SEVERITY)), -pairs[n][2]))
    return CellCard(
        run_id=database.path.stem,
        created=about["created"].isoformat(),
        verdict=named[worst],
        noise_ratio=max((pair[5] for pair in pairs if pair[5] is not None), default=None),
        bit_identical=all(pair[0] for pair in pairs),
        flips=max(pair[1] for pair in pairs),
        neq_share=max(pair[2] for pair in pairs),
        max_abs=max(pair[3] for pair in pairs),
        max_row_ulps=max((pair[6] for pair in pairs if pair[6] is not None), default=None),
        bits=tuple(row[0] for row in bits),
        versions=versions,
        growth=_growth(database, worst),
    )


def _growth(database: Database, pair: int) -> tuple[float | None, ...]:
    """rms of the difference in row ULPs after each block, over all prompts; None where it is unknown."""
    found = database.rows(
        "SELECT ordinal, rms_row_ulps, finite FROM run_file.layer WHERE pair = ? AND kind = 'residual'"
        " ORDER BY ordinal, prompt",
        [pair],
        most=_MOST_BLOCKS,
    )
    of_block: dict[int, list[tuple[float | None, int]]] = {}
    for ordinal, rms, finite in found:
        of_block.setdefault(ordinal, []).append((rms, finite))
    with database.decoding("figures of modules"):
        return tuple(_rms(block) for block in of_block.values())


def _rms(parts: Sequence[tuple[float | None, int]]) -> float | None:
    """Root mean square of several, each with how many elements it is over."""
    known = [(rms, count) for rms, count in parts if rms is not None]
    total = sum(count for _, count in known)
    return math.sqrt(math.fsum(rms * rms * count for rms, count in known) / total) if total > 0 else None
