"""`tokens add`, `tokens list`, `tokens revoke`: who may use the HTTP interface of a server, or sign in, with a token of
their own.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..command_name import COMMAND
from ..configuration import configuration
from ..hosting import tokens
from ..runs.store import audit
from ..runs.store.store import open_store
from .console import JsonOption, StoreOption, err, out, print_json

app = typer.Typer(
    help="Tokens of people and programs: make, list, revoke.", no_args_is_help=True, pretty_exceptions_enable=False
)


@app.command()
def add(
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
    audit.record(directory, audit.local_user(), "token made", token=made.name, role=made.role, days=days)
    if as_json_:
        print_json(_said(made) | {"token": text})
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


@app.command("list")
def list_(store: StoreOption = None, as_json_: JsonOption = False) -> None:
    """List the tokens: whose, which role, until when."""
    found = sorted(tokens.listed(open_store(store).directory), key=lambda token: token.name.casefold())
    if as_json_:
        print_json([_said(token) for token in found])
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


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME")], store: StoreOption = None, as_json_: JsonOption = False
) -> None:
    """Remove a token. Whoever uses it, or signed in with it, is out within seconds, open pages included."""
    directory = open_store(store).directory
    gone = tokens.revoke(directory, name)
    audit.record(directory, audit.local_user(), "token revoked", token=gone.name, role=gone.role)
    if as_json_:
        print_json({"revoked": gone.name})
    else:
        out.print(f"revoked '{gone.name}'", markup=False)


def _said(token: tokens.Token) -> dict[str, object]:
    expires = None if token.expires is None else f"{token.expires.isoformat()}Z"
    return {"name": token.name, "role": token.role, "created": f"{token.created.isoformat()}Z", "expires": expires}
