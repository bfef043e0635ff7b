"""`show`: a run, and with options its modules, kernels or mitigations; trainer against rollout."""

import sys
from collections.abc import Sequence
from dataclasses import asdict

from typer import Option

from ..configuration import configuration
from ..document.charts import every_few
from ..errors import UsageError
from ..numerics.arrays import DataFrame, Record
from ..rl.queries import interval_of, mismatch_json
from ..rl.queries import sentence as mismatch_sentence
from ..runs.figures import Figures
from ..runs.file.records import StoredPair
from ..runs.measured import MemoryRun
from ..runs.queries import choices
from ..runs.queries.caches import summaries
from ..runs.queries.flips import continuations, telling_place
from ..runs.queries.kernels import (
    find_start,
    in_words,
    is_watched,
    place_in_words,
    short_name,
    side_by_side,
)
from ..runs.queries.layers import (
    HEAD,
    RESIDUAL,
    first_module,
    furthest_module,
    kind_word,
    layers_json,
    modules,
    records,
    says_little,
    sentence,
)
from ..runs.reader import RunReader
from ..runs.reports.issue_markdown import issue_text
from ..runs.reports.markdown import report_address
from ..runs.reports.report_json import of_variant
from ..runs.reports.run_json import provenance_json, run_json
from ..runs.requests import asks_for, how_to_have
from ..runs.store.store import open_store
from ..runs.tables.mitigations import advice
from ..text import number, percent, plural
from .options import AsOption, JsonOption, RunArgument, StoreOption
from .tables import TOKENS, print_pairs, with_texts
from .terminal.console import out, print_facts, print_json, print_records, print_text, table_of


