"""Captures started from a page: each in a process of its own, one at a time on a device, seen by every viewer.

A job is the command line itself (`ulpscope capture ... --progress json`), so it can be copied and repeated, it
does not slow the pages down, and it survives a page switch and a closed tab. Torch is loaded by that process alone.
"""

from __future__ import annotations

import atexit
import itertools
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from core.command_name import COMMAND, shell_command
from core.errors import UlpscopeError, UsageError
from core.runs.store.partial import Partial
from core.runs.store.store import Store
from core.subprocess_json import Child
from core.text import file_name, shown

ANY_DEVICE = "best there is"
TAKING_IN = "the store"  # what jobs that take in files run on: one at a time, beside captures
GETTING = "the network"  # what jobs that get a model run on, likewise
PROBING = "a server"  # what probes run on: two at once would be each other's load
_NO_DEVICES = (TAKING_IN, GETTING, PROBING)
_OWN_PAGES = ("ops", "probe")  # commands whose jobs a page of their own lists
_NOTHING_STORED = "cancelled; nothing was stored"
# of a job's process: beside a capture and an ingest on two cores, 95 % of 50 viewers' reruns were within 2.8 s without
# it, 0.7 s with
NICENESS = 10
_DEVICE = re.compile(r"(cpu)|cuda(?::(0|[1-9][0-9]?))?", re.ASCII)
KEEPING_SECONDS = 20  # the same of a probe, which keeps what had come
PATIENCE_SECONDS = 2  # how long a cancelled job may take to clean up before it is killed


def queue_of(device: str | None) -> str:
    """The queue of what runs on a device, as `--device` names it; None: the best there is. UsageError for what names no
    device: queues have names of ours alone, for whoever is in another one does not wait.
    """
    if device is None:
        return ANY_DEVICE
    found = _DEVICE.fullmatch(device)
    if found is None:
        raise UsageError(f"'{shown(device, 40)}' names no device; expected cpu, cuda or cuda:N. Nothing was begun.")
    return "cpu" if found[1] else f"cuda:{found[2] or 0}"


@dataclass(frozen=True)
class Job:
    """One job as it stands. state: waiting, running, cancelling, done, failed or cancelled; rows are positions over all
    sides.

    device: what it runs on, ANY_DEVICE, TAKING_IN or GETTING, whose rows are MB. reserved: the id that its run is going
    to have, where that is known before; who: who asked for it. A job that is done with a message was kept in part: the
    message says what failed.
    """

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
    reserved: str = ""
    who: str = ""

    @property
    def command(self) -> str:
        """Command that a person would type for the job."""
        return f"{COMMAND} {shell_command(self.arguments)}"

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    @property
    def share(self) -> float:
        return self.rows_done / self.rows_total if self.rows_total else 0.0


@dataclass(frozen=True)
class PromptFile:
    """A file that a viewer dropped: its name and what is in it."""

    name: str
    content: bytes

    def saved(self, directory: Path) -> Path:
        """Write the file into a directory and return its path."""
        path = directory / (file_name(self.name) or "prompts.txt")
        path.write_bytes(self.content)
        return path


