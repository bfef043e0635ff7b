"""`inspect`: how a file is understood, storing nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..judging.inspect import understood
from ..text import plural
from . import options
from .terminal.console import err, out, print_json, print_line, print_text, steps, table_of


def inspect(
    files: Annotated[list[Path], typer.Argument(help="One or two dumps, responses (JSON, JSONL), or a run file.")],
    compute_dtype: options.ComputeDtype = None,
    reference: options.Reference = None,
    holds: options.Holds = None,
    progress: options.Progress = "bar",
    as_json_: options.Json = False,
) -> None:
    """Show how a dump, responses or a run file is understood: sides, dtypes, shapes, tokens. Nothing is stored."""
    with steps(progress) as say:
        found = understood(
            files,
            compute_dtype=compute_dtype,
            reference=reference,
            holds=holds,
            on_progress=partial(say, "reading", unit="bytes"),
        )
    if progress == "json":
        print_line(understood=found)
    elif as_json_:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    prompts, positions = plural(found["prompts"], "prompt"), plural(found["positions"], "position")
    if found["kind"] == "responses":
        columns = ("side", "format", "values", "prompts", "rows", "processed")
        processed = {True: "yes", False: "no", None: "not said"}
        rows = (
            (s["name"], ", ".join(s["formats"]), s["source_dtype"], s["prompts"], s["rows"], processed[s["processed"]])
            for s in found["sides"]
        )
        out.print(table_of(columns, rows, title="sides", text=("side", "format", "values", "processed")))
        print_text(f"{prompts}, {positions} that both sides have, tokens by {found['tokens']}. {found['dtype_reason']}")
    else:
        described = (
            (side["name"], "variant" if number else "reference", side["source_dtype"])
            for number, side in enumerate(found["sides"])
        )
        out.print(table_of(("side", "role", "saved as"), described, title=", ".join(found["files"])))
        shape = f"{prompts}, {positions} x {found['vocab']:,} tokens"
        dtype = found["compute_dtype"]
        if found["kind"] == "run":
            print_text(f"run '{found['name']}', {shape}, {dtype}")
            return
        print_text(f"{shape}, tokens: {found['tokens']}; compute dtype {dtype} ({found['dtype_reason']})")
    for warning in found["warnings"]:
        print_text(f"note: {warning}", err)
