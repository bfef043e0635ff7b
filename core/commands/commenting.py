"""`comment`: a gate's report on the pull request of a GitHub job, for action.yml."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..text import clean
from .terminal.console import print_text


def comment(
    report: Annotated[Path, typer.Argument(metavar="FILE", help="Markdown of `compare --markdown`.")],
    name: Annotated[str, typer.Option(help="Name of the gate; each has a comment of its own.")] = "logits",
    artifact: Annotated[str, typer.Option(help="Address of the job's files.")] = "",
) -> None:
    """Write a gate's report as a comment on the job's pull request. If it cannot, warn: the gate decides."""
    from ..pull_request import CommentError, put_comment  # what speaks HTTP takes 0.2 s to load

    # a comment of an earlier push would pass for the result of this one
    text = (
        report.read_text(encoding="utf-8")
        if report.is_file()
        else "### ULPscope gate: no result\n\nThe job's log has the reason.\n"
    )
    try:
        print_text(put_comment(os.environ, name, text, artifact) or "no pull request, so no comment.")
    except CommentError as error:
        print_text(f"::warning title=ULPscope::{clean(error, 500).replace('%', '%25')}")
