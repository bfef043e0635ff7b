"""`adopt` and `label`: run files from outside, and what is written beside a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..runs.importing import adopt as adopt_file
from ..runs.store import labels
from ..runs.store.store import open_store
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
    """Import a run file from elsewhere as a new run: its schema and the digests of its logits are checked.

    Nothing in the file is executed, and it does not change.
    """
    check_progress(progress)
    with stoppable(), steps(progress) as say:
        new_id = adopt_file(
            open_store(store),
            file,
            name=name,
            run_id=run_id,
            on_progress=lambda done, total: say("checking", done, total),
        )
    announce_upload(new_id, store, progress, as_json_)


def label(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    tag: Annotated[list[str] | None, typer.Option(help="Add this tag; may be given several times.")] = None,
    remove_tag: Annotated[
        list[str] | None, typer.Option(help="Take this tag away; may be given several times.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="Replace the note; '' removes it.")] = None,
    pin: Annotated[bool | None, typer.Option("--pin/--unpin", help="Mark the run as one to keep.")] = None,
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
    if as_json_:
        print_json({"run_id": full, **asdict(after)})
    else:
        out.print(
            f"{full}: tags {', '.join(after.tags) or 'none'}; {'pinned' if after.pinned else 'not pinned'}",
            markup=False,
        )
        if after.note:
            out.print(after.note, markup=False)
