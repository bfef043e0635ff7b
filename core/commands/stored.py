"""`list`, `show`, `export`, `delete`, `restore`: the runs there are, and those that the dashboard deleted."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..command_name import COMMAND
from ..configuration import configuration
from ..errors import StoreError, UsageError
from ..runs.dumps.export import export_npz
from ..runs.file.kept import ALL, note
from ..runs.reader import RunReader, StoredPair
from ..runs.reports.issue_markdown import issue_text
from ..runs.reports.markdown import report_address
from ..runs.reports.report_json import report_of_run
from ..runs.reports.run_json import card_json, provenance_json, run_json
from ..runs.reports.sparse_json import FACTS, side_json, sparse_run_json
from ..runs.reports.sparse_markdown import sparse_markdown
from ..runs.sparse.export import write_lines
from ..runs.sparse_run import SparseRun, is_sparse, sparse_of
from ..runs.store.cards import RunCard, list_runs, read_runs, without_replaced
from ..runs.store.store import Store, open_store
from ..runs.tables.remedies import advice
from ..runs.views.continuations import continuations
from ..runs.views.headline import multiple
from ..runs.views.kv_cache import summarize
from ..text import number, percent, plural, size
from .comparing import flip_table, pair_table
from .sparse.tables import print_sparse_pairs, sparse_side_table
from .terminal.console import JsonOption, StoreOption, err, out, print_json


def list_(
    deleted: Annotated[bool, typer.Option("--deleted", help="List the runs deleted within a week instead.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="List runs too that a judged run replaces.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """List the stored runs, newest first, sample runs included. A judged run stands for the run that it judges."""
    if deleted:
        _list_deleted(open_store(store), as_json_)
        return
    target = open_store(store)
    cards, broken = list_runs(target)
    everything = len(cards)
    if not all_:
        cards = without_replaced(cards, target.all_labels()[0])
    if as_json_:
        print_json([card_json(card) for card in cards])
    else:
        table = Table()
        figures = ("positions", "pairs", "flips", "rms row ULPs", "noise ratio")
        for column in ("run", "name", "model", "dtype", "device", *figures, "verdict"):
            table.add_column(
                column, justify="right" if column in figures else "left", no_wrap=column == "run", overflow="fold"
            )
        for card in cards:
            table.add_row(
                card.run_id,
                escape(card.name) + ("" if card.kept == ALL else f" ({note(card.kept).rstrip('.').lower()})"),
                Path(card.model).name if card.model else "",
                card.compute_dtype,
                card.device,
                f"{card.positions:,}",
                str(card.pairs),
                str(card.flips),
                "" if card.rms_row_ulps is None else number(card.rms_row_ulps, 3),
                "" if card.noise_ratio is None else multiple(card.noise_ratio),
                ", ".join(dict.fromkeys(card.pair_verdicts)) if card.sides else "none: operations",
            )
        out.print(
            table if cards else f"no runs yet; `{COMMAND} capture` or `{COMMAND} ingest` makes one.", markup=False
        )
        err.print(f"runs in {target.address}", markup=False, soft_wrap=True)
        if len(cards) < everything:
            err.print(f"{plural(everything - len(cards), 'run')} replaced by a judged run: --all", markup=False)
    for run in broken:
        err.print(f"not a readable run: {run.reason}", markup=False)
    if target.outage:
        err.print(target.outage, markup=False)


def _list_deleted(store: Store, as_json_: bool) -> None:
    """The runs that can be restored, the latest deleted first."""
    deleted = store.deleted()
    cards = read_runs([run.path for run in deleted])
    names = {path: card.name for path, card in cards.items() if isinstance(card, RunCard)}
    if as_json_:
        print_json(
            [
                {
                    "run_id": run.run_id,
                    "name": names.get(run.path),
                    "deleted": run.deleted.isoformat(timespec="seconds"),
                    "bytes": run.bytes,
                }
                for run in deleted
            ]
        )
        return
    table = Table()
    for column in ("run", "name", "deleted (UTC)", "size"):
        table.add_column(
            column, justify="right" if column == "size" else "left", no_wrap=column == "run", overflow="fold"
        )
    for run in deleted:
        table.add_row(
            escape(run.run_id),
            escape(names.get(run.path, "cannot be read")),
            f"{run.deleted:%Y-%m-%d %H:%M:%S}",
            size(run.bytes),
        )
    out.print(table if deleted else "no run was deleted within a week.", markup=False)


def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    positions: Annotated[bool, typer.Option("--positions", help="With --json: figures of every position.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a report for an issue thread, verdict and evidence included.")
    ] = False,
    remedies: Annotated[
        bool, typer.Option("--remedies", help="Show what would make the sides agree, and its throughput cost.")
    ] = False,
    variant: Annotated[str | None, typer.Option(help="With --markdown or --remedies: this variant only.")] = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Show a run: where it comes from, its sides and their digests, its pairs and flips."""
    if as_json_ and markdown:
        raise UsageError("--json and --markdown are two forms of the same; give one.")
    if variant is not None and not (markdown or remedies):
        raise UsageError("--variant chooses what --markdown or --remedies report; give both.")
    path = open_store(store).path_of(run_id)
    if is_sparse(path):
        _show_sparse(sparse_of(path), markdown, variant, positions, as_json_)
        return
    with RunReader(path) as run:
        if markdown:
            sys.stdout.write(_markdown(run, variant))
            return
        if remedies:
            _show_remedies(run, _pairs_of(run, variant), as_json_)
            return
        if as_json_:
            print_json(run_json(run, with_positions=positions))
            return
        header = run.header
        pairs, _ = report_of_run(run)
        provenance = provenance_json(run)
        _print_facts(header.name, provenance)
        table = Table(title="sides")
        for column in ("name", "saved as", "class", "dtype", "sha256"):
            table.add_column(column, overflow="fold")
        for side in run.sides:
            table.add_row(escape(side.name), side.source_dtype, str(side.bit_class), side.sha256_dtype, side.sha256)
        out.print(table)
        out.print(pair_table(pairs, header.compute_dtype, header.rows, header.vocab))
        for pair in pairs:
            if pair.summary.flips:
                out.print(flip_table(pair, run.vocabulary, len(header.prompts) > 1))
        _print_caches(run)
        print_continuations(run)


