"""What every command prints with: tables and notes for people, JSON for programs, progress for both, and how a command stops."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from core.commands.stopping import EXIT_CODE, SENTENCE, stopping
from core.runs import audit
from core.runs.arrays import shown
from core.runs.partial import remove_living
from core.runs.store import open_store


def printable(text: str) -> str:
    """Lines of untrusted text as a terminal may have them."""
    return "\n".join(shown(line, len(line)) for line in text.split("\n"))


class _Printable(Console):
    """A console for the texts of others: what is no printable character of theirs is shown as an escape and never sent to the terminal."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Every string passes here, whether it is printed, a cell or a title. rich itself lets ESC through."""
        return super().render_str(printable(text), **how)


out = _Printable(highlight=False, width=None if sys.stdout.isatty() else 180)  # a pipe has no width to fit into
err = _Printable(stderr=True, highlight=False)

StoreOption = Annotated[
    Path | None, typer.Option("--store", help="Directory of run files. Default: $ULPSCOPE_STORE, else runs/.")
]
ComputeDtypeOption = Annotated[str | None, typer.Option(help="float32, float16 or bfloat16. Default: declared, else detected.")]
ReferenceOption = Annotated[
    str | None, typer.Option(help="The side the others are compared with. Default: 'reference', else the first.")
]
HoldsOption = Annotated[
    str | None, typer.Option(help="'logits': take arrays for logits that look like log-probabilities of chosen tokens.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, default=str, allow_nan=False) + "\n")


def progress_bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("positions"), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=err, transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip


def number(value: float | None, digits: int = 4) -> str:
    return "undefined" if value is None else f"{value:.{digits}g}"


def size(size_bytes: float) -> str:
    """'460 kB', '20 MB', '16.1 GB': decimal units."""
    for unit, worth in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= worth:
            return f"{size_bytes / worth:,.{1 if unit == 'GB' else 0}f} {unit}"
    return f"{size_bytes:.0f} bytes"


def announce(run_id: str, as_json_: bool) -> None:
    if as_json_:
        print_json({"run_id": run_id})
    else:
        out.print(run_id, markup=False)


def announce_line(run_id: str) -> None:
    """The last of the lines that `--progress json` prints."""
    sys.stdout.write(json.dumps({"stage": "done", "run_id": run_id}) + "\n")
    sys.stdout.flush()


def announce_upload(run_id: str, store: Path | None, progress: str, as_json_: bool, *, is_asked_for: bool) -> None:
    """The end of `ingest` and `adopt`: a line in the audit log, but for a server, which asks for an id and writes its own, and the run's id."""
    if not is_asked_for:
        audit.record(open_store(store).directory, audit.local_user(), "upload", run_id)
    if progress == "json":
        announce_line(run_id)
    else:
        announce(run_id, as_json_)


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C or a request to end: the writer has removed what it began by the time this says so. (typer would leave without a word.)"""
    try:
        with stopping(remove_living):
            yield
    except KeyboardInterrupt:
        err.print(SENTENCE)
        raise typer.Exit(EXIT_CODE) from None


@contextmanager
def steps(kind: str) -> Iterator[Callable[[str, int, int], None]]:
    """A function (stage, rows done, rows in all) that draws a bar on a terminal, or prints JSON lines, five a second at most."""
    if kind == "json":
        last_stage, last_time = "", 0.0

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal last_stage, last_time
            if stage != last_stage or time.monotonic() - last_time > 0.2:
                last_stage, last_time = stage, time.monotonic()
                rows = {"rows_done": done, "rows_total": total} if total else {}
                sys.stdout.write(json.dumps({"stage": stage, **rows}) + "\n")
                sys.stdout.flush()

        yield tell
        return
    with progress_bar() as bar:
        task = bar.add_task("", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=stage, completed=done, total=total or None)

        yield show


def arguments_without(arguments: list[str], *options: str) -> list[str]:
    """Arguments less some options and their values: where a run is stored is not part of how to repeat it."""
    kept: list[str] = []
    skip = False
    for part in arguments:
        if not skip and part.split("=")[0] not in options:
            kept.append(part)
        skip = not skip and part in options
    return kept
