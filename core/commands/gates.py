"""How a gate ends, and `comment`: its report on a pull request."""

import os
from pathlib import Path

from typer import Argument, Exit, Option

from ..evidence import FAILED, PASSED
from ..runs.reports.conditions import UNDECIDED
from ..runs.reports.gate import GateReport
from ..runs.reports.gate_files import append, junit_text, markdown_text, write_whole
from ..text import clean, plural
from .terminal.console import err, print_note, print_text

# a terminal shows so many outcomes of a kind; JSON, JUnit and Markdown have them all
_MOST_LINES = 20


def end_with(gate: GateReport, junit: Path | None, markdown: Path | None, as_json_: bool) -> None:
    """Print a gate's failures and undecided outcomes, write its reports; exit with 1 if it
    failed.
    """
    for kind in (FAILED, UNDECIDED):
        outcomes = [outcome for outcome in gate.outcomes if outcome.outcome == kind]
        for outcome in outcomes[:_MOST_LINES]:
            print_text(f"gate {kind}: {gate.sentence(outcome)}", err)
        if len(outcomes) > _MOST_LINES:
            print_text(f"gate {kind}: and {len(outcomes) - _MOST_LINES:,} more.", err)
    for note in gate.notes:
        print_note(note)
    if gate.outcome == PASSED and not as_json_:
        undecided = sum(outcome.outcome == UNDECIDED for outcome in gate.outcomes)
        passed = len(gate.outcomes) - undecided
        rest = f", undecided: {undecided:,}" if undecided else ""
        print_text(f"gate passed: {plural(passed, 'condition')}{rest}")
    write_gate(gate, junit, markdown)
    if gate.failed:
        raise Exit(1)


def write_gate(gate: GateReport, junit: Path | None, markdown: Path | None) -> None:
    if junit is not None:
        write_whole(junit, junit_text(gate))
    if markdown is not None:
        append(markdown, markdown_text(gate))


def comment(
    report: Path = Argument(..., metavar="FILE", help="Markdown of `compare --markdown`."),
    name: str = Option("logits", help="Name of the gate; each has a comment of its own."),
    artifact: str = Option("", help="Address of the job's files."),
) -> None:
    """Write a gate's report as a comment on the job's pull request.

    If it cannot, warn: the gate decides.
    """
    # imported late: what speaks HTTP takes 0.2 s to load
    from ..pull_request import CommentError, put_comment

    text = "### ULPscope gate: no result\n\nThe job's log has the reason.\n"
    # else a comment of an earlier push would pass for the result of this one
    if report.is_file():
        text = report.read_text(encoding="utf-8")
    try:
        print_text(
            put_comment(os.environ, name, text, artifact) or "no pull request, so no comment.",
        )
    except CommentError as error:
        # a command of GitHub Actions: it has % as %25
        print_text(f"::warning title=ULPscope::{clean(error, 500).replace('%', '%25')}")