def _show_sparse(run: SparseRun, markdown: bool, variant: str | None, positions: bool, as_json_: bool) -> None:
    """A run of sparse sides: where it comes from, what was sent, and what follows from it."""
    if markdown:
        sys.stdout.write(sparse_markdown(run, variant, _address({"run": run.run_id})))
        return
    if as_json_:
        print_json(sparse_run_json(run, with_positions=positions))
        return
    _print_facts(run.header.name, {key: value for key, value in sparse_run_json(run).items() if key in FACTS})
    out.print(sparse_side_table([side_json(side) for side in run.sides]))
    print_sparse_pairs(run.pairs, run.verdicts)


def _print_facts(name: str, said: Mapping[str, object]) -> None:
    facts = Table(title=escape(name), show_header=False)
    facts.add_column(style="bold")
    facts.add_column(overflow="fold")
    for key, value in said.items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        if shown not in (None, ""):
            facts.add_row(key, escape(str(shown)))
    out.print(facts)


def _markdown(run: RunReader, variant: str | None) -> str:
    """The report of one variant, or of all."""
    pairs = _pairs_of(run, variant)
    place = {"run": run.run_id, **({"variant": variant} if variant is not None else {})}
    return issue_text(run, pairs, _address(place))


def _pairs_of(run: RunReader, variant: str | None) -> list[StoredPair]:
    pairs = [pair for pair in run.pairs if variant in (None, pair.variant)]
    if not pairs:
        raise UsageError(f"no variant '{variant}'; there are {', '.join(pair.variant for pair in run.pairs)}.")
    return pairs


def _show_remedies(run: RunReader, pairs: Sequence[StoredPair], as_json_: bool) -> None:
    """Print the remedies of each pair that has some."""
    tried = [(pair, rows) for pair in pairs if (rows := run.remedies.get(pair.index))]
    if not tried:
        note = run.header.provenance.note
        raise UsageError(f"run '{run.run_id}' has no remedies; {note or 'capture it with --remedies'}.")
    if as_json_:
        print_json(
            [{"reference": p.reference, "variant": p.variant, "remedies": list(map(asdict, r))} for p, r in tried]
        )
        return
    for pair, rows in tried:
        table = Table(title=f"{escape(pair.reference)} vs {escape(pair.variant)}")
        for column in ("remedy", "differ", "rms", "noise ratio", "max ULPs", "of", "flips", "reference x", "variant x"):
            table.add_column(column, justify="left" if column in ("remedy", "of") else "right", overflow="fold")
        for row in rows:
            if not row.refusal:
                figures = (row.rms, row.noise_ratio, row.max_ulps)
                shares = (row.reference_share, row.variant_share)
                table.add_row(
                    escape(row.name),
                    percent((row.neq or 0) / (row.elements or 1)),
                    *("undefined" if figure is None else number(figure, 3) for figure in figures),
                    row.compute_dtype,
                    f"{row.flips or 0:,}",
                    *("" if share is None else f"{share:.2f}" for share in shares),
                )
        out.print(table)
        for row in rows:
            if row.refusal:
                out.print(f"{row.name}: not measured. {row.refusal}", markup=False, soft_wrap=True)
        out.print(advice(rows), markup=False, soft_wrap=True)


