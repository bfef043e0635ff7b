"""State of a sweep in a store: which cells are done, failed or being computed, told by its files alone, so that any
number of workers on any number of machines fill one store and a sweep that was killed goes on.

A run of a cell is called `cell-ASKED-WITH`: the digest of what was asked for, and of what it was computed with. Beside
the runs, in `.sweeps/`: plans/NAME.json, failed/ASKED.json, claims/ASKED (locked by whoever computes it) and
cards.jsonl, the figures of runs, which can be had again from the runs themselves.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from ..disk import lock, locked, read_regular, write_atomic
from ..errors import StoreError
from ..runs.file.database import Database, each_database
from ..runs.file.records import (
    BUG_SUSPECTED,
    IDENTICAL,
    INVALID_DUMP,
    LOWER_PRECISION,
    NONDETERMINISTIC,
    NOT_JUDGED,
    ROUNDING,
    UNDECIDED,
)
from ..runs.store.store import Store, cell_of
from ..runs.tables.pairs import PAIR
from ..runs.tables.run import read_run
from ..runs.views.verdicts import shown_verdict
from ..text import shown
from .plan import AXES, Cell, SweepPlan, short_digest

FOLDER = ".sweeps"
DONE, FAILED, RUNNING, MISSING = "done", "failed", "running", "missing"
_WORST_FIRST = (
    BUG_SUSPECTED,
    INVALID_DUMP,
    NONDETERMINISTIC,
    UNDECIDED,
    NOT_JUDGED,
    LOWER_PRECISION,
    ROUNDING,
    IDENTICAL,
)
SEVERITY = {name: place for place, name in enumerate(_WORST_FIRST)}
_LOOKS, _LOOK_SECONDS = 5, 0.02  # who looks whether a claim is held has it for a moment
_LARGEST_PLAN = 64 << 20  # bytes of a kept plan: 100,000 cells take some 30 MB
_LARGEST_CARDS = 256 << 20
_LARGEST_FAILURE = 16 << 10
_MOST_SIDES = 64  # of a cell: a reference and a variant, each as often as it is repeated


def run_id_of(asked: str, environment: Mapping[str, Any]) -> str:
    """Id of the run of a cell under an environment."""
    return f"cell-{asked}-{short_digest(environment)}"


@dataclass(frozen=True)
class CellCard:
    """Figures of one run of a cell, of its worst pair. noise_ratio: None where it has no size or was not judged; bits:
    sha256 of each side, in order; versions: with the model's revision, the device and the build among them.
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
    versions: Mapping[str, str]

    @property
    def asked(self) -> str:
        return cell_of(self.run_id) or ""

    @property
    def build(self) -> str:
        return self.versions.get("build", "")

    @classmethod
    def from_json(cls, value: Any) -> Self | None:
        """Read a line of cards.jsonl; None for what is no card."""
        try:
            card = cls(**{**value, "bits": tuple(value["bits"])})
            return card if cell_of(card.run_id) and isinstance(card.versions, dict) else None
        except (TypeError, KeyError, ValueError):
            return None


@dataclass(frozen=True)
class CellState:
    """State of a cell in a store: done, failed, running or missing; says: why it failed, or what it is at; cards: its
    runs, the latest first.
    """

    cell: str
    axes: Mapping[str, str]
    state: str
    says: str = ""
    cards: tuple[CellCard, ...] = ()


@dataclass(frozen=True)
class KeptPlan:
    """A plan as the store keeps it, so that any process shows its cells: (digest, axes) each."""

    name: str
    begun: str
    cells: tuple[tuple[str, Mapping[str, str]], ...]


