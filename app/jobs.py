"""Captures started from a page: each in a process of its own, one at a time, seen by every viewer.

A job is the command line itself (`python -m core capture ... --progress json`), so it can be copied and repeated, it does not
slow the pages down, and it survives a page switch and a closed tab. Torch is loaded by that process alone.
"""

from __future__ import annotations

import atexit
import itertools
import json
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NOTHING_STORED = "cancelled; nothing was stored"
PATIENCE_SECONDS = 10  # how long a cancelled job may take to clean up before it is killed


@dataclass(frozen=True)
class Job:
    """One job as it stands. state: waiting, running, cancelling, done, failed or cancelled; rows are positions over all sides."""

    number: int
    title: str
    device: str
    arguments: tuple[str, ...]
    state: str = "waiting"
    stage: str = ""
    rows_done: int = 0
    rows_total: int = 0
    seconds: float = 0.0
    run_id: str = ""
    message: str = ""

    @property
    def command(self) -> str:
        """What a person would type for it."""
        return shlex.join(["python", "-m", "core", *self.arguments])

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def share(self) -> float:
        return self.rows_done / self.rows_total if self.rows_total else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the rows so far; None while there are none."""
        return self.seconds * (1 / self.share - 1) if self.share > 0 else None


class Jobs:
    """All jobs of this server, one at a time. Every method may be called from any thread; `Job`s handed out are snapshots.

    One after another whatever their device: which one "the best there is" means is only known in the job's own process, and two
    captures on the cores of one machine would time each other, not the model.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._waiting: queue.Queue[int] = queue.Queue()
        self._process: subprocess.Popen | None = None
        self._running = 0
        self._is_stopped = False
        threading.Thread(target=self._work, name="ulpscope-jobs", daemon=True).start()
        atexit.register(self.stop)

    def all(self) -> list[Job]:
        """Newest first."""
        with self._lock:
            return sorted(self._jobs.values(), key=lambda job: -job.number)

    def submit(self, arguments: Sequence[str], *, title: str, device: str) -> Job:
        """Line up `python -m core ARGUMENTS`; it starts when those before it have ended."""
        with self._lock:
            job = Job(next(self._numbers), title, device, tuple(arguments))
            self._jobs[job.number] = job
        self._waiting.put(job.number)
        return job

    def cancel(self, number: int) -> None:
        """Stop a waiting or running job; what it began is removed by the job itself, so it is over only when its process is."""
        with self._lock:
            job = self._jobs.get(number)
            if job is None or job.state not in ("waiting", "running"):
                return
            if job.state == "waiting":
                self._jobs[number] = replace(job, state="cancelled", message=_NOTHING_STORED)
                return
            self._jobs[number] = replace(job, state="cancelling", message="cancelling")
            process = self._process if self._running == number else None
        if process is not None:
            process.terminate()
            threading.Thread(target=_kill_later, args=(process,), daemon=True).start()

    def forget(self, number: int) -> None:
        """Take a finished job off the list; its run stays."""
        with self._lock:
            if number in self._jobs and self._jobs[number].is_over:
                del self._jobs[number]

    def stop(self) -> None:
        """End what runs and start nothing more: the server is going away, and nobody would see the rest."""
        with self._lock:
            self._is_stopped = True
            process = self._process
        if process is not None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_SECONDS)

    def _change(self, number: int, **values: object) -> None:
        with self._lock:
            if number in self._jobs:
                self._jobs[number] = replace(self._jobs[number], **values)  # type: ignore[arg-type]

    def _work(self) -> None:
        while True:
            number = self._waiting.get()
            try:
                self._run(number)
            except Exception as error:  # the line behind it must go on, whatever a job's process did or said
                self._change(number, state="failed", message=f"it could not be run ({error}).")
            finally:
                with self._lock:
                    self._process, self._running = None, 0

    def _run(self, number: int) -> None:
        with self._lock:
            job = self._jobs.get(number)
            if self._is_stopped or job is None or job.state != "waiting":  # cancelled while it waited
                return
            command = [sys.executable, "-m", "core", *job.arguments, "--progress", "json", "--store", str(self._store.absolute())]
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
            )  # fmt: skip
            self._process, self._running = process, number
            self._jobs[number] = replace(job, state="running", stage="starting")
        if process.stdout is None or process.stderr is None:
            raise ValueError("a job's output and errors are pipes")
        errors: list[str] = []
        reader = threading.Thread(target=lambda pipe=process.stderr: errors.append(pipe.read()), daemon=True)
        reader.start()
        began = time.monotonic()
        for text in process.stdout:
            said = _object(text)
            known = {key: said[key] for key in ("stage", "rows_done", "rows_total", "run_id") if key in said}
            self._change(number, seconds=time.monotonic() - began, **known)
        code = process.wait()
        reader.join(5)
        self._end(number, code, "".join(errors))

    def _end(self, number: int, code: int, errors: str) -> None:
        with self._lock:
            job = self._jobs[number]
            if code == 0 and job.run_id:  # also where a cancel came too late
                self._jobs[number] = replace(job, state="done", rows_done=job.rows_total, message="")
            elif job.state == "cancelling":
                self._jobs[number] = replace(job, state="cancelled", message=_NOTHING_STORED)
            else:
                said = [line for line in errors.splitlines() if line.strip()]
                last = said[-1] if said else f"it ended with exit code {code}."
                sentence = next((line.removeprefix("error: ") for line in said if line.startswith("error: ")), last)
                self._jobs[number] = replace(job, state="failed", message=sentence)


def _object(text: str) -> dict[str, object]:
    """A line of JSON; empty for whatever else a process prints."""
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _kill_later(process: subprocess.Popen) -> None:
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
