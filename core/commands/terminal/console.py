"""Output of every command: tables and notes for people, JSON for programs, progress for both."""

import json
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import progress as rich_progress
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import BarColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ...command_name import shell_command
from ...progress import Progress
from ...text import column, duration, legible, multiple, number, percent, size


class _Printable(Console):
    """Console that escapes unprintable characters: rich passes ESC on, and texts of runs and
    servers may have it.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(legible(text), **options)


# a pipe has no width to fit into
out = _Printable(highlight=False, width=None if sys.stdout.isatty() else 180)
err = _Printable(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 180)
EVERY_SECONDS = 10.0  # between two lines of progress if stderr is not a terminal
_UNBROKEN = ("run", "run id", "cell", "module")  # columns of ids, to copy
_LABELS = {
    "is_here": "installed",
    "neq": "differ",
    "neq_share": "differ",
    "ratio": "RMS / noise floor",
    "noise_ratio": "RMS / noise floor",
}


def json_text(value: Any) -> str:
    # NaN is no JSON, and parsers of other languages refuse it
    return json.dumps(value, indent=1, default=str, allow_nan=False)


def print_json(value: Any) -> None:
    sys.stdout.write(json_text(value) + "\n")


def print_line(**value: Any) -> None:
    """Print a line of `--progress json`."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    # a pipe is buffered, and its reader waits for each line
    sys.stdout.flush()


def print_text(text: str, console: Console = out) -> None:
    """Print a text on one line, however long."""
    console.print(text, markup=False, soft_wrap=True)


def print_note(text: str) -> None:
    print_text(f"note: {text}", err)


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    text: Collection[str] | None = None,
) -> Table:
    """Return a table; `text` are the columns to align left if the others are numbers, None if none
    is.
    """
    table = Table(title=None if title is None else escape(title))
    for name in columns:
        justify: JustifyMethod = "left" if text is None or name in text else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in _UNBROKEN)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    return table


def print_records(
    records: Sequence[Mapping[str, Any]],
    title: str | None = None,
    *,
    keys: Sequence[str] = (),
    most: int | None = None,
) -> None:
    """Print records as a table, as JSON has them. keys: those shown, by default all; most: records
    shown.
    """
    if records:
        keys = keys or list(records[0])
        text = [
            _label(key)
            for key in keys
            if any(isinstance(each.get(key), str | list | bool) for each in records)
        ]
        shown = [_column(key, [each.get(key) for each in records[:most]]) for key in keys]
        rows = zip(*shown, strict=True)
        out.print(table_of(list(map(_label, keys)), rows, title=title, text=text))
    if most is not None and len(records) > most:
        print_text(f"and {len(records) - most:,} more; --json has them all.")


def print_facts(facts: Mapping[str, Any], title: str | None = None) -> None:
    """Print names and values, a line each; empty ones are left out."""
    rows = ((_label(key), _in_words(key, value)) for key, value in facts.items())
    table = table_of(("", ""), (row for row in rows if row[1]), title=title)
    table.show_header = False
    out.print(table)


def _label(key: str) -> str:
    return _LABELS.get(key, key.replace("_ulps", " ULPs").replace("_", " "))


def _column(key: str, values: Sequence[Any]) -> list[str]:
    """Return a column as text; figures with the same number of decimals."""
    if key == "noise_ratio":
        return ["" if value is None else multiple(value) for value in values]
    has_figures = any(isinstance(value, float) for value in values)
    are_numbers = all(isinstance(value, int | float | None) for value in values)
    if has_figures and are_numbers and not key.endswith("share"):
        return column(values)
    return [_in_words(key, value) for value in values]


def _in_words(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, float) and key.endswith("share"):
        return percent(value)
    if isinstance(value, int) and key.endswith("bytes"):
        return size(value)
    return number(value) if isinstance(value, int | float) else str(value)


def announce(
    run_id: str,
    store: str | Path | None,
    progress: str = "bar",
    as_json_: bool = False,
) -> None:
    """Print the id of a new run on stdout; for people also its store, on stderr."""
    from ...runs.store.store import open_store  # loads DuckDB

    if progress == "json":
        print_line(stage="done", run_id=run_id)
    elif as_json_:
        print_json({"run_id": run_id})
    else:
        print_text(run_id)
        print_text(f"stored in {open_store(store).address}", err)


@contextmanager
def steps(kind: str = "bar") -> Iterator[Progress]:
    """Show the progress of long work: JSON lines on stdout; on stderr a bar, or lines if that is
    not a terminal.
    """
    if kind == "bar" and sys.stderr.isatty():
        # rich sends what is written to stdout to the bar's console: wrong if stdout is a file
        with rich_progress.Progress(
            "{task.description}",
            BarColumn(),
            "{task.fields[amount]}",
            TimeElapsedColumn(),
            "left",
            TimeRemainingColumn(),
            console=err,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        ) as bar:
            task = bar.add_task("", total=None, amount="")

            def tell(stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None:
                amount = f"{done:,}/{total:,} {unit}" if total else ""
                bar.update(
                    task,
                    description=escape(stage),
                    completed=done,
                    total=total or None,
                    amount=amount,
                )

            yield tell
        return
    began = last_time = time.monotonic()
    last_stage = ""

    def print_step(stage: str, done: int = 0, total: int = 0, unit: str = "positions") -> None:
        nonlocal last_stage, last_time
        now = time.monotonic()
        if kind == "json" and (stage != last_stage or now - last_time > 0.2):
            print_line(stage=stage, **({"rows_done": done, "rows_total": total} if total else {}))
        elif kind != "json" and now - last_time >= EVERY_SECONDS:
            amount = f": {done:,} of {total:,} {unit}" if total else ""
            print_text(f"{stage}{amount}, {duration(now - began)}", err)
        else:
            return
        last_stage, last_time = stage, now

    yield print_step


def typed_command() -> str:
    """Return the command line that repeats this one, without its store and form of output."""
    words, repeated = iter(sys.argv[1:]), []
    for word in words:
        if word in ("--progress", "--store"):
            next(words, None)
        elif word != "--json" and not word.startswith(("--progress=", "--store=")):
            repeated.append(word)
    return shell_command(repeated)
