"""`compare` and `ingest`: dumps and responses from anywhere, and the figures of their sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import UlpscopeError, UsageError
from ..judging.ingest import ingest as ingest_dump
from ..judging.ingest import judged_report_of_dump
from ..judging.judge_sparse import judge_responses
from ..runs.dumps.dump import open_dump
from ..runs.file.evidence import FAILED, PASSED
from ..runs.file.records import Provenance, RunHeader
from ..runs.reader import RunReader
from ..runs.reports.baseline import Bounds, bounds_text, hold, read_bounds
from ..runs.reports.gate import (
    ALLOWED,
    UNDECIDED,
    Condition,
    GateReport,
    SparseReport,
    check_for_lists,
    check_measured,
    gate_notes,
    parse_conditions,
    percent,
)
from ..runs.reports.gate_files import append, junit_text, markdown_text, write_whole
from ..runs.reports.report_json import PairReport, as_json, over_logits, over_positions, report_of_run
from ..runs.reports.sparse_json import sparse_json
from ..runs.sparse.files import are_payloads, read_sides
from ..runs.sparse.pairing import SparsePair
from ..runs.sparse_run import SparseVerdict, is_sparse, pairs_of, sparse_of
from ..runs.store.store import open_store
from ..runs.views.headline import ulp_percentile
from ..text import number, plural
from .sparse.tables import print_sparse_pairs
from .terminal.console import (
    ComputeDtypeOption,
    HoldsOption,
    JsonOption,
    ProgressOption,
    ReferenceOption,
    StoreOption,
    announce_upload,
    check_progress,
    err,
    out,
    print_json,
    steps,
    stoppable,
)

_MOST_LINES = 20  # of outcomes of one kind on a terminal; JSON, JUnit and Markdown have them all


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A dump (npz, npy, safetensors), responses of an engine (JSON, JSONL), or the id of a stored run.",
        ),
    ],
    second: Annotated[
        str | None,
        typer.Argument(metavar="[B]", help="A second dump of one array, or responses beside A's; A is the reference."),
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", help=f"Exit with 1 if any pair has it; several, or with commas: {ALLOWED}."),
    ] = None,
    bounds: Annotated[
        Path | None, typer.Option("--bounds", help="Exit with 1 if any prompt is worse than its line in this file.")
    ] = None,
    slack: Annotated[
        float | None, typer.Option("--slack", help="With --bounds: so many times a bound is within it. Default: 1.")
    ] = None,
    write_bounds: Annotated[
        Path | None, typer.Option("--write-bounds", help="Write what every prompt measures now, for a later --bounds.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write the gate as JUnit XML.")] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", help="Add the gate as Markdown to the end of a file, as of a CI job's summary."),
    ] = None,
    compute_dtype: Annotated[
        str | None,
        typer.Option(help="Count ULPs in float32, float16 or bfloat16. Default: declared by the dump, else detected."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="The side of a dump that the others are compared with. Default: 'reference', else the first."
        ),
    ] = None,
    holds: HoldsOption = None,
    variant: Annotated[
        str | None, typer.Option(help="The side that the summary speaks of, where there are several.")
    ] = None,
    positions: Annotated[bool, typer.Option("--positions", help="With --json: figures of every position.")] = False,
    store: StoreOption = None,
    as_json_: JsonOption = False,
) -> None:
    """Compare the sides of a dump, of two dumps, of what engines sent, or of a stored run. Needs no store for files.

    A gate for CI, which looks at every pair (docs/gates.md):

    ulpscope compare golden.npz today.npz --fail-on 'verdict,kl>0.05' --junit gate.xml
    """
    conditions = parse_conditions(fail_on or [])
    _check_gate(conditions, bounds, slack, write_bounds, junit, markdown)
    known_bounds = (
        read_bounds(bounds) if bounds is not None else None
    )  # a file that is none is told before gigabytes are read
    if (sparse := _sparse_pairs(first, second, store)) is not None:
        if compute_dtype or reference or holds or bounds is not None or write_bounds is not None:
            raise UsageError(
                "--compute-dtype, --reference, --holds, --bounds and --write-bounds are for whole rows of logits;"
                " responses of engines have some tokens of each."
            )
        _compare_sparse(*sparse, conditions, variant, positions, as_json_, junit, markdown)
        return
    is_gate = bool(conditions) or known_bounds is not None
    if second is None and not Path(first).exists() and _is_run(store, first):
        if compute_dtype or reference or holds:
            raise UsageError(
                "--compute-dtype, --reference and --holds are for dumps; a stored run keeps those it was stored with."
            )
        compared = _compared_run(open_store(store).path_of(first), must_be_whole=is_gate or write_bounds is not None)
    else:
        files = [Path(p) for p in (first, second) if p is not None]
        compared = _compared_dump(files, compute_dtype, reference, holds, is_quiet=as_json_)
    header = compared.header
    report = as_json(
        compared.pairs,
        compared.classes,
        compute_dtype=header.compute_dtype,
        rows=header.rows,
        vocab=header.vocab,
        prompts=len(header.prompts),
        variant=variant,
        with_positions=positions,
    )
    gate = _gate(compared, conditions, known_bounds, slack or 1.0) if is_gate else None
    if gate is not None:
        report["gate"] = gate.as_json()
    if as_json_:
        print_json(report)
    else:
        _print_tables(compared, variant)
    if gate is not None:
        _tell_gate(gate, as_json_)
    if write_bounds is not None:
        write_whole(write_bounds, bounds_text(compared.pairs, header.prompts, header.compute_dtype, header.vocab))
    if gate is not None:
        _end_with(gate, junit, markdown)


@dataclass(frozen=True)
class _ComparedFiles:
    """Pairs of whole rows, and the header of their run; texts: of its tokens."""

    header: RunHeader
    texts: dict[int, str]
    pairs: list[PairReport]
    classes: list[list[str]]


def _compared_run(path: Path, *, must_be_whole: bool) -> _ComparedFiles:
    """Figures of a stored run. must_be_whole: a figure that is lost is an error."""
    with RunReader(path) as run:
        pairs, classes = report_of_run(run)
        if must_be_whole:
            check_measured(run.path.name, pairs)
        return _ComparedFiles(run.header, run.vocabulary, pairs, classes)


def _compared_dump(
    files: list[Path], compute_dtype: str | None, reference: str | None, holds: str | None, *, is_quiet: bool
) -> _ComparedFiles:
    """Figures and verdicts of dumps; says what is to be known of them."""
    with (
        steps() as say,
        open_dump(
            files,
            compute_dtype=compute_dtype,
            reference=reference,
            holds=holds,
            on_progress=lambda done, total: say("reading", done, total, "bytes"),
        ) as dump,
    ):
        pairs, classes = judged_report_of_dump(dump, lambda done, total: say("comparing", done, total))
        header = dump.header("dump", Provenance(kind="upload"))
        for warning in dump.warnings:
            err.print(f"note: {warning}", markup=False)
        if not is_quiet:
            out.print(f"compute dtype {dump.dtype_reason}", markup=False)
    return _ComparedFiles(header, header.vocabulary, pairs, classes)


def _gate(compared: _ComparedFiles, conditions: list[Condition], bounds: Bounds | None, slack: float) -> GateReport:
    """Every pair held to every condition, and to the bounds."""
    header = compared.header
    outcomes = [condition.judge(pair) for condition in conditions for pair in compared.pairs]
    notes = gate_notes(compared.pairs)
    if bounds is not None:
        held, more = hold(bounds, compared.pairs, header.prompts, header.compute_dtype, header.vocab, slack)
        outcomes, notes = outcomes + held, notes + more
    return GateReport(tuple(outcomes), header.prompts, compared.texts, tuple(notes))


def _print_tables(compared: _ComparedFiles, variant: str | None) -> None:
    """Pairs, flips and classes on the terminal; variant: whose flips alone."""
    header, classes = compared.header, compared.classes
    out.print(pair_table(compared.pairs, header.compute_dtype, header.rows, header.vocab))
    for pair in compared.pairs:
        if pair.verdict:
            name = f"{pair.variant}: {pair.verdict}" if len(compared.pairs) > 1 else pair.verdict
            out.print(f"{name}. {pair.because}", markup=False, soft_wrap=True)
    first_of_class = {group[0] for group in classes} | ({group[1] for group in classes[:1] if len(group) > 1})
    for pair in compared.pairs:  # bit-identical variants have the same flips
        if pair.summary.flips and (pair.variant == variant if variant else pair.variant in first_of_class):
            out.print(flip_table(pair, compared.texts, len(header.prompts) > 1))
    if len(compared.pairs) > 1:
        out.print(
            "bit-identical classes: " + "   ".join("{" + ", ".join(group) + "}" for group in classes), markup=False
        )


def _sparse_pairs(
    first: str, second: str | None, store: str | Path | None
) -> tuple[Sequence[SparsePair], Sequence[SparseVerdict]] | None:
    """The pairs of responses in these files, or of a stored run of such, and their verdicts; None if it is something
    else.
    """
    files = [Path(name) for name in (first, second) if name is not None]
    if are_payloads(files):
        sides = read_sides(files)
        pairs = pairs_of(sides)
        return pairs, judge_responses(sides, pairs)
    if second is None and not files[0].exists() and _is_run(store, first):
        path = open_store(store).path_of(first)
        if is_sparse(path):
            run = sparse_of(path)
            return run.pairs, run.verdicts
    return None


def _compare_sparse(
    pairs: Sequence[SparsePair],
    verdicts: Sequence[SparseVerdict],
    conditions: list[Condition],
    variant: str | None,
    positions: bool,
    as_json_: bool,
    junit: Path | None,
    markdown: Path | None,
) -> None:
    """The report of sparse pairs, and the gate on them."""
    check_for_lists(conditions)
    report = sparse_json(pairs, verdicts, variant=variant, with_positions=positions)
    gate = None
    if conditions:
        judged = {verdict.variant: verdict for verdict in verdicts}
        reports = [SparseReport.of(pair, judged.get(pair.variant)) for pair in pairs]
        outcomes = tuple(condition.judge(pair) for condition in conditions for pair in reports)
        gate = GateReport(outcomes, notes=tuple(gate_notes(reports)))
        report["gate"] = gate.as_json()
    if as_json_:
        print_json(report)
    else:
        print_sparse_pairs([pair for pair in pairs if variant in (None, pair.variant)], verdicts)
    if gate is None:
        return
    _tell_gate(gate, as_json_)
    _end_with(gate, junit, markdown)


def _end_with(gate: GateReport, junit: Path | None, markdown: Path | None) -> None:
    """Write what a gate came to where that is asked for; 1 is the command's status where it failed."""
    if junit is not None:
        write_whole(junit, junit_text(gate))
    if markdown is not None:
        append(markdown, markdown_text(gate))
    if gate.failed:
        raise typer.Exit(1)


