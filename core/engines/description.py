"""Description of an engine: what its adapter says it can do, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import CaptureError, UsageError
from ..text import joined, shown

Value = int | str


@dataclass(frozen=True)
class EngineDescription:
    """One engine as its adapter describes it. name: as the grammar calls it; bases and modifiers: name -> what may be
    said of it (`says`, `values`, `least`, `default`); dtypes: those it computes in; logits: the dtype that they come
    in, "" for the one it computes in; model: what it loads, "gguf" or "folder"; shows_modules: it hands on what its
    modules put out; activations: activation functions ("gelu") that it computes in a dtype of their own, whatever else
    it is told; refuses: what does not go together, {"base" or modifier: values, [] for any that is given}, and the
    sentence that says so.
    """

    name: str
    engine: str
    version: str
    bases: Mapping[str, Mapping[str, Any]]
    modifiers: Mapping[str, Mapping[str, Any]]
    dtypes: tuple[str, ...]
    logits: str
    model: str
    is_here: bool
    shows_modules: bool = False
    activations: Mapping[str, str] = field(default_factory=dict)
    refuses: tuple[tuple[Mapping[str, Sequence[Any]], str], ...] = ()

    @classmethod
    def of(cls, name: str, hello: Mapping[str, Any]) -> EngineDescription:
        """Read the adapter's first frame; CaptureError where it is not one of version 1."""
        if hello.get("type") != "hello" or hello.get("protocol") != 1:
            raise CaptureError(
                f"engine '{name}': the adapter speaks version {shown(hello.get('protocol'))} of the protocol;"
                " expected 1."
            )
        try:
            return cls(
                name,
                str(hello.get("engine", name)),
                str(hello.get("version", "")),
                {base: dict(about) for base, about in hello["bases"].items()},
                {modifier: dict(about) for modifier, about in hello.get("modifiers", {}).items()},
                tuple(map(str, hello.get("dtypes", ("float32",)))),
                str(hello.get("logits", "")),
                str(hello.get("model", "folder")),
                bool(hello.get("is_here", True)),
                bool(hello.get("modules", False)),
                dict(hello.get("activations", {})),
                tuple((dict(one["where"]), str(one["says"]).rstrip(".")) for one in hello.get("refuses", [])),
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise CaptureError(
                f"engine '{name}': its hello cannot be read ({shown(repr(error))}); docs/engines.md describes it."
            ) from error

    def values_of(self, path: str, text: str, kind: str) -> tuple[str, tuple[Value, ...]]:
        """`kv:f32` -> ("kv", ("f32",)); UsageError says what the engine can do where the text asks for something
        else.
        """
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
        for where, says in self.refuses:
            if all(found.get(name) in values if values else name in given for name, values in where.items()):
                return says
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
