"""`push`: send a run or a dump to another ULPscope server; resumes after a broken connection."""

import os
from dataclasses import asdict
from pathlib import Path

from typer import Argument, Option

from ..errors import UsageError
from ..probing.plan import base_of
from ..runs.importing import is_run_file
from ..runs.store.cards import RunCard, read_runs
from ..runs.store.store import open_store
from . import options
from .terminal.console import err, print_json, print_text, steps
from .terminal.stopping import stoppable

TOKEN_VARIABLE = "ULPSCOPE_TOKEN"


def push(
    source: str = Argument(
        ..., metavar="RUN|FILE", help="Id of a stored run, a dump or a run file."
    ),
    to: str = Option(..., metavar="URL", help="The server: https://ulpscope.example.org"),
    name: str | None = Option(
        None, help="Name of the run there. Default: that of the run or file."
    ),
    token_file: Path | None = Option(
        None, help=f"File with the token to sign in with. Default: ${TOKEN_VARIABLE}."
    ),
    model: str | None = Option(None, help="For a dump: its model, for the record."),
    compute_dtype: options.ComputeDtype = None,
    reference: options.Reference = None,
    holds: options.Holds = None,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Send a run or a dump to a server and print its link there."""
    # imported late: what speaks HTTP takes 0.2 s to load
    from ..push import PushRequest, push_file

    url = base_of(to)
    path = Path(source)
    if not path.is_file():
        # else a file that is missing would be looked for as the id of a run
        if path.suffix in (".npz", ".npy", ".safetensors", ".duckdb") or os.sep in source:
            raise UsageError(f"{source}: no such file.")
        path = open_store(store).path_of(source)
    card = read_runs([path])[path] if is_run_file(path) else None
    title = card.name if isinstance(card, RunCard) else path.stem
    about = {"model": model, "compute_dtype": compute_dtype, "reference": reference, "holds": holds}
    options_given = {key: value for key, value in about.items() if value}
    request = PushRequest(path, name or title, url, _token(token_file), options=options_given)
    with stoppable(), steps() as say:
        done = push_file(request, say, lambda sentence: print_text(sentence, err))
    if as_json_:
        print_json(asdict(done))
    else:
        print_text(done.url)


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--token-file {path}: cannot be read as a token.") from None
    # a token goes into a header of HTTP, which takes no line ends
    if not token or not token.isprintable() or " " in token:
        raise UsageError(f"--token-file {path}: holds no token; expected one word.")
    return token