def _check_gate(
    conditions: list[Condition],
    bounds: Path | None,
    slack: float | None,
    write_bounds: Path | None,
    junit: Path | None,
    markdown: Path | None,
) -> None:
    """Refuses options that need one another, before anything is read."""
    if bounds is not None and write_bounds is not None:
        raise UsageError("--bounds holds a baseline and --write-bounds makes one; give one of them.")
    if slack is not None and bounds is None:
        raise UsageError("--slack widens the bounds of --bounds; give both.")
    if slack is not None and not 1 <= slack <= 1e6:
        raise UsageError(f"--slack {slack:g}: expected a factor from 1 up, such as 1.5.")
    for option, path in (("--junit", junit), ("--markdown", markdown)):
        if path is not None and not conditions and bounds is None:
            raise UsageError(f"{option} reports what came of a gate; give --fail-on or --bounds beside it.")


def _tell_gate(gate: GateReport, as_json_: bool) -> None:
    """Failures and what is undecided on stderr, a line each, the worst position in it; that all is well on stdout."""
    for kind in (FAILED, UNDECIDED):
        told = [outcome for outcome in gate.outcomes if outcome.outcome == kind]
        for outcome in told[:_MOST_LINES]:
            err.print(f"gate {kind}: {gate.sentence(outcome)}", markup=False, soft_wrap=True)
        if len(told) > _MOST_LINES:
            err.print(f"gate {kind}: and {len(told) - _MOST_LINES:,} more.", markup=False)
    for note in gate.notes:
        err.print(f"note: {note}", markup=False, soft_wrap=True)
    if gate.outcome == PASSED and not as_json_:
        open_ = sum(outcome.outcome == UNDECIDED for outcome in gate.outcomes)
        out.print(
            f"gate passed: {len(gate.outcomes) - open_:,}{f', undecided: {open_:,}' if open_ else ''}", markup=False
        )


