"""What a capture would run and cost, while its form is being filled in: `capture --dry-run` in a process of its own."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.shell.jobs import PromptFile
from core.subprocess_json import Child

KEPT_SECONDS = 300  # free memory changes, and so may a model's folder
KEPT_REFUSAL_SECONDS = 20  # somebody is about to mend what it says
_MOST_ANSWERS = 200
_MOST_SECONDS = 120.0  # of a process
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


class Previews:
    """Dry runs for all viewers, of each viewer the latest. Every method returns at once, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_AT_ONCE)
        self._answers: dict[tuple[str, ...], Answer] = {}
        self._wanted: dict[str, tuple[str, ...]] = {}  # by viewer
        self._folder = TemporaryDirectory(prefix="ulpscope-")
        self.devices: tuple[str, ...] = ("cpu",)  # as the last dry run saw them

    def look(self, viewer: str, arguments: Sequence[str]) -> Answer | None:
        """Return the answer to `ulpscope ARGUMENTS --dry-run --json`, None while there is none; an old one first."""
        key = tuple(arguments)
        with self._lock:
            answer = self._answers.get(key)
            if (answer is None or not answer.is_fresh) and self._wanted.get(viewer) != key:
                self._wanted[viewer] = key
                threading.Thread(target=self._run, args=(viewer, key), name="ulpscope-preview", daemon=True).start()
        return answer

    def file(self, prompts: PromptFile) -> Path:
        """Path of a file of prompts for dry runs; it goes with this server."""
        folder = Path(self._folder.name) / hashlib.sha256(prompts.content).hexdigest()[:16]
        folder.mkdir(exist_ok=True)
        return prompts.saved(folder)

    def _run(self, viewer: str, key: tuple[str, ...]) -> None:
        with self._room:
            if self._wanted.get(viewer) != key:  # the form has changed while this waited
                return
            answer = self._answer_to(key)
        with self._lock:
            if self._wanted.get(viewer) == key:
                del self._wanted[viewer]
            if answer is not None:
                self._answers.pop(key, None)
                self._answers[key] = answer
                if len(self._answers) > _MOST_ANSWERS:
                    del self._answers[next(iter(self._answers))]
                self.devices = tuple(each["device"] for each in answer.costs.get("devices", ())) or self.devices

    def _answer_to(self, key: tuple[str, ...]) -> Answer | None:
        try:
            with Child(["-m", "core", *key, "--dry-run", "--json"], may_ask=True, seconds=_MOST_SECONDS) as child:
                costs = child.answer()
        except Exception as error:  # an argument that no process can be given, no process to be had
            return Answer({}, f"it could not be looked up ({error}).", time.monotonic())
        is_answer = child.code == 0 and bool(costs)
        return Answer(costs if is_answer else {}, "" if is_answer else child.sentence, time.monotonic())


@cache
def previews() -> Previews:
    """The dry runs of this server."""
    return Previews()
