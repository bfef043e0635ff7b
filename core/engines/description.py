"""Description of an engine: what its adapter says it can do, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import CaptureError, UsageError
from ..text import joined, shown

PROTOCOL = 2
Value = int | str


class Refusal(msgspec.Struct, frozen=True):
    """Values that do not go together, by "base" or modifier, [] for any that is given; and why."""

    where: dict[str, list[Any]]
    says: str


class EngineDescription(msgspec.Struct, frozen=True, rename={"shows_modules": "modules"}):
    """One engine as its adapter describes it. name: in the grammar of paths; bases and modifiers: name -> `says`,
    `values`, `least`, `default`; logits: their dtype, "" for the one it computes in; model: "gguf" or "folder";
    shows_modules: it sends outputs of modules; activations: functions ("gelu") computed in a dtype of their own.
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
    def of(cls, name: str, hello: Mapping[str, Any]) -> EngineDescription:
        """Read the adapter's first frame; CaptureError if it is not one of version 2."""
        if hello.get("type") != "hello" or hello.get("protocol") != PROTOCOL:
            version = shown(hello.get("protocol"))
            raise CaptureError(
                f"engine '{name}': the adapter speaks version {version} of the protocol; expected {PROTOCOL}."
            )
        try:
            return msgspec.convert({"engine": name, **hello, "name": name}, cls)
        except msgspec.ValidationError as error:
            raise CaptureError(f"engine '{name}': its hello: {error}; docs/engines.md describes it.") from error

    def values_of(self, path: str, text: str, kind: str) -> tuple[str, tuple[Value, ...]]:
        """`kv:f32` -> ("kv", ("f32",)); UsageError with what the engine can do for anything else."""
        known = self.bases if kind == "base" else self.modifiers
        name, *given = (part.strip().lower() for part in text.split(":"))
        if name not in known:
            raise UsageError(
                f"path '{path}': {self.engine} has no {kind} '{name}'; its {kind}s are {self.shown(kind)}."
            )
        about = known[name]
        takes = "values" in about or "least" in about
        if len(given) != int(takes):
            raise UsageError(f"path '{path}': {kind} '{name}' takes {int(takes)} values; write {_shown(name, about)}.")
        return name, tuple(self._read(path, name, about, one) for one in given)

    def contradiction(self, base: str, given: Mapping[str, Value]) -> str | None:
        """Reason why a base and modifiers, by name, do not go together, as the adapter says it, or None."""
        found: dict[str, Value | None] = {"base": base}
        found |= {name: given.get(name, about.get("default")) for name, about in self.modifiers.items()}
        for one in self.refuses:
            if all(found.get(name) in values if values else name in given for name, values in one.where.items()):
                return one.says.rstrip(".")
        return None

    def shown(self, kind: str) -> str:
        """The bases or modifiers as the grammar writes them."""
        known = self.bases if kind == "base" else self.modifiers
        return joined([_shown(name, about) for name, about in known.items()]) or "none"

    def _read(self, path: str, name: str, about: Mapping[str, Any], text: str) -> Value:
        words = [str(word) for word in about.get("values", ())]
        if words:
            if text not in words:
                raise UsageError(f"path '{path}': {self.engine}'s {name} is {joined(words)}, not '{shown(text)}'.")
            return text
        least = int(about["least"])
        if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
            raise UsageError(f"path '{path}': {name} takes a whole number of at least {least}, not '{shown(text)}'.")
        return int(text)


def _shown(name: str, about: Mapping[str, Any]) -> str:
    if "values" in about:
        return f"{name}:{'|'.join(map(str, about['values']))}"
    return f"{name}:N" if "least" in about else name
