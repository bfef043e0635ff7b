"""`serve`: the dashboard for others. It looks at the configuration first, then becomes Streamlit's server."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..command_name import COMMAND
from ..configuration import FILE_NAME, VARIABLE, configuration, variable_of
from ..errors import ExtraError, UsageError
from ..hosting import private, start, tokens
from ..runs.store.store import open_store
from .terminal.console import StoreOption, err

ROOT = Path(__file__).resolve().parents[2]


def serve(
    address: Annotated[
        str,
        typer.Option(
            help="Where to listen. Anything but this machine itself needs a sign-in; 0.0.0.0 is every address."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    token: Annotated[
        bool,
        typer.Option(
            "--token",
            help="Without a sign-in: ask for a random token, which the printed address has. For a machine that several"
            " people share under one user.",
        ),
    ] = False,
    store: StoreOption = None,
) -> None:
    """Serve the dashboard. Refuses, before it listens, to be open to others without a sign-in (docs/hosting.md)."""
    if not (ROOT / "app" / "main.py").is_file():
        raise UsageError(
            "the dashboard is part of a clone of ULPscope, not of the installed package; run ./ulpscope serve in one,"
            " or install the clone with pip install -e '.[hosting]'."
        )
    if find_spec("streamlit") is None:
        raise ExtraError("the dashboard takes streamlit, not installed here: pip install -e '.[hosting]' in the clone.")
    found = configuration()
    if token and found.sign_in.is_configured:
        raise UsageError(
            f"--token is for a server without a sign-in; this one has {', '.join(start.ways(found.sign_in))}."
        )
    environment = os.environ | {start.FORWARDED: ""}  # whom to believe is [hosting] trusted_proxies, and nothing else
    start.check(found, environment, address)
    if address.startswith("unix:"):
        raise UsageError("Streamlit's server does not listen on unix sockets; give an address such as 127.0.0.1.")
    runs = open_store(store)
    directory = runs.directory.absolute()
    environment["ULPSCOPE_STORE"] = str(directory)
    if token:
        environment[variable_of("hosting", "local_token")] = "1"
    named = environment.get(VARIABLE) or (FILE_NAME if Path(FILE_NAME).exists() else "")
    if named:  # the server runs in the repository, where the theme is
        environment[VARIABLE] = str(Path(named).absolute())
    where = found.hosting.public_url or f"http://{f'[{address}]' if ':' in address else address}:{port}"
    ways = start.ways(found.sign_in)
    place = directory if runs.mirror is None else runs.address
    err.print(
        f"{where}, runs in {place}, sign-in: {', '.join(ways) or 'none, this machine only'}",
        markup=False,
        soft_wrap=True,
    )
    if found.sign_in.header:
        err.print("on every request its proxy sends, as nginx says it:", markup=False)
        for line in start.proxy_lines(found.sign_in.header, "the [hosting] proxy_secret"):
            err.print(f"    {line}", markup=False, soft_wrap=True)
    if found.sign_in.is_configured:
        private.secret(directory)
        if found.sign_in.tokens and not tokens.listed(directory):
            err.print(f"there is no token yet: {COMMAND} tokens add NAME --role editor", markup=False, soft_wrap=True)
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
