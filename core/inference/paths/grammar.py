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
"""The modifiers of a path and their values: what a modifier may have to agree with."""


@dataclass(frozen=True)
class Argument:
    """One value after a colon. shown: as the grammar writes it; expected: in words; read: None if it will not do."""

    shown: str
    expected: str
    read: Callable[[str], Value | None]


@dataclass(frozen=True)
class Base:
    """A way to walk through the prompt.

    compute: (batch, emit, values); at_once: positions whose logits are on the device at once, of (positions, values);
    forwards: calls of the model for a prompt; reads_cache: whether a forward reads keys and values of an earlier one;
    refuse: why this model cannot take so many positions (None: any) this way, or None.
    """

    compute: Callable[..., None]
    arguments: tuple[Argument, ...] = ()
    at_once: Callable[..., int] = lambda positions, *values: 1
    forwards: Callable[..., int] = lambda positions, *values: positions
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


def whole_number(least: int, most: int | None = None, shown: str = "N") -> Argument:
    """A count written in decimal digits."""

    def read(text: str) -> int | None:
        is_number = text.isascii() and text.isdigit() and len(text) < 19
        return int(text) if is_number and int(text) >= least and (most is None or int(text) <= most) else None

    until = f"at least {least}" if most is None else f"{least} to {most}"
    return Argument(shown, f"a whole number of {until}", read)


def choice(*words: str) -> Argument:
    """One of a few words."""
    return Argument(
        "|".join(words), f"one of {', '.join(words)}", lambda text: text.lower() if text.lower() in words else None
    )


def a_word(shown: str, expected: str) -> Argument:
    """A name whose meaning depends on the model, so that only the model can refuse it."""
    return Argument(shown, expected, lambda text: text.lower() if text.replace("_", "").isalnum() else None)


def read_step(path: str, text: str, kind: str, known: Mapping[str, Any]) -> Step:
    """`batch:08` -> Step('batch', (8,)); UsageError says what exists where the text names something else."""
    name, *values = (part.strip() for part in text.split(":"))
    name = name.lower()
    if name not in known:
        exist = ", ".join(_shown(key, part.arguments) for key, part in known.items())
        raise UsageError(f"path '{path}': no {kind} '{name}'; {kind}s are {exist}.")
    arguments: tuple[Argument, ...] = known[name].arguments
    if len(values) != len(arguments):
        wanted = _shown(name, arguments)
        raise UsageError(
            f"path '{path}': {kind} '{text.strip()}' has {len(values)} values, not {len(arguments)}; write {wanted}."
        )
    read: list[Value] = []
    for argument, value in zip(arguments, values, strict=True):
        meant = argument.read(value)
        if meant is None:
            raise UsageError(
                f"path '{path}': {name} takes {argument.expected}, not '{value}'; write {_shown(name, arguments)}."
            )
        read.append(meant)
    return Step(name, tuple(read))


def _shown(name: str, arguments: tuple[Argument, ...]) -> str:
    return ":".join([name, *(argument.shown for argument in arguments)])
