"""`adopt`, `label`, `tidy`: run files from outside, what is written beside a run, and what retention takes away."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..configuration import configuration
from ..runs.importing.adopt import adopt as adopt_file
from ..runs.store import audit, labels
from ..runs.store.quotas import apply_retention, due
from ..runs.store.store import open_store
from ..text import size
from .terminal.console import (
    JsonOption,
    ProgressOption,
    StoreOption,
    announce_upload,
    check_progress,
    out,
    print_json,
    steps,
    stoppable,
)


def adopt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A run file (.duckdb), from anybody.")],
    name: Annotated[str | None, typer.Option(help="What to call the run. Default: what the file calls it.")] = None,
    run_id: Annotated[str | None, typer.Option(hidden=True, help="The id that the run is to have.")] = None,
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Take in a run file from outside: checked table by table, every figure computed anew from its logits, stored as a
    new run.

    Nothing in the file is executed, and a file whose figures are not those of its logits is refused. The file itself
    stays as it is.
    """
    check_progress(progress)
    with stoppable(), steps(progress) as say:
        new_id = adopt_file(
            open_store(store),
            file,
            name=name,
            run_id=run_id,
            on_progress=lambda done, total: say("checking and comparing", done, total),
        )
    announce_upload(new_id, store, progress, as_json_, is_asked_for=run_id is not None)


def label(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    tag: Annotated[list[str] | None, typer.Option(help="Add this tag; may be given several times.")] = None,
    remove_tag: Annotated[
        list[str] | None, typer.Option(help="Take this tag away; may be given several times.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="Replace the note; '' removes it.")] = None,
    pin: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="A pinned run is left where it is by retention.")
    ] = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Tag a run, write a note on it, pin it; with no option, show what it has. Kept beside the run file, which stays as
    it is.
    """
    target = open_store(store)
    full = target.find(run_id).stem
    before = target.labels(full)
    removed = labels.labels_of(remove_tag or [], "").tags
    tags = [each for each in (*before.tags, *labels.labels_of(tag or [], "").tags) if each not in removed]
    after = labels.labels_of(tags, before.note if note is None else note, before.pinned if pin is None else pin)
    if after != before:
        after = target.label(full, after, before).labels
        audit.record(target.directory, audit.local_user(), "label", full, pinned=after.pinned)
    if as_json_:
        print_json({"run_id": full, **asdict(after)})
    else:
        out.print(
            f"{full}: tags {', '.join(after.tags) or 'none'}; {'pinned' if after.pinned else 'not pinned'}",
            markup=False,
        )
        if after.note:
            out.print(after.note, markup=False)


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
        elif not (retention.days or retention.runs or retention.cells):
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
            f"moved to the trash: {', '.join(moved)}; `restore` puts them back." if moved else "nothing is due.",
            markup=False,
        )


def _print(found: list) -> None:
    table = Table(title="due")
    for column in ("run", "name", "size", "because"):
        table.add_column(
            column, justify="right" if column == "size" else "left", no_wrap=column == "run", overflow="fold"
        )
    for run in found:
        table.add_row(escape(run.run_id), escape(run.name), size(run.bytes), run.because)
    out.print(table if found else "nothing is due.")
