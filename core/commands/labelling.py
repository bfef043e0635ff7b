"""`label`: the tags, the note and the pin of a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from core.commands.console import JsonOption, StoreOption, out, print_json
from core.runs.store import audit, labels
from core.runs.store.store import open_store


def label(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    tag: Annotated[list[str] | None, typer.Option(help="Add this tag; may be given several times.")] = None,
    remove_tag: Annotated[list[str] | None, typer.Option(help="Take this tag away; may be given several times.")] = None,
    note: Annotated[str | None, typer.Option(help="Replace the note; '' removes it.")] = None,
    pin: Annotated[bool | None, typer.Option("--pin/--unpin", help="A pinned run is left where it is by retention.")] = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Tag a run, write a note on it, pin it; with no option, show what it has. Kept beside the run file, which stays as it is."""
    target = open_store(store)
    full = target.path_of(run_id).stem
    before = labels.read(target.directory, full)
    removed = labels.labels_of(remove_tag or [], "").tags
    tags = [each for each in (*before.tags, *labels.labels_of(tag or [], "").tags) if each not in removed]
    after = labels.labels_of(tags, before.note if note is None else note, before.pinned if pin is None else pin)
    if after != before:
        after = labels.write(target.directory, full, after, before).labels
        audit.record(target.directory, audit.local_user(), "label", full, pinned=after.pinned)
    if as_json_:
        print_json({"run_id": full, **asdict(after)})
    else:
        out.print(f"{full}: tags {', '.join(after.tags) or 'none'}; {'pinned' if after.pinned else 'not pinned'}", markup=False)
        if after.note:
            out.print(after.note, markup=False)