def show(
    run_id: RunArgument,
    layers: bool = Option(
        False, "--layers", help="Show the modules that differ, and the first one."
    ),
    kernels: bool = Option(False, "--kernels", help="Show which kernels each side launched."),
    mitigations: bool = Option(
        False, "--mitigations", help="Show mitigations and their throughput."
    ),
    markdown: bool = Option(False, "--markdown", help="Print a report for an issue thread."),
    link: bool = Option(
        False, "--link", help="Print the address of a pair's most telling position in a dashboard."
    ),
    variant: str | None = Option(None, help="With one of these options: only this variant."),
    blocks: bool = Option(False, "--blocks", help="With --layers: only the output of each block."),
    all_: bool = Option(False, "--all", help="With --layers: every module, with all figures."),
    differing: bool = Option(False, "--differing", help="With --kernels: only different counts."),
    positions: bool = Option(False, "--positions", help="With --json: figures of every position."),
    framework: AsOption = None,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Show a run: provenance, sides and their digests, pairs and flips.

    The modules of a run captured with --layers:  ulpscope show RUN --layers
    (docs/guides/where_it_starts.md)
    """
    views = layers + kernels + mitigations + markdown + link
    if views > 1 or (as_json_ and (markdown or link)):
        raise UsageError(
            "--layers, --kernels, --mitigations, --markdown and --link exclude each other; the last"
            " two also --json.",
        )
    if variant is not None and not views:
        raise UsageError(
            "--variant needs --layers, --kernels, --mitigations, --markdown or --link.",
        )
    path = open_store(store).path_of(run_id)
    with RunReader(path) as run:
        pairs = of_variant(run.pairs, variant)
        if markdown:
            query = {"run": run.run_id}
            if variant is not None:
                query["variant"] = variant
            address = report_address(query, configuration().hosting.public_url)
            sys.stdout.write(issue_text(run, pairs, address))
        elif link:
            pair = pairs[0]
            # figures of a long run are not read all at once
            read = run.largest if run.header.is_long else run.positions
            prompt, position = telling_place(read(pair.index))
            query = {"run": run.run_id, "variant": pair.variant}
            if run.header.has_several_prompts:
                query["prompt"] = str(prompt)
            query["position"] = str(position)
            print_text(report_address(query, configuration().hosting.public_url))
        elif layers and as_json_:
            print_json(layers_report(run, pairs))
        elif layers:
            _print_layers(run, pairs, blocks=blocks, everything=all_)
        elif kernels:
            _show_kernels(run, pairs, differing, as_json_)
        elif mitigations:
            _show_mitigations(run, pairs, as_json_)
        elif as_json_:
            print_json(report_of(run, framework, with_positions=positions))
        else:
            mismatch = mismatch_of(run, framework)
            print_pairs(run, mismatch)
            if mismatch is not None:
                print_mismatch(mismatch)
            print_facts(provenance_json(run), run.header.name)
            sides = (
                (s.name, s.source_dtype, s.bit_class, s.sha256_dtype, s.sha256) for s in run.sides
            )
            names = ("name", "saved as", "class", "dtype", "sha256")
            out.print(table_of(names, sides, title="sides"))
            _print_caches(run)
            for index in sorted(run.pairs_with_choices):
                table = choices.by_module(run, index)
                if table["differing"].any():
                    text = choices.sentence(run, index, table).replace("**", "").replace("`", "'")
                    print_text(f"{run.pairs[index].variant}: {text}")
            print_continuations(run)


def report_of(
    run: RunReader,
    framework: str | None = None,
    *,
    with_positions: bool = False,
) -> Record:
    """Return a run as JSON, with the figures of trainer vs. rollout if it has any."""
    report, mismatch = run_json(run, with_positions=with_positions), mismatch_of(run, framework)
    return report | {"mismatch": mismatch} if mismatch else report


def mismatch_of(run: Figures | MemoryRun, framework: str | None) -> Record | None:
    """Return the figures of a run of chosen tokens, None for another run.

    UsageError if a framework is named for it.
    """
    if isinstance(run, Figures) and run.has_rollouts:
        return mismatch_json(run, framework or "ulpscope")
    if framework is not None:
        raise UsageError(
            "--as is for a rollout's and a trainer's log-probabilities of the sampled tokens.",
        )
    return None


def print_mismatch(mismatch: Record) -> None:
    """Print the figures, and where the difference lies."""
    rows = [
        (row["name"], number(row["value"]), interval_of(row), row["usual"], row["definition"])
        for row in mismatch["figures"]
    ]
    source = f" ({mismatch['source']})" if mismatch["source"] else ""
    columns = ("figure", "value", "95 % interval", "usual", "definition")
    title = f"{mismatch['framework']}{source}: r = trainer - rollout"
    out.print(table_of(columns, rows, title=title))
    if len(mismatch["by_step"]) > 1:
        steps = [row | {"mean_ratio": row["ratio"]} for row in mismatch["by_step"]]
        print_records(
            steps,
            "by step",
            keys=("step", "tokens", "mean_abs", "k3", "mean_ratio", "max_abs"),
            most=40,
        )
    print_text(mismatch_sentence(mismatch))
    for bar in mismatch["bars"]:
        if bar["tokens"]:
            print_text(
                f"{bar['bar']}: {percent(bar['tokens'])} of the tokens, {percent(bar['kl'])} of"
                " the KL",
            )


def _print_caches(run: RunReader) -> None:
    """Print the caches of each pair that has any, keys and values separately."""
    rows: list[Record] = []
    for pair in run.pairs:
        for part, figures in summaries(run, pair.index).get(None, {}).items():
            if figures is not None:
                rows.append({"variant": pair.variant, "part": part.replace("_", " "), **figures})
    print_records(
        rows,
        f"KV caches vs {run.pairs[0].reference}, row ULPs of {run.header.compute_dtype}",
        keys=_CACHE_KEYS,
    )


def print_continuations(run: RunReader) -> None:
    """Print where each variant's continuation diverges from the reference's, if the run has any."""
    rows = records(continuations(run))
    print_records(
        [row | with_texts(row, run.vocabulary) for row in rows],
        "greedy continuations",
        keys=("prompt", "variant", "compared_tokens", "agreed_tokens", "parting_position", *TOKENS),
    )


_CACHE_KEYS = (
    "variant",
    "part",
    "neq",
    "elements",
    "rms_row_ulps",
    "max_row_ulps",
    "first_prompt",
    "first_layer",
    "first_head",
    "first_position",
)
_SHORT_ROWS = 12
_SHORT_LAYER_KEYS = ("module", "neq_share", "rms", "ratio")
_LAYER_KEYS = (
    "module",
    "kind",
    "neq_share",
    "rms",
    "floor_rms",
    "ratio",
    "max_ulps",
    "mean_ulps",
    "max_row_ulps",
    "dtype",
)


def layers_of(
    run: RunReader,
    pairs: Sequence[StoredPair],
) -> list[tuple[StoredPair, Record | None]]:
    """Return the modules of each pair, None if its model was compiled; UsageError if no pair has
    any.
    """
    layers = [(pair, layers_json(run, pair.index)) for pair in pairs]
    if all(figures is None for _, figures in layers):
        about = run.header.provenance
        is_compiled = asks_for(about, "layers")
        reason = "its model was compiled" if is_compiled else how_to_have("layers", about)
        raise UsageError(f"run '{run.run_id}' holds no module outputs; {reason}.")
    return layers


def layers_report(run: RunReader, pairs: Sequence[StoredPair]) -> Record:
    modules = [figures for _, figures in layers_of(run, pairs) if figures is not None]
    return {"run_id": run.run_id, "pairs": modules}


def _print_layers(
    run: RunReader,
    pairs: Sequence[StoredPair],
    *,
    blocks: bool,
    everything: bool,
) -> None:
    """Print which module's output differs first, then how the difference grows.

    blocks: the output of every block; everything: all modules and figures.
    """
    for pair, figures in layers_of(run, pairs):
        if figures is None:
            print_text(f"{pair.variant}: no module outputs; its model was compiled.")
            continue
        table = modules(run, pair.index)
        line = sentence(run, pair.index, table).replace("**", "")
        first, largest = first_module(table), furthest_module(table)
        if largest is not None:
            line += (
                f" Highest RMS / noise floor: {largest.module},"
                f" {number(largest.ratio)}x.{says_little(largest)}"
            )
        # backticks are Markdown's, a terminal shows quotes
        print_text(line.replace("`", "'"))
        rows = figures["by_module"]
        if not everything:
            # the stream after a block is the block's output
            shown = [row["module"] for row in rows if row["kind"] in (RESIDUAL, HEAD)]
            if not blocks:
                # few of them, evenly spaced, up to the logits
                shown = every_few(shown[::-1], _SHORT_ROWS)
                shown += [each.module for each in (first, largest) if each is not None]
            rows = [row for row in rows if row["module"] in shown]
        rows = [row | {"kind": kind_word(row["kind"])} for row in rows]
        at = f"{figures['positions']:,} of {plural(run.header.rows, 'position')}"
        keys = _LAYER_KEYS if everything else _SHORT_LAYER_KEYS
        if run.header.has_several_prompts:
            keys = (*keys, "first_prompt")
        print_records(
            rows, f"{pair.variant} vs {pair.reference}, {at}", keys=(*keys, "first_position")
        )
        if len(rows) < len(table):
            print_text(f"{len(rows)} of {plural(len(table), 'module')}; --all shows the others.")


def _show_kernels(
    run: RunReader,
    pairs: Sequence[StoredPair],
    differing: bool,
    as_json_: bool,
) -> None:
    """Print the kernels of the first module that differs, then all kernels of both sides."""
    about, tables = run.header.provenance, []
    for pair in pairs:
        if is_watched(run, pair.index):
            tables.append((pair, side_by_side(run, pair.index), find_start(run, pair.index)))
        elif run.sides_with_kernels and not as_json_:
            print_text(f"{pair.variant}: no kernels. {about.note}")
    if not tables:
        reason = how_to_have("kernels", about)
        if run.sides_with_kernels or asks_for(about, "kernels"):
            reason = f"they could not be recorded. {about.note}"
        raise UsageError(f"run '{run.run_id}' holds no kernels; {reason.rstrip('. ')}.")
    as_records: list[Record] = []
    for pair, every, place in tables:
        names = (pair.reference, pair.variant)
        rows = every[(every["only"] != "") | every["is_multiplied"]] if differing else every
        if as_json_:
            start = None
            if place is not None:
                start = place._asdict() | {"kernels": _kernels_json(place.kernels)}
            as_records.append(
                {
                    "reference": pair.reference,
                    "variant": pair.variant,
                    "where_it_starts": start,
                    "kernels": _kernels_json(rows),
                },
            )
            continue
        says = "No compared module differs."
        if place is not None:
            says = place_in_words(run.header, place, names)
        elif pair.index not in run.pairs_with_layers:
            how = how_to_have("layers", about)
            says = f"This run has no module outputs, so no first module; {how}."
        print_text(says.replace("`", "'"))
        title = f"Launches per forward, {pair.reference} vs {pair.variant}"
        shown = [
            row
            | {
                "kernel": short_name(row["name"]),
                "modules": [one or "the model itself" for one in row["places"][:2]],
            }
            for row in records(rows)
        ]
        print_records(shown, title, keys=_KERNEL_KEYS)
        print_text(in_words(every, names).replace("`", "'"))
    if as_json_:
        print_json({"run_id": run.run_id, "pairs": as_records})


_KERNEL_KEYS = (
    "kernel",
    "library",
    "modules",
    "reference_launches",
    "variant_launches",
    "reference_microseconds",
    "variant_microseconds",
)


def _kernels_json(table: DataFrame) -> list[Record]:
    return records(table.drop(columns=["is_multiplied", "is_reducing"]))


_MITIGATION_KEYS = ("name", "neq", "elements", "rms", "max_ulps", "compute_dtype", "flips")


def _show_mitigations(run: RunReader, pairs: Sequence[StoredPair], as_json_: bool) -> None:
    """Print the mitigations of each pair, if it has any."""
    mitigations = [(pair, rows) for pair in pairs if (rows := run.mitigations.get(pair.index))]
    if not mitigations:
        raise UsageError(
            f"run '{run.run_id}' has no mitigations;"
            f" {run.header.provenance.note or 'capture it with --mitigations'}.",
        )
    if as_json_:
        print_json(
            [
                {
                    "reference": p.reference,
                    "variant": p.variant,
                    "mitigations": list(map(asdict, r)),
                }
                for p, r in mitigations
            ],
        )
        return
    for pair, rows in mitigations:
        measured = [asdict(row) for row in rows if not row.refusal]
        print_records(
            measured,
            f"{pair.reference} vs {pair.variant}; share: throughput relative to the baseline",
            keys=(*_MITIGATION_KEYS, "reference_share", "variant_share"),
        )
        for row in rows:
            if row.refusal:
                print_text(f"{row.name}: not measured. {row.refusal}")
        print_text(advice(rows))
