"""`push`: a run or a dump to a ULPscope server elsewhere, resumed where the connection breaks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from ..runs.importing import is_run_file
from ..runs.store.cards import RunCard, read_runs
from ..runs.store.store import open_store
from ..text import shown
from . import options
from .terminal.console import err, out, print_json, print_text, steps, stoppable

TOKEN_VARIABLE = "ULPSCOPE_TOKEN"


def push(
    source: Annotated[
        str, typer.Argument(metavar="RUN|FILE", help="Id of a stored run, or a file: a dump or a run file.")
    ],
    to: Annotated[
        str, typer.Option("--to", metavar="URL", help="The server, as in a browser: https://ulpscope.example.org")
    ],
    name: Annotated[
        str | None, typer.Option(help="What to call the run there. Default: the run's name, or the file's.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"A file with the token to sign in with. Default: the variable {TOKEN_VARIABLE}."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Of a dump: the model the logits come from, for the record.")
    ] = None,
    compute_dtype: Annotated[str | None, typer.Option(help="Of a dump: float32, float16 or bfloat16.")] = None,
    reference: Annotated[str | None, typer.Option(help="Of a dump: the side the others are compared with.")] = None,
    holds: Annotated[str | None, typer.Option(help="Of a dump: 'logits' or 'padded', see `ingest --holds`.")] = None,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to keep trying while the server cannot be reached.")
    ] = 300.0,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Send a run or a dump to a server and print its link there. The server checks it as it checks anything from
    outside.
    """
    from ..push import Pushing, push_file  # what speaks HTTP takes 0.2 s to load

    address = re.fullmatch(r"(https?://[^/?#@\s]+(?:/[^?#@\s]*)?)/?", to.strip())
    if address is None:
        raise UsageError(
            f"--to '{shown(to)}' is no address of a server; expected https://HOST, without user, query or fragment."
        )
    path, called = _source(source, store)
    options = {"model": model, "compute_dtype": compute_dtype, "reference": reference, "holds": holds}
    asked = Pushing(
        path=path,
        name=name or called,
        url=address[1].rstrip("/"),
        token=_token(token_file),
        patience_seconds=patience,
        options={key: value for key, value in options.items() if value},
    )
    with stoppable(), steps() as say:
        done = push_file(
            asked,
            lambda stage, done, total: say(stage, 100 * done // total if total else 0, 100 if total else 0, "percent"),
            lambda sentence: print_text(sentence, err),
        )
    if as_json_:
        print_json({"run_id": done.run_id, "url": done.url, "bytes": done.bytes, "resumed": done.resumed})
    else:
        out.print(done.url, markup=False)


def _source(source: str, store: str | Path | None) -> tuple[Path, str]:
    """The file to send, and what it is called."""
    path = Path(source)
    is_file = path.is_file()
    if not is_file and (path.suffix in (".npz", ".npy", ".safetensors", ".duckdb") or os.sep in source):
        raise UsageError(f"{source}: there is no such file.")
    path = path if is_file else open_store(store).path_of(source)
    if is_run_file(path):
        card = read_runs([path])[path]
        return path, card.name if isinstance(card, RunCard) else path.stem
    return path, path.stem


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--token-file {path}: cannot be read as a token.") from None
    if not token or not token.isprintable() or " " in token:
        raise UsageError(f"--token-file {path}: holds no token; expected one word.")
    return token
