"""State of a sweep in a store: which cells are done, failed or being computed, read from the
store's files alone.

A run of a cell is named `cell-DIGEST-ENVIRONMENT`, by the digests of its request and of the
environment. The folder `.sweeps/` has plans/NAME.json, failed/DIGEST.json, and cards/RUN.json: a
cache of the figures of each run.
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..disk import lock, write_atomic
from ..errors import StoreError, os_errors
from ..runs.file.database import Database, each_database
from ..runs.reports.report_json import plain_number
from ..runs.store.cards import card_of
from ..runs.store.partial import LOCK, PREFIX
from ..runs.store.store import Store, cell_of
from ..runs.tables.run import read_run
from ..text import clean
from ..verdict import (
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
from .plan import Cell, SweepPlan, short_digest

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
# a cell has a reference and a variant, each as often as it is repeated
_MOST_SIDES = 64
FOLDER = ".sweeps"
DONE, FAILED, RUNNING, MISSING = "done", "failed", "running", "missing"

T = TypeVar("T")


class CellCard(msgspec.Struct, frozen=True):
    """Figures of one run of a cell, of its worst pair. bits: sha256 of each side; versions: with
    the model's revision, the device and the build among them; growth: rms in row ULPs after each
    block, if modules were compared.
    """

    run_id: str
    created: str
    verdict: str
    noise_ratio: float | None
    flips: int
    neq_share: float
    max_row_ulps: float | None
    bits: tuple[str, ...]
    versions: dict[str, str]
    growth: tuple[float | None, ...]

    @property
    def digest(self) -> str:
        return cell_of(self.run_id) or ""


def read_card(database: Database) -> CellCard:
    """Read the card of a run file. StoreError if the run is not of a cell."""
    card = card_of(database)
    if not 0 < card.pairs < _MOST_SIDES:
        raise StoreError(f"{database.file}: a cell has from 1 to {_MOST_SIDES - 1} pairs.")
    about = read_run(database)
    with database.decoding("provenance"):
        versions = {str(name): str(value) for name, value in json.loads(about["versions"]).items()}
        build = json.loads(about["request"] or "{}").get("build")
        versions |= {name: about[name] for name in ("revision", "device", "device_name")}
        versions |= {"build": str(build)} if build else {}
    places = [SEVERITY.get(verdict, len(SEVERITY)) for verdict in card.pair_verdicts]
    sql = "SELECT neq_share FROM run_file.pair ORDER BY pair"
    shares = database.rows(sql, most=_MOST_SIDES)
    worst = min(range(card.pairs), key=lambda n: (places[n], -shares[n][0]))
    sql = "SELECT left(sha256, 64) FROM run_file.side ORDER BY side"
    bits = database.rows(sql, most=_MOST_SIDES + 1)
    growth = database.rows(
        "SELECT sqrt(sum(rms_row_ulps ** 2 * finite) / nullif(sum(finite) FILTER (rms_row_ulps IS"
        " NOT NULL), 0)) FROM run_file.layer WHERE pair = ? AND kind = 'residual' GROUP BY ordinal"
        " ORDER BY ordinal",
        [worst],
        most=_MOST_BLOCKS,
    )
    return CellCard(
        run_id=card.run_id,
        created=card.created.isoformat(),
        verdict=card.pair_verdicts[worst],
        noise_ratio=plain_number(card.noise_ratio),
        flips=card.flips or 0,
        neq_share=card.max_neq_share,
        max_row_ulps=plain_number(card.max_row_ulps),
        bits=tuple(row[0] for row in bits),
        versions=versions,
        growth=tuple(row[0] for row in growth),
    )


def run_id_of(digest: str, environment: Mapping[str, Any]) -> str:
    """Return the id of a cell's run in an environment."""
    return f"cell-{digest}-{short_digest(environment)}"


@dataclass(frozen=True)
class CellOutcome:
    """Outcome of computing a cell: done (run_id), failed (says), or running (in another
    process).
    """

    cell: Cell
    state: str
    run_id: str = ""
    says: str = ""
    was_there: bool = False
    card: CellCard | None = None


@dataclass(frozen=True)
class CellState:
    """State of a cell in a store. says: reason of a failure; cards: its runs, the latest first."""

    cell: str
    axes: Mapping[str, str]
    state: str
    says: str = ""
    cards: tuple[CellCard, ...] = ()


class StoredPlan(msgspec.Struct, frozen=True):
    """A plan in a store, for any process. cells: (digest, axes)."""

    name: str
    begun: str
    cells: tuple[tuple[str, dict[str, str]], ...]