def ingest(
    dumps: Annotated[
        list[Path],
        typer.Argument(
            help="One dump of two or more sides, two of one array each, or responses of engines (JSON, JSONL)."
        ),
    ],
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
    """Store a dump of logits, or responses of engines, as a run: checked, every bit kept. `ulpscope adopt` takes
    run files.
    """
    check_progress(progress)
    with stoppable(), steps(progress) as say:
        new_id = ingest_dump(
            open_store(store),
            dumps,
            name=name,
            model=model,
            compute_dtype=compute_dtype,
            reference=reference,
            holds=holds,
            run_id=run_id,
            on_progress=lambda done, total: say("storing and comparing", done, total),
        )
    announce_upload(new_id, store, progress, as_json_)


def _is_run(store: str | Path | None, text: str) -> bool:
    """Return whether a word that is no file is meant as a run's id: one there is, or one without a file's suffix."""
    try:
        open_store(store).path_of(text)
    except UlpscopeError:
        return not Path(text).suffix
    return True


def pair_table(pairs: list[PairReport], compute_dtype: str, rows: int, vocab: int) -> Table:
    size = f"{plural(rows, 'position')} x {vocab:,} tokens"
    table = Table(title=f"{escape(pairs[0].reference)} vs …   {size}, ULPs of {compute_dtype}")
    for name in (
        "variant",
        "differing logits",
        "rms, row ULPs",
        "max abs",
        "ULPs: median",
        "p99",
        "flips",
        "near ties",
        "mean KL, nats",
    ):
        table.add_column(name, justify="left" if name == "variant" else "right")
    for pair in pairs:
        s = pair.summary
        share = "bit-identical" if s.bit_identical else f"{s.neq:,} of {rows * vocab:,} ({percent(s.neq_share)})"
        table.add_row(
            escape(pair.variant),
            share,
            number(s.rms_row_ulps, 3),
            number(s.max_abs),
            *(number(ulp_percentile(pair.histogram, share)) for share in (0.5, 0.99)),
            f"{s.flips:,}",
            f"{s.near_ties:,}",
            number(s.mean_kl, 3),
        )
        if s.nonfinite_mismatch:
            table.add_row(
                "", f"[bold]{plural(s.nonfinite_mismatch, 'element')}: NaN or infinity on one side only[/bold]"
            )
        if over := over_logits(s, rows * vocab):
            table.add_row("", f"differences are {over}, those finite on both sides")
        if over := over_positions(s, rows):
            table.add_row("", f"mean KL is {over}")
    return table


def flip_table(pair: PairReport, texts: dict[int, str], has_prompts: bool, limit: int = 20) -> Table:
    flips = [row for row in pair.rows if row["is_flip"]]
    more = f", the first {limit}" if len(flips) > limit else ""
    table = Table(title=f"flips of {escape(pair.variant)}: {len(flips)}{more}")
    for name in (["prompt"] if has_prompts else []) + ["position", "reference", "variant", "margins, ULPs", "max abs"]:
        table.add_column(name, justify="right")
    for row in flips[:limit]:
        tokens = [
            f"{row[k]} {texts[row[k]]!r}" if row[k] in texts else str(row[k])
            for k in ("reference_token", "variant_token")
        ]
        margins = " / ".join(number(row[f"{side}_margin_ulps"]) for side in ("reference", "variant"))
        place = ([str(row["prompt"])] if has_prompts else []) + [str(row["position"])]
        table.add_row(*place, *(escape(t) for t in tokens), margins, number(row["max_abs"]))
    return table