class Jobs:
    """All jobs of this server. Every method may be called from any thread; `Job`s handed out are snapshots.

    One at a time on a device, in the order they came, because two captures on the same cores would time each other.
    Jobs on different devices run side by side. Which device "the best there is" means only the job's own process knows,
    so such a job has the machine for itself.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._numbers = itertools.count(1)
        self._processes: dict[int, Child] = {}
        self._running: set[int] = set()
        self._places: dict[int, Partial] = {}
        self._callers: dict[int, Callable[[Job], None]] = {}
        self._secrets: dict[int, dict[str, str]] = {}
        self._spare: Child | None = None
        self._is_stopped = False
        with suppress(UlpscopeError, OSError):
            Store(store).sweep()  # a server that is ended by a signal tidies nothing up
        atexit.register(self.stop)

    @property
    def store(self) -> Store:
        """Store that the runs go to."""
        return Store(self._store)

    def all(self, command: str = "") -> list[Job]:
        """The captures, newest first; `command`: 'ops' or 'probe', whose own pages list them, instead."""
        with self._lock:
            captures = [job for job in self._jobs.values() if job.device != TAKING_IN]
        named = [(job, job.arguments[:1] or ("",)) for job in captures]
        chosen = [job for job, (name,) in named if (name if name in _OWN_PAGES else "") == command]
        return sorted(chosen, key=lambda job: -job.number)

    def ingests(self) -> list[Job]:
        """The jobs that take in files, newest first (app.uploads.importing starts them)."""
        with self._lock:
            return sorted((job for job in self._jobs.values() if job.device == TAKING_IN), key=lambda job: -job.number)

    def submit(
        self,
        arguments: Sequence[str],
        *,
        title: str,
        device: str,
        prompts: PromptFile | None = None,
        place: Partial | None = None,
        reserved: str = "",
        who: str = "",
        secrets: Mapping[str, str] | None = None,
        on_over: Callable[[Job], None] | None = None,
    ) -> Job:
        """Line up `ulpscope ARGUMENTS`, with `--prompts FILE` where a file was dropped, which is kept until the
        job is over. UsageError, before anything is made, where `device` is no queue of ours.

        place: a directory of the job's own files instead, which goes with it. secrets: variables of its process, which
        are kept until it starts and stand nowhere else. on_over: told of the job when it is over, in any thread.
        """
        if device not in (ANY_DEVICE, *_NO_DEVICES) and device != queue_of(device):
            raise UsageError(f"'{shown(device, 40)}' is no queue; expected {queue_of(device)}. Nothing was begun.")
        if prompts is not None:
            place = Store(self._store).new_partial("prompts", datetime.now(UTC))
            arguments = [*arguments, "--prompts", str(prompts.saved(place.directory).absolute())]
        with self._lock:
            job = Job(next(self._numbers), title, device, tuple(arguments), reserved=reserved, who=who)
            self._jobs[job.number] = job
            if on_over is not None:
                self._callers[job.number] = on_over
            if secrets:
                self._secrets[job.number] = dict(secrets)
            if place is not None:
                self._places[job.number] = place
        self._start_ready()
        with self._lock:
            return self._jobs[job.number]

    def cancel(self, number: int) -> bool:
        """Stop a waiting or running job; what it began is removed by the job itself, so it is over only when its
        process is.

        Returns whether there was anything to stop.
        """
        with self._lock:
            job = self._jobs.get(number)
            if job is None or job.state not in ("waiting", "running"):
                return False
            is_waiting = job.state == "waiting"
            change = ("cancelled", _NOTHING_STORED) if is_waiting else ("cancelling", "cancelling")
            self._jobs[number] = replace(job, state=change[0], message=change[1])
            process = self._processes.get(number)
        if is_waiting:
            self._drop_files(number)
            self._start_ready()
        elif process is not None:
            patience = KEEPING_SECONDS if job.device == PROBING else PATIENCE_SECONDS
            threading.Thread(target=process.end, args=(patience,), daemon=True).start()
        return True

    def warm(self) -> None:
        """Load in a process what an import needs while a file is looked at: loading takes longer than the import."""
        with self._lock:
            if not self._is_stopped and (self._spare is None or not self._spare.is_alive):
                self._drop_spare()
                self._spare = Child(["-m", "core", "spare"], niceness=NICENESS, is_asked=True)

    def _drop_spare(self) -> None:
        """End the spare process, if there is one. With the lock held."""
        if self._spare is not None:
            with self._spare:
                self._spare.end()
        self._spare = None

    def _child(self, job: Job, arguments: list[str], secrets: Mapping[str, str] | None) -> Child:
        """The process of a job, told what to run: the spare one if it is there and the job takes in a file. With the
        lock held.
        """
        spare = self._spare
        if job.device != TAKING_IN or spare is None or not spare.is_alive:
            return Child(["-m", "core", *arguments], niceness=NICENESS, may_ask=job.device != TAKING_IN, more=secrets)
        self._spare = None
        spare.ask({"arguments": arguments})
        return spare

    def forget(self, number: int) -> None:
        """Take a finished job off the list; its run stays."""
        with self._lock:
            if number in self._jobs and self._jobs[number].is_over:
                del self._jobs[number]

    def stop(self) -> None:
        """End what runs and start nothing more: the server is going away, and nobody would see the rest."""
        with self._lock:
            self._is_stopped = True
            self._drop_spare()
            processes = list(self._processes.values())
        for process in processes:
            process.terminate()
        for process in processes:
            process.end(PATIENCE_SECONDS)
        for number in list(self._places):
            self._drop_files(number)

    def _start_ready(self) -> None:
        """Start every waiting job whose device is free, unless one that came earlier waits for the same."""
        with self._lock:
            taken = [self._jobs[number].device for number in self._running if number in self._jobs]
            for job in sorted(self._jobs.values(), key=lambda job: job.number):
                if job.state != "waiting" or self._is_stopped:
                    continue
                captures = [device for device in taken if device not in _NO_DEVICES]
                if job.device in _NO_DEVICES:
                    is_free = job.device not in taken
                else:
                    is_free = not captures if job.device == ANY_DEVICE else not {job.device, ANY_DEVICE} & set(captures)
                taken.append(job.device)
                if is_free:
                    self._jobs[job.number] = replace(job, state="running", stage="starting")
                    self._running.add(job.number)
                    threading.Thread(target=self._work, args=(job.number,), name="ulpscope-job", daemon=True).start()

    def _change(self, number: int, **values: object) -> None:
        with self._lock:
            if number in self._jobs:
                self._jobs[number] = replace(self._jobs[number], **values)  # type: ignore[arg-type]

    def _work(self, number: int) -> None:
        try:
            self._run(number)
        except Exception as error:  # the line behind it must go on, whatever a job's process did or said
            self._change(number, state="failed", message=f"it could not be run ({error}).")
        finally:
            self._drop_files(number)
            with self._lock:
                self._processes.pop(number, None)
                self._running.discard(number)
            self._start_ready()

    def _run(self, number: int) -> None:
        with self._lock:
            job = self._jobs[number]
            if self._is_stopped or job.state == "cancelling":  # before there was a process to end
                self._jobs[number] = replace(job, state="cancelled", message=_NOTHING_STORED)
                return
            store = () if job.device == GETTING else ("--store", str(self._store.absolute()))
            arguments = [*job.arguments, "--progress", "json", *store]
            child = self._child(job, arguments, self._secrets.pop(number, None))
            self._processes[number] = child
        began = time.monotonic()
        with child:
            for said in child.said():
                self._take(number, said, time.monotonic() - began)
        if child.code < 0:  # killed: nobody was there to clean up
            with suppress(UlpscopeError, OSError):
                Store(self._store).sweep()
        self._end(number, child.code, child.sentence)

    def _take(self, number: int, said: dict[str, object], seconds: float) -> None:
        """Take in one line of a job's process."""
        known: dict[str, object] = {
            key: said[key] for key in ("stage", "rows_done", "rows_total", "run_id") if key in said
        }
        self._change(number, seconds=seconds, **known)

    def _end(self, number: int, code: int, sentence: str) -> None:
        with self._lock:
            job = self._jobs[number]
            if job.run_id:  # also where a cancel came too late; with a sentence where a later side failed
                message = sentence if code else ""
                self._jobs[number] = replace(job, state="done", rows_done=job.rows_total, message=message)
            elif code == 0 and job.device == GETTING:
                self._jobs[number] = replace(job, state="done")
            elif job.state == "cancelling":
                self._jobs[number] = replace(job, state="cancelled", message=_NOTHING_STORED)
            else:
                self._jobs[number] = replace(job, state="failed", message=sentence)

    def _drop_files(self, number: int) -> None:
        with self._lock:
            self._secrets.pop(number, None)
            place = self._places.pop(number, None)
            caller, job = self._callers.pop(number, None), self._jobs.get(number)
        if place is not None:
            place.remove()
        if caller is not None and job is not None:
            with suppress(UlpscopeError, OSError):
                caller(job)