class Ledger:
    """The sweeps' side of a store's writable directory."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.folder = store.directory / FOLDER
        self._kept: dict[str, CellCard] = {}  # of cards.jsonl, as far as it was read
        self._finished: set[str] = set()  # that a list of objects may not have yet
        self._read: tuple[int, int] = (0, 0)  # its inode, and the bytes of whole lines

    def keep(self, plan: SweepPlan) -> None:
        """Keep a plan's cells, in place of an older plan of its name."""
        body = {
            "name": plan.name,
            "begun": datetime.now().astimezone().isoformat(timespec="seconds"),
            "cells": [[cell.asked, dict(cell.axes)] for cell in plan.cells],
        }
        self._write(self.folder / "plans" / f"{short_digest(plan.name)}.json", body)

    def plans(self) -> list[KeptPlan]:
        """Plans that were run on this store, by name; what cannot be read is left out."""
        found = [_plan_of(_json_of(path, _LARGEST_PLAN)) for path in sorted(self.folder.glob("plans/*.json"))]
        return sorted(filter(None, found), key=lambda plan: plan.name)

    def run_ids(self) -> set[str]:
        """Ids of every run of a cell."""
        return {path.stem for path in self.store.paths() if cell_of(path.stem)} | self._finished

    def failures(self) -> dict[str, str]:
        """Sentence of each cell that failed last."""
        said = {path.stem: _json_of(path, _LARGEST_FAILURE) for path in self.folder.glob("failed/*.json")}
        return {asked: shown(value["says"], 600) for asked, value in said.items() if _says(value)}

    def fail(self, asked: str, says: str) -> None:
        """Keep why a cell failed."""
        about = {"says": says, "host": socket.gethostname(), "when": time.time()}
        self._write(self.folder / "failed" / f"{asked}.json", about)

    def succeed(self, asked: str, run_id: str) -> None:
        """Know that a cell is there, and forget that it failed."""
        self._finished.add(run_id)
        (self.folder / "failed" / f"{asked}.json").unlink(missing_ok=True)

    @contextmanager
    def claim(self, asked: str) -> Iterator[bool]:
        """Hold a cell for as long as it is computed; False where another computes it."""
        path = self.folder / "claims" / asked
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held = _locked_soon(path)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be written to ({error.strerror}).") from error
        try:
            os.ftruncate(held, 0)
            os.pwrite(held, json.dumps({"host": socket.gethostname(), "since": time.time()}).encode(), 0)
            yield True
        finally:
            path.unlink(missing_ok=True)  # while it is locked, so that nobody locks what is gone
            os.close(held)

    def running(self) -> dict[str, str]:
        """Cells that are being computed, with where and since when."""
        found = {}
        for path in self.folder.glob("claims/*"):
            with suppress(OSError, BlockingIOError):
                said = _json_of(path, _LARGEST_FAILURE) or {}
                try:
                    os.close(lock(path, wait=False))  # nobody has it: its worker died
                except BlockingIOError:
                    since = time.time() - float(said.get("since", time.time()))
                    found[path.name] = f"on {shown(said.get('host', '?'), 60)} for {max(0, since):.0f} s"
        return found

    def cards(self, run_ids: Iterable[str] | None = None) -> dict[str, CellCard]:
        """Cards of the runs of cells, by id: those that are kept, and of others out of the run files, which are kept
        then. Runs that cannot be read have none.
        """
        wanted = self.run_ids() if run_ids is None else set(run_ids)
        path = self.folder / "cards.jsonl"
        with suppress(OSError):
            self._read_on(path)
        kept = {run_id: self._kept[run_id] for run_id in wanted & self._kept.keys()}
        new = sorted(wanted - kept.keys())
        if new:
            paths = [self.store.path_of(run_id) for run_id in new]
            read = [card for _, card in each_database(paths, _read_card) if not isinstance(card, StoreError)]
            kept |= {card.run_id: card for card in read}
            with suppress(OSError):  # a store that is only read has none
                path.parent.mkdir(parents=True, exist_ok=True)
                with locked(path), path.open("ab") as file:
                    file.write(b"".join(json.dumps(asdict(card)).encode() + b"\n" for card in read))
        return kept

    def states(self, cells: Sequence[tuple[str, Mapping[str, str]]]) -> list[CellState]:
        """State of each of the cells, given as (digest, axes)."""
        wanted = {asked for asked, _ in cells}
        ids = {run_id for run_id in self.run_ids() if cell_of(run_id) in wanted}
        of_cell: dict[str, list[CellCard]] = {}
        for card in sorted(self.cards(ids).values(), key=lambda card: card.created, reverse=True):
            of_cell.setdefault(card.asked, []).append(card)
        failures, running = self.failures(), self.running()
        found = []
        for asked, axes in cells:
            cards = tuple(of_cell.get(asked, ()))
            if asked in running:
                state, says = RUNNING, running[asked]
            elif asked in failures:
                state, says = FAILED, failures[asked]
            else:
                state, says = (DONE if cards else MISSING), ""
            found.append(CellState(asked, axes, state, says, cards))
        return found

    def _read_on(self, path: Path) -> None:
        """Read the cards that came since it was last read, so that a sweep of n cells reads each card once. A line
        that is being written is left for the next time.
        """
        about = path.lstat()
        inode, at = self._read
        if inode != about.st_ino or about.st_size < at:
            self._kept, at = {}, 0
        whole = read_regular(path, _LARGEST_CARDS, at).rpartition(b"\n")[0]
        for line in whole.splitlines():
            with suppress(ValueError, RecursionError):
                card = CellCard.from_json(json.loads(line))
                if card is not None:
                    self._kept[card.run_id] = card
        self._read = (about.st_ino, at + len(whole) + bool(whole))

    def _write(self, path: Path, value: Any) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be written to ({error.strerror}).") from error


def _locked_soon(path: Path) -> int:
    """Lock of a claim; BlockingIOError where somebody has it for longer than `running` takes to look."""
    for _ in range(_LOOKS):
        with suppress(BlockingIOError):
            return lock(path, wait=False, mode=0o666)
        time.sleep(_LOOK_SECONDS)
    return lock(path, wait=False, mode=0o666)


def in_ledger(cells: Sequence[Cell]) -> list[tuple[str, Mapping[str, str]]]:
    """Cells of a plan as `Ledger.states` takes them."""
    return [(cell.asked, cell.axes) for cell in cells]


def _json_of(path: Path, most: int) -> Any:
    try:
        return json.loads(read_regular(path, most))
    except (OSError, ValueError, RecursionError):
        return None


def _says(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("says"), str)


def _plan_of(value: Any) -> KeptPlan | None:
    try:
        cells = tuple((str(asked), {axis: str(axes[axis]) for axis in AXES}) for asked, axes in value["cells"])
        return KeptPlan(str(value["name"]), str(value["begun"]), cells)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


_OF_PAIR = ("bit_identical", "flips", "neq_share", "max_abs", "verdict", "noise_ratio")


def _read_card(database: Database) -> CellCard:
    about = read_run(database, "created", "kind", "revision", "device", "device_name", "versions", "request")
    columns = ", ".join(_OF_PAIR)
    selected = f"{columns}, {PAIR.selected(database, ['max_row_ulps'])}"
    pairs = database.rows(f"SELECT {selected} FROM run_file.pair ORDER BY pair", most=_MOST_SIDES)
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
    )
