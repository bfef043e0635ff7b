"""Inspections of arrived files, each made once: small dumps at once, large ones and run files by `inspect` in a process
of its own.

To know a dump's compute dtype may take reading all of it, which a page's script must not do at every rerun. Answers are
kept by the files' times of change; a look that no page asks about any more is ended.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.shell.once import Once
from core.errors import DumpError, UlpscopeError
from core.judging.inspect import Headers, headers_of, understood
from core.runs.importing import is_run_file
from core.subprocess_json import Child

AT_ONCE_BYTES = 32 << 20  # of dumps, unpacked; they take a few tenths of a second
_AT_ONCE = 2  # processes
_FORGOTTEN_SECONDS = 30.0
_AGAIN_SECONDS = 10.0  # after a look that failed
_MOST = 200  # answers
_SLOWEST_RUN_SECONDS = 120.0  # a run file is somebody else's database; of one that is sound only a few rows are read


@dataclass
class Look:
    """State of a look: bytes read of those that may have to be, then what was understood, or why nothing was."""

    done: int = 0
    total: int = 0
    began: float = field(default_factory=time.monotonic)
    understood: dict[str, Any] | None = None
    refusal: str = ""
    failed: float | None = None  # when it ended without a word on the file, so that it is worth another look

    @property
    def is_over(self) -> bool:
        return self.understood is not None or bool(self.refusal)


@dataclass
class _Asked:
    look: Look
    last_asked: float
    process: Child | None = None
    is_dropped: bool = False


class Looks:
    """The looks of this server. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_AT_ONCE)
        self._asked: dict[tuple, _Asked] = {}
        self._headers: dict[tuple, Headers | DumpError] = {}
        atexit.register(self.stop)

    def headers(self, path: Path) -> Headers:
        """A run file, a dump or a single array, by its headers alone; DumpError for anything else."""
        key = _stamp(path)
        with self._lock:
            known = self._headers.get(key)
        if known is None:
            try:
                known = headers_of(path)
            except UlpscopeError as error:
                known = DumpError(str(error))
            with self._lock:
                self._headers[key] = known
                while len(self._headers) > _MOST:
                    del self._headers[next(iter(self._headers))]
        if isinstance(known, DumpError):
            raise DumpError(str(known))
        return known

    def look(
        self,
        paths: Sequence[Path],
        *,
        compute_dtype: str | None = None,
        reference: str | None = None,
        holds: str | None = None,
    ) -> Look:
        """State of the look at `paths`: what they are understood as, or how far that has come. Returns at once, but for
        small dumps.
        """
        key = (*(_stamp(path) for path in paths), compute_dtype, reference, holds)
        options = {"--compute-dtype": compute_dtype, "--reference": reference, "--holds": holds}
        with self._lock:
            self._drop_forgotten()
            asked = self._asked.get(key)
            if asked is not None and (
                asked.look.failed is None or time.monotonic() - asked.look.failed < _AGAIN_SECONDS
            ):
                asked.last_asked = time.monotonic()
                return asked.look
            asked = self._asked[key] = _Asked(Look(), time.monotonic())
            while len(self._asked) > _MOST:
                self._drop(next(iter(self._asked)))
        try:
            headers = [self.headers(path) for path in paths]
            unpacked_bytes = sum(each.unpacked_bytes for each in headers)
            if not any(each.kind == "run" for each in headers) and unpacked_bytes <= AT_ONCE_BYTES:
                asked.look.understood = understood(paths, compute_dtype=compute_dtype, reference=reference, holds=holds)
        except UlpscopeError as error:
            asked.look.refusal = str(error)
        if not asked.look.is_over:
            arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
            threading.Thread(
                target=self._run,
                args=(asked, [*arguments, "--", *(str(path.absolute()) for path in paths)]),
                name="ulpscope-look",
                daemon=True,
            ).start()
        return asked.look

    def stop(self) -> None:
        """End every look: the server is going away."""
        with self._lock:
            for key in list(self._asked):
                self._drop(key)

    def _drop_forgotten(self) -> None:
        now = time.monotonic()
        for key, asked in list(self._asked.items()):
            if not asked.look.is_over and now - asked.last_asked > _FORGOTTEN_SECONDS:
                self._drop(key)

    def _drop(self, key: tuple) -> None:
        asked = self._asked.pop(key)
        asked.is_dropped = True
        if asked.process is not None:
            asked.process.end()  # it writes nothing

    def _run(self, request: _Asked, arguments: list[str]) -> None:
        try:
            with self._room:
                self._ask(request, arguments)
        except Exception as error:  # no process to be had, a name no process can be given
            request.look.failed = time.monotonic()
            request.look.refusal = f"it could not be looked at ({error})."

    def _ask(self, request: _Asked, arguments: list[str]) -> None:
        with self._lock:
            if request.is_dropped:  # while it waited for room
                return
            is_run = is_run_file(Path(arguments[-1]))
            child = request.process = Child(
                ["-m", "core", "inspect", "--progress", "json", *arguments],
                seconds=_SLOWEST_RUN_SECONDS if is_run else None,
            )
        found: dict[str, Any] = {}
        with child:
            for said in child.said():
                found = said.get("understood") or found
                if isinstance(said.get("rows_done"), int) and isinstance(said.get("rows_total"), int):
                    request.look.done, request.look.total = said["rows_done"], said["rows_total"]
        if child.code == 0 and found:
            request.look.understood = found
        elif child.code < 0 and is_run:
            request.look.refusal = "the file takes too long to read for a run file."
        else:
            request.look.failed = None if child.has_refused else time.monotonic()
            request.look.refusal = child.sentence


def _stamp(path: Path) -> tuple[str, int, int]:
    try:
        status = path.stat()
    except OSError:
        raise DumpError(f"{path.name}: is not there any more; send it again.") from None
    return str(path), status.st_mtime_ns, status.st_size


@Once
def looks() -> Looks:
    """The looks of this server."""
    return Looks()
