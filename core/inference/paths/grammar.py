"""The parts of a path: steps with values, read from `base+modifier:value` text; no step's name is known here."""

# ruff: noqa: ARG005 - every entry of the registry has one signature, whether or not it needs all of it

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from .batch import PromptBatch

Value = int | str
Others = Mapping[str, tuple[Value, ...]]
"""The modifiers of a path and their values, for checks of contradictions."""


@dataclass(frozen=True)
class Argument:
    """One value after a colon. syntax: in the grammar; description: in words; read: returns None if it is invalid."""

    syntax: str
    description: str
    read: Callable[[str], Value | None]


@dataclass(frozen=True)
class Base:
    """How a path walks through the prompt.

    compute: (batch, emit, values); reads_cache: whether a forward reads keys and values of an earlier one; refuse: why
    this model cannot run so many positions (None: any), or None.
    """

    compute: Callable[..., None]
    arguments: tuple[Argument, ...] = ()
    reads_cache: bool = True
    refuse: Callable[..., str | None] = lambda loaded, positions, *values: None


@dataclass(frozen=True)
class Modifier:
    """A change while the base runs. contradiction: with other modifiers; refuse: why this model cannot do it."""

    change: Callable[..., AbstractContextManager[PromptBatch]]
    arguments: tuple[Argument, ...] = ()
    contradiction: Callable[..., str | None] = lambda others, *values: None
    refuse: Callable[..., str | None] = lambda loaded, others, *values: None


@dataclass(frozen=True)
class Step:
    """One part of a path with its values: `batch:8`."""

    name: str
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        return ":".join([self.name, *map(str, self.values)])


def whole_number(least: int, most: int | None = None, syntax: str = "N") -> Argument:
    """Return an argument that is a count in decimal digits."""

    def read(text: str) -> int | None:
        is_number = text.isascii() and text.isdigit() and len(text) < 19
        return int(text) if is_number and int(text) >= least and (most is None or int(text) <= most) else None

    until = f"at least {least}" if most is None else f"{least} to {most}"
    return Argument(syntax, f"a whole number of {until}", read)


def choice(*words: str) -> Argument:
    """Return an argument that is one of a few words."""
    return Argument(
        "|".join(words), f"one of {', '.join(words)}", lambda text: text.lower() if text.lower() in words else None
    )


def a_word(syntax: str, description: str) -> Argument:
    """Return an argument that is a name, which only the model can refuse."""
    return Argument(syntax, description, lambda text: text.lower() if text.replace("_", "").isalnum() else None)


def read_step(path: str, text: str, kind: str, choices: Mapping[str, Any]) -> Step:
    """Parse `batch:08` to Step('batch', (8,)). UsageError lists the choices."""
    name, *values = (part.strip() for part in text.split(":"))
    name = name.lower()
    if name not in choices:
        exist = ", ".join(_syntax(key, part.arguments) for key, part in choices.items())
        raise UsageError(f"path '{path}': no {kind} '{name}'; {kind}s are {exist}.")
    arguments: tuple[Argument, ...] = choices[name].arguments
    if len(values) != len(arguments):
        syntax = _syntax(name, arguments)
        raise UsageError(
            f"path '{path}': {kind} '{text.strip()}' has {len(values)} values, not {len(arguments)}; write {syntax}."
        )
    read: list[Value] = []
    for argument, value in zip(arguments, values, strict=True):
        meant = argument.read(value)
        if meant is None:
            raise UsageError(
                f"path '{path}': {name} takes {argument.description}, not '{value}'; write {_syntax(name, arguments)}."
            )
        read.append(meant)
    return Step(name, tuple(read))


def _syntax(name: str, arguments: tuple[Argument, ...]) -> str:
    return ":".join([name, *(argument.syntax for argument in arguments)])
