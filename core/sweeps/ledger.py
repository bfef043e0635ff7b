"""State of a sweep in a store: which cells are done, failed or being computed, told by its files alone, so that any
number of workers on any number of machines fill one store and a sweep that was killed goes on.

A run of a cell is called `cell-ASKED-WITH`: the digest of what was asked for, and of what it was computed with. Beside
the runs, in `.sweeps/`: plans/NAME.json, failed/ASKED.json, claims/ASKED (locked by whoever computes it) and
cards.jsonl, the figures of runs, which can be had again from the runs themselves. Of a store of objects all that is
there too, claims as leases (claims/ASKED.json) and cards by machine (cards/MACHINE.json).
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
from typing import Any

from ..disk import lock, locked, read_regular, write_atomic
from ..errors import StoreError
from ..runs.file.database import each_database
from ..runs.store.lease import is_alive
from ..runs.store.mirror import Mirror
from ..runs.store.store import Store, cell_of
from ..text import shown
from .cards import CellCard, read_card
from .plan import AXES, Cell, SweepPlan, short_digest

FOLDER = ".sweeps"
DONE, FAILED, RUNNING, MISSING = "done", "failed", "running", "missing"
_LOOKS, _LOOK_SECONDS = 5, 0.02  # who looks whether a claim is held has it for a moment
_LARGEST_PLAN = 64 << 20  # bytes of a kept plan: 100,000 cells take some 30 MB
_LARGEST_CARDS = 256 << 20
_LARGEST_FAILURE = 16 << 10
_SHARE_SECONDS = 60.0  # between two times that a machine's cards are put into a store of objects


def run_id_of(asked: str, environment: Mapping[str, Any]) -> str:
    """Id of the run of a cell under an environment."""
    return f"cell-{asked}-{short_digest(environment)}"


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
        self._there: set[str] = set()  # runs of which `_of_cell` has the cards
        self._of_cell: dict[str, tuple[CellCard, ...]] = {}
        self._states: dict[str, CellState] = {}
        self._plans: dict[Path, tuple[tuple[int, int], KeptPlan | None]] = {}
        self._finished: set[str] = set()  # that a list of objects may not have yet
        self._read: tuple[int, int] = (0, 0)  # its inode, and the bytes of whole lines
        self._shared: dict[Path, tuple[int, int]] = {}  # cards of other machines, as far as they were read
        self._shared_at = 0.0

    def keep(self, plan: SweepPlan) -> None:
        """Keep a plan's cells, in place of an older plan of its name."""
        body = {
            "name": plan.name,
            "begun": datetime.now().astimezone().isoformat(timespec="seconds"),
            "cells": [[cell.asked, dict(cell.axes)] for cell in plan.cells],
        }
        name = f"plans/{short_digest(plan.name)}.json"
        self._write(self.folder / name, body)
        if self._mirror is not None:
            self._mirror.send_small(f"{FOLDER}/{name}", _LARGEST_PLAN)

    def plans(self) -> list[KeptPlan]:
        """Plans that were run on this store, by name; what cannot be read is left out."""
        self._bring("plans", _LARGEST_PLAN)
        read: dict[Path, tuple[tuple[int, int], KeptPlan | None]] = {}
        for path in self.folder.glob("plans/*.json"):
            with suppress(OSError):
                about = path.lstat()
                stamp = (about.st_mtime_ns, about.st_size)
                kept = self._plans.get(path)
                is_same = kept is not None and kept[0] == stamp
                read[path] = kept if kept and is_same else (stamp, _plan_of(_json_of(path, _LARGEST_PLAN)))
        self._plans = read
        return sorted((plan for _, plan in read.values() if plan is not None), key=lambda plan: plan.name)

    def run_ids(self) -> set[str]:
        """Ids of every run of a cell."""
        return self.store.cells() | self._finished

    def failures(self) -> dict[str, str]:
        """Sentence of each cell that failed last."""
        self._bring("failed", _LARGEST_FAILURE)
        said = {path.stem: _json_of(path, _LARGEST_FAILURE) for path in self.folder.glob("failed/*.json")}
        return {asked: shown(value["says"], 600) for asked, value in said.items() if _says(value)}

    def fail(self, asked: str, says: str) -> None:
        """Keep why a cell failed."""
        about = {"says": says, "host": socket.gethostname(), "when": time.time()}
        self._write(self.folder / "failed" / f"{asked}.json", about)
        self._send_failure(asked)

    def succeed(self, asked: str, run_id: str) -> None:
        """Know that a cell is there, and forget that it failed."""
        self._finished.add(run_id)
        path = self.folder / "failed" / f"{asked}.json"
        self._bring("failed", _LARGEST_FAILURE)
        if path.exists():
            path.unlink(missing_ok=True)
            self._send_failure(asked)

    @contextmanager
    def claim(self, asked: str) -> Iterator[bool]:
        """Hold a cell for as long as it is computed, of a store of objects among all machines; False where another
        computes it.
        """
        with self._claim_here(asked) as is_ours:
            if not is_ours or self._mirror is None:
                yield is_ours
                return
            with self._mirror.lease(f"{FOLDER}/claims/{asked}.json") as is_ours_there:
                yield is_ours_there

    @contextmanager
    def _claim_here(self, asked: str) -> Iterator[bool]:
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
        self._bring("claims", _LARGEST_FAILURE)
        for path in self.folder.glob("claims/*.json"):  # of other machines, and of this one there
            said = _json_of(path, _LARGEST_FAILURE)
            if is_alive(said):
                found[path.stem] = _since(said)
        for path in self.folder.glob("claims/*"):
            with suppress(OSError, BlockingIOError):
                if path.suffix:
                    continue
                said = _json_of(path, _LARGEST_FAILURE) or {}
                try:
                    os.close(lock(path, wait=False))  # nobody has it: its worker died
                except BlockingIOError:
                    found[path.name] = _since(said)
        return found

    def cards(self, run_ids: Iterable[str] | None = None) -> dict[str, CellCard]:
        """Cards of the runs of cells, by id: those that are kept, and of others out of the run files, which are kept
        then. Runs that cannot be read have none.
        """
        wanted = self.run_ids() if run_ids is None else set(run_ids)
        path = self.folder / "cards.jsonl"
        with suppress(OSError):
            self._read_on(path)
        if wanted - self._kept.keys():
            self._read_shared()
        kept = {run_id: self._kept[run_id] for run_id in wanted & self._kept.keys()}
        new = sorted(wanted - kept.keys())
        if new:
            paths = [self.store.path_of(run_id) for run_id in new]
            read = [card for _, card in each_database(paths, read_card) if not isinstance(card, StoreError)]
            kept |= {card.run_id: card for card in read}
            with suppress(OSError):  # a store that is only read has none
                path.parent.mkdir(parents=True, exist_ok=True)
                with locked(path), path.open("ab") as file:
                    file.write(b"".join(json.dumps(asdict(card)).encode() + b"\n" for card in read))
            if time.monotonic() - self._shared_at > _SHARE_SECONDS:
                self.share()
        return kept

    def share(self) -> None:
        """Put this machine's cards into a store of objects, so that no other has to fetch the runs for them."""
        if self._mirror is None:
            return
        machine = short_digest(self._mirror.machine)
        with suppress(OSError, StoreError):  # it is a help: cards can be had again from the runs
            body = read_regular(self.folder / "cards.jsonl", _LARGEST_CARDS)
            (self.folder / "cards").mkdir(parents=True, exist_ok=True)
            write_atomic(self.folder / "cards" / f"{machine}.json", body)
            self._mirror.send_small(f"{FOLDER}/cards/{machine}.json", _LARGEST_CARDS)
            self._shared_at = time.monotonic()

    def states(self, cells: Sequence[tuple[str, Mapping[str, str]]]) -> list[CellState]:
        """State of each of the cells, given as (digest, axes). Of a cell with nothing new it is the same object as the
        last time: of 10,000 cells 10 ms.
        """
        self._sort_in(self.run_ids())
        failures, running = self.failures(), self.running()
        found = []
        for asked, axes in cells:
            cards = self._of_cell.get(asked, ())
            if asked in running:
                state, says = RUNNING, running[asked]
            elif asked in failures:
                state, says = FAILED, failures[asked]
            else:
                state, says = (DONE if cards else MISSING), ""
            kept = self._states.get(asked)
            is_same = kept is not None and kept.cards is cards and kept.axes is axes and kept.state == state
            if kept is None or not is_same or kept.says != says:
                kept = self._states[asked] = CellState(asked, axes, state, says, cards)
            found.append(kept)
        return found

    def _sort_in(self, run_ids: set[str]) -> None:
        """Bring the cards by cell, the latest first, up to the runs that are there."""
        gone = self._there - run_ids
        new = self.cards(run_ids - self._there)
        of_cell: dict[str, list[CellCard]] = {cell_of(run_id) or "": [] for run_id in gone}
        for card in new.values():
            of_cell.setdefault(card.asked, []).append(card)
        for asked, cards in of_cell.items():
            cards += [card for card in self._of_cell.get(asked, ()) if card.run_id not in gone]
            self._of_cell[asked] = tuple(sorted(cards, key=lambda card: card.created, reverse=True))
        self._there = (self._there - gone) | new.keys()

    def _read_on(self, path: Path) -> None:
        """Read the cards that came since it was last read, so that a sweep of n cells reads each card once. A line
        that is being written is left for the next time.
        """
        about = path.lstat()
        inode, at = self._read
        if inode != about.st_ino or about.st_size < at:
            self._kept, at = {}, 0
        whole = read_regular(path, _LARGEST_CARDS, at).rpartition(b"\n")[0]
        self._kept |= _cards_of(whole)
        self._read = (about.st_ino, at + len(whole) + bool(whole))

    def _read_shared(self) -> None:
        """Take the cards that other machines put into a store of objects."""
        self._bring("cards", _LARGEST_CARDS)
        for path in self.folder.glob("cards/*.json"):
            with suppress(OSError):
                about = path.lstat()
                stamp = (about.st_mtime_ns, about.st_size)
                if self._shared.get(path) != stamp:
                    self._kept = _cards_of(read_regular(path, _LARGEST_CARDS)) | self._kept
                    self._shared[path] = stamp

    @property
    def _mirror(self) -> Mirror | None:
        return self.store.mirror

    def _bring(self, folder: str, most: int) -> None:
        """Bring what other machines keep of sweeps in a store of objects."""
        if self._mirror is not None:
            self._mirror.bring(f"{FOLDER}/{folder}", most)

    def _send_failure(self, asked: str) -> None:
        if self._mirror is not None:
            with suppress(StoreError):  # it is a help: the next sweep finds the cell missing
                self._mirror.send_small(f"{FOLDER}/failed/{asked}.json")

    def _write(self, path: Path, value: Any) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot be written to ({error.strerror}).") from error


def _cards_of(lines: bytes) -> dict[str, CellCard]:
    """Cards by run, of as many lines as are cards."""
    found = {}
    for line in lines.splitlines():
        with suppress(ValueError, RecursionError):
            card = CellCard.from_json(json.loads(line))
            if card is not None:
                found[card.run_id] = card
    return found


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


def _since(said: Any) -> str:
    """`on HOST for 12 s` of what a claim says."""
    since = said.get("since") if isinstance(said, dict) else None
    seconds = time.time() - since if isinstance(since, int | float) else 0
    host = said.get("host", "?") if isinstance(said, dict) else "?"
    return f"on {shown(host, 60)} for {max(0, seconds):.0f} s"


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
