"""`configuration`, `hash-password`, `audit`, `tokens`: what a server that others reach is set to, who may use it, and
what was done on it.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..command_name import COMMAND
from ..configuration import as_json, configuration, variable_of
from ..errors import ConfigurationError, UsageError
from ..hosting import passwords, start, tokens
from ..runs.store import audit as log
from ..runs.store.store import open_store
from .terminal.console import JsonOption, StoreOption, err, out, print_json

tokens_app = typer.Typer(
    help="Tokens of people and programs: make, list, revoke.", no_args_is_help=True, pretty_exceptions_enable=False
)
_KNOWN = ("time", "who", "what", "run_id")


def show_configuration(as_json_: JsonOption = False) -> None:
    """Show every setting that is in force, and whether a server would start with it. Of secrets, only whether they are
    set.
    """
    found = configuration()
    said = as_json(found)
    try:
        start.check(found, os.environ)
        complaint = ""
    except ConfigurationError as error:
        complaint = str(error)
    warnings = start.warnings(found, os.environ)
    if as_json_:
        print_json(said | {"complaint": complaint or None, "warnings": warnings})
        return
    table = Table(
        title=f"from {escape(str(found.source))} and the environment"
        if found.source
        else "defaults and the environment"
    )
    for column in ("setting", "value", "environment variable"):
        table.add_column(column, overflow="fold")
    for section, values in said.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            table.add_row(f"\\[{section}] {name}", escape(_worded(value)), variable_of(section, name))
    out.print(table)
    ways = start.ways(found.sign_in)
    out.print("sign-in: " + (", ".join(ways) if ways else "none, so the server stays on this machine"), markup=False)
    for warning in warnings:
        err.print(f"warning: {warning}", markup=False, soft_wrap=True)
    if complaint:
        err.print(f"a server would not start: {complaint}", markup=False, soft_wrap=True)


def hash_password() -> None:
    """Ask for a password and print the form to put into the configuration, from which nobody can tell it. Reads one
    line of a pipe.
    """
    if sys.stdin.isatty():
        given = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    if len(given) < passwords.SHORTEST or len(given.encode()) > passwords.LONGEST:
        raise UsageError(
            f"the password has {len(given)} characters; expected {passwords.SHORTEST} to {passwords.LONGEST}."
        )
    sys.stdout.write(f"{passwords.hashed(given)}\n")


def audit(
    last: Annotated[int, typer.Option(min=1, help="How many events, the latest.")] = 100,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Show who signed in, uploaded, captured, tagged and deleted what; the latest last."""
    events = log.read(open_store(store).directory, last)
    if as_json_:
        print_json(events)
        return
    table = Table()
    for column in ("time (UTC)", "who", "what", "run", "more"):
        table.add_column(column, overflow="fold", no_wrap=column == "time (UTC)")
    for event in events:
        more = ", ".join(f"{key} {_worded(value)}" for key, value in event.items() if key not in _KNOWN)
        table.add_row(*(escape(str(part)) for part in (*(event.get(key, "") for key in _KNOWN), more)))
    out.print(
        table
        if events
        else "nothing yet; what is uploaded, captured, tagged or deleted in the dashboard is listed here."
    )


def _worded(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@tokens_app.command("add")
def add_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is, as the audit log names them.")],
    role: Annotated[
        str, typer.Option(help="viewer: sees and downloads; editor: also uploads, captures, tags and deletes.")
    ] = "viewer",
    days: Annotated[float, typer.Option(help="For how many days it is valid; 0 is for ever.")] = 90.0,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Make a token. It is shown this once; only its SHA-256 is kept."""
    directory = open_store(store).directory
    text, made = tokens.add(directory, name, role, days)
    log.record(directory, log.local_user(), "token made", token=made.name, role=made.role, days=days)
    if as_json_:
        print_json(_token_json(made) | {"token": text})
        return
    sys.stdout.write(f"{text}\n")
    until = "for ever" if made.expires is None else f"until {made.expires:%Y-%m-%d %H:%M} UTC"
    err.print(f"{made.role} '{made.name}', valid {until}; it is not shown again.", markup=False, soft_wrap=True)
    if not configuration().sign_in.tokens:
        err.print(
            "tokens are not switched on yet: set [sign_in] tokens = true, or ULPSCOPE_SIGN_IN_TOKENS=1.",
            markup=False,
            soft_wrap=True,
        )


@tokens_app.command("list")
def list_tokens(store: StoreOption = None, as_json_: JsonOption = False) -> None:
    """List the tokens: whose, which role, until when."""
    found = sorted(tokens.listed(open_store(store).directory), key=lambda token: token.name.casefold())
    if as_json_:
        print_json([_token_json(token) for token in found])
        return
    table = Table()
    for column in ("name", "role", "made (UTC)", "valid until (UTC)"):
        table.add_column(column, overflow="fold")
    now = datetime.now(UTC).replace(tzinfo=None)
    for token in found:
        until = (
            "for ever"
            if token.expires is None
            else f"{token.expires:%Y-%m-%d %H:%M}{', over' if token.is_expired(now) else ''}"
        )
        table.add_row(escape(token.name), token.role, f"{token.created:%Y-%m-%d %H:%M}", until)
    out.print(table if found else f"no tokens; `{COMMAND} tokens add NAME` makes one.")


@tokens_app.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(metavar="NAME")], store: StoreOption = None, as_json_: JsonOption = False
) -> None:
    """Remove a token. Whoever uses it, or signed in with it, is out within seconds, open pages and what is being sent
    included.
    """
    directory = open_store(store).directory
    gone = tokens.revoke(directory, name)
    log.record(directory, log.local_user(), "token revoked", token=gone.name, role=gone.role)
    if as_json_:
        print_json({"revoked": gone.name})
    else:
        out.print(f"revoked '{gone.name}'", markup=False)


def _token_json(token: tokens.Token) -> dict[str, object]:
    expires = None if token.expires is None else f"{token.expires.isoformat()}Z"
    return {"name": token.name, "role": token.role, "created": f"{token.created.isoformat()}Z", "expires": expires}