def _address(place: dict[str, str]) -> str:
    return report_address(place, configuration().hosting.public_url)


def _print_caches(run: RunReader) -> None:
    """One line a pair with caches, keys and values apart; layer 0's keys are what the public report counts."""
    table = Table(title=f"key/value caches vs {escape(run.pairs[0].reference)}, row ULPs of {run.header.compute_dtype}")
    for column in (
        "variant",
        "keys that differ",
        "values that differ",
        "of them keys of layer 0",
        "rms row ULPs",
        "max row ULPs",
        "first difference",
    ):
        table.add_column(column, justify="left" if column == "variant" else "right", overflow="fold")
    for pair in run.pairs:
        found = summarize(run.kv(pair.index))
        if found is None:
            continue
        counts = [
            f"{part.neq:,} of {part.elements:,} ({percent(part.neq_share)})" if part is not None else ""
            for part in (found.keys, found.values, found.layer_0_keys)
        ]
        together = found.together
        where = f"prompt {together.first_prompt}, " if len(run.header.prompts) > 1 else ""
        place = f"{where}layer {together.first_layer}, head {together.first_head}, position {together.first_position}"
        first = "" if together.first_layer is None else place
        known = ["" if each is None else number(each, 3) for each in (together.rms_row_ulps, together.max_row_ulps)]
        table.add_row(escape(pair.variant), *counts, *known, first)
    if table.row_count:
        out.print(table)


def print_continuations(run: RunReader) -> None:
    """Print where each variant's own text parts from the reference's."""
    found = continuations(run)
    if not found:
        return
    table = Table(title="continuations, each side by its own argmax")
    for column in ("prompt", "variant", "tokens that agree", "position", "reference goes on", "variant goes on"):
        table.add_column(
            column, justify="left" if "goes" in column or column == "variant" else "right", overflow="fold"
        )
    for made in found:
        chosen = made.chosen
        goes_on = ["", ""] if chosen is None else [f"{token} {run.vocabulary.get(token, '')!r}" for token in chosen]
        agreed = f"all {made.compared}" if made.position is None else str(made.agreed)
        position = "" if made.position is None else str(made.position)
        table.add_row(str(made.prompt), escape(made.variant), agreed, position, *(escape(text) for text in goes_on))
    out.print(table)


def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, or a unique beginning of it.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write: FILE.npz, or JSON lines of what was sent.")
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Write every side of a run back to an npz, in the exact bits and dtype it came in; of what a server sent, to JSON
    lines with every digit.
    """
    path = open_store(store).path_of(run_id)
    if is_sparse(path):
        sides = sparse_of(path).sides
        write_lines(sides, file, overwrite=overwrite)
        names = [side.name for side in sides]
        if as_json_:
            print_json({"file": str(file), "sides": names})
        else:
            out.print(f"{file}: {', '.join(names)}", markup=False)
        return
    with RunReader(path) as run:
        export_npz(run, file, overwrite=overwrite)
        if as_json_:
            print_json({"run_id": run.run_id, "file": str(file), "bytes": file.stat().st_size})
        else:
            out.print(f"{file}: {', '.join(side.name for side in run.sides)}", markup=False)


def delete(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids of runs, or unique beginnings of them.")],
    restore: Annotated[bool, typer.Option("--restore", help="Bring deleted runs back instead.")] = False,
    for_good: Annotated[
        bool, typer.Option("--for-good", help="Remove the files now; runs deleted before can be named too.")
    ] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Delete runs; `--restore` brings them back within a week, with their tags and notes. Sample runs are refused."""
    if restore and for_good:
        raise UsageError("--restore and --for-good contradict each other; give one.")
    target = open_store(store)
    deleted = {run.run_id for run in target.deleted()}

    def remove(run_id: str) -> str:
        return target.purge(run_id if run_id in deleted else target.delete(run_id))

    if not restore:
        paths = [target.find(run_id) for run_id in run_ids if not (for_good and run_id in deleted)]
        samples = [path.stem for path in paths if not target.is_writable(path)]
        if samples:
            raise StoreError(f"run '{samples[0]}' is a read-only sample run; nothing was deleted.")
        run_ids = [*(path.stem for path in paths), *(deleted.intersection(run_ids) if for_good else ())]
    change = target.restore if restore else remove if for_good else target.delete
    word, changed = "restored" if restore else "deleted", []
    try:
        for run_id in dict.fromkeys(run_ids):
            changed.append(change(run_id))
    finally:  # if one fails, those before it are reported all the same
        if changed and as_json_:
            print_json({word: changed})
        elif changed:
            out.print(f"{word} {', '.join(changed)}", markup=False)
