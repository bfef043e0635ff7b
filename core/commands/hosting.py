"""`configuration`, `hash-password`, `audit`: what a server that others reach is set to, and what was done on it."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..configuration import as_json, configuration, variable_of
from ..errors import ConfigurationError, UsageError
from ..hosting import passwords, start
from ..runs.store import audit as log
from ..runs.store.store import open_store
from .console import JsonOption, StoreOption, err, out, print_json

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
    if as_json_:
        print_json(said | {"complaint": complaint or None})
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
        table.add_row(*(escape(_printable(str(part))) for part in (*(event.get(key, "") for key in _KNOWN), more)))
    out.print(
        table
        if events
        else "nothing yet; what is uploaded, captured, tagged or deleted in the dashboard is listed here."
    )


def _worded(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _printable(text: str) -> str:
    """Names are of others: nothing in them moves a terminal's cursor."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
