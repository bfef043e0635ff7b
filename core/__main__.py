"""The command line, `ulpscope COMMAND`; `python -m core COMMAND` is the same in a clone.

Exit codes: 0 within the gate, 1 the gate failed, 2 bad input or usage.

A command's module is imported when the command is called, and torch once it runs a model: to import
all of them takes half a second, before `list` or `--help` prints a word.
"""

import ast
import gc
import sys
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from . import __version__
from .command_name import COMMAND

try:
    import typer
    from typer.core import TyperCommand, TyperGroup
    from typer.exceptions import TyperException
except ModuleNotFoundError as missing:
    sys.stderr.write(
        f"error: the Python at {sys.executable} has no {missing.name}. In the clone, call"
        " ./ulpscope: it runs in .venv and sets that up if there is none.\n",
    )
    sys.exit(2)

from .errors import UlpscopeError

# Names of the commands, as the help lists them, and the modules of core/commands/ that have them.
MODULES = {
    "compare": "comparing",
    "ingest": "ingesting",
    "inspect": "ingesting",
    "probe": "probing",
    "capture": "capturing",
    "judge": "capturing",
    "verdict": "verdicts",
    "explain": "verdicts",
    "generate": "capturing",
    "search": "capturing",
    "ops": "ops",
    "sweep": "sweeping",
    "show": "showing",
    "export": "stored",
    "delete": "stored",
    "label": "stored",
    "model": "models",
    "engines": "models",
    "push": "stored",
    "serve": "serve",
    "weights": "weights",
    "skill": "serve",
    "mcp": "serve",
    "list": "stored",
    "spare": "ingesting",
    "perform": "capturing",
    "comment": "comparing",
}
_HIDDEN = ("spare", "perform", "comment")
_FUNCTIONS = {"list": "list_"}  # where a command's name is taken in Python


@cache
def _summaries(module: str) -> dict[str, str]:
    """Return the first paragraphs of a module's docstrings by function, without importing it."""
    tree = ast.parse((Path(__file__).parent / "commands" / f"{module}.py").read_text("utf-8"))
    summaries = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            first_paragraph = (ast.get_docstring(node) or "").partition("\n\n")[0]
            summaries[node.name] = first_paragraph.replace("\n", " ")
    return summaries


class Commands(TyperGroup):
    """The commands by name, in help with what their docstrings say; loaded when they are called."""

    def __init__(self, **about: Any) -> None:
        commands = [TyperCommand(name, help="", hidden=name in _HIDDEN) for name in MODULES]
        super().__init__(**about | {"commands": commands})

    def get_command(self, ctx: Any, name: str) -> Any:
        command = super().get_command(ctx, name)
        if command is not None:
            command.help = _summaries(MODULES[name])[_FUNCTIONS.get(name, name)]
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        # a shell that completes a word may have an unknown command before it
        return name, load(name) if name else command, rest


def load(name: str) -> Any:
    """Return a command with its options."""
    module = import_module(f".commands.{MODULES[name]}", __package__)
    alone = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    alone.command(name)(getattr(module, _FUNCTIONS.get(name, name)))
    return typer.main.get_command(alone)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"{COMMAND} {__version__}\n")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version.",
    ),
) -> None:
    """Take the options before a command."""


_application = typer.Typer(
    name=COMMAND,
    cls=Commands,
    help=(
        "Is it rounding, or a bug? Capture and compare full-vocabulary logits of two execution"
        " paths of a model."
    ),
    epilog=(
        f"A first look:  {COMMAND} list   then   {COMMAND} show RUN. A run id may be shortened to a"
        " unique prefix."
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
_application.callback()(_root)
app = typer.main.get_command(_application)


def main() -> None:
    """Run the command line; an UlpscopeError becomes one sentence on stderr and exit code 2."""
    from .commands.terminal.console import err, print_text

    # What is imported stays. To look through it at every 700 objects took a sixth of its time.
    gc.set_threshold(50_000)
    # libraries' warnings are for developers: python -W shows them
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    try:
        code = app(prog_name=COMMAND, standalone_mode=False)
    # OSError: a file without permission, a full disk
    except (UlpscopeError, OSError) as error:
        print_text(f"error: {error}", err)
        sys.exit(2)
    except TyperException as error:
        # an unknown option, a missing argument
        print_text(f"error: {error.format_message()}", err)
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(130)
    sys.exit(code)


if __name__ == "__main__":
    main()
