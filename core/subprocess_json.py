"""A process of this Python that says JSON, and is asked in it or takes nothing in: followed line by line, bounded,
ended.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
_LONGEST = 4 << 20  # characters of an object
_LONGEST_ERROR = 4096  # characters of a line on stderr
_MOST_ERRORS = 1000  # lines, the latest
_OURS, _SECRET = "ULPSCOPE_", re.compile("PASSWORD|SECRET|TOKEN")
_NEEDED = re.compile(  # by a process that reads files of others and asks nobody
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|VIRTUAL_ENV"
    "|(LC|PYTHON|LD|DYLD|OMP|MKL|KMP|OPENBLAS|GOMP|NUMBA|MALLOC|XDG|COVERAGE|COV)[A-Z0-9_]*"
)


class Child:
    """`python ARGUMENTS` in the folder of the package; a context, which no process outlives. May be asked from any
    thread.

    seconds: after so many it is killed, `is_late`; counted anew at every word where `is_patient`. may_ask: it may get a
    model from the hub, and has the environment of this process for that, less the server's secrets; else no more of it
    than a process needs that reads files of others. more: variables beside these, such as a key that is in no argument.
    is_asked: it reads a JSON object a line on stdin, for as long as it lives.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        seconds: float | None = None,
        is_patient: bool = False,
        niceness: int = 0,
        may_ask: bool = False,
        more: Mapping[str, str] | None = None,
        is_asked: bool = False,
    ) -> None:
        environment = environment_of_child(may_ask)
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**environment, **more} if more else environment,
            stdin=subprocess.PIPE if is_asked else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        if niceness:
            with suppress(OSError, AttributeError):  # gone already, or a system without priorities
                os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)
        assert self._process.stdout is not None  # asked for above, as the next
        assert self._process.stderr is not None
        self._out: IO[str] = self._process.stdout
        self.is_late = False
        self._seconds, self._is_patient = seconds, is_patient
        self._watch: threading.Timer | None = None
        self._errors: deque[str] = deque(maxlen=_MOST_ERRORS)
        self._reader = threading.Thread(target=self._read_errors, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        self._wait_from_now()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # does nothing to one that has ended
        self._ended()
        self._out.close()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def ask(self, value: Mapping[str, Any]) -> None:
        """Send it an object; one that has ended says so by what it says next."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def said(self) -> Iterator[dict[str, Any]]:
        """Every line that is a JSON object, until the process has ended."""
        while line := self._out.readline(_LONGEST):
            if found := object_of(line):
                if self._is_patient:
                    self._wait_from_now()
                yield found
        self._ended()

    def answer(self) -> dict[str, Any]:
        """The one object that it says, over any number of lines; empty where that is none, or too long."""
        text = self._out.read(_LONGEST)
        if self._out.read(1):
            self._process.kill()
        self._ended()
        return object_of(text)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int:
        """Exit code; below 0 where a signal ended the process."""
        return self._process.returncode

    @property
    def sentence(self) -> str:
        """Error that the process stated, in one sentence; its last line where it stated none."""
        said = [line.rstrip("\n") for line in self._errors if line.strip()]
        last = said[-1] if said else f"it ended with exit code {self.code}."
        return next((line.removeprefix("error: ") for line in said if line.startswith("error: ")), last)

    def terminate(self) -> None:
        """Ask it to clean up and end."""
        self._process.terminate()

    def end(self, patience_seconds: float = 0.0) -> None:
        """Ask it to end, and kill it where it takes longer than that; at once where it has nothing to clean up."""
        if patience_seconds:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_seconds)
        self._process.kill()

    def _wait_from_now(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._seconds is not None:
            self._watch = threading.Timer(self._seconds, self._give_up)
            self._watch.daemon = True
            self._watch.start()

    def _give_up(self) -> None:
        self.is_late = True
        self._process.kill()

    def _ended(self) -> None:
        self._process.wait()
        if self._watch is not None:
            self._watch.cancel()
        self._reader.join(5)  # a process of its own may hold the pipe open

    def _read_errors(self, pipe: IO[str]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST_ERROR):
                self._errors.append(line)


def environment_of_child(may_ask: bool) -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if (not _SECRET.search(name) if name.startswith(_OURS) else may_ask or _NEEDED.fullmatch(name))
    }


def object_of(text: str) -> dict[str, Any]:
    """JSON that is an object; empty for whatever else a process prints."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}
