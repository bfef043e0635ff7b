"""The fields of a request as options of a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from ..capture_request import CaptureRequest
from ..request_fields import Request, field_of, option_of


def request_option(name: str, of: type[Request] = CaptureRequest) -> Any:
    """The option of one field, for commands that take only a few of them."""
    each = field_of(of, name)
    return typer.Option(option_of(each), help=each.metadata["help"], min=each.metadata["lowest"])


def request_argument(name: str, of: type[Request] = CaptureRequest) -> Any:
    """The argument of one field, for commands that take it by its place."""
    return typer.Argument(metavar=name.upper(), help=field_of(of, name).metadata["help"])


DtypeOption = Annotated[str, request_option("dtype")]
DeviceOption = Annotated[str | None, request_option("device")]
RevisionOption = Annotated[str | None, request_option("revision")]
TrustOption = Annotated[bool, request_option("trust_remote_code")]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        help="NAME=PYTHON: the interpreter that has an engine; NAME=PYTHON,ADAPTER.py: an engine of your own;"
        " NAME=FOLDER: tensor dumps, replayed.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Check everything and say what would run and what it costs; no weights are read."),
]


def takes_request(
    of: type[Request] = CaptureRequest,
    *,
    without: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    **preset: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator for `command(request, *, ...)`: the command line gets the fields of a request as options, ahead
    of the command's own.

    without: fields that are no options and stay as they are; preset: those that the command sets; defaults: those that
    stand otherwise in this command unless they are given.
    """
    defaults = defaults or {}
    asked = [each for each in fields(of) if each.name not in without and each.name not in preset]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        options = [_parameter(of, each.name, defaults.get(each.name, each.default)) for each in asked]

        def called(**given: Any) -> None:
            values = {each.name: given.pop(each.name) for each in asked if each.name in given}
            values = {name: _value(value) for name, value in values.items() if value is not None}
            command(of(**{**defaults, **values, **preset}), **given)

        called.__doc__, called.__name__ = command.__doc__, command.__name__
        called.__signature__ = inspect.Signature([*options, *own])  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in (*options, *own)}
        return called

    return decorate


def _parameter(of: type[Request], name: str, default: Any) -> inspect.Parameter:
    declared = get_type_hints(of)[name]
    if get_origin(declared) is tuple:
        declared, default = list[get_args(declared)[0]] | None, None  # type: ignore[misc]
    about = request_argument if field_of(of, name).metadata["is_argument"] else request_option
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[declared, about(name, of)],
    )


def _value(given: Any) -> Any:
    return tuple(given) if isinstance(given, list) else given
