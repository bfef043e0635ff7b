"""`tidy`: what retention moves into the trash, and what killed writers left behind."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from core.commands.console import JsonOption, StoreOption, out, print_json, size
from core.configuration import configuration
from core.runs.store.quotas import apply_retention, due
from core.runs.store.store import open_store


def tidy(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; list what would be moved.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Apply the configured retention: runs that are due go to the trash for a week. Pinned runs and sample runs stay.

    A server does the same every hour. And what writers left behind that were killed is removed.
    """
    retention, target = configuration().retention, open_store(store)
    found = due(target, retention)
    if dry_run:
        if as_json_:
            print_json({"due": [asdict(run) for run in found]})
        elif not (retention.days or retention.runs):
            out.print("no retention is configured, so nothing is due; docs/hosting.md has its settings.")
        else:
            _print(found)
        return
    target.sweep()
    moved = apply_retention(target, retention)
    if as_json_:
        print_json({"moved": moved})
    else:
        out.print(
            f"moved to the trash: {', '.join(moved)}; `restore` puts them back." if moved else "nothing is due.", markup=False
        )


def _print(found: list) -> None:
    table = Table(title="due")
    for column in ("run", "name", "size", "because"):
        table.add_column(column, justify="right" if column == "size" else "left", no_wrap=column == "run", overflow="fold")
    for run in found:
        table.add_row(escape(run.run_id), escape(run.name), size(run.bytes), run.because)
    out.print(table if found else "nothing is due.")
