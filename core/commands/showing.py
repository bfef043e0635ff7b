"""`show`: a run, and with options its modules, kernels or remedies."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..configuration import configuration
from ..errors import UsageError
from ..runs.queries.caches import summaries
from ..runs.queries.flips import continuations
from ..runs.queries.kernels import find_start, in_words, is_watched, place_in_words, short_name, side_by_side
from ..runs.queries.layers import furthest_module, layers_json, modules, records, says_little, sentence
from ..runs.reader import RunReader, StoredPair
from ..runs.reports.issue_markdown import issue_text
from ..runs.reports.markdown import report_address
from ..runs.reports.run_json import provenance_json, run_json
from ..runs.requests import asks_for, how_to_have
from ..runs.store.store import open_store
from ..runs.tables.remedies import advice
from ..text import number, out_of, percent, plural, three_digits
from . import options
from .tables import print_pairs
from .terminal.console import Cells, out, print_json, print_text, table_by, table_of

if TYPE_CHECKING:
    import pandas as pd


def show(
    run_id: options.Run,
    layers: Annotated[bool, typer.Option("--layers", help="Show the modules that differ, and the first one.")] = False,
    kernels: Annotated[bool, typer.Option("--kernels", help="Show which kernels each side launched.")] = False,
    remedies: Annotated[bool, typer.Option("--remedies", help="Show mitigations and their throughput.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a report for an issue thread.")] = False,
    variant: Annotated[str | None, typer.Option(help="With one of these options: only this variant.")] = None,
    prompt: Annotated[int | None, typer.Option(help="With --layers: only this prompt, 0-based.")] = None,
    blocks: Annotated[bool, typer.Option("--blocks", help="With --layers: only the output of each block.")] = False,
    differing: Annotated[bool, typer.Option("--differing", help="With --kernels: only different counts.")] = False,
    positions: Annotated[bool, typer.Option("--positions", help="With --json: figures of every position.")] = False,
    store: options.Store = None,
    as_json_: options.Json = False,
) -> None:
    """Show a run: provenance, sides and their digests, pairs and flips.

    The modules of a run captured with --layers:  ulpscope show RUN --layers (docs/guides/where_it_starts.md)
    """
    if layers + kernels + remedies + markdown > 1 or (as_json_ and markdown):
        raise UsageError("--layers, --kernels, --remedies and --markdown exclude each other; --markdown also --json.")
    if variant is not None and not (layers or kernels or remedies or markdown):
        raise UsageError("--variant needs --layers, --kernels, --remedies or --markdown.")
    path = open_store(store).path_of(run_id)
    with RunReader(path) as run:
        pairs = [pair for pair in run.pairs if variant in (None, pair.variant)]
        if variant is not None and not pairs:
            raise UsageError(f"no variant '{variant}'; there are {', '.join(pair.variant for pair in run.pairs)}.")
        if markdown:
            place = {"run": run.run_id} | ({} if variant is None else {"variant": variant})
            sys.stdout.write(issue_text(run, pairs, report_address(place, configuration().hosting.public_url)))
        elif layers:
            _show_layers(run, pairs, prompt, blocks, as_json_)
        elif kernels:
            _show_kernels(run, pairs, differing, as_json_)
        elif remedies:
            _show_remedies(run, pairs, as_json_)
        elif as_json_:
            print_json(run_json(run, with_positions=positions))
        else:
            print_pairs(run)
            _print_facts(run.header.name, provenance_json(run))
            sides = ((s.name, s.source_dtype, s.bit_class, s.sha256_dtype, s.sha256) for s in run.sides)
            out.print(table_of(("name", "saved as", "class", "dtype", "sha256"), sides, title="sides"))
            _print_caches(run)
            print_continuations(run)


def _print_facts(name: str, facts: Mapping[str, object]) -> None:
    table = Table(title=escape(name), show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in facts.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        if text not in (None, ""):
            table.add_row(key, escape(str(text)))
    out.print(table)


def _print_caches(run: RunReader) -> None:
    """Print a line per pair that has caches, keys and values separately."""
    rows = []
    for pair in run.pairs:
        if (caches := summaries(run, pair.index).get(None)) is None:
            continue
        both = caches["together"]
        parts = [caches[name] for name in ("keys", "values", "layer_0_keys")]
        shares = ["" if one is None else out_of(one["neq"], one["elements"]) for one in parts]
        figures = ["" if (one := both[name]) is None else number(one, 3) for name in ("rms_row_ulps", "max_row_ulps")]
        place = f"prompt {both['first_prompt']}, " if len(run.header.prompts) > 1 else ""
        place += f"layer {both['first_layer']}, head {both['first_head']}, position {both['first_position']}"
        rows.append((pair.variant, *shares, *figures, "" if both["first_layer"] is None else place))
    if rows:
        columns = ("variant", "keys that differ", "values that differ", "keys of layer 0")
        last = ("rms row ULPs", "max row ULPs", "first difference")
        title = f"KV caches vs {run.pairs[0].reference}, row ULPs of {run.header.compute_dtype}"
        out.print(table_of((*columns, *last), rows, title=title, text=("variant",)))


def print_continuations(run: RunReader) -> None:
    """Print where each variant's continuation diverges from the reference's, if the run has any."""
    rows = []
    for row in records(continuations(run)):
        position, agreed = row["parting_position"], row["agreed_tokens"]
        tokens = [row["reference_token"], row["variant_token"]]
        texts = ["" if token is None else f"{token} {run.vocabulary.get(token, '')!r}" for token in tokens]
        agreed = f"all {row['compared_tokens']}" if position is None else agreed
        rows.append((row["prompt"], row["variant"], agreed, "" if position is None else position, *texts))
    if rows:
        columns = ("prompt", "variant", "tokens that agree", "position", "reference token", "variant token")
        text = ("variant", "reference token", "variant token")
        out.print(table_of(columns, rows, title="greedy continuations", text=text))


def _show_layers(run: RunReader, pairs: Sequence[StoredPair], prompt: int | None, blocks: bool, as_json_: bool) -> None:
    """Print which module's output differs first, and each module's difference and noise floor."""
    prompts = run.header.prompts
    if prompt is not None and not 0 <= prompt < len(prompts):
        raise UsageError(f"no prompt {prompt}; the run has 0 to {len(prompts) - 1}.")
    layers = [(pair, layers_json(run, pair.index, prompt)) for pair in pairs]
    if all(figures is None for _, figures in layers):
        is_compiled = asks_for(run.header.provenance, "layers")
        reason = "its model was compiled" if is_compiled else how_to_have("layers", run.header.provenance)
        raise UsageError(f"run '{run.run_id}' holds no outputs of modules; {reason}.")
    if as_json_:
        print_json({"run_id": run.run_id, "pairs": [figures for _, figures in layers if figures is not None]})
        return
    total = sum(one.positions for index, one in enumerate(prompts) if prompt in (None, index))
    names_prompt = len(prompts) > 1 and prompt is None

    def cell(value: float) -> str:
        return "" if value != value else "the floor is 0" if value == math.inf else number(value, 3)

    def first(row: Any) -> str:
        return (f"{row.first_prompt}:" if names_prompt else "") + str(row.first_position) if row.neq else ""

    cells: Cells = {
        "module": lambda row: row.module,
        "kind": lambda row: row.kind,
        "differ": lambda row: percent(row.neq_share) if row.neq else "none",
        "rms": lambda row: "NaN" if row.rms != row.rms else number(row.rms, 3),
        "floor": lambda row: cell(row.floor_rms),
        "noise ratio": lambda row: cell(row.ratio),
        "max ULPs": lambda row: cell(row.max_ulps),
        "mean ULPs": lambda row: cell(row.mean_ulps),
        "max row ULPs": lambda row: cell(row.max_row_ulps),
        "dtype": lambda row: row.dtype,
        "first position": first,
    }
    for pair, _ in layers:
        table = modules(run, pair.index, prompt)
        if table.empty:
            print_text(f"{pair.variant}: no outputs of modules; its model was compiled.")
            continue
        rows = table[table["kind"].isin(["residual", "head"])] if blocks else table
        title = f"{pair.variant} vs {pair.reference}, {table['positions'].max():,} of {plural(total, 'position')}"
        out.print(table_by(cells, rows.itertuples(), title=title, text=("module", "kind", "dtype")))
        line = sentence(run, pair.index, table, names_prompt=names_prompt).replace("**", "")
        if (largest := furthest_module(table)) is not None:
            line += f" Highest noise ratio: {largest.module}, {number(largest.ratio, 3)}x.{says_little(largest)}"
        print_text(line.replace("`", "'"))


def _show_kernels(run: RunReader, pairs: Sequence[StoredPair], differing: bool, as_json_: bool) -> None:
    """Print the kernels of the first module that differs, then all kernels of both sides."""
    about, tables = run.header.provenance, []
    for pair in pairs:
        if is_watched(run, pair.index):
            tables.append((pair, side_by_side(run, pair.index), find_start(run, pair.index)))
        elif run.sides_with_kernels and not as_json_:
            print_text(f"{pair.variant}: no kernels. {about.note}")
    if not tables:
        was_asked = run.sides_with_kernels or asks_for(about, "kernels")
        reason = f"they could not be recorded. {about.note}" if was_asked else how_to_have("kernels", about)
        raise UsageError(f"run '{run.run_id}' holds no kernels; {reason.rstrip('. ')}.")
    as_records: list[dict[str, Any]] = []
    for pair, every, place in tables:
        names = (pair.reference, pair.variant)
        rows = every[(every["only"] != "") | every["is_multiplied"]] if differing else every
        if as_json_:
            start = None
            if place is not None:
                start = {"module": place.module, "prompt": place.prompt, "position": place.position}
                start["kernels"] = _kernels_json(place.kernels)
            record = {"reference": pair.reference, "variant": pair.variant, "where_it_starts": start}
            as_records.append(record | {"kernels": _kernels_json(rows)})
            continue
        if place is not None:
            place_text = place_in_words(place, names, names_prompt=len(run.header.prompts) > 1)
        elif pair.index not in run.pairs_with_layers:
            place_text = f"This run does not have the first module that differs; {how_to_have('layers', about)}."
        else:
            place_text = "No compared module differs."
        print_text(place_text.replace("`", "'"))
        title = f"Launches per forward, {pair.reference} vs {pair.variant}"
        out.print(table_by(_KERNEL_CELLS, rows.itertuples(), title=title, text=("kernel", "library", "modules")))
        print_text(in_words(every, names).replace("`", "'"))
    if as_json_:
        print_json({"run_id": run.run_id, "pairs": as_records})


def _kernels_json(table: pd.DataFrame) -> list[dict[str, Any]]:
    return records(table.drop(columns=["is_multiplied", "is_reducing"]))


_KERNEL_CELLS: Cells = {
    "kernel": lambda row: short_name(row.name),
    "library": lambda row: row.library,
    "modules": lambda row: "; ".join(module or "the model itself" for module in row.places[:2]),
    "reference": lambda row: f"{row.reference_launches:.4g}",
    "variant": lambda row: f"{row.variant_launches:.4g}",
    "ratio": lambda row: "" if row.ratio != row.ratio else three_digits(row.ratio),
    "reference µs": lambda row: f"{row.reference_microseconds:,.0f}",
    "variant µs": lambda row: f"{row.variant_microseconds:,.0f}",
}
_REMEDY_CELLS: Cells = {
    "remedy": lambda row: row.name,
    "differ": lambda row: percent((row.neq or 0) / (row.elements or 1)),
    "rms": lambda row: number(row.rms, 3),
    "noise ratio": lambda row: number(row.noise_ratio, 3),
    "max ULPs": lambda row: number(row.max_ulps, 3),
    "dtype": lambda row: row.compute_dtype,
    "flips": lambda row: f"{row.flips or 0:,}",
    "reference throughput (x)": lambda row: "" if row.reference_share is None else f"{row.reference_share:.2f}",
    "variant throughput (x)": lambda row: "" if row.variant_share is None else f"{row.variant_share:.2f}",
}


def _show_remedies(run: RunReader, pairs: Sequence[StoredPair], as_json_: bool) -> None:
    """Print the remedies of each pair, if it has any."""
    remedies = [(pair, rows) for pair in pairs if (rows := run.remedies.get(pair.index))]
    if not remedies:
        raise UsageError(
            f"run '{run.run_id}' has no mitigations; {run.header.provenance.note or 'capture it with --remedies'}."
        )
    if as_json_:
        print_json(
            [{"reference": p.reference, "variant": p.variant, "remedies": list(map(asdict, r))} for p, r in remedies]
        )
        return
    for pair, rows in remedies:
        successes = [row for row in rows if not row.refusal]
        title = f"{pair.reference} vs {pair.variant}"
        out.print(table_by(_REMEDY_CELLS, successes, title=title, text=("remedy", "dtype")))
        for row in rows:
            if row.refusal:
                print_text(f"{row.name}: not measured. {row.refusal}")
        print_text(advice(rows))
