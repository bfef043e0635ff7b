"""The command line, `ulpscope COMMAND`; `python -m core COMMAND` is the same in a clone.

Exit codes: 0 within the gate, 1 the gate failed, 2 bad input or usage.

Torch is imported only by commands that run a model, and only once they do, so every other command
starts in a fraction of a second.
"""

from __future__ import annotations

import sys
import warnings

from .command_name import COMMAND

try:
    import typer
    from typer.exceptions import TyperException
except ModuleNotFoundError as missing:
    sys.stderr.write(
        f"error: the Python at {sys.executable} has no {missing.name}. In the clone, call"
        " ./ulpscope: it runs in .venv and sets that up if there is none.\n",
    )
    sys.exit(2)

from .commands import (
    capturing,
    comparing,
    explaining,
    generating,
    models,
    ops,
    probing,
    pushing,
    serve,
    showing,
    stored,
    sweeping,
    verdicts,
    weights,
)
from .commands.terminal.console import err
from .errors import UlpscopeError

app = typer.Typer(
    name=COMMAND,
    help=(
        "Is it rounding, or a bug? Capture and compare full-vocabulary logits of two execution"
        " paths of a model."
    ),
    epilog=(
        f"A first look:  {COMMAND} list   then   {COMMAND} show RUN. A run id may be shortened to a"
        " unique prefix."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for each in (
    *(
        comparing.compare,
        comparing.ingest,
        comparing.inspect,
        probing.probe,
        capturing.capture,
        capturing.judge,
    ),
    *(
        verdicts.verdict,
        explaining.explain,
        generating.generate,
        generating.search,
        ops.ops,
        sweeping.sweep,
    ),
    *(
        showing.show,
        stored.export,
        stored.delete,
        stored.label,
        models.model,
        models.engines,
        pushing.push,
        serve.serve,
        weights.weights,
        serve.skill,
        serve.mcp,
    ),
):
    app.command()(each)
app.command("list")(stored.list_)
for internal in (capturing.perform, comparing.spare, comparing.comment):
    app.command(hidden=True)(internal)


def main() -> None:
    """Run the command line; an UlpscopeError becomes one sentence on stderr and exit code 2."""
    if not sys.warnoptions:  # libraries' warnings are for developers: python -W shows them
        warnings.simplefilter("ignore")
    try:
        code = app(prog_name=COMMAND, standalone_mode=False)
    except UlpscopeError as error:
        err.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except TyperException as error:  # usage: an unknown option, a missing argument
        err.print(f"error: {error.format_message()}", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:  # a file without permission, a full disk
        err.print(f"error: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except typer.Abort:
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
