"""`list`, `export`, `push`, `label`, `delete`: the runs of a store."""

import os
from dataclasses import asdict
from pathlib import Path

from msgspec import structs
from typer import Argument, Option

from ..command_name import COMMAND
from ..errors import StoreError, UsageError
from ..runs.reports.run_json import card_json
from ..runs.store import labels
from ..runs.store.cards import RunCard, drop_replaced, list_runs, read_runs
from ..runs.store.store import open_store
from ..text import plural
from .options import (
    ComputeDtypeOption,
    HoldsOption,
    JsonOption,
    ReferenceOption,
    RunArgument,
    StoreOption,
)
from .terminal.console import err, print_facts, print_json, print_records, print_text, steps
from .terminal.stopping import stoppable

# those that fit with an id and a name; --json has all
_LIST_KEYS = (
    "run_id",
    "name",
    "model",
    "compute_dtype",
    "positions",
    "flips",
    "noise_ratio",
    "verdicts",
)


TOKEN_VARIABLE = "ULPSCOPE_TOKEN"


def list_(
    deleted: bool = Option(False, "--deleted", help="List the runs deleted within a week instead."),
    all_: bool = Option(False, "--all", help="Include runs that a judged run replaces."),
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """List the stored runs, newest first, sample runs included.

    A judged run replaces the run that it judges.
    """
    target = open_store(store)
    if deleted:
        # those that can be restored, the latest deleted first
        runs = target.deleted()
        by_path = read_runs([run.path for run in runs])
        rows = [
            {
                "run_id": run.run_id,
                # None: a file that cannot be read
                "name": getattr(by_path.get(run.path), "name", None),
                "deleted": run.deleted.isoformat(" ", "seconds"),
                "bytes": run.bytes,
            }
            for run in runs
        ]
        if as_json_:
            print_json(rows)
        elif rows:
            print_records(rows)
        else:
            print_text("no run was deleted within a week.")
        return
    every, failures = list_runs(target)
    cards = every if all_ else drop_replaced(every, target.all_labels()[0])
    rows = [card_json(card) for card in cards]
    if as_json_:
        print_json(rows)
    else:
        if not rows:
            print_text(f"no runs yet; `{COMMAND} capture` or `{COMMAND} ingest` makes one.")
        print_records(rows, keys=_LIST_KEYS)
        print_text(f"runs in {target.address}", err)
        if replaced := len(every) - len(cards):
            print_text(f"{plural(replaced, 'run')} replaced by a judged run: --all", err)
    for run in failures:
        print_text(f"not a readable run: {run.reason}", err)


def export(
    run_id: RunArgument,
    file: Path | None = Argument(None, metavar="[FILE]", help="FILE.npz, FILE.html or FILE.png."),
    html: Path | None = Option(None, metavar="FILE", help="The same as FILE.html."),
    png: Path | None = Option(None, metavar="FILE", help="The same as FILE.png."),
    overwrite: bool = Option(False, "--overwrite", help="Replace the file if it exists."),
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Export the sides of a run to an npz in their bits and dtype, the run to one HTML file, or its
    worst pair to a picture.

    The ending of the file says which.
    """
    # What reads logits takes 0.2 s to load, which `list` need not wait for.
    from ..document.drawing import png_file
    from ..document.page import html_file
    from ..judging.stored import explain_pair
    from ..runs.dumps.export import export_npz, exporting
    from ..runs.reader import RunReader

    targets = [each for each in (file, html, png) if each is not None]
    if len(targets) != 1:
        raise UsageError("export writes one file: FILE.npz, FILE.html or FILE.png.")
    (target,) = targets
    endings = [".npz", ".html", ".png"]
    if target is not file:
        endings = [".html" if html else ".png"]
    if target.suffix not in endings:
        raise UsageError(f"{target}: expected a name that ends in {' or '.join(endings)}.")
    path = open_store(store).path_of(run_id)
    with RunReader(path) as run:
        names = [side.name for side in run.sides]
        if target.suffix == ".npz":
            export_npz(run, target, overwrite=overwrite)
        else:
            is_page = target.suffix == ".html"
            content = html_file(run, explain_pair).encode() if is_page else png_file(run)
            with exporting(target, overwrite=overwrite) as output:
                output.write(content)
    if as_json_:
        about = {"run_id": path.stem, "file": str(target), "sides": names}
        print_json(about | {"bytes": target.stat().st_size})
    else:
        print_text(f"{target}: {', '.join(names)}")


def push(
    source: str = Argument(
        ..., metavar="RUN|FILE", help="Id of a stored run, a dump or a run file."
    ),
    to: str = Option(..., metavar="URL", help="The server: https://ulpscope.example.org"),
    name: str | None = Option(
        None, help="Name of the run there. Default: that of the run or file."
    ),
    token_file: Path | None = Option(
        None, help=f"File with the token to sign in with. Default: ${TOKEN_VARIABLE}."
    ),
    model: str | None = Option(None, help="For a dump: its model, for the record."),
    compute_dtype: ComputeDtypeOption = None,
    reference: ReferenceOption = None,
    holds: HoldsOption = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Send a run or a dump to a server and print its link there."""
    # imported late: what speaks HTTP takes 0.2 s to load
    from ..probing.plan import base_of
    from ..push import PushRequest, push_file
    from ..runs.importing import is_run_file

    url = base_of(to)
    path = Path(source)
    if not path.is_file():
        # else a file that is missing would be looked for as the id of a run
        if path.suffix in (".npz", ".npy", ".safetensors", ".duckdb") or os.sep in source:
            raise UsageError(f"{source}: no such file.")
        path = open_store(store).path_of(source)
    card = read_runs([path])[path] if is_run_file(path) else None
    title = card.name if isinstance(card, RunCard) else path.stem
    about = {"model": model, "compute_dtype": compute_dtype, "reference": reference, "holds": holds}
    options_given = {key: value for key, value in about.items() if value}
    request = PushRequest(path, name or title, url, _token(token_file), options=options_given)
    with stoppable(), steps() as say:
        done = push_file(request, say, lambda sentence: print_text(sentence, err))
    if as_json_:
        print_json(asdict(done))
    else:
        print_text(done.url)


def _token(path: Path | None) -> str:
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"--token-file {path}: cannot be read as a token.") from None
    # a token goes into a header of HTTP, which takes no line ends
    if not token or not token.isprintable() or " " in token:
        raise UsageError(f"--token-file {path}: holds no token; expected one word.")
    return token


def label(
    run_id: RunArgument,
    tag: list[str] = Option([], help="Add this tag; may be given several times."),
    remove_tag: list[str] = Option([], help="Remove this tag; may be given several times."),
    note: str | None = Option(None, help="Replace the note; '' removes it."),
    pin: bool | None = Option(None, "--pin/--unpin", help="Mark the run as one to keep."),
    name: str | None = Option(
        None, help="Rename the run in lists and on pages; '' restores its own name."
    ),
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Rename, tag, annotate or pin a run; without options, show its labels.

    The run file does not change.
    """
    target = open_store(store)
    full = target.find(run_id).stem
    old = target.labels(full)
    removed = labels.labels_of(remove_tag, "").tags
    tags = [each for each in (*old.tags, *labels.labels_of(tag, "").tags) if each not in removed]
    new = labels.labels_of(
        tags,
        old.note if note is None else note,
        old.pinned if pin is None else pin,
        old.name if name is None else name,
    )
    if new != old:
        # with the old labels the store merges what another user has changed meanwhile
        new = target.label(full, new, old)
    (print_json if as_json_ else print_facts)({"run_id": full, **structs.asdict(new)})


def delete(
    run_ids: list[str] = Argument(
        ..., metavar="RUN...", help="Run ids, or unique prefixes of them."
    ),
    restore: bool = Option(False, "--restore", help="Restore deleted runs instead."),
    for_good: bool = Option(
        False, "--for-good", help="Remove the files now, also of deleted runs."
    ),
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Delete runs; `--restore` brings them back within a week, with their tags and notes.

    Sample runs are refused.
    """
    if restore and for_good:
        raise UsageError("--restore and --for-good contradict each other; give one.")
    target = open_store(store)
    deleted = {run.run_id for run in target.deleted()}

    word = "restored" if restore else "deleted"
    if not restore:
        purged = deleted.intersection(run_ids) if for_good else set()
        # all are found before the first is deleted, so that a wrong id deletes nothing
        paths = [target.find(run_id) for run_id in run_ids if run_id not in purged]
        samples = [path.stem for path in paths if not target.is_writable(path)]
        if samples:
            raise StoreError(f"run '{samples[0]}' is a read-only sample run; nothing was deleted.")
        run_ids = [*(path.stem for path in paths), *purged]
    changes: list[str] = []
    try:
        # an id that is given twice is deleted once
        for run_id in dict.fromkeys(run_ids):
            if restore:
                changes.append(target.restore(run_id))
                continue
            if run_id not in purged:
                run_id = target.delete(run_id)
            changes.append(target.purge(run_id) if for_good else run_id)
    finally:
        # if one fails, those before it are still reported
        if changes and as_json_:
            print_json({word: changes})
        elif changes:
            print_text(f"{word} {', '.join(changes)}")
