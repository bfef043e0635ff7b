"""Preview of what a capture would run and cost, while its form is being filled in: `capture --dry-run` in a process of
its own.

A dry run takes as long as loading torch does. The latest form of a viewer counts: an earlier one's process is ended
unless another viewer waits for the same. Answers are kept for a while, so going back to an earlier form is immediate.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from app.shell import store_cache
from app.shell.jobs import PromptFile
from core.runs.store.partial import Partial
from core.runs.store.store import Store
from core.subprocess_json import Child

KEPT_SECONDS = 300  # free memory changes, and so may a model's folder
KEPT_REFUSAL_SECONDS = 20  # somebody is about to mend what it says
_MOST_ANSWERS = 200
_MOST_FILES = 20
_AT_ONCE = 2  # processes; each takes a core and the memory of torch


@dataclass(frozen=True)
class Answer:
    """Answer of a dry run: its figures, or the sentence of its refusal."""

    costs: dict[str, Any]
    refusal: str
    moment: float

    @property
    def is_fresh(self) -> bool:
        return time.monotonic() - self.moment < (KEPT_REFUSAL_SECONDS if self.refusal else KEPT_SECONDS)


class _Look:
    """One dry run: who waits for it, and its process once it has one."""

    def __init__(self, viewer: str) -> None:
        self.viewers = {viewer}
        self.process: Child | None = None
        self.is_dropped = False


class Previews:
    """Dry runs for all viewers. Every method may be called from any thread and returns at once."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_AT_ONCE)
        self._answers: dict[tuple[str, ...], Answer] = {}
        self._looks: dict[tuple[str, ...], _Look] = {}
        self._files: dict[PromptFile, tuple[Partial, Path]] = {}
        self._devices: tuple[str, ...] = ()
        atexit.register(self.stop)

    def look(self, viewer: str, arguments: Sequence[str]) -> Answer | None:
        """The answer to `ulpscope ARGUMENTS --dry-run --json`, or None while there is none.

        One that is no longer fresh is given while it is asked for anew.
        """
        key = tuple(arguments)
        with self._lock:
            self._leave(viewer, but=key)
            answer = self._answers.get(key)
            if answer is not None and answer.is_fresh:
                return answer
            if key in self._looks:
                self._looks[key].viewers.add(viewer)
            else:
                self._looks[key] = look = _Look(viewer)
                threading.Thread(target=self._run, args=(key, look), name="ulpscope-preview", daemon=True).start()
        return answer

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that a model can be loaded on here, as the last dry run saw them; the CPU alone until the first has
        told of others.
        """
        return self._devices or ("cpu",)

    @property
    def has_told(self) -> bool:
        """True once a dry run has told which devices there are."""
        return bool(self._devices)

    def file(self, dropped: PromptFile) -> Path:
        """Path of a dropped file for dry runs: the latest few are kept, in directories that go with this server."""
        with self._lock:
            if dropped not in self._files:
                place = Store(self._store).new_partial("preview", datetime.now(UTC))
                self._files[dropped] = (place, dropped.saved(place).absolute())
                while len(self._files) > _MOST_FILES:
                    self._files.pop(next(iter(self._files)))[0].remove()
            return self._files[dropped][1]

    def stop(self) -> None:
        """End every dry run: the server is going away."""
        with self._lock:
            for look in self._looks.values():
                _drop(look)
            for place, _ in self._files.values():
                place.remove()
            self._files.clear()

    def _leave(self, viewer: str, but: tuple[str, ...]) -> None:
        """Let the viewer wait for nothing but `but` any more."""
        for key, look in list(self._looks.items()):
            if key != but and viewer in look.viewers:
                look.viewers.discard(viewer)
                if not look.viewers:
                    _drop(look)
                    del self._looks[key]

    def _run(self, key: tuple[str, ...], look: _Look) -> None:
        answer = None
        try:
            with self._room:
                answer = self._asked(key, look)
        except Exception as error:  # an argument that no process can be given, no process to be had
            answer = Answer({}, f"it could not be looked up ({error}).", time.monotonic())
        finally:
            with self._lock:
                if self._looks.get(key) is look:
                    del self._looks[key]
                if answer is not None and not look.is_dropped:
                    self._answers.pop(key, None)
                    self._answers[key] = answer
                    self._devices = tuple(each["device"] for each in answer.costs.get("devices", ())) or self._devices
                    while len(self._answers) > _MOST_ANSWERS:
                        del self._answers[next(iter(self._answers))]

    def _asked(self, key: tuple[str, ...], look: _Look) -> Answer | None:
        with self._lock:
            if look.is_dropped:  # while it waited for room
                return None
            child = look.process = Child(["-m", "core", *key, "--dry-run", "--json"], may_ask=True)
        with child:
            costs = child.answer()
        is_answer = child.code == 0 and bool(costs)
        return Answer(costs if is_answer else {}, "" if is_answer else child.sentence, time.monotonic())


@cache
def previews() -> Previews:
    """The dry runs of this server."""
    return Previews(store_cache.store().directory)


def _drop(look: _Look) -> None:
    look.is_dropped = True
    if look.process is not None:
        look.process.end()  # it writes nothing, so there is nothing to clean up
