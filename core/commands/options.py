"""Options that several commands share, and the fields of a request as options of a command."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typer import Argument, Option

from ..capture_request import CaptureRequest, Request, option_of
from ..rl.figures import FRAMEWORKS

# else a parameter without a default could follow one with a default
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def request_option(name: str, of: type[Request] = CaptureRequest) -> Any:
    """Return the option (or the argument) of one field of a request."""
    each = next(one for one in fields(of) if one.name == name)
    if each.metadata.get("is_argument"):
        return Argument(metavar=name.upper(), help=each.metadata["help"])
    return Option(option_of(each), help=each.metadata["help"])


RunArgument = Annotated[str, Argument(metavar="RUN", help="Run id, or a unique prefix of one.")]
StoreOption = Annotated[
    str | None,
    Option("--store", help="Folder of runs, or s3://... Default: $ULPSCOPE_STORE, else runs/."),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of tables.")]
ProgressOption = Annotated[
    Literal["bar", "json"],
    Option(help="'bar', or 'json': one JSON line per stage."),
]
JunitOption = Annotated[Path | None, Option("--junit", help="Write the gate results as JUnit XML.")]
MarkdownOption = Annotated[
    Path | None,
    Option("--markdown", help="Append the gate results as Markdown to a file."),
]
ComputeDtypeOption = Annotated[
    str | None,
    Option(help="Dtype in which the logits were computed; ULPs are in it. Default: detected."),
]
ReferenceOption = Annotated[
    str | None,
    Option(help="Side to compare the others with. Default: 'reference' or first."),
]
ExactOption = Annotated[
    Path | None,
    Option(
        help=(
            "A dump of the exact result in float32 or float64, for sides in 16 bits; trusted 16-bit"
            " results in it are the measure."
        ),
    ),
]
MixtureOfExpertsOption = Annotated[
    bool,
    Option(
        "--mixture-of-experts",
        help="A near tie of the router may move a position, or share rows of a batch.",
    ),
]
HoldsOption = Annotated[
    str | None,
    Option(
        help=(
            "'logits': treat arrays as logits even if they look like log-probabilities of chosen"
            " tokens. 'padded': cut a padded vocabulary to the tokens common to all sides."
            " 'values': embeddings, hidden states or scores, of any width: no tokens."
        ),
    ),
]
AsOption = Annotated[
    str | None,
    Option(
        "--as",
        help=(
            "For trainer vs. rollout: figures as this framework defines and names them:"
            f" {', '.join(FRAMEWORKS)}."
        ),
    ),
]
DeviceOption = Annotated[str | None, request_option("device")]
RevisionOption = Annotated[str | None, request_option("revision")]
TrustOption = Annotated[bool, request_option("trust_remote_code")]
DryRunOption = Annotated[
    bool, Option("--dry-run", help="Print forwards, memory and disk; run nothing.")
]
EngineOption = Annotated[
    list[str] | None,
    Option(
        "--engine",
        help=(
            "NAME=PYTHON: run the engine with this interpreter. NAME=PYTHON,ADAPTER.py: an engine"
            " of your own. NAME=FOLDER: replay tensor dumps."
        ),
    ),
]


def takes_request(
    of: type[Request] = CaptureRequest,
    *,
    omit: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    **preset: Any,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate `command(request, *, ...)`: the fields of a request become options before the
    command's own.

    omit: fields without an option; preset: fields that the command sets; defaults: for this command
    only.
    """
    defaults = defaults or {}
    hints = get_type_hints(of)
    taken = [each for each in fields(of) if each.name not in (*omit, *preset)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = []
        for each in taken:
            declared, default = hints[each.name], defaults.get(each.name, each.default)
            # typer repeats an option for a list, not for a tuple of any length
            if get_origin(declared) is tuple:
                declared, default = list[get_args(declared)[0]] | None, None  # type: ignore[misc]
            if default is MISSING:
                default = inspect.Parameter.empty
            parameters.append(
                inspect.Parameter(
                    each.name,
                    _BY_NAME,
                    default=default,
                    annotation=Annotated[declared, request_option(each.name, of)],
                ),
            )
        parameters += [each.replace(kind=_BY_NAME) for each in own]

        def run(**arguments: Any) -> None:
            values = dict(defaults)
            for each in taken:
                value = arguments.pop(each.name)
                # None is an option that was not given: the default of the request holds
                if value is not None:
                    values[each.name] = tuple(value) if isinstance(value, list) else value
            command(of(**values, **preset), **arguments)

        # typer reads the name, help and options of a command from these
        run.__doc__, run.__name__ = command.__doc__, command.__name__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate
