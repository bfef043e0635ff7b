"""Fields of a request, the record that the options of a command and the form of a page fill in and that a run keeps as
JSON: each with its help text and how the command line has it.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, Self

from .errors import UsageError


def asked(
    help_text: str,
    default: Any = MISSING,
    *,
    option: str = "",
    lowest: float | None = None,
    is_always_typed: bool = False,
    is_argument: bool = False,
) -> Any:
    """A field with its help text; option: how the command line calls it, where that is not the field's own name;
    is_argument: it is no option, and is given by its place.
    """
    about = {
        "help": help_text,
        "option": option,
        "lowest": lowest,
        "is_always_typed": is_always_typed,
        "is_argument": is_argument,
    }
    return field(metadata=about) if default is MISSING else field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Record that a command is asked by, of fields made by `asked`."""

    def words(self) -> list[str]:
        """Words of the command line behind the command's name; what stands at its default is left out."""
        given = [str(getattr(self, each.name)) for each in fields(self) if each.metadata["is_argument"]]
        found: list[str] = []
        for each in fields(self):
            value, (option, *negative) = getattr(self, each.name), option_of(each).split("/")
            if each.metadata["is_argument"] or (value == each.default and not each.metadata["is_always_typed"]):
                continue
            if isinstance(value, bool):
                found += [option] if value else negative
                continue
            for one in value if isinstance(value, tuple) else (value,):
                found += [f"{option}={one}"] if str(one).startswith("-") else [option, str(one)]
        return [*given, *found]

    def to_json(self) -> str:
        """JSON object of the fields that do not stand at their defaults."""
        values = asdict(self)
        kept = {each.name: values[each.name] for each in fields(self) if values[each.name] != each.default}
        return json.dumps(kept, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None) -> Self | None:
        """Read what `to_json` wrote; None for None, and for text that this version does not write."""
        try:
            values = json.loads(text or "null")
            return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
        except (ValueError, AttributeError, TypeError, UsageError):
            return None


def option_of(each: Field[Any]) -> str:
    """Command-line option of a field of a request."""
    return each.metadata["option"] or f"--{each.name.replace('_', '-')}"


def field_of(request: type[Request], name: str) -> Field[Any]:
    """Return a field of a request by its name."""
    return next(each for each in fields(request) if each.name == name)
