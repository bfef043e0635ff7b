"""Output of every command: tables and notes for people, JSON for programs, progress for both; how a command stops."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from ...command_name import COMMAND, shell_command
from ...errors import UsageError
from ...runs.store.partial import remove_living
from ...runs.store.store import open_store
from ...text import duration, shown
from .stopping import EXIT_CODE, SENTENCE, stopping


def printable(text: str) -> str:
    """Lines of untrusted text as a terminal may have them."""
    return "\n".join(shown(line, len(line)) for line in text.split("\n"))


class _Printable(Console):
    """A console for the texts of others: what is no printable character of theirs is shown as an escape and never sent
    to the terminal.
    """

    def render_str(self, text: str, **how: Any) -> Text:
        """Every string passes here, whether it is printed, a cell or a title. rich itself lets ESC through."""
        return super().render_str(printable(text), **how)


out = _Printable(highlight=False, width=None if sys.stdout.isatty() else 180)  # a pipe has no width to fit into
err = _Printable(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 180)
EVERY_SECONDS = 10.0  # between two lines of progress, where stderr is no terminal

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Directory of run files, or a URL such as s3://. Default: $ULPSCOPE_STORE, else the clone's runs/.",
    ),
]
ComputeDtypeOption = Annotated[
    str | None, typer.Option(help="float32, float16 or bfloat16. Default: declared, else detected.")
]
ReferenceOption = Annotated[
    str | None, typer.Option(help="The side the others are compared with. Default: 'reference', else the first.")
]
ProgressOption = Annotated[
    str,
    typer.Option(
        help=(
            "'bar' on a terminal, a line every ten seconds elsewhere, or 'json': a line of JSON for every step, for"
            " programs."
        )
    ),
]
HoldsOption = Annotated[
    str | None,
    typer.Option(
        help="'logits': take arrays for logits that look like log-probabilities of chosen tokens. 'padded': cut"
        " sides with a padded vocabulary to the tokens that all of them have."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, default=str, allow_nan=False) + "\n")


def announce(run_id: str, as_json_: bool, store: str | Path | None = None) -> None:
    """Print the id of a new run on stdout; for people also its store, on stderr."""
    if as_json_:
        print_json({"run_id": run_id})
    else:
        out.print(run_id, markup=False)
        err.print(f"stored in {open_store(store).address}", markup=False, soft_wrap=True)


def announce_line(run_id: str) -> None:
    """The last of the lines that `--progress json` prints."""
    sys.stdout.write(json.dumps({"stage": "done", "run_id": run_id}) + "\n")
    sys.stdout.flush()


def announce_upload(run_id: str, store: str | Path | None, progress: str, as_json_: bool) -> None:
    if progress == "json":
        announce_line(run_id)
    else:
        announce(run_id, as_json_, store)


@contextmanager
def stoppable(
    leave_nothing: Callable[[], None] = remove_living, says: Callable[[], str] = lambda: SENTENCE
) -> Iterator[None]:
    """Ctrl-C or a request to end: what was begun is removed by the time this says so, a run by its writer. (typer would
    leave without a word.)
    """
    try:
        with stopping(leave_nothing, says):
            yield
    except KeyboardInterrupt:
        err.print(says(), markup=False)
        raise typer.Exit(EXIT_CODE) from None


def check_progress(progress: str) -> None:
    if progress not in ("bar", "json"):
        raise UsageError(f"--progress '{progress}' is not known; expected bar or json.")


class Tell(Protocol):
    """Callback by which work reports its stage, and how much of it is done where that can be counted."""

    def __call__(self, stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None: ...


@contextmanager
def steps(kind: str = "bar") -> Iterator[Tell]:
    """Show the progress of long work: JSON lines on stdout, five a second at most, or on stderr a bar, or lines where
    that is no terminal.
    """
    if kind == "json":
        yield _json_lines()
    elif sys.stderr.isatty():
        with _bar() as tell:
            yield tell
    else:
        with _plain_lines() as tell:
            yield tell


def _json_lines() -> Tell:
    last_stage, last_time = "", 0.0

    # Units are for people: programs know what they asked for.
    def tell(stage: str, done: int = 0, total: int = 0, unit: str = "") -> None:  # noqa: ARG001
        nonlocal last_stage, last_time
        if stage != last_stage or time.monotonic() - last_time > 0.2:
            last_stage, last_time = stage, time.monotonic()
            rows = {"rows_done": done, "rows_total": total} if total else {}
            sys.stdout.write(json.dumps({"stage": stage, **rows}) + "\n")
            sys.stdout.flush()

    return tell


@contextmanager
def _bar() -> Iterator[Tell]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # rich passes what is written to stdout meanwhile to the bar's console: right where both are one terminal, wrong
    # where stdout is a file.
    with Progress(*columns, console=err, transient=True, redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=None, amount="")

        def tell(stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None:
            amount = f"{done:,}/{total:,} {unit}" if total else ""
            bar.update(task, description=escape(stage), completed=done, total=total or None, amount=amount)

        yield tell


@contextmanager
def _plain_lines() -> Iterator[Tell]:
    """A line every EVERY_SECONDS from a thread, so that one is printed inside of one long call too; none of work that
    ends before the first.
    """
    told = Told(time.monotonic)
    is_over = threading.Event()

    def repeat() -> None:
        with suppress(OSError):  # nobody reads any more
            while not is_over.wait(EVERY_SECONDS):
                err.print(told.line(), markup=False, soft_wrap=True)

    printer = threading.Thread(target=repeat, name="ulpscope-progress", daemon=True)
    printer.start()
    try:
        yield told.tell
    finally:
        is_over.set()
        printer.join()


class Told:
    """Last progress report of long work, as a line. now: a clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._began = self._counted_since = now()
        self._stage, self._done, self._total, self._unit = "", 0, 0, ""
        self._counted_from = 0

    def tell(self, stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None:
        if total != self._total or done < self._done:  # another count begins, and its pace with it
            self._counted_from, self._counted_since = done, self._now()
        self._stage, self._done, self._total, self._unit = stage, done, total, unit

    def line(self) -> str:
        """'decode: 120 of 884 positions, 35 s, about 3 min left'."""
        now = self._now()
        parts = [duration(now - self._began)]
        counted = self._done - self._counted_from
        if self._total and counted > 0:
            left = (self._total - self._done) * (now - self._counted_since) / counted
            parts.append(f"about {duration(left)} left")
        amount = f": {self._done:,} of {self._total:,} {self._unit}" if self._total else ""
        return ", ".join([f"{self._stage or 'starting'}{amount}", *parts])


def arguments_without(arguments: list[str], *options: str) -> list[str]:
    """Arguments less some options and their values: where a run is stored is not part of how to repeat it."""
    kept: list[str] = []
    skip = False
    for part in arguments:
        if not skip and part.split("=")[0] not in options:
            kept.append(part)
        skip = not skip and part in options
    return kept


def typed_command() -> str:
    """The command line that repeats this one: how it reports and where it stores are no part of that."""
    given = [part for part in arguments_without(sys.argv[1:], "--progress", "--store") if part != "--json"]
    return f"{COMMAND} {shell_command(given)}"
