"""States of files that become runs, for every process of one store: `.ingests/RUN.json`, written by the one whose job
it is.

A file says what the job last said of itself, for a day. Whether somebody is still at work on it is not its to say: a
process that is killed writes no end, but what it began goes (`app.uploads.ingest_jobs.is_arriving`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from app.shell.jobs import TAKING_IN, Job
from core.disk import read_regular, write_atomic

FOLDER = ".ingests"
KEPT_SECONDS = 86_400.0
EVERY_SECONDS = 0.5  # at most so often a file is written while rows are counted
_LONGEST_MESSAGE = 2000
_UNSAID = ("number", "device", "arguments")  # of the process itself; arguments hold its paths


def teller(store: Path) -> Callable[[Job], None]:
    """Function that a job calls when its state changes. Nothing goes wrong with the job where it cannot be written."""
    last: tuple[str, str, float] | None = None

    def tell(job: Job) -> None:
        nonlocal last
        now = time.monotonic()
        if (
            last is not None
            and last[:2] == (job.state, job.stage)
            and now - last[2] < EVERY_SECONDS
            and not job.is_over
        ):
            return
        last = job.state, job.stage, now
        with suppress(OSError):
            _write(store / FOLDER, job)

    return tell


def read(store: Path, run_id: str) -> Job | None:
    """State last written of the file that becomes this run; None where there is none, or it cannot be understood."""
    path = store / FOLDER / f"{run_id}.json"
    if path.parent != store / FOLDER or path.name.startswith("."):
        return None
    try:
        body = read_regular(path, 1 << 20)
        return Job(**{"number": 0, "device": TAKING_IN, "arguments": (), **_checked(json.loads(body))})
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def listed(store: Path) -> list[Job]:
    """Jobs of the last day, the newest first."""
    found = []
    for path in (store / FOLDER).glob("*.json"):
        with suppress(OSError):
            found.append((path.stat().st_mtime, path.stem))
    jobs = (read(store, run_id) for _, run_id in sorted(found, reverse=True))
    return [job for job in jobs if job is not None]


def forget_old(store: Path) -> None:
    """Remove what is older than a day, and what a clock wrote that was ahead by one."""
    for path in (store / FOLDER).glob("*"):  # what a killed writer left among them
        with suppress(OSError):
            if abs(time.time() - path.stat().st_mtime) > KEPT_SECONDS:
                path.unlink()


def _write(folder: Path, job: Job) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    said = {key: value for key, value in asdict(job).items() if key not in _UNSAID}
    said["message"] = said["message"][:_LONGEST_MESSAGE]
    write_atomic(folder / f"{job.reserved}.json", json.dumps(said).encode(), mode=0o600)


def _checked(said: object) -> dict[str, Any]:
    """The fields of a job, each of its type; ValueError for anything else."""
    if not isinstance(said, dict):
        raise ValueError("no object")
    kinds = {field.name: field.type for field in fields(Job)}
    types: dict[str, Any] = {"int": int, "float": (int, float), "str": str}
    for key, value in said.items():
        if (
            key in _UNSAID
            or key not in kinds
            or isinstance(value, bool)
            or not isinstance(value, types[str(kinds[key])])
        ):
            raise ValueError(f"{key} means nothing")
    return said