class Ledger:
    """The sweeps of a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.folder = store.directory / FOLDER
        self._cards: dict[str, CellCard] = {}
        # a listing of objects is seconds old
        self._finished: set[str] = set()

    def write_plan(self, plan: SweepPlan) -> None:
        """Store a plan's cells, replacing a plan of the same name."""
        begun = datetime.now().astimezone().isoformat(timespec="seconds")
        self._write(
            f"plans/{short_digest(plan.name)}.json",
            StoredPlan(plan.name, begun, tuple(in_ledger(plan.cells))),
        )

    def plans(self) -> list[StoredPlan]:
        """Return the plans that were run on this store, by name."""
        self._bring("plans")
        paths = self.folder.glob("plans/*.json")
        plans = [_read_plan(path, path.stat().st_mtime_ns) for path in paths]
        return sorted(filter(None, plans), key=lambda plan: plan.name)

    def record(self, outcome: CellOutcome) -> None:
        """Store why a cell failed, or the figures of its run.

        Both are caches: the run itself marks a cell as done.
        """
        failure = f"failed/{outcome.cell.digest}.json"
        with suppress(StoreError):
            if outcome.state == FAILED:
                says = outcome.says.encode("utf-8", "replace").decode()
                self._write(failure, {"says": says})
            elif outcome.state == DONE:
                self._finished.add(outcome.run_id)
                self._bring("failed")
                if (self.folder / failure).exists():
                    self._write(failure, None)
                if outcome.card:
                    self._write_card(outcome.card)

    def run_ids(self) -> set[str]:
        """Return the ids of every run of a cell."""
        return self.store.cells() | self._finished

    def failures(self) -> dict[str, str]:
        """Return the reason of each cell whose last try failed."""
        self._bring("failed")
        failures = {}
        for path in self.folder.glob("failed/*.json"):
            failure = _read(path, dict[str, str])
            if failure and "says" in failure:
                failures[path.stem] = clean(failure["says"], 600)
        return failures

    def running(self) -> set[str]:
        """Return the cells that a process is writing into this directory."""
        running = set()
        for path in self.store.directory.glob(f"{PREFIX}cell-*"):
            if (digest := cell_of(path.name.removeprefix(PREFIX))) is None:
                continue
            try:
                os.close(lock(path / LOCK, wait=False))
            # its writer lives
            except OSError:
                running.add(digest)
        return running

    def cards(self) -> dict[str, CellCard]:
        """Return the cards of the cells' runs, by id. Unreadable runs have none."""
        run_ids = self.run_ids()
        if missing := run_ids - self._cards.keys():
            self._bring("cards")
        for run_id in missing:
            if card := _read(self.folder / "cards" / f"{run_id}.json", CellCard):
                self._cards[run_id] = card
        paths = [self.store.path_of(run_id) for run_id in sorted(run_ids - self._cards.keys())]
        for _, read in each_database(paths, read_card):
            if isinstance(read, CellCard):
                self._write_card(read)
        return {run_id: self._cards[run_id] for run_id in run_ids & self._cards.keys()}

    def states(self, cells: Sequence[tuple[str, Mapping[str, str]]]) -> list[CellState]:
        """Return the state of each of the cells, given as (digest, axes)."""
        of_cell: dict[str, list[CellCard]] = {}
        for card in sorted(self.cards().values(), key=lambda card: card.created, reverse=True):
            of_cell.setdefault(card.digest, []).append(card)
        failures = self.failures()
        running = self.running()
        states = []
        for digest, axes in cells:
            cards = tuple(of_cell.get(digest, ()))
            state = DONE if cards else MISSING
            says = ""
            if digest in running:
                state = RUNNING
            elif digest in failures:
                state = FAILED
                says = failures[digest]
            states.append(CellState(digest, axes, state, says, cards))
        return states

    def _write_card(self, card: CellCard) -> None:
        self._cards[card.run_id] = card
        # a store that is only read has no failures
        with suppress(StoreError):
            self._write(f"cards/{card.run_id}.json", card)

    def _bring(self, folder: str) -> None:
        """Fetch the files of other machines from an object store."""
        if self.store.mirror:
            self.store.mirror.bring(f"{FOLDER}/{folder}")

    def _write(self, name: str, record: Any) -> None:
        """Write a small file; None removes it."""
        path = self.folder / name
        with os_errors(StoreError, f"{self.folder}: cannot be written to"):
            if record is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, msgspec.json.encode(record))
        if self.store.mirror:
            self.store.mirror.send_small(f"{FOLDER}/{name}")


# a page asks for the same plans at every run of its script
@lru_cache
def _read_plan(path: Path, _changed: int) -> StoredPlan | None:
    return _read(path, StoredPlan)


def in_ledger(cells: Sequence[Cell]) -> list[tuple[str, dict[str, str]]]:
    """Return the cells of a plan for `Ledger.states`."""
    return [(cell.digest, dict(cell.axes)) for cell in cells]


def _read(path: Path, kind: type[T]) -> T | None:
    """Read a small file; None if it is missing or invalid."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, ValueError):
        return None
