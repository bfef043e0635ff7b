"""`serve`: the dashboard for others, by Streamlit's server.

`mcp` and `skill`: for coding agents.
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from typer import Option, prompt

from ..command_name import COMMAND
from ..configuration import (
    FILE_NAME,
    SECTIONS,
    VARIABLE,
    as_json,
    configuration,
    readable_secrets,
    variable_of,
)
from ..errors import ConfigurationError, ExtraError, UsageError
from ..hosting import credentials, start, tokens
from ..runs.store.store import open_store
from ..subprocess_json import ROOT
from .options import JsonOption, StoreOption
from .terminal.console import err, print_json, print_records, print_text


def serve(
    address: str = Option(
        "127.0.0.1",
        help=("Address to listen on; 0.0.0.0 for every address. Any but loopback needs a sign-in."),
    ),
    port: int = Option(8501, min=1, max=65535),
    read_only: bool = Option(False, "--read-only", help="Members can only view and download."),
    check: bool = Option(
        False, "--check", help="Print settings and tokens; check if it can start."
    ),
    hash_password: bool = Option(False, "--hash-password", help="Print the hash of a password."),
    token: str | None = Option(None, metavar="NAME", help="Make and print a token for a member."),
    revoke: str | None = Option(None, metavar="NAME", help="Revoke a token."),
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Serve the dashboard. Refuses to be open to others without a sign-in
    (docs/guides/hosting.md).
    """
    if hash_password:
        if sys.stdin.isatty():
            password = prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        else:
            password = sys.stdin.readline().rstrip("\r\n")
        if len(password) < credentials.SHORTEST:
            raise UsageError(
                f"The password has {len(password)} characters; expected at least"
                f" {credentials.SHORTEST}.",
            )
        sys.stdout.write(f"{credentials.hash_password(password)}\n")
    elif token is not None and revoke is not None:
        raise UsageError("--token and --revoke: give one; revoke the old token first.")
    elif token is not None:
        sys.stdout.write(f"{tokens.add(open_store(store).directory, token)}\n")
        hint = ""
        if not configuration().sign_in.tokens:
            hint = " Tokens are off: set [sign_in] tokens = true."
        print_text(f"'{token}' signs in with this token, which is not shown again.{hint}", err)
    elif revoke is not None:
        tokens.revoke(open_store(store).directory, revoke)
        print_text(f"revoked '{revoke}'", err)
    elif check:
        _check(address, store, as_json_)
    else:
        _serve(address, port, read_only, store)


def _check(address: str, store: str | None, as_json_: bool) -> None:
    """Print every setting (of secrets, whether they are set); ConfigurationError if a server cannot
    start.
    """
    config = configuration()
    settings = as_json(config)
    names = sorted(tokens.digests(open_store(store).directory))
    try:
        start.check(config, address)
        problem = None
    except ConfigurationError as error:
        problem = str(error)
    if as_json_:
        print_json(settings | {"token_names": names, "problem": problem})
    else:
        rows = []
        for section in SECTIONS:
            for name, value in settings[section].items():
                variable = variable_of(section, name)
                setting = f"[{section}] {name}"
                rows.append({"setting": setting, "value": json.dumps(value), "variable": variable})
        print_records(rows, f"from {config.source} and the environment" if config.source else None)
        print_text(f"sign-in: {start.ways(config.sign_in)}; tokens: {', '.join(names) or 'none'}")
        for secret in readable_secrets(config):
            print_text(
                f"warning: every user of this machine can read {secret}: chmod 600 the file.",
                err,
            )
    if problem:
        raise ConfigurationError(f"The server cannot start: {problem}")


def _serve(address: str, port: int, read_only: bool, store: str | None) -> None:
    if find_spec("streamlit") is None:
        raise ExtraError(
            "The dashboard needs streamlit: pip install 'ulpscope[hosting]', or make run in a"
            " clone.",
        )
    config, runs = configuration(), open_store(store)
    start.check(config, address)
    directory = runs.directory.absolute()
    environment = os.environ | {"ULPSCOPE_STORE": str(directory)}
    if read_only:
        environment[variable_of("hosting", "read_only")] = "1"
    config_file = environment.get(VARIABLE) or (FILE_NAME if Path(FILE_NAME).exists() else "")
    # the server runs in the dashboard's folder, which has the theme
    if config_file:
        environment[VARIABLE] = str(Path(config_file).absolute())
    url = (
        config.hosting.public_url
        or f"http://{f'[{address}]' if ':' in address else address}:{port}"
    )
    place = directory if runs.mirror is None else runs.address
    print_text(f"{url}, runs in {place}, sign-in: {start.ways(config.sign_in)}", err)
    if config.sign_in.tokens and not tokens.digests(directory):
        print_text(f"There are no tokens yet: {COMMAND} serve --token NAME", err)
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "main.py")]
    command += ["--server.address", address, "--server.port", str(port)]
    command += ["--server.headless", "true", "--logger.hideWelcomeMessage", "true"]
    os.chdir(ROOT)
    # the new program does not get what Python has not written yet
    sys.stderr.flush()
    # in place of this process, so that signals reach the server itself
    os.execve(sys.executable, command, environment)


def mcp() -> None:
    """Serve read-only tools to coding agents over stdio, by the Model Context Protocol
    (docs/guides/agents.md).
    """
    if find_spec("mcp") is None:
        raise ExtraError(f"`{COMMAND} mcp` needs the MCP SDK: pip install 'ulpscope[mcp]'.")
    from .agent_tools import server

    server.run()


def skill() -> None:
    """Print a skill for coding agents: which command answers which question
    (docs/guides/agents.md).
    """
    sys.stdout.write((Path(__file__).parents[1] / "skill.md").read_text(encoding="utf-8"))
