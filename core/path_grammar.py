"""Steps of a path with their values, read from `base+modifier:value` text; no step's name is known
here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .errors import UsageError

Value = int | str


@dataclass(frozen=True)
class Argument:
    """One value after a colon. syntax: in the grammar; description: in words; read: returns None if
    it is invalid.
    """

    syntax: str
    description: str
    read: Callable[[str], Value | None]


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
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            return None
        number = int(text)
        return number if least <= number <= (number if most is None else most) else None

    until = f"at least {least}" if most is None else f"{least} to {most}"
    return Argument(syntax, f"a whole number of {until}", read)


def choice(*words: str) -> Argument:
    """Return an argument that is one of a few words."""
    return Argument(
        "|".join(words),
        f"one of {', '.join(words)}",
        lambda text: text.lower() if text.lower() in words else None,
    )


def read_step(path: str, text: str, kind: str, choices: Mapping[str, tuple[Argument, ...]]) -> Step:
    """Parse `batch:08` to Step('batch', (8,)). choices: arguments by name; UsageError lists
    them.
    """
    name, *values = (part.strip() for part in text.split(":"))
    name = name.lower()
    if name not in choices:
        exist = ", ".join(syntax_of(*choice) for choice in choices.items()) or "none"
        raise UsageError(f"path '{path}': no {kind} '{name}'; {kind}s are {exist}.")
    arguments = choices[name]
    syntax = syntax_of(name, arguments)
    if len(values) != len(arguments):
        raise UsageError(
            f"path '{path}': {kind} '{text.strip()}' has {len(values)} values, not"
            f" {len(arguments)}; write {syntax}.",
        )
    read = []
    for argument, value in zip(arguments, values, strict=True):
        meant = argument.read(value)
        if meant is None:
            raise UsageError(
                f"path '{path}': {name} takes {argument.description}, not '{value}'; write"
                f" {syntax}.",
            )
        read.append(meant)
    return Step(name, tuple(read))


def syntax_of(name: str, arguments: tuple[Argument, ...]) -> str:
    return ":".join([name, *(argument.syntax for argument in arguments)])
