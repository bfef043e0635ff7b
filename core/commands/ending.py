"""The end of a command that made a run: its figures, its verdict, its id, and what to type next."""

from __future__ import annotations

from pathlib import Path

import typer

from ..command_name import COMMAND, shell_command
from ..runs.reader import RunReader
from ..runs.reports.report_json import report_of_run
from ..runs.store.store import open_store
from ..runs.views.request import typed_with
from .comparing import pair_table
from .terminal.console import announce, announce_line, err

_LONGEST = 200  # characters of a command that is worth printing: a prompt may have thousands


def tell_end(
    run_id: str,
    failure: list[str],
    progress: str,
    as_json_: bool,
    store: str | Path | None = None,
    *,
    has_said_verdict: bool = False,
) -> None:
    """Say what the run is and where; where it is less than was asked for, why, with exit code 2.

    Stdout gets the id and nothing else, as a line of its own, so that a script takes it from there; people see the rest
    beside it.
    """
    if progress == "json":
        announce_line(run_id)
    elif as_json_:
        announce(run_id, as_json_)
    else:
        with RunReader(open_store(store).path_of(run_id)) as run:
            pairs, _ = report_of_run(run)
            err.print(pair_table(pairs, run.header.compute_dtype, run.header.rows, run.header.vocab))
            for pair in () if has_said_verdict else run.pairs:
                if pair.verdict is not None:
                    said = f"{pair.verdict}: {pair.variant} against {pair.reference}. {pair.because}"
                    err.print(said, markup=False, soft_wrap=True)
            announce(run_id, as_json_, store)
            for command in next_commands(run, store, has_said_verdict=has_said_verdict):
                err.print(f"next: {command}", markup=False, soft_wrap=True)
    for sentence in failure:
        err.print(f"error: {sentence}", markup=False, soft_wrap=True)
    if failure:
        raise typer.Exit(2)


def next_commands(run: RunReader, store: str | Path | None, *, has_said_verdict: bool) -> tuple[str, str]:
    """Two commands worth typing after a run was made: its flips, and the verdict, its evidence or a report of it."""
    where = [] if store is None else ["--store", str(store)]
    of_run = [run.run_id, *where]
    show = f"{COMMAND} {shell_command(['show', *of_run])}"
    if has_said_verdict:
        return show, f"{COMMAND} {shell_command(['show', *of_run, '--markdown'])}    # a report for an issue thread"
    if any(pair.verdict is not None for pair in run.pairs):
        return show, f"{COMMAND} {shell_command(['verdict', *of_run])}    # the evidence"
    judge = typed_with(run.header.provenance, "judge", trusts_code=True)  # whoever reads this has just typed it
    if judge is None or len(judge) > _LONGEST or "$'" in judge:  # a prompt of several lines
        return show, "the same command with --judge: rounding, or a bug?"
    judge += f" {shell_command(where)}" if where else ""
    return show, f"{judge}    # rounding, or a bug?"
