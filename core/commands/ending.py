"""The end of a command that made a run: its figures, its verdict, its id, and what to type next."""

from __future__ import annotations

from pathlib import Path

import typer

from ..command_name import COMMAND, shell_command
from ..runs.reader import RunReader
from ..runs.reports.report_json import report_of_run
from ..runs.requests import typed_with
from ..runs.store.store import open_store
from .tables import pair_table
from .terminal.console import announce, err, print_text

_LONGEST = 200  # characters of a command that is worth printing: a prompt may have thousands


def tell_end(
    run_id: str,
    failures: list[str],
    progress: str,
    as_json_: bool,
    store: str | Path | None = None,
    *,
    is_verdict_printed: bool = False,
) -> None:
    """Print the id on stdout, for scripts, and the rest on stderr; exit with 2 if there are failures."""
    if progress == "json" or (as_json_ and not is_verdict_printed):
        announce(run_id, store, progress, as_json_)
    elif not as_json_:
        with RunReader(open_store(store).path_of(run_id)) as run:
            pairs, _ = report_of_run(run)
            err.print(pair_table(pairs, run.header))
            for pair in () if is_verdict_printed else run.pairs:
                if pair.verdict is not None:
                    print_text(f"{pair.verdict}: {pair.variant} against {pair.reference}. {pair.because}", err)
            announce(run_id, store)
            for command in next_commands(run, store, is_verdict_printed=is_verdict_printed):
                print_text(f"next: {command}", err)
    for sentence in failures:
        print_text(f"error: {sentence}", err)
    if failures:
        raise typer.Exit(2)


def next_commands(run: RunReader, store: str | Path | None, *, is_verdict_printed: bool) -> tuple[str, str]:
    """Return two commands to type after a run was made: for its flips, and for its verdict, evidence or report."""
    where = [] if store is None else ["--store", str(store)]

    def command(name: str, *options: str) -> str:
        return f"{COMMAND} {shell_command([name, run.run_id, *where, *options])}"

    if is_verdict_printed:
        return command("show"), f"{command('show', '--markdown')}    # a report for an issue thread"
    if any(pair.verdict is not None for pair in run.pairs):
        return command("show"), f"{command('verdict')}    # the evidence"
    judge = typed_with(run.header.provenance, "judge", trusts_code=True)  # whoever reads this has just typed it
    if judge is None or len(judge) > _LONGEST or "$'" in judge:  # a prompt of several lines
        return command("show"), "the same command with --judge: rounding, or a bug?"
    judge += f" {shell_command(where)}" if where else ""
    return command("show"), f"{judge}    # rounding, or a bug?"
