"""A process of an engine: started with the interpreter that has it, and asked over pipes (docs/engines.md)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CaptureError
from ..subprocess_json import Child, object_of
from ..text import printable, shown

ADAPTERS = Path(__file__).parent / "adapters"
CARRIERS = {"float16": "<u2", "bfloat16": "<u2", "float32": "<u4", "float64": "<u8"}
QUIET_SECONDS = 900.0  # an engine that says nothing for so long hangs
_WORTH = ("error", "exception", "fail", "cannot", "abort", "killed", "memory")


@dataclass(frozen=True)
class EngineRows:
    """Logits from position `start` on, or the output of `module`. bits: [positions, features], carriers of `dtype`."""

    start: int
    dtype: str
    bits: NDArray[np.unsignedinteger]
    module: str = ""


class EngineProcess:
    """`PYTHON ADAPTER ARGUMENTS`, which sent its hello. CaptureError, one sentence with the engine's last lines, if it
    does not answer as the protocol asks; it is ended then.
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
        path = os.pathsep.join(filter(None, [str(ADAPTERS), os.environ.get("PYTHONPATH", "")]))
        more = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [str(adapter), *arguments]
        try:
            self._child = Child(
                command, python=python, seconds=quiet_seconds, may_ask=True, more=more, is_asked=True, is_engine=True
            )
        except OSError as error:
            raise CaptureError(f"engine '{name}': {python} cannot be started ({error.strerror}).") from error
        self.hello = self._next()[0]

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process and all that it started."""
        self._child.__exit__()

    @property
    def has_ended(self) -> bool:
        return not self._child.is_alive

    def load(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have a model loaded; return what the engine says of it: vocab, parts, versions."""
        self._child.ask({**request, "type": "load"})
        said, _ = self._answer("loaded")
        if not isinstance(said.get("vocab"), int) or said["vocab"] < 2:
            raise self._fault(f"says of its vocabulary {shown(said.get('vocab'))}; expected its number of tokens")
        return said

    def run(self, ids: Sequence[int]) -> Iterator[EngineRows]:
        """Have one prompt computed; yield its rows, and those of its modules, as they come."""
        self._child.ask({"type": "run", "ids": list(ids)})
        while True:
            head, payload = self._answer("rows", "module", "done")
            if head["type"] == "done":
                return
            dtype, shape = head.get("dtype"), head.get("shape")
            try:
                positions, features = head["shape"]
                bits = np.frombuffer(payload, CARRIERS[str(dtype)]).reshape(positions, features)
                rows = EngineRows(int(head["start"]), str(dtype), bits, str(head.get("name", "")))
            except (KeyError, TypeError, ValueError) as error:
                what = f"sent rows of {shown(dtype)}, {shown(shape)}, in {len(payload)} bytes"
                raise self._fault(f"{what}; expected [positions, features]") from error
            yield rows

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
        line, payload = self._child.frame()
        if not line:
            raise self._fault("ended")
        if not (head := object_of(line)):
            raise self._fault(f"wrote '{shown(line[:40].decode(errors='replace').strip())}', which is no JSON object")
        return head, payload

    def _fault(self, what: str, *, with_lines: bool = True) -> CaptureError:
        """Return an error of one sentence; the process is gone then."""
        child = self._child
        child.wait(0.5)  # one that is ending by itself says how
        code = None if child.is_alive else child.code
        self.end()
        if child.is_late:
            what = f"said nothing for {self._quiet:.0f} s and was ended"
        elif what == "ended" and code == -signal.SIGKILL:
            what = "ended by SIGKILL, as where memory runs out"
        elif what == "ended" and code is not None:
            what = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        lines = [printable(line) for line in child.error_lines[-40:]] if with_lines else []
        worth = [line for line in lines if any(word in line.lower() for word in _WORTH)]  # says something of a fault
        last = " / ".join((worth or lines)[-2:])[:500]
        return CaptureError(f"engine '{self.name}' {what}" + (f'; its last lines: "{last}".' if last else "."))
