"""A process of an engine: started with the interpreter that has it, asked over pipes, and never outliving its
context (docs/engines.md describes the frames).
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CaptureError
from ..subprocess_json import environment_of_child
from ..text import printable, shown

ADAPTERS = Path(__file__).parent / "adapters"
MAGIC = b"ULPE"
CARRIERS = {"float16": "<u2", "bfloat16": "<u2", "float32": "<u4", "float64": "<u8"}
QUIET_SECONDS = 900.0  # an engine that says nothing for so long hangs
_LONGEST_HEAD = 4 << 20
_LAST_LINES = 40
_WORTH = ("error", "exception", "fail", "cannot", "abort", "killed", "memory")


@dataclass(frozen=True)
class EngineRows:
    """Logits of a prompt from position `start` on, or where `module` names one, what that put out. bits: [positions,
    features], unsigned carriers of `dtype`.
    """

    start: int
    dtype: str
    bits: NDArray[np.unsignedinteger]
    module: str = ""


class EngineProcess:
    """`PYTHON ADAPTER ARGUMENTS`, which said hello. CaptureError, one sentence with the engine's last lines, wherever
    it does not answer as the protocol asks; it is ended then.
    """

    def __init__(
        self,
        name: str,
        python: str,
        adapter: Path,
        arguments: Sequence[str] = (),
        *,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self.name, self._quiet = name, quiet_seconds
        self.is_late = False
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        path = os.pathsep.join(filter(None, [str(ADAPTERS), os.environ.get("PYTHONPATH", "")]))
        try:
            self._process = subprocess.Popen(
                [python, str(adapter), *arguments],
                env={**environment_of_child(True), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # what it starts itself is ended with it
            )
        except OSError as error:
            raise CaptureError(f"engine '{name}': {python} cannot be started ({error.strerror}).") from error
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        self.hello = self._next()[0]

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process and all that it started."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have a model loaded. -> what the engine says of it: vocab, parts, versions"""
        self._send({**request, "type": "load"})
        said, _ = self._answer("loaded")
        if not isinstance(said.get("vocab"), int) or said["vocab"] < 2:
            raise self._fault(f"says of its vocabulary {shown(said.get('vocab'))}; expected its number of tokens")
        return said

    def run(self, ids: Sequence[int]) -> Iterator[EngineRows]:
        """Have one prompt computed; its rows, and those of its modules, as they come."""
        self._send({"type": "run", "ids": list(ids)})
        while True:
            head, payload = self._answer("rows", "module", "done")
            if head["type"] == "done":
                return
            yield self._rows(head, payload)

    def _rows(self, head: Mapping[str, Any], payload: bytes) -> EngineRows:
        dtype, shape = head.get("dtype"), head.get("shape")
        try:
            positions, features = head["shape"]
            bits = np.frombuffer(payload, CARRIERS[str(dtype)]).reshape(positions, features)
            return EngineRows(int(head["start"]), str(dtype), bits, str(head.get("name", "")))
        except (KeyError, TypeError, ValueError) as error:
            what = f"sent rows of {shown(dtype)}, {shown(shape)}, in {len(payload)} bytes"
            raise self._fault(f"{what}; expected [positions, features]") from error

    def _send(self, head: Mapping[str, Any]) -> None:
        text = json.dumps(head).encode()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(MAGIC + struct.pack("<I", len(text)) + text)
            self._process.stdin.flush()
        except OSError:
            raise self._fault("ended") from None

    def _answer(self, *wanted: str) -> tuple[dict[str, Any], bytes]:
        while True:
            head, payload = self._next()
            kind = head.get("type")
            if kind in wanted:
                return head, payload
            if kind in ("refused", "error"):
                said = printable(str(head.get("says", "")))[:600] or "it gave no reason."
                if kind == "error":
                    raise self._fault(f"failed: {said.rstrip('.')}", with_lines=False)
                raise CaptureError(f"engine '{self.name}': {said}")
            if kind != "working":
                raise self._fault(f"sent '{shown(kind)}' where {' or '.join(wanted)} was expected")

    def _next(self) -> tuple[dict[str, Any], bytes]:
        timer = threading.Timer(self._quiet, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            start = self._exactly(8)
            length = struct.unpack("<I", start[4:])[0]
            if start[:4] != MAGIC or length > _LONGEST_HEAD:
                raise self._fault(f"wrote '{shown(start.decode(errors='replace'))}...' where a frame was expected")
            try:
                head = json.loads(self._exactly(length))
                count = int(head.get("bytes", 0))
            except (ValueError, AttributeError, TypeError, RecursionError):
                raise self._fault("sent a frame whose head is no JSON object") from None
            return head, self._exactly(count)
        finally:
            timer.cancel()

    def _exactly(self, count: int) -> bytes:
        assert self._process.stdout is not None
        try:
            data = self._process.stdout.read(count)
        except (OSError, ValueError):
            data = b""
        if len(data) < count:
            raise self._fault("ended")
        return data

    def _give_up(self) -> None:
        self.is_late = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _fault(self, what: str, *, with_lines: bool = True) -> CaptureError:
        """Error of one sentence, after which the process is gone."""
        with suppress(subprocess.TimeoutExpired):  # one that is ending by itself says how
            self._process.wait(0.5)
        code = self._process.poll()
        self.end()
        self._reader.join(2)
        if self.is_late:
            what = f"said nothing for {self._quiet:.0f} s and was ended"
        elif what == "ended" and code == -signal.SIGKILL:
            what = "ended by SIGKILL, as where memory runs out"
        elif what == "ended" and code is not None:
            what = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = self._last_lines() if with_lines else ""
        return CaptureError(f"engine '{self.name}' {what}" + (f'; its last lines: "{last}".' if last else "."))

    def _last_lines(self) -> str:
        """The last lines that say something of a fault, else the very last."""
        said = [printable(line).strip() for line in self._lines if line.strip()]
        worth = [line for line in said if any(word in line.lower() for word in _WORTH)]
        return " / ".join((worth or said)[-2:])[:500]

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as pipe:
            while line := pipe.readline(4096):
                self._lines.append(line.decode(errors="replace"))
