"""`adopt`: a run file from outside becomes a run of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from core.commands.console import JsonOption, ProgressOption, StoreOption, announce_upload, check_progress, steps, stoppable
from core.runs.importing.adopt import adopt as adopt_file
from core.runs.store.store import open_store


def adopt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A run file (.duckdb), from anybody.")],
    name: Annotated[str | None, typer.Option(help="What to call the run. Default: what the file calls it.")] = None,
    run_id: Annotated[str | None, typer.Option(hidden=True, help="The id that the run is to have.")] = None,
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Take in a run file from outside: checked table by table, every figure computed anew from its logits, stored as a new run.

    Nothing in the file is executed, and a file whose figures are not those of its logits is refused. A file of an older schema becomes one of
    this version; the file itself stays as it is.
    """
    check_progress(progress)
    with stoppable(), steps(progress) as say:
        new_id = adopt_file(
            open_store(store), file, name=name, run_id=run_id,
            on_progress=lambda done, total: say("checking and comparing", done, total),
        )  # fmt: skip
    announce_upload(new_id, store, progress, as_json_, is_asked_for=run_id is not None)
