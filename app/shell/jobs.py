"""Jobs started from a page: each in a process of its own, one at a time on a device, seen by every
viewer.

A job is the command line itself (`ulpscope ingest ... --progress json`), or a capture's request as
JSON on stdin: it can be repeated, does not slow the pages down, and survives a closed tab. That
process alone loads torch.
"""

import atexit
import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import core
from core.capture_request import CaptureRequest
from core.errors import UlpscopeError, UsageError
from core.runs.store.partial import Partial
from core.runs.store.store import Store
from core.subprocess_json import Child
from core.text import clean, file_name

ANY_DEVICE = "auto"
# to choose from; another one, cuda:1, is typed
DEVICES = (ANY_DEVICE, "cpu", "cuda")
# the queue of imports: one at a time, parallel to captures
TAKING_IN = "the store"
GETTING = "the network"  # of downloads of models, likewise
# one probe at a time: two at once would be each other's load
PROBING = "a server"
_NO_DEVICES = (TAKING_IN, GETTING, PROBING)
_NOTHING_STORED = "cancelled; nothing was stored"
# On two cores, during a capture and an ingest, 95 % of 50 viewers' reruns took 2.8 s without it,
# 0.7 s with it.
NICENESS = 10
_DEVICE = re.compile(r"(cpu)|cuda(?::(0|[1-9][0-9]?))?", re.ASCII)
# a cancelled probe gets this long to store what had come
KEEPING_SECONDS = 20
# any other cancelled job gets this long to clean up before it is killed
PATIENCE_SECONDS = 2


def queue_of(device: str | None) -> str:
    """Return the queue of a device, as `--device` names it; None: the best device."""
    if device is None:
        return ANY_DEVICE
    match = _DEVICE.fullmatch(device)
    if match is None:
        raise UsageError(f"'{clean(device, 40)}' names no device; expected cpu, cuda or cuda:N.")
    return "cpu" if match[1] else f"cuda:{match[2] or 0}"


@dataclass(frozen=True)
class Job:
    """State of a job. state: one of waiting, running, cancelling, done, failed or cancelled.

    device: its queue; began, ended: monotonic seconds; rows: positions over all sides, or MB of a
    download; reserved: the id of its run if known before; message: of a job that is done, what
    failed of a run stored in part.
    """

    number: int
    title: str
    device: str
    arguments: tuple[str, ...]
    state: str = "waiting"
    stage: str = ""
    rows_done: int = 0
    rows_total: int = 0
    began: float = 0.0
    ended: float = 0.0
    run_id: str = ""
    message: str = ""
    reserved: str = ""

    @property
    def kind(self) -> str:
        """The tab or page that lists it: upload, ops, probe or capture."""
        if self.device == TAKING_IN:
            return "upload"
        return self.arguments[0] if self.arguments[:1] in (("ops",), ("probe",)) else "capture"

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def seconds(self) -> float:
        """How long it has run: also between its process's messages."""
        return (self.ended or time.monotonic()) - self.began

    @property
    def share(self) -> float:
        return self.rows_done / self.rows_total if self.rows_total else 0.0


@dataclass(frozen=True)
class PromptFile:
    """A file of prompts."""

    name: str
    content: bytes

    @classmethod
    def of_texts(cls, prompts: Sequence[str]) -> Self:
        """Return a file of typed prompts."""
        lines = [json.dumps({"text": text}) + "\n" for text in prompts]
        return cls("prompts.jsonl", "".join(lines).encode())

    def save(self, directory: Path) -> Path:
        """Write the file into a directory and return its path."""
        path = directory / (file_name(self.name) or "prompts.txt")
        path.write_bytes(self.content)
        return path


@dataclass
class _Task:
    """A job with what its process needs. on_over: called at its end."""

    job: Job
    request: CaptureRequest | None
    place: Partial | None
    secrets: Mapping[str, str] | None
    on_over: Callable[[Job], None] | None
    child: Child | None = None


