"""`compare` and `ingest`: dumps from anywhere, and the figures of their sides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from core.commands.capturing import ProgressOption, check_progress
from core.commands.console import (
    ComputeDtypeOption,
    HoldsOption,
    JsonOption,
    ReferenceOption,
    StoreOption,
    announce_upload,
    err,
    number,
    out,
    print_json,
    steps,
    stoppable,
)
from core.errors import UlpscopeError, UsageError
from core.runs.dumps import open_dump
from core.runs.gate import Gate, percent
from core.runs.reader import RunReader
from core.runs.report import PairReport, as_json, over_logits, over_positions, report_of_dump, report_of_run
from core.runs.store import open_store
from core.uploads.ingest import ingest as ingest_dump


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A dump (npz, npy, safetensors) or the id of a stored run.")],
    second: Annotated[
        str | None, typer.Argument(metavar="[B]", help="A second dump of one array; A is the reference then.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", help="Exit with 1 if any pair has: 'bits' differing, 'flips', or 'ulps:N' (more than N ULPs)."),
    ] = None,
    compute_dtype: Annotated[
        str | None, typer.Option(help="Count ULPs in float32, float16 or bfloat16. Default: declared by the dump, else detected.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="The side of a dump that the others are compared with. Default: 'reference', else the first."),
    ] = None,
    holds: HoldsOption = None,
    variant: Annotated[str | None, typer.Option(help="The side that the summary speaks of, where there are several.")] = None,
    positions: Annotated[bool, typer.Option("--positions", help="With --json: figures of every position.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Compare the sides of a dump, of two dumps, or of a stored run. Needs no store for dumps.

    A gate for CI:  python -m core compare golden.npz today.npz --fail-on flips --fail-on ulps:4
    """
    gates = [Gate.parse(text) for given in fail_on or [] for text in given.split(",")]
    texts: dict[int, str] = {}
    if second is None and not Path(first).exists() and _is_run(store, first):
        if compute_dtype or reference or holds:
            raise UsageError(
                "--compute-dtype, --reference and --holds are for dumps; a stored run keeps those it was stored with."
            )
        with RunReader(open_store(store).path_of(first)) as run:
            header, texts = run.header, run.vocabulary
            pairs, classes = report_of_run(run)
            prompts, rows = len(header.prompts), header.rows
            dtype, vocab = header.compute_dtype, header.vocab
    else:
        with open_dump(
            [Path(p) for p in (first, second) if p is not None], compute_dtype=compute_dtype, reference=reference, holds=holds
        ) as dump:
            pairs, classes = report_of_dump(dump)
            prompts, rows, dtype, vocab = len(dump.prompts), dump.rows, dump.compute_dtype, dump.vocab
            for warning in dump.warnings:
                err.print(f"note: {warning}", markup=False)
            if not as_json_:
                out.print(f"compute dtype {dump.dtype_reason}", markup=False)
    report = as_json(
        pairs, classes, compute_dtype=dtype, rows=rows, vocab=vocab, prompts=prompts, variant=variant, with_positions=positions
    )
    if as_json_:
        print_json(report)
    else:
        out.print(pair_table(pairs, dtype, rows, vocab))
        first_of_class = {group[0] for group in classes} | ({group[1] for group in classes[:1] if len(group) > 1})
        for pair in pairs:  # bit-identical variants have the same flips
            if pair.summary.flips and (pair.variant == variant if variant else pair.variant in first_of_class):
                out.print(flip_table(pair, texts, prompts > 1))
        if len(pairs) > 1:
            out.print("bit-identical classes: " + "   ".join("{" + ", ".join(group) + "}" for group in classes), markup=False)
    failures = [gate.failure(pair.summary, pair.variant) for gate in gates for pair in pairs]
    broken = [text for text in failures if text]
    for text in broken:
        err.print(f"gate failed: {text}", markup=False)
    if broken:
        raise typer.Exit(1)


def ingest(
    dumps: Annotated[list[Path], typer.Argument(help="One file of two or more sides, or two files of one array each.")],
    name: Annotated[str | None, typer.Option(help="What to call the run. Default: the file's name.")] = None,
    model: Annotated[str, typer.Option(help="The model the logits come from, for the record.")] = "",
    compute_dtype: ComputeDtypeOption = None,
    reference: ReferenceOption = None,
    holds: HoldsOption = None,
    run_id: Annotated[str | None, typer.Option(hidden=True, help="The id that the run is to have.")] = None,
    progress: ProgressOption = "bar",
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Store a dump of logits as a run: checked, analysed, every bit kept. `python -m core adopt` takes run files."""
    check_progress(progress)
    with stoppable(), steps(progress) as say:
        new_id = ingest_dump(
            open_store(store), dumps, name=name, model=model, compute_dtype=compute_dtype, reference=reference, holds=holds, run_id=run_id,
            on_progress=lambda done, total: say("storing and comparing", done, total),
        )  # fmt: skip
    announce_upload(new_id, store, progress, as_json_, is_asked_for=run_id is not None)


def _is_run(store: Path | None, text: str) -> bool:
    """Whether a word that is no file is meant as a run's id: one there is, or one without the suffix of a file."""
    try:
        open_store(store).path_of(text)
    except UlpscopeError:
        return not Path(text).suffix
    return True


def pair_table(pairs: list[PairReport], compute_dtype: str, rows: int, vocab: int) -> Table:
    table = Table(title=f"{escape(pairs[0].reference)} against …   {rows} positions x {vocab} tokens, ULPs of {compute_dtype}")
    for name in ("variant", "differing logits", "max abs", "max ULPs", "mean ULPs", "flips", "ties", "near ties", "max KL, nats"):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for pair in pairs:
        s = pair.summary
        share = "bit-identical" if s.bit_identical else f"{s.neq:,} of {rows * vocab:,} ({percent(s.neq_share)})"
        table.add_row(
            escape(pair.variant), share, number(s.max_abs, 6), f"{s.max_ulps:,}", number(s.mean_ulps), str(s.flips), str(s.ties),
            str(s.near_ties), number(s.max_kl),
        )  # fmt: skip
        if s.nonfinite_mismatch:
            table.add_row("", f"[bold]{s.nonfinite_mismatch:,} elements: NaN or infinity on one side only[/bold]")
        if over := over_logits(s, rows * vocab):
            table.add_row("", f"max abs and ULPs are {over}, those finite on both sides")
        if over := over_positions(s, rows):
            table.add_row("", f"max KL is {over}")
    return table


def flip_table(pair: PairReport, texts: dict[int, str], has_prompts: bool, limit: int = 20) -> Table:
    flips = [row for row in pair.rows if row["is_flip"]]
    more = f", the first {limit}" if len(flips) > limit else ""
    table = Table(title=f"flips of {escape(pair.variant)}: {len(flips)}{more}")
    for name in (["prompt"] if has_prompts else []) + ["position", "reference", "variant", "margins, ULPs", "max abs"]:
        table.add_column(name, justify="right")
    for row in flips[:limit]:
        tokens = [f"{row[k]} {texts[row[k]]!r}" if row[k] in texts else str(row[k]) for k in ("reference_token", "variant_token")]
        margins = f"{row['reference_margin_ulps']} / {row['variant_margin_ulps']}"
        place = ([str(row["prompt"])] if has_prompts else []) + [str(row["position"])]
        table.add_row(*place, *(escape(t) for t in tokens), margins, number(row["max_abs"]))
    return table
