"""Child process that speaks JSON over pipes: one object per line, with limits on size and time."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

_PACKAGE = Path(__file__).resolve().parent
# The folder with app/ and pages/: of the wheel, or of the clone.
ROOT = folder if (folder := _PACKAGE / "dashboard").is_dir() else _PACKAGE.parent
_LONGEST = 4 << 20  # bytes of an object
_LONGEST_ERROR = 4096  # bytes of a line on stderr
_MOST_ERRORS = 1000  # lines, the latest
# lines that name an error: warnings and progress are no reason
NAMES_ERROR = re.compile(
    '(?!.*warning:|File ")'
    ".*(error|exception|fail|fault|cannot|abort|killed|memory|panicked|stopiter)",
    re.IGNORECASE,
)
_OURS = "ULPSCOPE_"
_SECRET = re.compile("PASSWORD|SECRET|TOKEN")
# what a process needs that reads untrusted files, without a network
_NEEDED = re.compile(
    "PATH|HOME|USER|LOGNAME|LANG|LANGUAGE|TZ|TMPDIR|TEMP|TMP|VIRTUAL_ENV"
    "|(LC|PYTHON|LD|DYLD|OMP|MKL|KMP|OPENBLAS|GOMP|NUMBA|MALLOC|XDG|COVERAGE|COV)[A-Z0-9_]*",
)


class Child:
    """`PYTHON ARGUMENTS` as a context manager that ends the process. Usable from any thread.

    seconds: longest wait for a line; then it is killed, and `is_late`. may_ask: it may download a
    model, and has this process's environment without the server's secrets; else only what reading
    untrusted files needs. more: further variables. is_asked: it reads a JSON object per line on
    stdin. is_engine: its own children are killed with it.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        python: str = sys.executable,
        seconds: float | None = None,
        niceness: int = 0,
        may_ask: bool = False,
        more: Mapping[str, str] | None = None,
        is_asked: bool = False,
        is_engine: bool = False,
    ) -> None:
        environment = {}
        for name, value in os.environ.items():
            if name.startswith(_OURS):
                is_hidden = bool(_SECRET.search(name))
            else:
                is_hidden = not may_ask and not _NEEDED.fullmatch(name)
            if not is_hidden:
                environment[name] = value
        self._process = subprocess.Popen(
            [python, *arguments],
            cwd=None if is_engine else ROOT,
            env=environment | dict(more or {}),
            stdin=subprocess.PIPE if is_asked else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=is_engine,
        )
        if niceness:
            # gone already, or a system without priorities
            with suppress(OSError, AttributeError):
                os.setpriority(os.PRIO_PROCESS, self._process.pid, niceness)
        assert self._process.stdout is not None
        self._out: IO[bytes] = self._process.stdout
        self.is_late = False
        self._seconds = seconds
        self._is_engine = is_engine
        self._errors: deque[str] = deque(maxlen=_MOST_ERRORS)
        self._reader = threading.Thread(
            target=self._read_errors,
            args=(self._process.stderr,),
            daemon=True,
        )
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._reap()
        for pipe in (self._out, self._process.stdin):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def ask(self, value: Mapping[str, Any]) -> None:
        """Send an object. A process that has ended shows at the next read."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield every line that is a JSON object, until the process has ended."""
        while line := self._read_in_time()[0]:
            if value := object_of(line):
                yield value
        self._reap()

    def frame(self) -> tuple[bytes, bytes]:
        """Return an engine's line and its payload of `bytes` bytes; b"" for both if it ended."""
        try:
            line, payload = self._read_in_time()
        except (OSError, ValueError):  # closed meanwhile
            return b"", b""
        is_whole = line.endswith(b"\n") and len(payload) == object_of(line).get("bytes", 0)
        return (line, payload) if is_whole else (b"", b"")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int:
        """Exit code; below 0 if a signal ended the process."""
        return self._process.returncode

    @property
    def error_lines(self) -> list[str]:
        """The last lines on stderr that are not blank."""
        return [line.strip() for line in self._errors if line.strip()]

    @property
    def ending(self) -> str:
        """How it ended: its exit code or signal."""
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        likely = ", probably out of memory" if self.code == -signal.SIGKILL else ""
        names = {each.value: each.name for each in signal.Signals}
        name = names.get(-self.code, f"signal {-self.code}")
        return f"ended by {name}{likely}"

    @property
    def sentence(self) -> str:
        """The process's error message; if it has none, how it ended and its last error."""
        sentence = f"it {self.ending}."
        for line in self.error_lines:
            if line.startswith("error: "):
                return line.removeprefix("error: ")
            if NAMES_ERROR.match(line):
                sentence = f"it {self.ending}: {line}"
        return sentence

    def terminate(self) -> None:
        """Ask it to clean up and end."""
        self._process.terminate()

    def end(self, patience_seconds: float = 0.0) -> None:
        """Ask it to end, and kill it after that time; at 0, kill it at once."""
        if patience_seconds:
            self._process.terminate()
            self.wait(patience_seconds)
        if self._is_engine:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            # does nothing to one that has ended
            self._process.kill()

    def wait(self, seconds: float) -> None:
        """Wait at most this long for its end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _read_in_time(self) -> tuple[bytes, bytes]:
        """Read a line, and the payload that an engine announces in it.

        Kill the process if that takes too long.
        """
        timer = threading.Timer(self._seconds or 0, self._give_up)
        timer.daemon = True
        if self._seconds is not None:
            timer.start()
        try:
            line = self._out.readline(_LONGEST)
            count = object_of(line).get("bytes") if self._is_engine else None
            return line, self._out.read(count) if isinstance(count, int) and count > 0 else b""
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        self.is_late = True
        self.end()

    def _reap(self) -> None:
        self._process.wait()
        # a process of its own may hold the pipe open
        self._reader.join(5)

    def _read_errors(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(_LONGEST_ERROR):
                self._errors.append(line.decode(errors="replace"))


def object_of(text: bytes) -> dict[str, Any]:
    """Return a JSON object; empty for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
