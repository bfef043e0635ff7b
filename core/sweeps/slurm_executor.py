"""Cells of a sweep as jobs of Slurm, through submitit: an array of jobs, each some cells of one model, computed into a
store that every node shares. What became of each cell is a line in the sweep's folder of the store.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from ..disk import read_regular
from ..errors import ExtraError, UlpscopeError
from ..runs.store.store import Store
from ..subprocess_json import ROOT, object_of
from ..text import shown, slug
from . import workers
from .ledger import FAILED, FOLDER
from .plan import Cell, SlurmTable
from .workers import CellOutcome, Event, Worker

_LOOK_SECONDS = 1.0  # between two looks at what the jobs wrote
_STATE_SECONDS = 15.0  # between two questions to Slurm, of all jobs at once
_GRACE_SECONDS = 10.0  # for the lines of a job that has ended to be seen here
_KEPT_SECONDS = 14 * 86400.0  # for which the folder of a driver that was killed stays: its jobs may wait in the queue
_LARGEST_LINES = 64 << 20  # bytes read of one job's lines at a time
_BEGUN = "begun"


@dataclass(frozen=True)
class SlurmPart:
    """One job: cells one after another by one worker. Called on a node; requeued after a time-out it begins anew, and
    what is there is not computed again.
    """

    cells: tuple[Cell, ...]
    store: Path
    lines: Path
    folder: Path
    engines: tuple[str, ...]
    package: str

    def __call__(self) -> None:
        """Compute the cells. Every line is written whole, and by nobody else."""
        with (
            Worker(self.store, self.engines, folder=self.folder, package=self.package) as worker,
            self.lines.open("a", buffering=1) as lines,
        ):
            for cell in self.cells:
                lines.write(json.dumps({"asked": cell.asked, "state": _BEGUN, "says": socket.gethostname()}) + "\n")
                outcome = worker.compute(cell)
                about = {field.name: getattr(outcome, field.name) for field in fields(outcome) if field.name != "cell"}
                lines.write(json.dumps({"asked": cell.asked, **about}) + "\n")

    def checkpoint(self) -> Any:
        """Queue it again where its time is over or another needs the node: submitit asks for that by this name."""
        return import_module("submitit").helpers.DelayedSubmission(self)


class _Lines:
    """Lines that the jobs of a sweep write, as they come."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = {cell.asked: cell for cell in cells}
        self._read: dict[Path, int] = {}
        self.left = dict(self._cells)  # cells of which nothing is known yet

    def new(self, path: Path) -> Iterator[CellOutcome | Event]:
        """Yield what a job wrote since it was last looked at; an outcome a cell, the first."""
        at = self._read.get(path, 0)
        try:
            whole = read_regular(path, _LARGEST_LINES, at).rpartition(b"\n")[0]
        except OSError:  # it has not begun
            return
        self._read[path] = at + len(whole) + bool(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            said = object_of(line)
            cell = self.left.get(str(said.pop("asked", "")))
            if cell is None:
                continue
            if said.get("state") == _BEGUN:
                yield Event(cell, f"begun, on {said.get('says')}")
                continue
            with suppress(TypeError):
                outcome = CellOutcome(cell, **said)
                del self.left[cell.asked]
                yield outcome


def compute_on_slurm(
    cells: Sequence[Cell],
    store: Store,
    table: SlurmTable,
    *,
    name: str = "sweep",
    engines: Sequence[str] = (),
    tell: Callable[[Event], None] = lambda _: None,
) -> Iterator[CellOutcome]:
    """Compute cells as jobs; each cell's outcome as it comes. Closing the iterator cancels the
    jobs; where this process is killed they go on, and another sweep finds what they computed.
    """
    if store.mirror is not None:
        raise UlpscopeError(f"{store.address}: jobs of Slurm need a store that is a directory of every node.")
    folder = store.directory.absolute() / FOLDER / "slurm" / secrets.token_hex(8)
    try:
        folder.mkdir(parents=True)
        _tidy(folder.parent)
    except OSError as error:
        raise UlpscopeError(f"{folder}: cannot be made ({error.strerror}).") from error
    parts = {
        folder / f"{number}.jsonl": SlurmPart(
            group, store.directory.absolute(), folder / f"{number}.jsonl", Path.cwd(), tuple(engines), workers.PACKAGE
        )
        for number, group in enumerate(parts_of(cells, table.cells))
    }
    lines, submitted = _Lines(cells), {}
    try:
        submitted = _submit(parts, table, name, folder)
        ended: dict[Path, float] = {}  # since when
        asked = time.monotonic()
        while lines.left:
            for path in parts:
                for found in lines.new(path):
                    if isinstance(found, Event):
                        tell(found)
                    else:
                        yield found
            if time.monotonic() - asked > min(_STATE_SECONDS, _GRACE_SECONDS):
                asked = time.monotonic()
                for path, job in submitted.items():
                    if path not in ended and _is_done(job):
                        ended[path] = time.monotonic()
            for path, since in ended.items():
                if time.monotonic() - since > _GRACE_SECONDS:
                    for cell in parts[path].cells:
                        if lines.left.pop(cell.asked, None) is not None:
                            yield CellOutcome(cell, FAILED, says=_ended_how(submitted[path]))
            time.sleep(_LOOK_SECONDS if lines.left else 0)
        ends = time.monotonic() + _GRACE_SECONDS
        while not all(map(_is_done, submitted.values())) and time.monotonic() < ends:
            time.sleep(_LOOK_SECONDS)  # a job writes into the folder once more as it ends
    finally:
        for path, job in submitted.items():
            if any(cell.asked in lines.left for cell in parts[path].cells):
                with suppress(Exception):  # whatever is wrong with it: the others are cancelled
                    job.cancel()
        shutil.rmtree(folder, ignore_errors=True)


def _tidy(top: Path) -> None:
    """Remove what drivers that were killed left, long after their jobs."""
    for folder in top.iterdir():
        with suppress(OSError):
            if time.time() - max(path.stat().st_mtime for path in (folder, *folder.glob("*.jsonl"))) > _KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def parts_of(cells: Sequence[Cell], most: int) -> list[tuple[Cell, ...]]:
    """Cells of one model, dtype and device together, at most so many."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.axes[axis] for axis in ("model", "dtype", "device")), []).append(cell)
    return [tuple(group[n : n + most]) for group in groups.values() for n in range(0, len(group), most)]


def _submit(parts: Mapping[Path, SlurmPart], table: SlurmTable, name: str, folder: Path) -> dict[Path, Any]:
    """Submit every job, those with a GPU and those without in an array each. -> the jobs by their lines"""
    try:
        submitit: Any = import_module("submitit")
    except ImportError:
        says = "--slurm needs submitit, which is not installed; `pip install 'ulpscope[slurm]'` brings it."
        raise ExtraError(says) from None
    found: dict[Path, Any] = {}
    for has_gpus in (True, False):
        some = {path: part for path, part in parts.items() if _wants_gpus(part, table) == has_gpus}
        if not some:
            continue
        try:
            with _importable():
                executor = submitit.AutoExecutor(folder=folder / "jobs", cluster=table.cluster)
                executor.update_parameters(**_parameters(table, name, has_gpus))
                found |= zip(some, executor.map_array(SlurmPart.__call__, some.values()), strict=True)
        except Exception as error:  # of submitit, of Slurm's commands, of the pickles
            said = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise UlpscopeError(f"--slurm: the jobs could not be submitted ({shown(' '.join(said), 400)}).") from error
    return found


def _wants_gpus(part: SlurmPart, table: SlurmTable) -> bool:
    return table.gpus > 0 and part.cells[0].axes["device"] != "cpu"


def _parameters(table: SlurmTable, name: str, has_gpus: bool) -> dict[str, Any]:
    """Parameters of a job under submitit's names; those of Slurm alone count on Slurm alone."""
    return {
        "name": f"ulpscope-{slug(name, besides='._-')}",
        "timeout_min": table.minutes,
        "cpus_per_task": table.cpus,
        "gpus_per_node": table.gpus if has_gpus else None,
        "mem_gb": table.memory_gb or None,
        "slurm_partition": table.partition or None,
        "slurm_account": table.account or None,
        "slurm_array_parallelism": table.jobs,
    }


@contextmanager
def _importable() -> Iterator[None]:
    """Let jobs import this package from wherever they are started: they have the environment of who submits them."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _is_done(job: Any) -> bool:
    with suppress(Exception):  # Slurm's accounts may be out of reach for a while
        return bool(job.done())
    return False


def _ended_how(job: Any) -> str:
    """Sentence on a job that ended without a word on a cell."""
    state, last = "unknown", ""
    with suppress(Exception):
        state = str(job.state)
    with suppress(Exception):
        said = [line.strip() for line in str(job.stderr() or "").splitlines() if line.strip()]
        last = f": {shown(said[-1], 200)}" if said else ""
    return f"its job {job.job_id} ended as {shown(state)} before it was computed{last or '.'}"
