"""`inspect`: what a file would be understood as, storing nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..judging.inspect import understood
from ..text import plural
from .sparse.tables import sparse_side_table
from .terminal.console import (
    ComputeDtypeOption,
    HoldsOption,
    JsonOption,
    ProgressOption,
    ReferenceOption,
    check_progress,
    err,
    out,
    print_json,
    steps,
)


def inspect(
    files: Annotated[
        list[Path], typer.Argument(help="A dump of two or more sides, two of one array each, responses, or a run file.")
    ],
    compute_dtype: ComputeDtypeOption = None,
    reference: ReferenceOption = None,
    holds: HoldsOption = None,
    progress: ProgressOption = "bar",
    as_json_: JsonOption = False,
) -> None:
    """Show how a dump, responses or a run file is understood: sides, dtypes, shapes, tokens. Nothing is stored."""
    check_progress(progress)
    with steps(progress) as tell:
        found = understood(
            files,
            compute_dtype=compute_dtype,
            reference=reference,
            holds=holds,
            on_progress=lambda done, total: tell("reading", done, total, "bytes"),
        )
    if progress == "json":
        sys.stdout.write(json.dumps({"understood": found}) + "\n")
    elif as_json_:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    if found["kind"] == "sparse":
        _print_responses(found)
        return
    table = Table(title=", ".join(found["files"]))
    for name in ("side", "role", "saved as"):
        table.add_column(name)
    for number, side in enumerate(found["sides"]):
        table.add_row(side["name"], "variant" if number else "reference", side["source_dtype"])
    out.print(table, markup=False)
    shape = f"{found['prompts']:,} prompts, {found['positions']:,} positions x {found['vocab']:,} tokens"
    if found["kind"] == "run":
        out.print(f"run '{found['name']}', {shape}, {found['compute_dtype']}", markup=False)
        return
    out.print(
        f"{shape}, tokens: {found['tokens']}; compute dtype {found['compute_dtype']} ({found['dtype_reason']})",
        markup=False,
    )
    for warning in found["warnings"]:
        err.print(f"note: {warning}", markup=False)


def _print_responses(found: dict[str, Any]) -> None:
    out.print(sparse_side_table(found["sides"]))
    out.print(
        f"{plural(found['prompts'], 'prompt')}, {plural(found['positions'], 'position')} that both sides have, tokens"
        f" by {found['tokens']}. {found['dtype_reason']}",
        markup=False,
        soft_wrap=True,
    )
    for warning in found["warnings"]:
        err.print(f"note: {warning}", markup=False, soft_wrap=True)
