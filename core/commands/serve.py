"""`serve`: the dashboard for others. Checks the configuration, then becomes Streamlit's server."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..command_name import COMMAND
from ..configuration import FILE_NAME, VARIABLE, SignIn, as_json, configuration, readable_secrets, variable_of
from ..errors import ConfigurationError, ExtraError, UsageError
from ..hosting import credentials, start, tokens
from ..runs.store.store import open_store
from . import options
from .terminal.console import err, out, print_json

ROOT = Path(__file__).resolve().parents[2]


def serve(
    address: Annotated[
        str, typer.Option(help="Where to listen. Anything but this machine needs a sign-in; 0.0.0.0 is every address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Members see and download, nothing is changed.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Print the settings and tokens, and whether a server would start; then end.")
    ] = False,
    hash_password: Annotated[
        bool, typer.Option("--hash-password", help="Ask for a password, print its hash; then end.")
    ] = False,
    token: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make and print a token for a member; then end.")
    ] = None,
    revoke: Annotated[str | None, typer.Option(metavar="NAME", help="Revoke a token; then end.")] = None,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Serve the dashboard. Refuses to be open to others without a sign-in (docs/hosting.md)."""
    if hash_password:
        sys.stdout.write(f"{credentials.hashed(_typed_password())}\n")
    elif token is not None:
        sys.stdout.write(f"{tokens.add(open_store(store).directory, token)}\n")
        hint = "" if configuration().sign_in.tokens else " Tokens are off: set [sign_in] tokens = true."
        err.print(f"'{token}' signs in with this token, which is not shown again.{hint}", markup=False, soft_wrap=True)
    elif revoke is not None:
        tokens.revoke(open_store(store).directory, revoke)
        err.print(f"revoked '{revoke}'", markup=False)
    elif check:
        _check(address, store, as_json_)
    else:
        _serve(address, port, read_only, store)


def _typed_password() -> str:
    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < credentials.SHORTEST:
        raise UsageError(f"The password has {len(password)} characters; expected at least {credentials.SHORTEST}.")
    return password


def _check(address: str, store: str | None, as_json_: bool) -> None:
    """Print every setting (of secrets, whether they are set); ConfigurationError if a server would not start."""
    config = configuration()
    settings = as_json(config)
    names = sorted(tokens.listed(open_store(store).directory))
    try:
        start.check(config, address)
        problem = None
    except ConfigurationError as error:
        problem = str(error)
    if as_json_:
        print_json(settings | {"token_names": names, "problem": problem})
    else:
        table = Table(title=f"from {escape(str(config.source))} and the environment" if config.source else None)
        for column in ("setting", "value", "environment variable"):
            table.add_column(column, overflow="fold")
        for section, values in settings.items():
            for name, value in values.items() if isinstance(values, dict) else ():
                text = value if isinstance(value, str) else json.dumps(value)
                table.add_row(f"\\[{section}] {name}", escape(text), variable_of(section, name))
        out.print(table)
        out.print(f"sign-in: {_ways(config.sign_in)}; tokens: {', '.join(names) or 'none'}", markup=False)
        for secret in readable_secrets(config, os.environ):
            err.print(f"warning: every user of this machine can read {secret}: chmod 600 the file.", markup=False)
    if problem:
        raise ConfigurationError(f"A server would not start: {problem}")


def _ways(sign_in: SignIn) -> str:
    return ", ".join(start.ways(sign_in)) or "none, this machine only"


def _serve(address: str, port: int, read_only: bool, store: str | None) -> None:
    if not (ROOT / "app" / "main.py").is_file():
        raise UsageError(
            "The dashboard is part of a clone, not of the installed package: run ./ulpscope serve in one, or"
            " install the clone with pip install -e '.[hosting]'."
        )
    if find_spec("streamlit") is None:
        raise ExtraError("The dashboard takes streamlit: pip install -e '.[hosting]' in the clone.")
    config, runs = configuration(), open_store(store)
    start.check(config, address)
    directory = runs.directory.absolute()
    environment = os.environ | {"ULPSCOPE_STORE": str(directory)}
    if read_only:
        environment[variable_of("hosting", "read_only")] = "1"
    named = environment.get(VARIABLE) or (FILE_NAME if Path(FILE_NAME).exists() else "")
    if named:  # the server runs in the repository, which has the theme
        environment[VARIABLE] = str(Path(named).absolute())
    url = config.hosting.public_url or f"http://{f'[{address}]' if ':' in address else address}:{port}"
    place = directory if runs.mirror is None else runs.address
    err.print(f"{url}, runs in {place}, sign-in: {_ways(config.sign_in)}", markup=False, soft_wrap=True)
    if config.sign_in.tokens and not tokens.listed(directory):
        err.print(f"There is no token yet: {COMMAND} serve --token NAME", markup=False, soft_wrap=True)
    options = {
        "server.address": address,
        "server.port": str(port),
        "server.headless": "true",
        "logger.hideWelcomeMessage": "true",
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    os.chdir(ROOT)
    sys.stderr.flush()
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "main.py"), *flags]
    os.execve(sys.executable, command, environment)
