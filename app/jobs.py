"""Captures started from a page: each in a process of its own, one at a time on a device, seen by every viewer.

A job is the command line itself (`python -m core capture ... --progress json`), so it can be copied and repeated, it does not
slow the pages down, and it survives a page switch and a closed tab. Torch is loaded by that process alone.
"""

from __future__ import annotations

import atexit
import json
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATIENCE_SECONDS = 10  # how long a cancelled job may take to clean up before it is killed


@dataclass(frozen=True)
class Job:
    """One job as it stands. state: waiting, running, done, failed or cancelled; rows are positions over all sides."""

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


@dataclass
class _Line:
    """The jobs of one device, one after another."""

    waiting: queue.Queue = field(default_factory=queue.Queue)
    thread: threading.Thread | None = None


class Jobs:
    """All jobs of this server. Every method may be called from any thread; `Job`s handed out are snapshots."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._processes: dict[int, subprocess.Popen] = {}
        self._lines: dict[str, _Line] = {}
        atexit.register(self.stop)

    def all(self) -> list[Job]:
        """Newest first."""
        with self._lock:
            return sorted(self._jobs.values(), key=lambda job: -job.number)

    def submit(self, arguments: Sequence[str], *, title: str, device: str) -> Job:
        """Line up `python -m core ARGUMENTS`; it starts when the device is free."""
        with self._lock:
            job = Job(max(self._jobs, default=0) + 1, title, device, tuple(arguments))
            self._jobs[job.number] = job
            line = self._lines.setdefault(device, _Line())
            line.waiting.put(job.number)
            if line.thread is None:
                line.thread = threading.Thread(target=self._work, args=(line,), name=f"ulpscope-jobs-{device}", daemon=True)
                line.thread.start()
        return job

    def cancel(self, number: int) -> None:
        """Stop a waiting or running job; what it began is removed by the job itself."""
        with self._lock:
            job = self._jobs.get(number)
            if job is None or job.is_over:
                return
            self._jobs[number] = replace(job, state="cancelled", message="cancelled; nothing was stored")
            process = self._processes.get(number)
        if process is not None:
            process.send_signal(signal.SIGINT)
            threading.Thread(target=_kill_later, args=(process,), daemon=True).start()

    def forget(self, number: int) -> None:
        """Take a finished job off the list; its run stays."""
        with self._lock:
            if number in self._jobs and self._jobs[number].is_over:
                del self._jobs[number]

    def stop(self) -> None:
        """End what runs: the server is going away, and nobody would see the rest."""
        with self._lock:
            running = list(self._processes.values())
        for process in running:
            process.terminate()

    def _change(self, number: int, **values: object) -> None:
        with self._lock:
            if number in self._jobs:
                self._jobs[number] = replace(self._jobs[number], **values)  # type: ignore[arg-type]

    def _work(self, line: _Line) -> None:
        while True:
            number = line.waiting.get()
            with self._lock:
                job = self._jobs.get(number)
                if job is None or job.is_over:  # cancelled while it waited
                    continue
                command = [
                    sys.executable,
                    "-m",
                    "core",
                    *job.arguments,
                    "--progress",
                    "json",
                    "--store",
                    str(self._store.absolute()),
                ]
                try:
                    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                except OSError as error:
                    self._jobs[number] = replace(job, state="failed", message=f"it could not be started ({error}).")
                    continue
                self._processes[number] = process
                self._jobs[number] = replace(job, state="running", stage="starting")
            self._follow(number, process)
            with self._lock:
                del self._processes[number]

    def _follow(self, number: int, process: subprocess.Popen) -> None:
        if process.stdout is None or process.stderr is None:
            raise ValueError("a job's output and errors are pipes")
        errors: list[str] = []
        reader = threading.Thread(target=lambda pipe=process.stderr: errors.append(pipe.read()), daemon=True)
        reader.start()
        began = time.monotonic()
        for text in process.stdout:
            try:
                said = json.loads(text)
            except ValueError:
                continue  # something else that the process printed
            self._change(
                number,
                seconds=time.monotonic() - began,
                **{key: said[key] for key in ("stage", "rows_done", "rows_total", "run_id") if key in said},
            )
        code = process.wait()
        reader.join(5)
        with self._lock:
            job = self._jobs.get(number)
            if job is None or job.state == "cancelled":
                return
            if code == 0 and job.run_id:
                self._jobs[number] = replace(job, state="done", rows_done=job.rows_total)
                return
            said = [line for line in "".join(errors).splitlines() if line.strip()]
            sentence = next(
                (line.removeprefix("error: ") for line in said if line.startswith("error: ")), said[-1] if said else ""
            )
            self._jobs[number] = replace(job, state="failed", message=sentence or f"it ended with exit code {code}.")


def _kill_later(process: subprocess.Popen) -> None:
    try:
        process.wait(PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
