"""An engine: its description by the adapter, and its process behind pipes
(docs/contributing/engine.md).
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import CaptureError
from ..path_grammar import Argument, Value, choice, syntax_of, whole_number
from ..subprocess_json import NAMES_ERROR, Child, object_of
from ..text import clean, printable, series

ADAPTERS = Path(__file__).parent / "adapters"
CARRIERS = {"float16": "<u2", "bfloat16": "<u2", "float32": "<u4", "float64": "<u8"}
# an engine that sends nothing for this long hangs
QUIET_SECONDS = 900.0
PROTOCOL = 2


class Refusal(msgspec.Struct, frozen=True, rename={"conditions": "where"}):
    """Incompatible values by "base" or modifier, [] for any value, and the reason."""

    conditions: dict[str, list[Any]]
    says: str


class EngineDescription(msgspec.Struct, frozen=True, rename={"shows_modules": "modules"}):
    """One engine as its adapter describes it. name: in the grammar of paths; bases and modifiers:
    name -> `says`, `values`, `least`, `default`; logits: their dtype, "" for the one it computes
    in; model: "gguf" or "folder"; shows_modules: it sends outputs of modules; activations:
    functions ("gelu") computed in a dtype of their own.
    """

    name: str
    bases: dict[str, dict[str, Any]]
    modifiers: dict[str, dict[str, Any]] = {}
    engine: str = ""
    version: str = ""
    dtypes: tuple[str, ...] = ("float32",)
    logits: str = ""
    model: str = "folder"
    is_here: bool = True
    shows_modules: bool = False
    activations: dict[str, str] = {}
    refuses: tuple[Refusal, ...] = ()

    @classmethod
    def of(cls, name: str, hello: Mapping[str, Any]) -> Self:
        """Read the adapter's first frame; CaptureError if it is not one of version 2."""
        if hello.get("type") != "hello" or hello.get("protocol") != PROTOCOL:
            version = clean(hello.get("protocol"))
            raise CaptureError(
                f"engine '{name}': the adapter speaks version {version} of the protocol; expected"
                f" {PROTOCOL}.",
            )
        try:
            return msgspec.convert({"engine": name, **hello, "name": name}, cls)
        except msgspec.ValidationError as error:
            raise CaptureError(
                f"engine '{name}': its hello: {error} (docs/contributing/engine.md).",
            ) from error

    def arguments(self, kind: str) -> dict[str, tuple[Argument, ...]]:
        """Return the arguments of its bases or modifiers by name."""
        every = self.bases if kind == "base" else self.modifiers
        return {name: _arguments(about) for name, about in every.items()}

    def contradiction(self, base: str, options: Mapping[str, Value]) -> str | None:
        """Return the adapter's reason why a base and modifiers are incompatible, or None."""
        path: dict[str, Value | None] = {"base": base}
        for name, about in self.modifiers.items():
            path[name] = options.get(name, about.get("default"))
        for one in self.refuses:
            conditions = one.conditions.items()
            if all(path.get(n) in values if values else n in options for n, values in conditions):
                return one.says.rstrip(".")
        return None

    def syntax(self, kind: str) -> str:
        """Return the bases or modifiers in the grammar of paths."""
        return series([syntax_of(*each) for each in self.arguments(kind).items()]) or "none"


def _arguments(about: Mapping[str, Any]) -> tuple[Argument, ...]:
    if "values" in about:
        return (choice(*map(str, about["values"])),)
    return (whole_number(int(about["least"])),) if "least" in about else ()


@dataclass(frozen=True)
class EngineRows:
    """Logits from position `start` on, or the output of `module`. bits: [positions, features],
    carriers of `dtype`.
    """

    start: int
    dtype: str
    bits: NDArray[np.unsignedinteger]
    module: str = ""


class EngineProcess:
    """`PYTHON ADAPTER ARGUMENTS`, which sent its hello. CaptureError, one sentence with the
    engine's last lines, if it does not answer as the protocol asks; it is ended then.
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
        # adapters are files without a package, in folders that may be read-only
        more = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [str(adapter), *arguments]
        try:
            self._child = Child(
                command,
                python=python,
                seconds=quiet_seconds,
                may_ask=True,
                more=more,
                is_asked=True,
                is_engine=True,
            )
        except OSError as error:
            raise CaptureError(
                f"engine '{name}': {python} cannot be started ({error.strerror}).",
            ) from error
        self.hello = self._next()[0]
        self.about: dict[str, Any] = {}  # what it said of the model that it loaded

    def __enter__(self) -> Self:
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
        """Load a model. Return its vocab, parts and versions as the engine reports them."""
        self._child.ask({**request, "type": "load"})
        about, _ = self._answer("loaded")
        if not isinstance(about.get("vocab"), int) or about["vocab"] < 2:
            raise self._fault(
                f"sent vocab {clean(about.get('vocab'))}; expected the number of tokens",
            )
        self.about = about
        return about

    def run(self, ids: Sequence[int]) -> Iterator[EngineRows]:
        """Compute one prompt. Yield its rows, and those of its modules, as they arrive."""
        self._child.ask({"type": "run", "ids": list(ids)})
        while True:
            head, payload = self._answer("rows", "module", "done")
            if head["type"] == "done":
                return
            dtype, shape = head.get("dtype"), head.get("shape")
            try:
                positions, features = head["shape"]
                # little-endian, whatever the machine
                bits = np.frombuffer(payload, CARRIERS[str(dtype)]).reshape(positions, features)
                rows = EngineRows(int(head["start"]), str(dtype), bits, str(head.get("name", "")))
            except (KeyError, TypeError, ValueError) as error:
                what = f"sent rows of {clean(dtype)}, {clean(shape)}, in {len(payload)} bytes"
                raise self._fault(f"{what}; expected [positions, features]") from error
            yield rows

    def _answer(self, *kinds: str) -> tuple[dict[str, Any], bytes]:
        while True:
            head, payload = self._next()
            kind = head.get("type")
            if kind in kinds:
                return head, payload
            if kind in ("refused", "error"):
                reason = printable(str(head.get("says", "")))[:600] or "it gave no reason."
                if kind == "error":
                    raise self._fault(f"failed: {reason.rstrip('.')}", with_lines=False)
                raise CaptureError(f"engine '{self.name}': {reason}")
            if kind != "working":
                raise self._fault(f"sent '{clean(kind)}'; expected {' or '.join(kinds)}")

    def _next(self) -> tuple[dict[str, Any], bytes]:
        line, payload = self._child.frame()
        if not line:
            raise self._fault("ended")
        if not (head := object_of(line)):
            raise self._fault(
                f"wrote '{clean(line[:40].decode(errors='replace').strip())}', which is not a JSON"
                " object",
            )
        return head, payload

    def _fault(self, what: str, *, with_lines: bool = True) -> CaptureError:
        """End the process. Return an error of one sentence."""
        child = self._child
        # of a process that is ending, the exit code is the reason
        child.wait(0.5)
        code = None if child.is_alive else child.code
        self.end()
        if child.is_late:
            what = f"sent nothing for {self._quiet:.0f} s and was ended"
        elif what == "ended" and code is not None:
            what = child.ending
        lines = [printable(line) for line in child.error_lines[-40:]] if with_lines else []
        # lines that name an error say more than the last ones
        worth = list(filter(NAMES_ERROR.match, lines))
        last = " / ".join((worth or lines)[-2:])[:500]
        return CaptureError(
            f"engine '{self.name}' {what}" + (f'; its last lines: "{last}".' if last else "."),
        )