class Jobs:
    """All jobs of this server. Every method may be called from any thread; `Job`s handed out are
    snapshots.

    One at a time on a device, in the order they came; on different devices side by side. Only a
    job's own process knows which device is the best there is, so such a job has the machine for
    itself.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.RLock()
        # a dict keeps the order in which they came
        self._tasks: dict[int, _Task] = {}
        self._newest = 0
        self._spare: Child | None = None
        self._is_stopped = False
        # A server that is ended by a signal tidies nothing up.
        self._sweep()
        atexit.register(self.stop)

    @property
    def store(self) -> Store:
        """Store that the runs go to."""
        return Store(self._store)

    def _sweep(self) -> None:
        with suppress(UlpscopeError, OSError):
            self.store.sweep()

    def all(self, kind: str = "capture") -> list[Job]:
        """Return the jobs of a kind, newest first."""
        with self._lock:
            return [task.job for task in reversed(self._tasks.values()) if task.job.kind == kind]

    def running(self) -> list[Job]:
        """Return the running jobs of all kinds, oldest first."""
        with self._lock:
            return [task.job for task in self._tasks.values() if task.job.state == "running"]

    def submit(
        self,
        work: Sequence[str] | CaptureRequest,
        *,
        title: str,
        device: str,
        prompts: PromptFile | None = None,
        reserved: str = "",
        secrets: Mapping[str, str] | None = None,
        on_over: Callable[[Job], None] | None = None,
    ) -> Job:
        """Line up `ulpscope WORK`, or a capture, in the queue of a device. prompts: its only file
        of prompts, removed at its end.

        on_over: called with the job then, in any thread.
        """
        place = None
        if prompts is not None:
            place = self.store.new_partial("prompts", datetime.now(UTC))
            path = str(prompts.save(place.directory).absolute())
            if isinstance(work, CaptureRequest):
                work = replace(work, prompts=(), prompt_lists=(path,))
            else:
                work = [*work, "--prompts", path]
        request = work if isinstance(work, CaptureRequest) else None
        arguments = work.arguments() if isinstance(work, CaptureRequest) else work
        with self._lock:
            self._newest += 1
            job = Job(self._newest, title, device, tuple(arguments), reserved=reserved)
            self._tasks[job.number] = task = _Task(job, request, place, secrets, on_over)
            self._start_ready()
            return task.job

    def cancel(self, number: int) -> bool:
        """Stop a waiting or running job and return whether there was one.

        It is over when its process has tidied up.
        """
        with self._lock:
            task = self._tasks.get(number)
            if task is None or task.job.state not in ("waiting", "running"):
                return False
            if task.job.state == "waiting":
                self._change(task, state="cancelled", message=_NOTHING_STORED)
                self._drop_files(task)
                self._start_ready()
                return True
            self._change(task, state="cancelling", message="cancelling")
            if task.child is not None:
                patience = KEEPING_SECONDS if task.job.device == PROBING else PATIENCE_SECONDS
                threading.Thread(target=task.child.end, args=(patience,), daemon=True).start()
            return True

    def forget(self, number: int) -> None:
        """Take a finished job off the list; its run stays."""
        with self._lock:
            if number in self._tasks and self._tasks[number].job.is_over:
                del self._tasks[number]

    def warm(self) -> None:
        """Start the spare process of imports while a file is inspected: loading takes longer than
        the import.
        """
        with self._lock:
            if not self._is_stopped and (self._spare is None or not self._spare.is_alive):
                self._drop_spare()
                self._spare = Child(
                    ["-m", core.__name__, "spare"],
                    # a viewer waits for it, and among ten busy processes 10 leaves it 2 % of a core
                    niceness=NICENESS // 2,
                    is_asked=True,
                )

    def _drop_spare(self) -> None:
        if self._spare is not None:
            with self._spare:
                self._spare.end()
        self._spare = None

    def stop(self) -> None:
        """End running jobs and start no more: the server shuts down, and the rest would be lost."""
        with self._lock:
            self._is_stopped = True
            self._drop_spare()
            tasks = list(self._tasks.values())
        children = [task.child for task in tasks if task.child is not None]
        for child in children:
            child.terminate()
        for child in children:
            child.end(PATIENCE_SECONDS)
        for task in tasks:
            self._drop_files(task)

    def _start_ready(self) -> None:
        """Start every waiting job whose device is free, unless one that came earlier waits for the
        same.
        """
        with self._lock:
            busy = {
                task.job.device: task.job.title
                for task in self._tasks.values()
                if task.job.state in ("running", "cancelling")
            }
            for task in self._tasks.values():
                device = task.job.device
                if task.job.state != "waiting" or self._is_stopped:
                    continue
                rivals = {device}
                # it may turn out to be any device
                if device == ANY_DEVICE:
                    rivals = busy.keys() - _NO_DEVICES
                elif device not in _NO_DEVICES:
                    rivals.add(ANY_DEVICE)
                ahead = [title for rival, title in busy.items() if rival in rivals]
                busy.setdefault(device, task.job.title)
                if ahead:
                    self._change(task, stage=f"waiting for {ahead[0]}")
                else:
                    began = time.monotonic()
                    self._change(task, state="running", stage="starting", began=began)
                    threading.Thread(target=self._work, args=(task,), daemon=True).start()

    def _change(self, task: _Task, **values: object) -> None:
        with self._lock:
            task.job = replace(task.job, **values)  # type: ignore[arg-type]

    def _work(self, task: _Task) -> None:
        try:
            self._run(task)
        except Exception as error:
            # the jobs behind it must run after any failure of it
            self._change(task, state="failed", message=f"it could not be run ({error}).")
        finally:
            task.child = None
            self._change(task, ended=time.monotonic())
            self._drop_files(task)
            self._start_ready()

    def _run(self, task: _Task) -> None:
        job = task.job
        with self._lock:
            # before there was a process to end
            if self._is_stopped or task.job.state == "cancelling":
                self._change(task, state="cancelled", message=_NOTHING_STORED)
                return
            # a request goes to stdin: a command line holds 128 kB in an argument
            command = job.arguments if task.request is None else ["perform"]
            arguments = [*command, "--progress", "json"]
            if job.device != GETTING:
                arguments += ["--store", str(self._store.absolute())]
            spare = self._spare
            is_import = job.device == TAKING_IN
            if is_import and spare is not None and spare.is_alive:
                self._spare = None
                spare.ask({"arguments": arguments})
                child = spare
            else:
                child = Child(
                    ["-m", core.__name__, *arguments],
                    niceness=NICENESS,
                    may_ask=not is_import,
                    more=task.secrets,
                    is_asked=task.request is not None,
                )
            task.child, task.secrets = child, None
        with child:
            if task.request is not None:
                child.ask(task.request.settings())
            for line in child.messages():
                names = line.keys() & {"stage", "rows_done", "rows_total", "run_id"}
                progress = {name: line[name] for name in names}
                self._change(task, **progress)
        # Killed before it could clean up.
        if child.code < 0:
            self._sweep()
        job = task.job
        message = child.sentence if child.code else ""
        # Also if a cancel came too late; with a sentence if it was stored in part.
        if job.run_id:
            self._change(task, state="done", rows_done=job.rows_total, message=message)
        elif child.code == 0 and job.device == GETTING:
            self._change(task, state="done")
        elif job.state == "cancelling":
            self._change(task, state="cancelled", message=_NOTHING_STORED)
        else:
            self._change(task, state="failed", message=message or child.sentence)

    def _drop_files(self, task: _Task) -> None:
        """Remove a job's own files and call `on_over`, once."""
        with self._lock:
            place = task.place
            on_over = task.on_over
            task.place = task.on_over = task.secrets = None
        if place is not None:
            place.remove()
        if on_over is not None:
            with suppress(UlpscopeError, OSError):
                on_over(task.job)
